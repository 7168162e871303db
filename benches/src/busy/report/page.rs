//! The report's page: one HTML file that needs nothing else.

use super::chart::escaped;
use super::figures::{Group, HighestLoad, figures, highest_load};
use super::style::{FIGURE, PAGE};
use crate::busy::document::{Document, PlayedScene, Run};
use crate::busy::row::BusyRow;
use crate::busy::{policy, scene};
use std::fmt::Write;

/// "The Tail at Scale" (Dean and Barroso, CACM 56(2), 2013), table 2: milliseconds at p50, p90, p99, p99.9.
const PAPER: [(&str, [u32; 4]); 4] = [
    ("idle, no hedge", [19, 38, 67, 98]),
    ("idle, tied after 1 ms", [16, 29, 42, 61]),
    ("terasort, no hedge", [24, 56, 108, 159]),
    ("terasort, tied after 1 ms", [19, 38, 67, 108]),
];

/// The page.
pub fn page(document: &Document) -> String {
    let mut html = String::from("<!doctype html><html lang='en'><head><meta charset='utf-8'>");
    html += "<meta name='viewport' content='width=device-width,initial-scale=1'><title>tiedkv: busy against idle</title>";
    let _ = write!(html, "<style>{FIGURE}{PAGE}</style></head><body><h1>Busy against idle</h1>");
    html += &lead(document);
    let figures = figures(document);
    let sections = [
        (Group::Map, "Where ties win, tie and lose", MAP),
        (Group::Curves, "Latency over log(1 - F)", CURVES),
        (Group::Bars, "p99 and extra work", BARS),
        (Group::Loads, "Load against p99", LOADS),
        (Group::Sweeps, "Sweeps", SWEEPS),
        (Group::Storm, "Over time", STORM),
    ];
    for (group, head, text) in sections {
        let of_group: Vec<_> = figures.iter().filter(|figure| figure.group == group).collect();
        if of_group.is_empty() {
            continue;
        }
        let _ = write!(html, "<h2>{head}</h2><p>{text}</p><div class='figures'>");
        of_group.iter().for_each(|figure| html += &format!("<figure>{}</figure>", figure.svg));
        html += "</div>";
        if group == Group::Loads {
            html += &highest(document);
        }
    }
    html += &paper(document);
    html += &numbers(document);
    html += &conditions(document);
    html + "</body></html>\n"
}

const MAP: &str = "Each cell is the p99 of the policy over that of untied reads in the same scene: below .95 a win, above \
1.05 a loss. With a ~ either may be the faster one: their 95 % intervals overlap. One with a ! is not judged: the machine was \
too busy or stood still.";
const CURVES: &str = "Further right is rarer: each grid line is ten times fewer reads. Dotted: the limit on the run's own \
arrivals, draws and lanes, as if a scheduler without delay had known every queue (join the shortest workload of two or \
three), two measured crossings added.";
const BARS: &str = "A tail without its price says nothing: wasted work is the service time of copies whose answer was not \
used, of all service time.";
const LOADS: &str = "Reads only, no background jobs.";
const SWEEPS: &str = "One setting moved, all else as it was: what it gains beside what it costs.";
const STORM: &str = "The marked span is the event. Times are those at which reads were due. No token: \
extra copies that were due and not sent because the budget was empty; they are asked for again, so that a read may count \
several times.";

fn lead(document: &Document) -> String {
    let Some(idle) = document.row("idle", "untied") else { return String::new() };
    let of =
        |scene, policy| document.row(scene, policy).and_then(|row| row.ratio_to_idle_untied).and_then(|all| all[2]);
    let mut html = String::from("<p>");
    if let (Some(untied), Some(tied)) = (of("busy", "untied"), of("busy", "tied2")) {
        let _ = write!(
            html,
            "Busy servers multiply the p99 of an untied read by <b>{untied:.2}</b>; two tied copies bring it to <b>{tied:.2}</b> times the idle untied one"
        );
        if let Some(three) = of("busy", "tied3") {
            let _ = write!(html, ", three to <b>{three:.2}</b>");
        }
        html += ". ";
    }
    if let Some(p99) = idle.p99_us {
        let _ = write!(html, "The idle untied p99 is {:.1} ms.", p99 as f64 / 1e3);
    }
    html + "</p><p class='dim'>Latency is counted from the planned send (open loop). Ratios hold beyond this machine, \
            milliseconds do not. The profile favours ties: queues are independent and a service takes fifty times as \
            long as a message.</p>"
}

fn highest(document: &Document) -> String {
    let found: Vec<(&str, HighestLoad)> = document
        .policies()
        .into_iter()
        .filter_map(|policy| Some((policy, highest_load(document, policy)?)))
        .collect();
    if found.is_empty() {
        return String::new();
    }
    let mut html = String::from(
        "<p>Highest load at which the p99 still is the idle untied one (between loads that were played; rows that are \
         not judged left out): ",
    );
    let text =
        |(policy, load): &(&str, HighestLoad)| format!("{} <b>{}</b>", escaped(policy), escaped(&load.to_string()));
    html += &found.iter().map(text).collect::<Vec<String>>().join(", ");
    html + ".</p>"
}

