//! Figures as SVG text: lines over two axes, bars with intervals, a map of cells. Pure; knows no benchmark.
//!
//! A figure is 400 units wide, so that its text keeps its size on a narrow screen; colours are classes of [`super::style`].

use super::style::{class, dashes};
use std::fmt::Write;

/// Width of a figure.
const WIDTH: f64 = 400.0;
/// Room left of and below the plot.
const LEFT: f64 = 48.0;
const BELOW: f64 = 34.0;

/// How an axis maps values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Evenly.
    Linear,
    /// By powers of ten.
    Log,
}

/// One axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// What it shows, with the unit.
    pub name: String,
    /// How.
    pub scale: Scale,
    /// Ticks with their text; the first and last bound the axis.
    pub ticks: Vec<(f64, String)>,
}

impl Axis {
    /// An axis over `values` with ticks at round numbers.
    pub fn over(name: &str, scale: Scale, values: impl Iterator<Item = f64> + Clone) -> Self {
        let positive = |value: &f64| value.is_finite() && (scale == Scale::Linear || *value > 0.0);
        let values = values.filter(positive);
        let (low, high) = (values.clone().fold(f64::INFINITY, f64::min), values.fold(f64::NEG_INFINITY, f64::max));
        let (low, high) = if low <= high { (low, high) } else { (1.0, 10.0) };
        let ticks = match scale {
            Scale::Linear => linear_ticks(low.min(0.0), high),
            Scale::Log => log_ticks(low, high),
        };
        Self { name: name.to_owned(), scale, ticks: ticks.into_iter().map(|tick| (tick, text(tick))).collect() }
    }

    /// Where a value stands, 0.0 to 1.0.
    fn place(&self, value: f64) -> f64 {
        let ends = self.ticks.first().zip(self.ticks.last());
        let Some(((low, _), (high, _))) = ends else { return 0.0 };
        let (low, high, value) = match self.scale {
            Scale::Linear => (*low, *high, value),
            Scale::Log => (low.ln(), high.ln(), value.max(f64::MIN_POSITIVE).ln()),
        };
        if high > low { ((value - low) / (high - low)).clamp(0.0, 1.0) } else { 0.0 }
    }
}

fn linear_ticks(low: f64, high: f64) -> Vec<f64> {
    let raw = (high - low).max(f64::MIN_POSITIVE) / 4.0;
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|times| times * power).into_iter().find(|step| *step >= raw);
    let step = step.unwrap_or(raw);
    let first = (low / step).floor();
    let count = ((high / step).ceil() - first).max(1.0) as usize;
    (0..=count).map(|index| (first + index as f64) * step).collect()
}

fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let steps = [1.0, 2.0, 5.0];
    let all: Vec<f64> = (-6..9).flat_map(|power| steps.map(|step| step * 10f64.powi(power))).collect();
    let first = all.iter().rposition(|tick| *tick <= low * 1.0001).unwrap_or(0);
    let last = all.iter().position(|tick| *tick >= high * 0.9999).unwrap_or(all.len() - 1).max(first + 1);
    let between = &all[first..=last];
    // Where 1, 2, 5 are too dense, only powers of ten stay between the ends.
    if between.len() <= 8 {
        return between.to_vec();
    }
    let is_power = |tick: f64| (tick.log10() - tick.log10().round()).abs() < 1e-9;
    let ends = [between[0], between[between.len() - 1]];
    between.iter().copied().filter(|tick| ends.contains(tick) || is_power(*tick)).collect()
}

