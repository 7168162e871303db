//! Figures of sweeps: one setting of a policy or scene along x, what it gains and what it costs along y.

use super::chart::{Axis, Line, Scale, lines};
use super::figures::{Figure, Group};
use crate::busy::document::Document;
use crate::busy::row::BusyRow;
use crate::busy::scene::SERVICE_US;

/// All sweeps that a document has at least two points of.
pub fn sweeps(document: &Document) -> Vec<Figure> {
    let mut all = Vec::new();
    for scene in document.scenes() {
        all.extend(delays(document, scene));
        all.extend(hedges(document, scene));
    }
    all.extend(services(document));
    all
}

/// What stands behind the `@` of a name, without `before` and `after`.
fn setting(name: &str, before: &str, after: &str) -> Option<f64> {
    name.split_once('@')?.1.strip_prefix(before)?.strip_suffix(after)?.parse().ok()
}

/// Points of `of` over a setting, sorted; one line per plain name.
fn swept(
    rows: &[&BusyRow],
    at: impl Fn(&BusyRow) -> Option<(String, f64)>,
    of: impl Fn(&BusyRow) -> Option<f64>,
) -> Vec<Line> {
    let mut all: Vec<Line> = Vec::new();
    for row in rows {
        let Some(((name, at), value)) = at(row).zip(of(row)) else { continue };
        match all.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push((at, value)),
            None => all.push(Line { name, points: vec![(at, value)] }),
        }
    }
    all.retain(|line| line.points.len() > 1);
    all.iter_mut().for_each(|line| line.points.sort_by(|one, other| one.0.total_cmp(&other.0)));
    all
}

fn figure(name: String, title: &str, (x, y): (&str, &str), all: &[Line]) -> Option<Figure> {
    if all.is_empty() {
        return None;
    }
    let xs: Vec<f64> = all.iter().flat_map(|line| line.points.iter().map(|(at, _)| *at)).collect();
    let ys: Vec<f64> = all.iter().flat_map(|line| line.points.iter().map(|(_, value)| *value)).collect();
    let x = Axis::over(x, Scale::Linear, xs.into_iter());
    let y = Axis::over(y, Scale::Linear, ys.into_iter());
    Some(Figure { name, group: Group::Sweeps, svg: lines(title, &x, &y, all, None) })
}

/// Tie delay against p99 and duplicates. A delay told in latencies, and one that follows the round trip, stands where its
/// median was.
fn delays(document: &Document, scene: &str) -> Vec<Figure> {
    let rows: Vec<&BusyRow> = document.rows.iter().filter(|row| row.scene == scene).collect();
    let plain = |row: &BusyRow| row.policy.split('@').next().unwrap_or_default().to_owned();
    let told = |row: &BusyRow| setting(&row.policy, "", "us").or(setting(&row.policy, "", "L")).is_some();
    let is_swept = |name: &str| rows.iter().any(|row| plain(row) == name && told(row));
    let at = |row: &BusyRow| {
        let delay = setting(&row.policy, "", "us").or(row.tie_delay_p50_us.map(|delay| delay as f64))?;
        let name = plain(row);
        is_swept(&name).then_some((name, delay))
    };
    let x = "tie delay, us";
    let found = [
        figure(
            format!("sweep-delay-p99-{scene}"),
            &format!("{scene}: tie delay and p99"),
            (x, "p99, ms"),
            &swept(&rows, at, |row| Some(row.p99_us? as f64 / 1e3)),
        ),
        figure(
            format!("sweep-delay-duplicates-{scene}"),
            &format!("{scene}: tie delay and duplicates"),
            (x, "duplicates, % of started copies"),
            &swept(&rows, at, |row| Some(row.duplicates_pct)),
        ),
    ];
    found.into_iter().flatten().collect()
}

