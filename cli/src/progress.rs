//! A progress bar on standard error; silent when that is no terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::io::IsTerminal;

/// A bar of this length.
pub fn bar(length: u64, message: &'static str) -> ProgressBar {
    let target =
        if std::io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(length), target).with_message(message);
    match ProgressStyle::with_template("{bar:40} {percent:>3} % {msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Work of `total` units with rate and time left, or a counter where the total is not known.
pub fn work(total: Option<u64>, unit: &'static str) -> ProgressBar {
    let bar = bar(total.unwrap_or(0), "");
    let template = match (total, unit) {
        (Some(_), "bytes") => "{bar:30} {percent:>3} %  {bytes}/{total_bytes}  {bytes_per_sec}  {eta} left",
        (Some(_), _) => "{bar:30} {percent:>3} %  {pos}/{len}  {rate}  {eta} left",
        (None, _) => "{spinner} {pos}  {rate}  {elapsed}",
    };
    // The library's own shows four decimals.
    let rate = |state: &ProgressState, out: &mut dyn std::fmt::Write| {
        let _ = write!(out, "{:.0}/s", state.per_sec());
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style.with_key("rate", rate)),
        Err(_) => bar,
    }
}
