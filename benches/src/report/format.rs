//! Numbers as people read them, and text in columns.

/// Microseconds as milliseconds with two digits after the point.
pub(crate) fn millis(micros: u64) -> String {
    format!("{:.2}", micros as f64 / 1_000.0)
}

/// Columns, the first `left` of them aligned left, the others right; two spaces between, no line ends in a blank.
pub fn columns(rows: &[Vec<String>], left: usize) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..count).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let pad = " ".repeat(width - cell.chars().count());
            if column > 0 {
                line.push_str("  ");
            }
            let parts = if column < left { [cell.as_str(), &pad] } else { [&pad, cell.as_str()] };
            line.extend(parts);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
