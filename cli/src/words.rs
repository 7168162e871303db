//! From a line of the shell to the words of a command, and which of them a cursor stands in. Pure.
//!
//! Quotes keep spaces and have no other meaning; a backslash stays, because it begins an escape of a key or value
//! ([`crate::escape`]): what a scan printed can be pasted back.

/// A line whose quotes do not close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the quote {0} is not closed; a quote within a word can be written as \\x27 or \\x22")]
pub struct OpenQuote(char);

/// The words of a line.
///
/// # Errors
/// When a quote is not closed.
pub fn split(line: &str) -> Result<Vec<String>, OpenQuote> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in line.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                // An empty pair of quotes is an empty word.
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    match quote {
        Some(open) => Err(OpenQuote(open)),
        None => Ok(words),
    }
}

/// The words before the one that ends at the end of `line`, and where that one begins.
pub fn last_word(line: &str) -> (Vec<&str>, usize) {
    let from =
        line.rfind(char::is_whitespace).map_or(0, |at| at + line[at..].chars().next().map_or(1, char::len_utf8));
    (line[..from].split_whitespace().collect(), from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_keep_spaces_and_backslashes_stay() {
        for (line, words) in [
            ("", &[][..]),
            ("  \t ", &[]),
            ("get a", &["get", "a"]),
            (r"put a\x00b '\xff c'", &["put", r"a\x00b", r"\xff c"]),
            (r#"put "it's" '"'"#, &["put", "it's", "\""]),
            ("put key ''", &["put", "key", ""]),
            (r#"a"b c"d"#, &["ab cd"]),
            (r"get a\", &["get", r"a\"]),
            ("get \u{e4}\u{3000}b", &["get", "\u{e4}", "b"]),
        ] {
            assert_eq!(split(line).unwrap(), words, "{line:?}");
        }
        assert_eq!(split("get 'a"), Err(OpenQuote('\'')));
        assert!(split("get \"a'").unwrap_err().to_string().contains('"'));
    }

    #[test]
    fn the_word_at_the_end_is_found() {
        assert_eq!(last_word("sc"), (vec![], 0));
        assert_eq!(last_word("scan --pre"), (vec!["scan"], 5));
        assert_eq!(last_word("scan "), (vec!["scan"], 5));
        assert_eq!(last_word("\u{e4}\u{3000}x"), (vec!["\u{e4}"], 5));
    }
}
