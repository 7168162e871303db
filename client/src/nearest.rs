//! The nearest right word to a wrong one, for error texts. Knows no settings.

/// The candidate with the smallest edit distance to `text`; the first of equals. Empty if there are none.
pub(crate) fn nearest<'a>(text: &str, candidates: &[&'a str]) -> &'a str {
    candidates.iter().min_by_key(|candidate| distance(text, candidate)).copied().unwrap_or("")
}

/// Optimal string alignment distance (edits and swaps of neighbours), in characters.
fn distance(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.chars().take(64).collect();
    let right: Vec<char> = right.chars().take(64).collect();
    let mut before: Vec<usize> = vec![0; right.len() + 1];
    let mut above: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in right.iter().enumerate() {
            let mut best = (above[j] + usize::from(a != b)).min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == right[j - 1] && left[i - 1] == *b {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swaps_and_typos_are_near() {
        assert_eq!(nearest("deadlien", &["policy", "deadline", "read"]), "deadline");
        assert_eq!(nearest("tied-2", &["untied", "tied2", "tied3"]), "tied2");
        assert_eq!(distance("abc", "acb"), 1);
        assert_eq!(distance("", "abc"), 3);
    }
}
