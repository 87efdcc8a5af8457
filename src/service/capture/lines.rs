//! Selects the first and last lines of a text for callers that ask for these only.

/// Number of lines that a caller wants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wanted {
    pub head: Option<usize>,
    pub tail: Option<usize>,
}

/// Returns the wanted lines, with a note where others are left out, and whether any are left out.
pub fn only(text: String, wanted: Wanted) -> (String, bool) {
    let (head, tail) = match wanted {
        Wanted { head: None, tail: None } => return (text, false),
        Wanted { head, tail } => (head.unwrap_or(0), tail.unwrap_or(0)),
    };
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let left_out = lines.len().saturating_sub(head.saturating_add(tail));
    if left_out == 0 {
        return (text, false);
    }
    let first = lines.iter().take(head);
    let last = lines.iter().skip(lines.len() - tail);
    let note = match left_out {
        1 => "[… 1 line left out …]\n".to_owned(),
        more => format!("[… {more} lines left out …]\n"),
    };
    let shown = first.copied().chain([note.as_str()]).chain(last.copied()).collect();
    (shown, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str, head: Option<usize>, tail: Option<usize>) -> (String, bool) {
        only(text.to_owned(), Wanted { head, tail })
    }

    #[test]
    fn lines_that_are_not_wanted_are_counted() {
        let text = "1\n2\n3\n4\n5";
        let some = |text: &str| (text.to_owned(), true);
        assert_eq!(cut(text, Some(1), None), some("1\n[… 4 lines left out …]\n"));
        assert_eq!(cut(text, None, Some(2)), some("[… 3 lines left out …]\n4\n5"));
        assert_eq!(cut(text, Some(1), Some(3)), some("1\n[… 1 line left out …]\n3\n4\n5"));
        assert_eq!(cut(text, None, Some(0)), some("[… 5 lines left out …]\n"));
    }

    #[test]
    fn a_text_that_is_short_enough_stays_whole() {
        let whole = ("1\n2\n".to_owned(), false);
        for (head, tail) in [(None, None), (Some(2), None), (Some(1), Some(1)), (None, Some(9))] {
            assert_eq!(cut("1\n2\n", head, tail), whole);
        }
    }
}
