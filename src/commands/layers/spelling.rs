//! Names that a filesystem may take for the same, although they are spelled differently.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString};

use nix::errno::Errno;

/// Returns the names of a layer's directory that are another spelling of one on the host, which has
/// the `exact` names, or of one among themselves. A name that only the kernel knows to be the same as
/// another is refused when it is applied, as it never replaces a file.
pub(super) fn spelled_twice(
    names: &[CString],
    exact: &[CString],
    is_on_host: impl Fn(&CStr) -> Result<bool, Errno>,
) -> Result<BTreeSet<CString>, Errno> {
    let mut doubled = BTreeSet::new();
    let mut by_letters: BTreeMap<String, &CString> = BTreeMap::new();
    for name in names {
        if exact.binary_search(name).is_err() && is_on_host(name)? {
            doubled.insert(name.clone());
        }
        if let Some(other) = by_letters.insert(lower(name), name) {
            doubled.extend([other.clone(), name.clone()]);
        }
    }
    Ok(doubled)
}

/// Returns a name in lower case, without the ends that some filesystems ignore.
fn lower(name: &CStr) -> String {
    name.to_string_lossy().trim_end_matches(['.', ' ']).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_name_are_found_where_the_filesystem_folds_them() {
        let names = |words: &[&str]| -> Vec<CString> {
            let mut names: Vec<CString> =
                words.iter().filter_map(|word| CString::new(*word).ok()).collect();
            names.sort();
            names
        };
        let exact = names(&["Readme", "src", "caf\u{e9}"]);
        // A filesystem that knows more about letters than this program: the two forms of an accent.
        let is_on_host = |name: &CStr| {
            let name = name.to_string_lossy().to_lowercase().replace("e\u{301}", "\u{e9}");
            Ok(["readme", "src", "caf\u{e9}"].contains(&name.as_str()))
        };
        let layer = names(&[
            "readme",
            "src",
            "cafe\u{301}",
            "New",
            "new.",
            "NEW",
            "plain",
            "\u{c4}",
            "\u{e4}",
        ]);
        let found = spelled_twice(&layer, &exact, is_on_host);
        let expected = names(&["readme", "cafe\u{301}", "New", "new.", "NEW", "\u{c4}", "\u{e4}"]);
        assert_eq!(found, Ok(expected.into_iter().collect()));
    }
}
