//! Keys and values as text that can be pasted back: printable UTF-8 stays, everything else is an escape.

use bytes::Bytes;

/// A text whose escapes are wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`\\{0}` is no escape: \\\\ \\n \\r \\t and \\xNN (two hex digits) are; a backslash is \\\\ or \\x5c")]
pub struct BadEscape(String);

/// The bytes that a text stands for.
///
/// # Errors
/// Names the first wrong escape.
pub fn unescape(text: &str) -> Result<Bytes, BadEscape> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        let escape = &rest[at + 1..];
        let (byte, length) = match escape.as_bytes().first() {
            Some(b'\\') => (b'\\', 1),
            Some(b'n') => (b'\n', 1),
            Some(b'r') => (b'\r', 1),
            Some(b't') => (b'\t', 1),
            Some(b'x') => match escape.get(1..3).and_then(hex) {
                Some(byte) => (byte, 3),
                _ => return Err(BadEscape(escape.chars().take(3).collect())),
            },
            _ => return Err(BadEscape(escape.chars().take(1).collect())),
        };
        bytes.push(byte);
        rest = &escape[length..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    Ok(Bytes::from(bytes))
}

/// The byte of two hex digits; a number that Rust would take with a sign is none.
fn hex(digits: &str) -> Option<u8> {
    digits.bytes().all(|digit| digit.is_ascii_hexdigit()).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// The text that stands for some bytes; [`unescape`] gives them back. Between single quotes it can be pasted into any
/// shell, ours too: no single quote stands in it, and it does not begin like a flag. A backslash is `\x5c`, since fish
/// takes two of them for one even there.
pub fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let (first, bytes) = match bytes.split_first() {
        Some((b'-', rest)) => ("\\x2d", rest),
        _ => ("", bytes),
    };
    text.push_str(first);
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\x5c"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                '\'' => text.push_str("\\x27"),
                c if shows(c) => text.push(c),
                c => c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| text.push_str(&format!("\\x{byte:02x}"))),
            }
        }
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

/// Whether a character is seen as itself. What is invisible, turns the direction of a line or joins what is before it
/// could make one key look like another; Rust escapes the same.
fn shows(c: char) -> bool {
    c == ' ' || c.is_ascii_graphic() || c.escape_debug().count() == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_byte_comes_back() {
        let all: Vec<u8> = (0..=255).chain("äß\u{85}\\x41".bytes()).collect();
        let text = escape(&all);
        assert!(text.chars().all(|c| !c.is_control()), "{text:?}");
        assert_eq!(unescape(&text).unwrap(), all);
    }

    #[test]
    fn plain_text_stays_as_it_is() {
        assert_eq!(escape("user/1: ä".as_bytes()), "user/1: ä");
        assert_eq!(unescape("a\\x41\\\\").unwrap(), "aA\\");
    }

    #[test]
    fn what_does_not_show_is_an_escape_and_what_shows_stays() {
        for (text, escaped) in [
            ("\u{202e}", r"\xe2\x80\xae"),
            ("a\u{200b}b", r"a\xe2\x80\x8bb"),
            ("\u{2028}", r"\xe2\x80\xa8"),
            ("\u{feff}", r"\xef\xbb\xbf"),
            ("\u{7f}", r"\x7f"),
            ("it's", r"it\x27s"),
            (r"a\b\", r"a\x5cb\x5c"),
        ] {
            assert_eq!(escape(text.as_bytes()), escaped, "{text:?}");
            assert_eq!(unescape(escaped).unwrap(), text.as_bytes(), "{text:?}");
        }
        for text in ["\"a b\"", "\u{e4}", "\u{663}", "\u{6f22}\u{5b57}", "\u{1f600}"] {
            assert_eq!(escape(text.as_bytes()), text);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_come_back_and_any_text_is_bytes_or_an_error(
            bytes in prop::collection::vec(any::<u8>(), 0..64),
            text in "[a-zx0-9\\\\\u{e4}\u{0}-\u{1f}]{0,24}",
        ) {
            let escaped = escape(&bytes);
            prop_assert!(escaped.chars().all(|c| !c.is_control()), "{escaped:?}");
            prop_assert_eq!(unescape(&escaped).unwrap(), bytes.clone());
            let pasted = crate::words::split(&format!("put '{escaped}' v")).unwrap();
            prop_assert_eq!(&pasted[1], &escaped);
            prop_assert!(!escaped.starts_with('-'));
            if let Ok(bytes) = unescape(&text) {
                prop_assert_eq!(unescape(&escape(&bytes)).unwrap(), bytes);
            }
        }
    }

    #[test]
    fn wrong_escapes_are_named() {
        for text in ["\\", "\\q", "\\x1", "\\xzz", "\\x+f", "\\x-1", "\\x\u{e9}1"] {
            assert!(unescape(text).is_err(), "{text}");
        }
        assert!(unescape("\\q").unwrap_err().to_string().contains("`\\q`"));
    }
}