fn text(value: f64) -> String {
    let digits = if value == 0.0 || value.abs() >= 10.0 {
        0
    } else if value.abs() >= 1.0 {
        1
    } else {
        3
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// One line: the name decides colour and dashes.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Name, usually of a policy.
    pub name: String,
    /// Its points, in order.
    pub points: Vec<(f64, f64)>,
}

/// Lines over two axes, with a legend below. `event` is a span of x that is marked.
pub fn lines(title: &str, x: &Axis, y: &Axis, lines: &[Line], event: Option<(f64, f64)>) -> String {
    let (plot_width, plot_height, top) = (WIDTH - LEFT - 22.0, 190.0, 50.0);
    let rows = lines.len().div_ceil(3) as f64;
    let height = top + plot_height + BELOW + rows * 18.0 + 6.0;
    let at_x = |value: f64| LEFT + x.place(value) * plot_width;
    let at_y = |value: f64| top + (1.0 - y.place(value)) * plot_height;
    let mut svg = open(title, height);
    let _ = write!(svg, "<text class='dim small' x='4' y='33'>{}</text>", escaped(&y.name));
    if let Some((from, to)) = event {
        let (from, to) = (at_x(from), at_x(to));
        let width = (to - from).max(1.5);
        let _ =
            write!(svg, "<rect class='event' x='{from:.1}' y='{top}' width='{width:.1}' height='{plot_height}'/>");
    }
    for (tick, text) in &y.ticks {
        let (at, right) = (at_y(*tick), LEFT + plot_width);
        let _ = write!(svg, "<path class='grid' d='M{LEFT} {at:.1}H{right}'/>");
        let _ = write!(
            svg,
            "<text class='dim small end' x='{}' y='{:.1}'>{}</text>",
            LEFT - 5.0,
            at + 4.0,
            escaped(text)
        );
    }
    let bottom = top + plot_height;
    for (tick, text) in &x.ticks {
        let at = at_x(*tick);
        let _ = write!(svg, "<path class='grid' d='M{at:.1} {top}V{bottom}'/>");
        let _ =
            write!(svg, "<text class='dim small mid' x='{at:.1}' y='{}'>{}</text>", bottom + 14.0, escaped(text));
    }
    let middle = LEFT + plot_width / 2.0;
    let _ =
        write!(svg, "<text class='dim small mid' x='{middle}' y='{}'>{}</text>", bottom + 28.0, escaped(&x.name));
    for (index, line) in lines.iter().enumerate() {
        let (class, dashes) = (class(&line.name), dashes(&line.name));
        let path: Vec<String> =
            line.points.iter().map(|(a, b)| format!("{:.1} {:.1}", at_x(*a), at_y(*b))).collect();
        if !path.is_empty() {
            let _ = write!(
                svg,
                "<path class='line {class}' stroke-dasharray='{dashes}' d='M{}'><title>{}</title></path>",
                path.join("L"),
                escaped(&line.name)
            );
        }
        let (left, line_y) = (8.0 + (index % 3) as f64 * 130.0, bottom + BELOW + 12.0 + (index / 3) as f64 * 18.0);
        let _ = write!(
            svg,
            "<path class='line {class}' stroke-dasharray='{dashes}' d='M{left} {0:.1}h22'/><text class='small' x='{1}' y='{2:.1}'>{3}</text>",
            line_y,
            left + 27.0,
            line_y + 4.0,
            escaped(&line.name)
        );
    }
    svg + "</svg>"
}

/// One bar of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// Name, usually of a policy; decides the colour.
    pub name: String,
    /// Its length.
    pub value: f64,
    /// The interval around it.
    pub interval: Option<[f64; 2]>,
    /// The value as text, with the unit.
    pub text: String,
    /// The second bar to its right (extra work): its share of the longest and its text.
    pub beside: (f64, String),
}

/// Bars from left to right in two columns, such as p99 and extra work.
pub fn bars(title: &str, heads: [&str; 2], all: &[Bar]) -> String {
    let longest = all
        .iter()
        .flat_map(|bar| [bar.value, bar.interval.map_or(0.0, |[_, high]| high)])
        .fold(f64::MIN_POSITIVE, f64::max);
    let beside_longest = all.iter().map(|bar| bar.beside.0).fold(f64::MIN_POSITIVE, f64::max);
    let (names, first, second) = (122.0, 104.0, 60.0);
    let second_left = names + first + 58.0;
    let mut svg = open(title, 46.0 + all.len() as f64 * 22.0 + 6.0);
    let _ = write!(svg, "<text class='dim small' x='{names}' y='38'>{}</text>", escaped(heads[0]));
    let _ = write!(svg, "<text class='dim small' x='{second_left}' y='38'>{}</text>", escaped(heads[1]));
    for (index, bar) in all.iter().enumerate() {
        let top = 46.0 + index as f64 * 22.0;
        let (width, base) = (bar.value / longest * first, top + 12.0);
        let fill = class(&bar.name).replace('c', "f");
        let _ = write!(svg, "<text class='small end' x='{}' y='{base}'>{}</text>", names - 6.0, escaped(&bar.name));
        let _ = write!(svg, "<rect class='{fill}' x='{names}' y='{top}' width='{width:.1}' height='15' rx='2'/>");
        let mut end = names + width;
        if let Some([low, high]) = bar.interval {
            let (low, high) = (names + low / longest * first, names + high / longest * first);
            let _ = write!(svg, "<path class='whisker' d='M{low:.1} {0}H{high:.1}'/>", top + 7.5);
            end = end.max(high);
        }
        let _ = write!(svg, "<text class='small' x='{:.1}' y='{base}'>{}</text>", end + 4.0, escaped(&bar.text));
        let width = bar.beside.0.max(0.0) / beside_longest * second;
        let _ = write!(
            svg,
            "<rect class='{fill}' opacity='.55' x='{second_left}' y='{top}' width='{width:.1}' height='15' rx='2'/>"
        );
        let _ = write!(
            svg,
            "<text class='small' x='{:.1}' y='{base}'>{}</text>",
            second_left + width + 4.0,
            escaped(&bar.beside.1)
        );
    }
    svg + "</svg>"
}

