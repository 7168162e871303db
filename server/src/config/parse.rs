//! Parsers of single values: text in, a value within its bounds out, or what is wanted instead.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// A whole number; `_` may group digits.
fn number(text: &str) -> Result<u64, String> {
    text.replace('_', "").parse().map_err(|_| "want a whole number".to_owned())
}

fn within(text: &str, min: u64, max: u64) -> Result<u64, String> {
    match number(text)? {
        value if (min..=max).contains(&value) => Ok(value),
        _ => Err(format!("want {min} to {max}")),
    }
}

/// A count from `min` to `max`.
pub fn count<T: TryFrom<u64>>(min: u64, max: u64) -> impl Fn(&str) -> Result<T, String> {
    move |text| T::try_from(within(text, min, max)?).map_err(|_| format!("want {min} to {max}"))
}

/// Microseconds from `min` to `max`.
pub fn micros(min: u64, max: u64) -> impl Fn(&str) -> Result<Duration, String> {
    move |text| Ok(Duration::from_micros(within(text, min, max)?))
}

/// `true` or `false`.
pub fn switch(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| "want true or false".to_owned())
}

/// An address to listen on: `127.0.0.1:7400`, `[::]:7400`; port 0 lets the system choose.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "want IP:PORT or [IPv6]:PORT".to_owned())
}

/// A path; empty is none.
pub fn path(text: &str) -> Result<PathBuf, String> {
    Ok(PathBuf::from(text))
}

/// Parses by `parser`; an empty text is none.
pub fn optional<T>(parser: impl Fn(&str) -> Result<T, String>) -> impl Fn(&str) -> Result<Option<T>, String> {
    move |text| if text.is_empty() { Ok(None) } else { parser(text).map(Some) }
}

/// One of a few words.
pub fn word<T: Copy>(words: &'static [(&'static str, T)]) -> impl Fn(&str) -> Result<T, String> {
    move |text| {
        words
            .iter()
            .find(|(word, _)| *word == text)
            .map(|(_, value)| *value)
            .ok_or_else(|| format!("want {}", words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(" or ")))
    }
}

/// A list of texts separated by `;`, each parsed by `parser`.
pub fn list<T>(parser: impl Fn(&str) -> Result<T, String>) -> impl Fn(&str) -> Result<Vec<T>, String> {
    move |text| {
        text.split(super::layers::LIST_SEPARATOR).map(str::trim).filter(|t| !t.is_empty()).map(&parser).collect()
    }
}
