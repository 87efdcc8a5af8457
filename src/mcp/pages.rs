//! Pages of a project's lists, as its framework has them: a length, a cursor for this list only, and the total.

use std::ops::Range;

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine};
use rmcp::ErrorData;
use rmcp::model::{MetaObject, PaginatedRequestParams, RequestMetaObject};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use projects::Project;

/// Default and maximum entries of a page.
const DEFAULT_PAGE: usize = 50;
const MAX_PAGE: usize = 200;
/// Key of `_meta` with the length of the whole list.
const TOTAL_KEY: &str = "mcpbash/total";
/// Length of the longest cursor in bytes.
const MAX_CURSOR_BYTES: usize = 512;

/// Prefix of the keys of `_meta` that carry parameters which the protocol does not have.
pub(crate) const MOVED: &str = "mcpbash/";

/// A page of a list.
#[derive(Debug, PartialEq)]
pub(crate) struct Page {
    /// Places of its entries.
    pub(crate) range: Range<usize>,
    /// Cursor of the next page.
    pub(crate) next: Option<String>,
    pub(crate) meta: MetaObject,
}

/// Content of a cursor.
#[derive(Debug, Serialize, Deserialize)]
struct Cursor {
    ver: u8,
    collection: String,
    offset: usize,
    hash: String,
}

/// A list that has pages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paged<'a> {
    /// Name of the list.
    pub(crate) collection: &'a str,
    /// Changes with the list.
    pub(crate) hash: &'a str,
    pub(crate) total: usize,
}

impl Paged<'_> {
    /// Finds the page that a request asks for.
    ///
    /// # Errors
    /// A cursor of another list, or of this one before it changed.
    pub(crate) fn page(&self, cursor: Option<&str>, limit: usize) -> Result<Page, ErrorData> {
        let start = match cursor {
            Some(cursor) => self.place(cursor).ok_or_else(invalid)?,
            None => 0,
        };
        let end = start.saturating_add(limit).min(self.total);
        let next = (end < self.total).then(|| self.cursor(end));
        let meta = MetaObject([(TOTAL_KEY.to_owned(), json!(self.total))].into_iter().collect());
        Ok(Page { range: start..end, next, meta })
    }

    /// Makes the cursor of what begins at a place.
    pub(crate) fn cursor(&self, offset: usize) -> String {
        let collection = self.collection.to_owned();
        let hash = self.hash.to_owned();
        let cursor = Cursor { ver: 1, collection, offset, hash };
        BASE64_URL_SAFE_NO_PAD.encode(json!(cursor).to_string())
    }

    /// Reads a cursor of this list.
    pub(crate) fn place(&self, cursor: &str) -> Option<usize> {
        if cursor.len() > MAX_CURSOR_BYTES {
            return None;
        }
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let cursor: Cursor = serde_json::from_slice(&bytes).ok()?;
        let is_ours =
            cursor.ver == 1 && cursor.collection == self.collection && cursor.hash == self.hash;
        Some(cursor.offset).filter(|offset| is_ours && *offset <= self.total)
    }
}

/// Entries of a page, the cursor of the next one, and the `_meta` of the list.
type PageOf<T> = (Vec<T>, Option<String>, Option<MetaObject>);

/// Cuts the page that is asked for out of a list. Only lists of a project have pages.
///
/// # Errors
/// A cursor that was not given out for the list.
pub(crate) fn page_of<T>(
    project: Option<&Project>,
    collection: &str,
    mut all: Vec<T>,
    request: Option<PaginatedRequestParams>,
    meta: &RequestMetaObject,
) -> Result<PageOf<T>, ErrorData> {
    let cursor = request.and_then(|request| request.cursor);
    let Some(project) = project else {
        return if cursor.is_some() { Err(invalid()) } else { Ok((all, None, None)) };
    };
    let list = Paged { collection, hash: &project.hash, total: all.len() };
    let Page { range, next, meta } = list.page(cursor.as_deref(), length(meta))?;
    all.truncate(range.end);
    Ok((all.split_off(range.start), next, Some(meta)))
}

/// Makes the error of a cursor that was not given out for this list.
pub(crate) fn invalid() -> ErrorData {
    ErrorData::invalid_params("Invalid cursor", None)
}

/// Returns the length of a page that a request asks for.
pub(crate) fn length(meta: &RequestMetaObject) -> usize {
    asked_length(moved(meta, "limit"))
}

fn asked_length(asked: Option<&Value>) -> usize {
    let asked = asked.and_then(Value::as_u64).filter(|asked| *asked > 0);
    asked
        .and_then(|asked| usize::try_from(asked).ok())
        .map_or(DEFAULT_PAGE, |asked| asked.min(MAX_PAGE))
}

/// Returns a member of the parameters that the protocol does not have there.
pub(crate) fn moved<'m>(meta: &'m RequestMetaObject, name: &str) -> Option<&'m Value> {
    meta.get(&format!("{MOVED}{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: Paged<'_> = Paged { collection: "tools", hash: "ab", total: 120 };

    #[test]
    fn pages_follow_each_other_to_the_end_of_a_list() {
        let mut cursor = None;
        let mut ranges = Vec::new();
        loop {
            let page = LIST.page(cursor.as_deref(), DEFAULT_PAGE).expect("a page");
            assert_eq!(page.meta.get(TOTAL_KEY), Some(&json!(120)));
            ranges.push(page.range);
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(ranges, [0..50, 50..100, 100..120]);
        let empty = Paged { total: 0, ..LIST }.page(None, DEFAULT_PAGE).expect("a page");
        assert_eq!((empty.range, empty.next), (0..0, None));
    }

    #[test]
    fn a_cursor_counts_for_its_own_list_as_it_was() {
        let cursor = LIST.page(None, 7).expect("a page").next.expect("more");
        assert_eq!(LIST.page(Some(&cursor), 7).map(|page| page.range), Ok(7..14));
        for other in [
            Paged { collection: "prompts", ..LIST },
            Paged { hash: "ac", ..LIST },
            Paged { total: 6, ..LIST },
        ] {
            assert_eq!(other.page(Some(&cursor), 7), Err(invalid()));
        }
        for bad in ["", "x", &cursor[1..], &"A".repeat(MAX_CURSOR_BYTES + 1)] {
            assert_eq!(LIST.page(Some(bad), 7), Err(invalid()), "{bad}");
        }
    }

    #[test]
    fn a_length_has_bounds() {
        let of = |asked: Value| asked_length(Some(&asked));
        assert_eq!([of(json!(3)), of(json!(0)), of(json!(201))], [3, DEFAULT_PAGE, MAX_PAGE]);
        assert_eq!([of(json!(-1)), of(json!("3")), asked_length(None)], [DEFAULT_PAGE; 3]);
    }
}