/// Hedge percentile against what it gains and what it sends twice.
fn hedges(document: &Document, scene: &str) -> Vec<Figure> {
    let rows: Vec<&BusyRow> = document.rows.iter().filter(|row| row.scene == scene).collect();
    let untied = document.row(scene, "untied").and_then(|row| row.p99_us);
    let at = |row: &BusyRow| Some(("hedged".to_owned(), setting(&row.policy, "p", "")?));
    let x = "hedge percentile (no budget)";
    let gain = |row: &BusyRow| Some((1.0 - row.p99_us? as f64 / untied? as f64) * 100.0);
    let found = [
        figure(
            format!("sweep-hedge-gain-{scene}"),
            &format!("{scene}: hedge percentile and gain"),
            (x, "p99 below that of untied reads, %"),
            &swept(&rows, at, gain),
        ),
        figure(
            format!("sweep-hedge-extra-{scene}"),
            &format!("{scene}: hedge percentile and duplicates"),
            (x, "hedges, % of reads"),
            &swept(&rows, at, |row| Some(row.extra_copies_pct)),
        ),
    ];
    found.into_iter().flatten().collect()
}

/// Mean service time against the p99 of busy over that of idle untied with the same service time.
fn services(document: &Document) -> Option<Figure> {
    let rows: Vec<&BusyRow> =
        document.rows.iter().filter(|row| row.scene.split('@').next() == Some("busy")).collect();
    let plain = SERVICE_US as f64 / 1e3;
    let at = |row: &BusyRow| {
        let millis = setting(&row.scene, "", "ms").unwrap_or(plain);
        Some((row.policy.clone(), millis))
    };
    let all = swept(&rows, at, |row| row.ratio_to_idle_untied.and_then(|ratios| ratios[2]));
    figure(
        "sweep-service".to_owned(),
        "busy: mean service time and p99",
        ("mean service time, ms", "p99 over idle untied of the same service time"),
        &all,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::busy::document::Run;

    fn row(scene: &str, policy: &str, p99_us: u64) -> BusyRow {
        BusyRow { scene: scene.into(), policy: policy.into(), p99_us: Some(p99_us), ..BusyRow::default() }
    }

    fn names(rows: Vec<BusyRow>) -> Vec<String> {
        sweeps(&Document::new(Run::default(), rows)).into_iter().map(|figure| figure.name).collect()
    }

    #[test]
    fn each_sweep_has_its_figures_and_a_single_point_is_none() {
        let followed = BusyRow { tie_delay_p50_us: Some(210), ..row("busy", "tied2", 10_000) };
        let delays = vec![followed.clone(), row("busy", "tied2@0us", 10_500)];
        assert_eq!(names(delays), ["sweep-delay-p99-busy", "sweep-delay-duplicates-busy"]);
        let in_latencies = BusyRow { tie_delay_p50_us: Some(130), ..row("busy", "tied2@1L", 10_500) };
        assert_eq!(names(vec![followed.clone(), in_latencies]).len(), 2);
        assert!(names(vec![followed]).is_empty());
        let hedges = vec![
            row("busy", "untied", 20_000),
            row("busy", "hedged@p50", 14_000),
            row("busy", "hedged@p90", 16_000),
        ];
        assert_eq!(names(hedges), ["sweep-hedge-gain-busy", "sweep-hedge-extra-busy"]);
        let services = ["@2ms", "", "@20ms"].into_iter().flat_map(|at| {
            [row(&format!("idle{at}"), "untied", 10_000), row(&format!("busy{at}"), "tied2", 11_000)]
        });
        assert_eq!(names(services.collect()), ["sweep-service"]);
    }

    #[test]
    fn points_are_in_order_of_the_setting() {
        let rows = [row("busy", "hedged@p90", 3), row("busy", "hedged@p50", 1), row("busy", "hedged@p75", 2)];
        let rows: Vec<&BusyRow> = rows.iter().collect();
        let at = |row: &BusyRow| Some(("hedged".to_owned(), setting(&row.policy, "p", "")?));
        let all = swept(&rows, at, |row| Some(row.p99_us? as f64));
        assert_eq!(all[0].points, [(50.0, 1.0), (75.0, 2.0), (90.0, 3.0)]);
    }
}
