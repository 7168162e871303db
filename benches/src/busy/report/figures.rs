//! Which figures a document gives: curves and bars per scene, storms over time, load against p99, a map of cells.

use super::chart::{Axis, Bar, Line, Ratio, Scale, bars, lines, map};
use super::style;
use super::sweeps::sweeps;
use crate::busy::document::Document;
use crate::busy::row::BusyRow;
use crate::busy::sample::Tick;
use std::fmt;

/// Where a figure stands on the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Where ties win, tie and lose.
    Map,
    /// Latency over log(1 - F).
    Curves,
    /// p99 and extra work.
    Bars,
    /// Load against p99.
    Loads,
    /// One setting against what it gains and costs.
    Sweeps,
    /// Over time.
    Storm,
}

/// A figure with its file name.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// File name without `.svg`.
    pub name: String,
    /// Where it stands.
    pub group: Group,
    /// SVG without styles.
    pub svg: String,
}

impl Figure {
    /// As a file of its own, with the styles it needs.
    pub fn file(&self) -> String {
        let ground = "svg{background:var(--ground)}";
        self.svg.replacen('>', &format!("><style>{}{ground}</style>", style::FIGURE), 1) + "\n"
    }
}

/// All figures, in the order of the page.
pub fn figures(document: &Document) -> Vec<Figure> {
    let mut all = Vec::new();
    all.extend(cells(document));
    for scene in document.scenes() {
        let rows: Vec<&BusyRow> = document.rows.iter().filter(|row| row.scene == scene).collect();
        all.push(curve(scene, &rows));
        all.push(costs(scene, &rows));
        if rows.iter().any(|row| !row.series.is_empty()) {
            all.extend(storm(scene, &rows));
        }
    }
    all.extend(loads(document));
    all.extend(sweeps(document));
    all
}

fn millis(micros: u64) -> f64 {
    micros as f64 / 1e3
}

/// Latency over the share of reads that are slower, so that the tail takes the right half.
fn curve(scene: &str, rows: &[&BusyRow]) -> Figure {
    let mut all: Vec<Line> = rows
        .iter()
        .map(|row| Line {
            name: row.policy.clone(),
            points: row.curve.iter().map(|(above, latency)| (1.0 / above, millis(*latency))).collect(),
        })
        .collect();
    for (name, policy) in [("JSW(2)", "tied2"), ("JSW(3)", "tied3")] {
        let Some(row) = rows.iter().find(|row| row.policy == policy) else { continue };
        let ideal = &row.ideal;
        let spans = match policy {
            "tied2" => [
                ideal.ideal_jsw2_p50_us,
                ideal.ideal_jsw2_p90_us,
                ideal.ideal_jsw2_p99_us,
                ideal.ideal_jsw2_p999_us,
            ],
            _ => [
                ideal.ideal_jsw3_p50_us,
                ideal.ideal_jsw3_p90_us,
                ideal.ideal_jsw3_p99_us,
                ideal.ideal_jsw3_p999_us,
            ],
        };
        let points: Vec<(f64, f64)> = [2.0, 10.0, 100.0, 1_000.0]
            .into_iter()
            .zip(spans)
            .filter_map(|(at, span)| Some((at, millis(span?))))
            .collect();
        if !points.is_empty() {
            all.push(Line { name: name.to_owned(), points });
        }
    }
    let last = all.iter().flat_map(|line| line.points.iter().map(|(at, _)| *at)).fold(10.0, f64::max);
    let ticks =
        [(1.0, "all"), (2.0, "p50"), (10.0, "p90"), (100.0, "p99"), (1_000.0, "p99.9"), (10_000.0, "p99.99")];
    let shown = ticks.iter().take_while(|(at, _)| *at <= last * 1.0001);
    let mut ticks: Vec<(f64, String)> = shown.map(|(at, name)| (*at, (*name).to_owned())).collect();
    ticks.push((last, String::new()));
    let x = Axis { name: "share of reads that are faster (log of the rest)".to_owned(), scale: Scale::Log, ticks };
    // The first points (the fastest reads) would only stretch the axis.
    let spans = all.iter().flat_map(|line| line.points.iter().filter(|(at, _)| *at > 1.2).map(|(_, span)| *span));
    let y = Axis::over("ms from the planned send", Scale::Log, spans.collect::<Vec<_>>().into_iter());
    Figure { name: format!("curve-{scene}"), group: Group::Curves, svg: lines(scene, &x, &y, &all, None) }
}

/// p99 with its interval, and what the policy costs in wasted work.
fn costs(scene: &str, rows: &[&BusyRow]) -> Figure {
    let told = rows.iter().filter_map(|row| Some((row, row.p99_us?)));
    let all: Vec<Bar> = told
        .map(|(row, p99)| {
            let extra = row.wasted_work_pct + row.wasted_extra_pct;
            Bar {
                name: row.policy.clone(),
                value: millis(p99),
                interval: row.p99_interval_us.map(|ends| ends.map(millis)),
                text: format!("{:.1}{}", millis(p99), if row.judged { "" } else { " !" }),
                beside: (extra, format!("{extra:.2} %")),
            }
        })
        .collect();
    let svg = bars(scene, ["p99, ms (line: 95 % interval)", "wasted work"], &all);
    Figure { name: format!("cost-{scene}"), group: Group::Bars, svg }
}

