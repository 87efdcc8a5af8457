//! The lines that changed, as a unified diff. Cells wrote the files: what a terminal would act on is
//! escaped there, and kept in a file or a pipe.

use std::fs::File;
use std::io::{Read, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use similar::algorithms::{Capture, Compact, Replace, myers};
use similar::{ChangeTag, DiffOp, DiffTag};

use super::print::{Output, text};
use crate::commands::error::CliError;
use crate::commands::format::plain;
use crate::commands::layers::change::{Act, Change, Kind, link};
use crate::commands::layers::files::{c_name, open_directory, open_file, split};
use crate::commands::layers::layer::Layer;
use crate::commands::terminal::colour::Tone;
use cell::errno_of;
use model::outcome::in_words;

/// Longest file that is compared by lines.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Time for the comparison of one file; after it larger parts than necessary are shown as changed.
const MAX_TIME: Duration = Duration::from_secs(1);
const CONTEXT_LINES: usize = 3;

/// One of the two texts of a change.
pub(crate) enum Side {
    Absent,
    Text(Vec<u8>),
    /// Too large, not a text, or not to be read.
    Other,
}

/// Prints the changes of a layer.
pub(super) fn print(
    layer: &Layer,
    host: &OwnedFd,
    changes: &[Change],
    output: &Output,
) -> Result<(), CliError> {
    let upper = layer.upper().map_err(|errno| super::failed("the layer cannot be read", errno))?;
    let mut to = std::io::stdout().lock();
    for change in changes.iter().filter(|change| change.kind != Kind::Directory) {
        let before = match change.act {
            Act::Add => Side::Absent,
            Act::Change | Act::Delete => side(host, change),
        };
        let after = match change.act {
            Act::Delete => Side::Absent,
            Act::Add | Act::Change => side(&upper, change),
        };
        let lines = unified(change, &before, &after);
        write(&mut to, &lines, output)
            .map_err(|error| CliError::new(format!("standard output: {}", in_words(&error))))?;
    }
    Ok(())
}

pub(crate) fn side(root: &OwnedFd, change: &Change) -> Side {
    read(root, change).unwrap_or(Side::Other)
}

fn read(root: &OwnedFd, change: &Change) -> Result<Side, Errno> {
    let (directory, name) = split(&change.path);
    let parent = open_directory(root, directory)?;
    let name = c_name(name)?;
    if let Ok(mut target) = link(&parent, &name) {
        target.push(b'\n');
        return Ok(Side::Text(target));
    }
    let mut bytes = Vec::new();
    let file = File::from(open_file(&parent, &name)?);
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(|error| errno_of(&error))?;
    let is_text = !bytes.contains(&0)
        && u64::try_from(bytes.len()).is_ok_and(|length| length <= MAX_FILE_BYTES);
    Ok(if is_text { Side::Text(bytes) } else { Side::Other })
}

/// Returns the lines of a change, each with its end.
pub(crate) fn unified(change: &Change, before: &Side, after: &Side) -> Vec<(ChangeTag, Vec<u8>)> {
    let path = quoted(&change.path);
    let header = |line: String| (ChangeTag::Equal, line.into_bytes());
    let mut lines = vec![header(format!("diff --git a/{path} b/{path}\n"))];
    if let Some(held) = change.held {
        lines.push(header(format!("# held back: {}\n", held.reason())));
    }
    if change.becomes_executable() {
        lines.push(header("new mode 100755\n".to_owned()));
    }
    let (before, after) = match (before, after) {
        (Side::Other, _) | (_, Side::Other) => {
            lines.push(header(format!("Binary files a/{path} and b/{path} differ\n")));
            return lines;
        }
        (Side::Text(_) | Side::Absent, Side::Text(_) | Side::Absent) => (before, after),
    };
    let name = |side: &Side, prefix: &str| match side {
        Side::Absent => "/dev/null".to_owned(),
        Side::Text(_) | Side::Other => format!("{prefix}/{path}"),
    };
    let names = format!("--- {}\n+++ {}\n", name(before, "a"), name(after, "b"));
    let bytes = |side: &'_ Side| match side {
        Side::Text(bytes) => bytes.clone(),
        Side::Absent | Side::Other => Vec::new(),
    };
    let before = bytes(before);
    let after = bytes(after);
    let before: Vec<&[u8]> = before.split_inclusive(|byte| *byte == b'\n').collect();
    let after: Vec<&[u8]> = after.split_inclusive(|byte| *byte == b'\n').collect();
    let before = before.as_slice();
    let after = after.as_slice();
    let mut found = Compact::new(Replace::new(Capture::new()), before, after);
    let deadline = Some(Instant::now() + MAX_TIME);
    let Ok(()) =
        myers::diff_deadline(&mut found, before, 0..before.len(), after, 0..after.len(), deadline);
    let groups = found.into_inner().into_inner().into_grouped_ops(CONTEXT_LINES);
    if groups.iter().flatten().any(|operation| operation.tag() != DiffTag::Equal) {
        lines.push(header(names));
    }
    for group in groups {
        let old = span(group.iter().map(DiffOp::old_range));
        let new = span(group.iter().map(DiffOp::new_range));
        lines.push(header(format!("@@ -{old} +{new} @@\n")));
        for line in group.iter().flat_map(|operation| operation.iter_changes(before, after)) {
            let mut bytes = line.tag().to_string().into_bytes();
            bytes.extend_from_slice(line.value());
            if bytes.last() != Some(&b'\n') {
                bytes.extend_from_slice(b"\n\\ No newline at end of file\n");
            }
            lines.push((line.tag(), bytes));
        }
    }
    lines
}

