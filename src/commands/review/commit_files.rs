//! The files that fetched commits change, judged by their names: a merge would write them to the work
//! tree, where programs of the host obey some of them.

use std::collections::BTreeMap;

use super::print::quoted;
use crate::commands::layers::judge::Judge;

/// Maximum number of files that are named, unless there are more kinds of them.
const MAX_SHOWN: usize = 20;
/// Modes of git for a link and for the commit of a submodule.
const LINK: &[u8] = b"120000";
const SUBMODULE: &[u8] = b"160000";

/// A file as `git diff-tree --raw` lists it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FileOfCommit {
    /// Mode after the commits.
    mode: Vec<u8>,
    path: Vec<u8>,
}

impl FileOfCommit {
    /// Parses the two parts of a row.
    pub(super) fn parse(fields: &[u8], path: &[u8]) -> Self {
        let mode = fields.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
        Self { mode: mode.to_vec(), path: path.to_vec() }
    }

    /// Returns why a reader should look at the file before a merge.
    fn remark(&self, top: &str, judge: &Judge) -> Option<&'static str> {
        let whole = match top.is_empty() {
            true => self.path.clone(),
            false => [top.as_bytes(), &self.path].join(&b'/'),
        };
        let held = judge.whole_way(top.len(), &whole);
        match (held, self.mode.as_slice()) {
            (Some(held), _) => Some(held.reason()),
            (None, LINK) => Some("a link"),
            (None, SUBMODULE) => Some("a submodule"),
            (None, _) => None,
        }
    }
}

/// Returns lines for the files that a reader should look at: first one for each reason, then others,
/// those nearest to the top of the repository first. Cells choose the names and how many there are, but
/// not the reasons.
pub(super) fn remarks(top: &str, files: Vec<FileOfCommit>, judge: &Judge) -> Vec<String> {
    let with_reason = |file: FileOfCommit| Some((file.remark(top, judge)?, file.path));
    let mut found: Vec<(&'static str, Vec<u8>)> =
        files.into_iter().filter_map(with_reason).collect();
    let depth = |path: &[u8]| path.iter().filter(|byte| **byte == b'/').count();
    found.sort_by(|(_, one), (_, other)| (depth(one), one).cmp(&(depth(other), other)));
    let mut left: BTreeMap<&str, usize> = BTreeMap::new();
    let is_first = |(reason, _): &(&'static str, Vec<u8>)| {
        let count = left.entry(reason).or_default();
        *count += 1;
        *count == 1
    };
    let (first, others): (Vec<_>, Vec<_>) = found.into_iter().partition(is_first);
    let shown = MAX_SHOWN.max(first.len());
    let mut lines = Vec::new();
    for (reason, path) in first.iter().chain(&others).take(shown) {
        lines.push(format!("  {}  [{reason}]", quoted(path)));
        left.entry(reason).and_modify(|count| *count -= 1);
    }
    let more = left.into_iter().filter(|(_, count)| *count > 0);
    lines.extend(more.map(|(reason, count)| format!("  and {count} more  [{reason}]")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_a_merge_would_make_obeyed_are_named() {
        let row = |mode: &str, path: &str| {
            let fields = format!(":000000 {mode} 0 1 A");
            FileOfCommit::parse(fields.as_bytes(), path.as_bytes())
        };
        let files = vec![
            row("100644", "src/a"),
            row("100644", "sub/.vscode/tasks.json"),
            row("120000", "l"),
            row("160000", "module"),
            row("100644", "esc\u{1b}[2J/.envrc"),
        ];
        let lines = remarks("top", files, &Judge::default());
        let expected = [
            "  l  [a link]",
            "  module  [a submodule]",
            "  \"esc\\033[2J/.envrc\"  [direnv runs it as a shell script, once allowed]",
            "  sub/.vscode/tasks.json  [Visual Studio Code runs its tasks and takes paths of programs from its settings]",
        ];
        assert_eq!(lines, expected);
    }
    #[test]
    fn many_files_of_one_kind_hide_no_other_kind() {
        let row = |mode: &str, path: String| {
            FileOfCommit::parse(format!(":000000 {mode} 0 1 A").as_bytes(), path.as_bytes())
        };
        let mut files: Vec<_> = (10..40).map(|at| row("120000", format!("!d/{at}/link"))).collect();
        files.push(row("100644", "a/b/c/.envrc".to_owned()));
        files.push(row("120000", "z".to_owned()));
        let lines = remarks("", files, &Judge::default());
        let first: Vec<&str> = lines.iter().take(3).map(String::as_str).collect();
        let expected = [
            "  z  [a link]",
            "  a/b/c/.envrc  [direnv runs it as a shell script, once allowed]",
            "  !d/10/link  [a link]",
        ];
        assert_eq!(first, expected);
        assert_eq!(lines.len(), MAX_SHOWN + 1);
        assert_eq!(lines.last().map(String::as_str), Some("  and 12 more  [a link]"));
    }
}