/// A cell of a map.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// One over the other.
    pub value: f64,
    /// The machine allows a judgement.
    pub judged: bool,
    /// The intervals of the two do not overlap.
    pub apart: bool,
}

/// A map: rows times columns of ratios, coloured by whether they are below 1, about 1 (or not surely otherwise) or above;
/// one that is not judged has no colour.
pub fn map(title: &str, columns: &[&str], rows: &[(&str, Vec<Option<Ratio>>)]) -> String {
    // Room on the right for half of the last column's name.
    let (names, cell) = (122.0, (WIDTH - 122.0 - 34.0) / columns.len().max(1) as f64);
    let mut svg = open(title, 64.0 + rows.len() as f64 * 22.0 + 6.0);
    for (index, column) in columns.iter().enumerate() {
        let (at, lift) = (names + (index as f64 + 0.5) * cell, if index % 2 == 0 { 56.0 } else { 42.0 });
        let _ = write!(svg, "<text class='dim small mid' x='{at:.1}' y='{lift}'>{}</text>", escaped(column));
    }
    for (index, (name, ratios)) in rows.iter().enumerate() {
        let top = 62.0 + index as f64 * 22.0;
        let _ =
            write!(svg, "<text class='small end' x='{}' y='{}'>{}</text>", names - 6.0, top + 14.0, escaped(name));
        for (column, ratio) in ratios.iter().enumerate() {
            let Some(Ratio { value, judged, apart }) = ratio else { continue };
            let (mark, class) = match () {
                () if !judged => ("!", "bare"),
                // Either may be the faster one.
                () if !apart => ("~", "tie"),
                () if *value < 0.95 => ("", "win"),
                () if *value <= 1.05 => ("", "tie"),
                () => ("", "lose"),
            };
            let left = names + column as f64 * cell;
            let _ = write!(
                svg,
                "<rect class='{class}' x='{left:.1}' y='{top}' width='{:.1}' height='20' rx='2'/>",
                cell - 2.0
            );
            let middle = left + (cell - 2.0) / 2.0;
            let _ =
                write!(svg, "<text class='small mid' x='{middle:.1}' y='{}'>{value:.2}{mark}</text>", top + 14.0);
        }
    }
    svg + "</svg>"
}

fn open(title: &str, height: f64) -> String {
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' role='img' aria-label='{0}'>\
         <text class='title' x='4' y='16'>{0}</text>",
        escaped(title)
    )
}

/// Text as it may stand in HTML and SVG, attributes included.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\'' => escaped.push_str("&#39;"),
            '"' => escaped.push_str("&quot;"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_hold_all_values() {
        let axis = |scale, low: f64, high: f64| {
            Axis::over("", scale, [low, high].into_iter())
                .ticks
                .into_iter()
                .map(|(tick, _)| tick)
                .collect::<Vec<_>>()
        };
        assert_eq!(axis(Scale::Linear, 3.0, 97.0), [0.0, 25.0, 50.0, 75.0, 100.0]);
        assert_eq!(axis(Scale::Log, 5.0, 40.0), [5.0, 10.0, 20.0, 50.0]);
        assert_eq!(axis(Scale::Log, 0.001, 1.0), [0.001, 0.01, 0.1, 1.0]);
        assert_eq!(Axis::over("", Scale::Log, std::iter::empty()).ticks.len(), 4);
    }

    #[test]
    fn text_cannot_leave_its_place() {
        let line = Line { name: "<b>".into(), points: vec![(1.0, 2.0), (2.0, 3.0)] };
        let axis = Axis::over("x & y", Scale::Linear, [1.0, 3.0].into_iter());
        let svg = lines("'title'", &axis, &axis, &[line], Some((1.0, 2.0)));
        assert!(svg.contains("&lt;b&gt;") && !svg.contains("<b>") && svg.contains("x &amp; y"), "{svg}");
        assert!(svg.contains("aria-label='&#39;title&#39;'"), "{svg}");
    }

    #[test]
    fn a_map_marks_wins_and_losses() {
        let cell = |value, judged, apart| vec![Some(Ratio { value, judged, apart })];
        let rows = [("busy", cell(0.4, true, true)), ("far", cell(1.3, true, true)), ("idle", vec![None])];
        let svg = map("m", &["tied2"], &rows);
        assert!(
            svg.contains("class='win'") && svg.contains("class='lose'") && !svg.contains("class='tie'"),
            "{svg}"
        );
        let svg = map("m", &["tied2"], &[("memory", cell(0.5, true, false)), ("hard", cell(0.5, false, true))]);
        assert!(svg.contains("class='tie'") && svg.contains("0.50~") && !svg.contains("class='win'"), "{svg}");
        assert!(svg.contains("class='bare'") && svg.contains("0.50!"), "{svg}");
    }
}