/// The paper's table beside ours.
fn paper(document: &Document) -> String {
    let mut html = String::from(
        "<h2>The paper's table beside ours</h2><div class='scroll'><table class='paper'><thead><tr><th></th><th>p50</th><th>p90</th>\
         <th>p99</th><th>p99.9</th></tr></thead><tbody>",
    );
    for (index, (name, spans)) in PAPER.iter().enumerate() {
        let base = PAPER[index / 2 * 2].1;
        let _ = write!(html, "<tr><td>paper: {name}</td>");
        for (span, base) in spans.iter().zip(base) {
            let change = (f64::from(*span) / f64::from(base) - 1.0) * 100.0;
            let note = if index % 2 == 1 { format!(" ({change:+.0} %)") } else { String::new() };
            let _ = write!(html, "<td>{span} ms{note}</td>");
        }
        html += "</tr>";
    }
    let cells = ["idle", "busy", "sort"].into_iter().flat_map(|scene| [(scene, "untied"), (scene, "tied2")]);
    for (scene, policy) in cells {
        let Some(row) = document.row(scene, policy) else { continue };
        let base = document.row(scene, "untied").map_or([None; 4], BusyRow::quantiles);
        let _ = write!(html, "<tr><td>ours: {scene}, {policy}</td>");
        for (span, base) in row.quantiles().into_iter().zip(base) {
            let change = span.zip(base).map(|(span, base)| (span as f64 / base.max(1) as f64 - 1.0) * 100.0);
            let note =
                change.filter(|_| policy != "untied").map_or(String::new(), |change| format!(" ({change:+.0} %)"));
            let _ = write!(html, "<td>{}{note}</td>", milliseconds(span));
        }
        html += "</tr>";
    }
    html + "</tbody></table></div><p class='dim'>Paper: reads from a file system under BigTable on a shared cluster, \
            three replicas, second copy after 1 ms; idle, and beside a running sort. Ours: modelled device of 5 ms on one \
            machine, second copy after the p95 of the round trip (two message delays); idle .15 of the capacity, busy .30 \
            with background jobs of .20, sort .30 beside a sort over the cluster's own keys. The shapes may be \
            compared, the milliseconds may not.</p>"
}

fn milliseconds(span: Option<u64>) -> String {
    span.map_or_else(|| "-".to_owned(), |span| format!("{:.1} ms", span as f64 / 1e3))
}

fn interval(ends: Option<[u64; 2]>) -> String {
    ends.map_or_else(
        || "-".to_owned(),
        |ends| ends.map(|end| format!("{:.1}", end as f64 / 1e3)).join("..") + " ms",
    )
}

/// All figures as a table.
fn numbers(document: &Document) -> String {
    let heads = [
        "repeats",
        "reads",
        "errors",
        "complete %",
        "p50",
        "p90",
        "p95",
        "p99",
        "p99 interval",
        "p99.9",
        "p99.9 interval",
        "max",
        "mean",
        "/ idle untied",
        "/ own idle",
        "measured / ideal",
        "slow %",
        "slow if another is %",
        "queue wait",
        "duplicates %",
        "wasted %",
        "extra copies %",
        "messages",
        "CPU us/read",
        "cancel flight us",
        "tie delay us",
        "CPU busy %",
    ];
    let mut html = String::from(
        "<h2>All rows</h2><div class='scroll'><table><thead><tr><th>scene</th><th class='name'>policy</th>",
    );
    heads.iter().for_each(|head| html += &format!("<th>{head}</th>"));
    html += "</tr></thead><tbody>";
    let number =
        |value: Option<f64>, digits: usize| value.map_or("-".to_owned(), |value| format!("{value:.digits$}"));
    let four = |ratios: Option<[Option<f64>; 4]>| {
        ratios.map_or_else(|| "-".to_owned(), |all| all.map(|ratio| number(ratio, 2)).join(" / "))
    };
    let wait = |micros: Option<u64>| number(micros.map(|micros| micros as f64 / 1e3), 2);
    for row in &document.rows {
        let delay = row.tie_delay_p50_us.zip(row.tie_delay_realised_p50_us);
        let cells = [
            row.repeats.to_string(),
            row.reads.to_string(),
            row.errors.to_string(),
            format!("{:.2}", row.completeness_pct),
            milliseconds(row.p50_us),
            milliseconds(row.p90_us),
            milliseconds(row.p95_us),
            milliseconds(row.p99_us),
            interval(row.p99_interval_us),
            milliseconds(row.p999_us),
            interval(row.p999_interval_us),
            milliseconds(Some(row.max_us)),
            format!("{:.1} ms", row.mean_us / 1e3),
            four(row.ratio_to_idle_untied),
            // Files of before all four were told have the p99 alone.
            row.ratio_to_own_idle.map_or_else(|| number(row.p99_ratio_to_own_idle, 2), |all| four(Some(all))),
            four(row.ideal.measured_over_ideal),
            format!("{:.1}", row.slow_share_pct),
            number(row.slow_given_slow_pct, 1),
            format!("{} / {} ms", wait(row.queue_wait_p50_us), wait(row.queue_wait_p99_us)),
            format!("{:.2}", row.duplicates_pct),
            format!("{:.3} + {:.3}", row.wasted_work_pct, row.wasted_extra_pct),
            format!("{:.1}", row.extra_copies_pct),
            format!("{:.2}", row.messages_per_read),
            format!("{:.0} + {:.0}", row.cpu_client_us_per_read, row.cpu_servers_us_per_read),
            format!("{} / {}", number(row.cancel_flight_p50_us, 0), number(row.cancel_flight_p99_us, 0)),
            delay.map_or("-".to_owned(), |(asked, realised)| format!("{asked} / {realised}")),
            format!("{:.0}{}", row.machine_busy_pct, if row.judged { "" } else { " (not judged)" }),
        ];
        let _ = write!(html, "<tr><td>{}</td><td class='name'>{}</td>", escaped(&row.scene), escaped(&row.policy));
        cells.iter().for_each(|cell| html += &format!("<td>{cell}</td>"));
        html += "</tr>";
    }
    html + "</tbody></table></div><p class='dim'>Intervals: 95 %. Of four figures with / between: p50, p90, p99, p99.9; \
            of queue wait: p50, p99. Slow: over 3 S; if another is: of untied reads on other nodes within 5 ms of a slow \
            one. Wasted: ties' own + rescues' and hedges'. CPU: client + servers. Cancel \
            flight: p50 / p99. Tie delay: asked / realised, medians. A dash: too few reads, or not measured. Not judged: \
            processors over 60 % busy, or the machine stood still meanwhile.</p>"
}

