//! Colours and type of figures and page, for light and dark. A policy has the same colour in every figure.
//!
//! The colours are those of Okabe and Ito, which people with any colour vision tell apart; lines also differ by dashes.

/// Name of the policy, class of its colour, dashes of its line.
const POLICIES: [(&str, &str, &str); 15] = [
    ("untied", "c0", ""),
    ("p2c", "c5", "6 3"),
    ("c3", "c7", "2 2"),
    ("duplicate", "c6", "6 3"),
    ("hedged", "c1", ""),
    ("hedged-unbudgeted", "c1", "3 3"),
    ("tower-hedge", "c4", "6 3"),
    ("tied2", "c2", ""),
    ("tied2+rescue", "c2", "6 3"),
    ("tied3", "c3", ""),
    ("tied3+rescue", "c3", "6 3"),
    ("default", "c6", ""),
    ("JSW(2)", "c2", "2 3"),
    ("JSW(3)", "c3", "2 3"),
    ("central queue", "c0", "2 3"),
];

/// Dashes of policies with a setting of their own (`tied2@400us`), which share the colour of the plain one.
const SWEPT: [&str; 5] = ["8 2", "5 2 1 2", "3 2", "8 2 2 2", "1 3"];

/// Class of a policy's colour.
pub fn class(policy: &str) -> &'static str {
    let policy = policy.split('@').next().unwrap_or(policy);
    POLICIES.iter().find(|(name, ..)| *name == policy).map_or("c7", |(_, class, _)| class)
}

/// Dashes of a policy's line; empty for none.
pub fn dashes(policy: &str) -> &'static str {
    if let Some((_, setting)) = policy.split_once('@') {
        return SWEPT[setting.bytes().map(usize::from).sum::<usize>() % SWEPT.len()];
    }
    POLICIES.iter().find(|(name, ..)| *name == policy).map_or("", |(_, _, dashes)| dashes)
}

/// Styles that a figure needs, for both colour schemes.
pub const FIGURE: &str = "
:root{--ink:#1b1f24;--dim:#59636e;--grid:#d8dee4;--ground:#ffffff;--panel:#f6f8fa;
--c0:#57606a;--c1:#b35900;--c2:#0072b2;--c3:#007a56;--c4:#a9428a;--c5:#8a6d00;--c6:#c2410c;--c7:#6e40aa;
--win:#9ad8bd;--tie:#e4e8ec;--lose:#f3b49b}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--dim:#9da7b3;--grid:#30363d;--ground:#0d1117;--panel:#161b22;
--c0:#aab4be;--c1:#f0a04b;--c2:#58b2f0;--c3:#3ecf9a;--c4:#e48fca;--c5:#e3c34a;--c6:#ff8a5c;--c7:#b99cf5;
--win:#1d5c45;--tie:#30363d;--lose:#7a3a22}}
svg text{font:12px system-ui,-apple-system,'Segoe UI',sans-serif;fill:var(--ink)}
svg .dim{fill:var(--dim)}svg .small{font-size:11px}svg .title{font-weight:600;font-size:13px}
svg .end{text-anchor:end}svg .mid{text-anchor:middle}
svg .grid{stroke:var(--grid);stroke-width:1;fill:none}svg .axis{stroke:var(--dim);stroke-width:1;fill:none}
svg .line{fill:none;stroke-width:2;stroke-linejoin:round}
svg .c0{stroke:var(--c0)}svg .c1{stroke:var(--c1)}svg .c2{stroke:var(--c2)}svg .c3{stroke:var(--c3)}
svg .c4{stroke:var(--c4)}svg .c5{stroke:var(--c5)}svg .c6{stroke:var(--c6)}svg .c7{stroke:var(--c7)}
svg .f0{fill:var(--c0)}svg .f1{fill:var(--c1)}svg .f2{fill:var(--c2)}svg .f3{fill:var(--c3)}
svg .f4{fill:var(--c4)}svg .f5{fill:var(--c5)}svg .f6{fill:var(--c6)}svg .f7{fill:var(--c7)}
svg .whisker{stroke:var(--ink);stroke-width:1}
svg .win{fill:var(--win)}svg .tie{fill:var(--tie)}svg .lose{fill:var(--lose)}svg .bare{fill:none;stroke:var(--grid)}svg .event{fill:var(--lose);opacity:.35}
";

/// What the page needs beside it.
pub const PAGE: &str = "
*{box-sizing:border-box}html{color-scheme:light dark}
body{margin:0 auto;padding:1.5rem 1rem 4rem;max-width:1240px;background:var(--ground);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,'Segoe UI',sans-serif}
h1{font-size:1.6rem;line-height:1.25;margin:.2rem 0 1rem}h2{font-size:1.2rem;margin:2.5rem 0 .5rem}
p{max-width:46rem}code{font-size:.9em;overflow-wrap:anywhere}
.figures{display:grid;gap:1rem;grid-template-columns:repeat(auto-fill,minmax(min(100%,350px),1fr))}
.figures.wide{grid-template-columns:minmax(0,1fr)}
figure{margin:0;padding:.6rem;background:var(--panel);border-radius:8px}figure svg{display:block;width:100%;height:auto}
.scroll{overflow-x:auto;max-width:100%}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}
th:first-child,td:first-child,th.name,td.name{text-align:left}thead th{color:var(--dim);font-weight:600}
.dim{color:var(--dim)}dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:.2rem 1rem}dt{color:var(--dim)}dd{margin:0}
@media (max-width:500px){dl{grid-template-columns:minmax(0,1fr)}body{padding:1rem .6rem 3rem}}
";