/// One figure per view of a storm.
fn storm(scene: &str, rows: &[&BusyRow]) -> Vec<Figure> {
    let span = |row: &&BusyRow| row.series.last().map_or(0.0, |tick| tick.at_ms as f64 / 1e3);
    let end = rows.iter().map(span).fold(0.0, f64::max);
    let begin = end / 4.0;
    let event = match scene {
        "one-node-killed" => Some((begin, begin)),
        _ if scene.starts_with("storm") => Some((begin, begin + 2.0)),
        // The others go on all along.
        _ => None,
    };
    let figure = |name: &str, what: &str, scale: Scale, of: &dyn Fn(&Tick) -> Option<f64>| {
        let all: Vec<Line> = rows
            .iter()
            .map(|row| Line {
                name: row.policy.clone(),
                points: row
                    .series
                    .iter()
                    .filter(|tick| tick.at_ms >= 0 && tick.reads > 0)
                    .filter_map(|tick| Some((tick.at_ms as f64 / 1e3, of(tick)?)))
                    .collect(),
            })
            .collect();
        let x = Axis::over("seconds", Scale::Linear, [0.0, end].into_iter());
        let values: Vec<f64> = all.iter().flat_map(|line| line.points.iter().map(|(_, value)| *value)).collect();
        let y = Axis::over(what, scale, values.into_iter());
        let svg = lines(&format!("{scene}: {name}"), &x, &y, &all, event);
        Figure { name: format!("time-{scene}-{}", name.replace(' ', "-")), group: Group::Storm, svg }
    };
    let mut all = vec![
        figure("latency", "p99 of half a second, ms", Scale::Log, &|tick| Some(millis(tick.p99_us?.max(1)))),
        figure("extra copies", "hedges and rescues, % of reads (what the budget pays)", Scale::Linear, &|tick| {
            Some(tick.extra_copies as f64 * 100.0 / tick.reads as f64)
        }),
        figure("messages", "frames of the client, both ways, per read", Scale::Linear, &|tick| {
            Some(tick.messages as f64 / tick.reads as f64)
        }),
    ];
    // Files of before have no such count, and a line at 0 would say that no budget ever was empty.
    if rows.iter().any(|row| row.series.iter().any(|tick| tick.no_token > 0)) {
        let what = "extra copies not sent, the budget being empty, % of reads";
        let budget =
            figure("no token", what, Scale::Linear, &|tick| Some(tick.no_token as f64 * 100.0 / tick.reads as f64));
        all.insert(2, budget);
    }
    all
}

fn load_of(scene: &str) -> Option<f64> {
    let percent: f64 = scene.strip_prefix("load")?.parse().ok()?;
    Some(percent / 100.0)
}

/// p99 over load, and the level of idle untied.
fn loads(document: &Document) -> Option<Figure> {
    let mut all: Vec<Line> = Vec::new();
    for policy in document.policies() {
        let of_policy = document.rows.iter().filter(|row| row.policy == policy);
        let mut points: Vec<(f64, f64)> =
            of_policy.filter_map(|row| Some((load_of(&row.scene)?, millis(row.p99_us?)))).collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        if points.len() > 1 {
            all.push(Line { name: policy.to_owned(), points });
        }
    }
    if all.is_empty() {
        return None;
    }
    let x = Axis::over("reads over capacity, no jobs", Scale::Linear, [0.0, 1.0].into_iter());
    let values: Vec<f64> = all.iter().flat_map(|line| line.points.iter().map(|(_, value)| *value)).collect();
    let y = Axis::over("p99, ms", Scale::Log, values.into_iter());
    let svg = lines("load against p99", &x, &y, &all, None);
    Some(Figure { name: "load".to_owned(), group: Group::Loads, svg })
}

/// Up to which load a policy's p99 still is that of idle untied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HighestLoad {
    /// Between two loads that were played.
    At(f64),
    /// It is at all that were played; this is the highest.
    AtLeast(f64),
    /// It is at none that were played; this is the lowest.
    Below(f64),
}

impl fmt::Display for HighestLoad {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, load) = match self {
            Self::At(load) => ("", load),
            Self::AtLeast(load) => (">= ", load),
            Self::Below(load) => ("< ", load),
        };
        let load = format!("{load:.2}");
        write!(to, "{sign}{}", load.trim_start_matches('0'))
    }
}

