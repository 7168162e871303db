//! A progress bar on standard error; silent when that is no terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
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
