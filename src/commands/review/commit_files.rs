//! The files that fetched commits change, judged by their names: a merge would write them to the work
//! tree, where programs of the host obey some of them.

use crate::commands::format::plain;
use crate::commands::layers::judge::Judge;

/// Maximum number of files that are named.
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

/// Returns a line for each file that a reader should look at.
pub(super) fn remarks(top: &str, files: Vec<FileOfCommit>, judge: &Judge) -> Vec<String> {
    let line = |file: &FileOfCommit| {
        let reason = file.remark(top, judge)?;
        Some(format!("  {}  [{reason}]", plain(&String::from_utf8_lossy(&file.path))))
    };
    let mut lines: Vec<String> = files.iter().filter_map(line).collect();
    let more = lines.len().saturating_sub(MAX_SHOWN);
    lines.truncate(MAX_SHOWN);
    lines.extend((more > 0).then(|| format!("  and {more} more that the host obeys")));
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
            "  sub/.vscode/tasks.json  [Visual Studio Code runs its tasks and takes paths of programs from its settings]",
            "  l  [a link]",
            "  module  [a submodule]",
            "  esc\\u{1b}[2J/.envrc  [direnv runs it as a shell script, once allowed]",
        ];
        assert_eq!(lines, expected);
    }
}