/// The highest load at which a policy's p99 still is that of idle untied, by interpolation between the loads that were
/// played; rows that are not judged are left out. `None`: nothing to compare.
pub fn highest_load(document: &Document, policy: &str) -> Option<HighestLoad> {
    let limit = millis(document.row("idle", "untied").filter(|row| row.judged)?.p99_us?);
    let of_policy = document.rows.iter().filter(|row| row.policy == policy && row.judged);
    let mut points: Vec<(f64, f64)> =
        of_policy.filter_map(|row| Some((load_of(&row.scene)?, millis(row.p99_us?)))).collect();
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (lowest, highest) = (points.first()?.0, points.last()?.0);
    Some(match points.iter().position(|(_, p99)| *p99 > limit) {
        None => HighestLoad::AtLeast(highest),
        Some(0) => HighestLoad::Below(lowest),
        Some(above) => {
            let ((load, p99), (next_load, next)) = (points[above - 1], points[above]);
            HighestLoad::At(load + (next_load - load) * (limit - p99) / (next - p99))
        }
    })
}

/// Policies of one map: more would not be legible.
const MAP_COLUMNS: usize = 6;

/// p99 of each policy over untied in the same scene, some policies a figure.
fn cells(document: &Document) -> Vec<Figure> {
    let policies: Vec<&str> = document.policies().into_iter().filter(|policy| *policy != "untied").collect();
    let count = policies.len().div_ceil(MAP_COLUMNS).max(1);
    let figures = policies.chunks(policies.len().div_ceil(count).max(1)).enumerate();
    figures.filter_map(|(index, policies)| cells_of(document, policies, index)).collect()
}

fn cells_of(document: &Document, policies: &[&str], index: usize) -> Option<Figure> {
    let mut rows = Vec::new();
    for scene in document.scenes() {
        let Some(base) = document.row(scene, "untied") else { continue };
        let ratio = |policy: &&str| {
            let row = document.row(scene, policy)?;
            let value = row.p99_us? as f64 / base.p99_us?.max(1) as f64;
            let ends = row.p99_interval_us.zip(base.p99_interval_us);
            // Without intervals the figure is all there is.
            let apart = ends.is_none_or(|([low, high], [base_low, base_high])| high < base_low || base_high < low);
            Some(Ratio { value, judged: row.judged && base.judged, apart })
        };
        let ratios: Vec<Option<Ratio>> = policies.iter().map(ratio).collect();
        if ratios.iter().any(Option::is_some) {
            rows.push((scene, ratios));
        }
    }
    if rows.is_empty() {
        return None;
    }
    let svg = map("p99 over untied in the same scene", policies, &rows);
    let name = if index == 0 { "map".to_owned() } else { format!("map-{}", index + 1) };
    Some(Figure { name, group: Group::Map, svg })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::busy::document::Run;

    fn row(scene: &str, policy: &str, p99_us: u64) -> BusyRow {
        BusyRow {
            scene: scene.into(),
            policy: policy.into(),
            p99_us: Some(p99_us),
            curve: vec![(1.0, 1_000), (0.5, 5_000), (0.01, p99_us)],
            judged: true,
            ..BusyRow::default()
        }
    }

    fn document() -> Document {
        let mut storm = row("storm", "untied", 90_000);
        storm.series = (1..40)
            .map(|index| Tick { at_ms: index * 100, reads: 10, p99_us: Some(9_000), ..Tick::default() })
            .collect();
        let rows = vec![
            row("idle", "untied", 12_000),
            row("load40", "tied2", 10_000),
            row("load60", "tied2", 14_000),
            row("load40", "untied", 20_000),
            storm,
        ];
        Document::new(Run::default(), rows)
    }

    #[test]
    fn a_document_gives_each_kind_of_figure() {
        let mut document = document();
        let figures = figures(&document);
        for group in [Group::Map, Group::Curves, Group::Bars, Group::Loads, Group::Storm] {
            assert!(figures.iter().any(|figure| figure.group == group), "{group:?}");
        }
        assert!(figures.iter().all(|figure| figure.name != "time-storm-no-token"), "no budget was empty");
        if let Some(tick) = document.rows.iter_mut().find_map(|row| row.series.last_mut()) {
            tick.no_token = 3;
        }
        let names: Vec<String> = super::figures(&document).into_iter().map(|figure| figure.name).collect();
        assert!(names.iter().any(|name| name == "time-storm-no-token"), "{names:?}");
        let file = figures[0].file();
        assert!(file.starts_with("<svg") && file.contains("<style>") && file.ends_with("</svg>\n"), "{file}");
    }

    #[test]
    fn the_highest_load_lies_between_two_measured_ones() {
        let mut document = document();
        assert_eq!(highest_load(&document, "tied2"), Some(HighestLoad::At(0.5)));
        assert_eq!(highest_load(&document, "untied"), Some(HighestLoad::Below(0.4)), "above at the lowest");
        assert_eq!(highest_load(&document, "tied3"), None, "not played");
        document.rows[2].judged = false;
        assert_eq!(highest_load(&document, "tied2"), Some(HighestLoad::AtLeast(0.4)), "load60 is not judged");
        let texts = [HighestLoad::At(0.5), HighestLoad::AtLeast(0.9), HighestLoad::Below(0.1)];
        assert_eq!(texts.map(|load| load.to_string()), [".50", ">= .90", "< .10"]);
    }
}