/// Formats the lines of a group, counted from 1: first line and number.
fn span(ranges: impl Iterator<Item = Range<usize>>) -> String {
    let mut all: Option<Range<usize>> = None;
    for range in ranges {
        let start = all.as_ref().map_or(range.start, |all| all.start);
        all = Some(start..range.end);
    }
    let all = all.unwrap_or_default();
    let count = all.end.saturating_sub(all.start);
    let first = if count == 0 { all.start } else { all.start + 1 };
    if count == 1 { first.to_string() } else { format!("{first},{count}") }
}

/// Quotes a path as git does, if it has characters that would end a line.
fn quoted(path: &[u8]) -> String {
    let text = text(path);
    if text.chars().any(|character| character.is_control() || character == '"') {
        text.escape_default().to_string()
    } else {
        text
    }
}

fn write(
    to: &mut impl Write,
    lines: &[(ChangeTag, Vec<u8>)],
    output: &Output,
) -> std::io::Result<()> {
    for (tag, line) in lines {
        if !output.is_terminal {
            to.write_all(line)?;
            continue;
        }
        for line in text(line).trim_end_matches('\n').split('\n') {
            let line = plain(line);
            let line = match tag {
                ChangeTag::Equal => line,
                ChangeTag::Insert => output.colour.paint(Tone::Good, &line),
                ChangeTag::Delete => output.colour.paint(Tone::Bad, &line),
            };
            writeln!(to, "{line}")?;
        }
    }
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(path: &str) -> Change {
        Change {
            path: path.as_bytes().to_vec(),
            act: Act::Change,
            kind: Kind::File,
            new: None,
            old: None,
            target: None,
            held: None,
            is_conflict: false,
            is_movable: true,
        }
    }

    fn shown(before: Side, after: Side) -> String {
        let lines = unified(&change("a"), &before, &after);
        lines.iter().map(|(_, line)| String::from_utf8_lossy(line).into_owned()).collect()
    }

    #[test]
    fn a_diff_is_one_that_patch_reads() {
        let one = Side::Text(b"1\n2\n3\n4\n5\n6\n7\n8\n".to_vec());
        let other = Side::Text(b"1\n2\n3\n4\nfive\n6\n7\n8\nend".to_vec());
        assert_eq!(
            shown(one, other),
            "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -2,7 +2,8 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n+end\n\
             \\ No newline at end of file\n"
        );
        assert_eq!(
            shown(Side::Absent, Side::Text(b"x\n".to_vec())),
            "diff --git a/a b/a\n--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+x\n"
        );
    }
}