/// What is needed to repeat it.
fn conditions(document: &Document) -> String {
    let mut html = String::from("<h2>To repeat it</h2>");
    for Run { command, version, assertions, seed, processors, processor, system, played } in &document.runs {
        let build = if *assertions { "with assertions" } else { "release" };
        let text = |one: &PlayedScene| format!("{} {} s x {}", escaped(&one.scene), one.seconds, one.repeats);
        let played = match played.iter().map(text).collect::<Vec<String>>().join(", ") {
            none if none.is_empty() => "not told".to_owned(),
            some => some,
        };
        let _ = write!(
            html,
            "<dl><dt>command</dt><dd><code>{}</code></dd><dt>version</dt><dd>{} ({build})</dd><dt>machine</dt><dd>{processors} \
             processors, {}, {}</dd><dt>seed</dt><dd>{seed}</dd><dt>counted time x repeats</dt><dd>{played}</dd></dl>",
            escaped(command),
            escaped(version),
            escaped(processor),
            escaped(system)
        );
    }
    html += "<h2>Scenes and policies</h2><dl>";
    for name in document.scenes() {
        let found = scene::named(name).ok().and_then(|scenes| scenes.into_iter().next());
        let about = found.map_or(String::new(), |scene| format!("{} ({})", scene.about, scene.bed.about()));
        let _ = write!(html, "<dt>{}</dt><dd>{}</dd>", escaped(name), escaped(&about));
    }
    for name in document.policies() {
        let found = policy::named(name).ok().and_then(|policies| policies.into_iter().next());
        let about = found.map_or("", |policy| policy.about);
        let _ = write!(html, "<dt>{}</dt><dd>{}</dd>", escaped(name), escaped(about));
    }
    html + "</dl>"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_needs_nothing_else_and_shows_every_row() {
        let row = |scene: &str, policy: &str| BusyRow {
            scene: scene.into(),
            policy: policy.into(),
            p99_us: Some(12_000),
            p99_interval_us: Some([11_500, 12_300]),
            repeats: 3,
            seconds: 8,
            curve: vec![(1.0, 1_000), (0.01, 12_000)],
            ..BusyRow::default()
        };
        let rows = vec![row("idle", "untied"), row("busy", "untied"), row("busy", "tied2"), row("sort", "tied2")];
        let run = Run { command: "tiedkv bench busy <x>".into(), ..Run::default() };
        let html = page(&Document::new(run, rows));
        assert!(html.contains("tiedkv bench busy &lt;x&gt;"), "{html}");
        assert_eq!(html.matches("<tr><td>busy</td>").count(), 2);
        for outside in ["http://", "https://", "src=", "href=", "@import", "url("] {
            let count = html.replace("http://www.w3.org/2000/svg", "").matches(outside).count();
            assert_eq!(count, 0, "the page asks for something outside of it: {outside}");
        }
        assert!(html.contains("11.5..12.3 ms") && html.contains("busy 8 s x 3"), "{html}");
        assert!(html.contains("19 ms") && html.contains("(-38 %)"), "the paper's table");
        assert!(
            html.contains("ours: sort, tied2") && !html.contains("ours: sort, untied"),
            "what was played of it"
        );
    }
}
