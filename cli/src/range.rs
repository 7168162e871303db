//! From the range that was typed to the range that is scanned.

use crate::args_data::Range;
use crate::escape::unescape;
use crate::outcome::usage;
use anyhow::Result;
use bytes::Bytes;
use tiedkv_client::ScanRange;

/// The range.
///
/// # Errors
/// When an escape is wrong; exit code 2.
pub fn parse(range: &Range) -> Result<ScanRange> {
    let bytes = |text: &Option<String>| text.as_deref().map(unescape).transpose().map_err(usage);
    let (prefix, from, to) = (bytes(&range.prefix)?, bytes(&range.from)?, bytes(&range.to)?);
    Ok(between(prefix, from, to))
}

fn between(prefix: Option<Bytes>, from: Option<Bytes>, to: Option<Bytes>) -> ScanRange {
    match (prefix, from, to) {
        (Some(prefix), ..) => ScanRange::prefix(prefix),
        (None, from, Some(to)) => ScanRange::between(from.unwrap_or_default(), to),
        (None, Some(from), None) => ScanRange::starting_at(from),
        (None, None, None) => ScanRange::all(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(prefix: Option<&str>, from: Option<&str>, to: Option<&str>) -> Range {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Range { prefix: owned(prefix), from: owned(from), to: owned(to) }
    }

    #[test]
    fn what_is_typed_is_what_is_meant() {
        for (range, meant) in [
            (typed(None, None, None), ScanRange::all()),
            (typed(Some(""), None, None), ScanRange::all()),
            (typed(Some(r"a\xff"), None, None), ScanRange::between(&b"a\xff"[..], "b")),
            (typed(None, Some("a"), None), ScanRange::starting_at("a")),
            (typed(None, None, Some("b")), ScanRange::before("b")),
            (typed(None, Some("a"), Some(r"b\x00")), ScanRange::between("a", &b"b\0"[..])),
        ] {
            assert_eq!(parse(&range).unwrap(), meant, "{range:?}");
        }
        assert!(parse(&typed(Some(r"\q"), None, None)).is_err());
    }
}
