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

use super::print::{Output, flags, quoted, text};
use crate::commands::error::CliError;
use crate::commands::format::plain;
use crate::commands::layers::change::{Act, Change, Kind, link};
use crate::commands::layers::files::{Seen, c_name, open_directory, open_file, split};
use crate::commands::layers::layer::Layer;
use crate::commands::terminal::colour::Tone;
use cell::errno_of;
use model::outcome::in_words;

/// Output and time after which the lines of no further file are shown.
const MAX_OUTPUT: usize = 16 << 20;
const MAX_TIME_OF_ALL: Duration = Duration::from_secs(60);
/// Longest file that is compared by lines.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Maximum number of lines of such a file: each takes more memory than a short line has bytes.
const MAX_LINES: usize = 200_000;
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

/// Prints the changes of a layer, and if all of them were shown, the digest with which they can be
/// applied as they were: `None` if cells use the layer.
pub(super) fn print(
    layer: &Layer,
    host: &OwnedFd,
    changes: &[Change],
    digest: Option<&str>,
    output: &Output,
) -> Result<(), CliError> {
    let upper = layer.upper().map_err(|errno| super::failed("the layer cannot be read", errno))?;
    let end = Instant::now() + MAX_TIME_OF_ALL;
    let mut length = 0;
    let mut left: usize = 0;
    let mut to = std::io::stdout().lock();
    for change in changes.iter().filter(|change| change.kind != Kind::Directory) {
        if length >= MAX_OUTPUT || Instant::now() >= end {
            left += 1;
            continue;
        }
        let before = match change.act {
            Act::Add => Side::Absent,
            Act::Change | Act::Delete => side(host, change),
        };
        let after = match change.act {
            Act::Delete => Side::Absent,
            Act::Add | Act::Change => side(&upper, change),
        };
        let lines = unified(change, &before, &after);
        length += lines.iter().map(|(_, line)| line.len()).sum::<usize>();
        write(&mut to, &lines, output)
            .map_err(|error| CliError::new(format!("standard output: {}", in_words(&error))))?;
    }
    drop(to);
    if left > 0 {
        eprintln!(
            "cofferdam: {left} more changed files are left out; `cofferdam review` lists them, and a program in a \
             cell of `cofferdam run --cow` can read them"
        );
    } else if !changes.is_empty() {
        match digest {
            Some(digest) => eprintln!(
                "cofferdam: `--apply --if {digest}` writes these changes only if they are still as shown"
            ),
            None => eprintln!(
                "cofferdam: `--apply --if DIGEST` needs a list of the layer when no cell uses it"
            ),
        }
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
    if let Ok(target) = link(&parent, &name) {
        return Ok(Side::Text(target));
    }
    let mut bytes = Vec::new();
    let file = File::from(open_file(&parent, &name)?);
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(|error| errno_of(&error))?;
    let is_text = !bytes.contains(&0)
        && u64::try_from(bytes.len()).is_ok_and(|length| length <= MAX_FILE_BYTES);
    Ok(if is_text { Side::Text(bytes) } else { Side::Other })
}

/// Returns true if a side is compared by lines.
fn has_lines(side: &Side) -> bool {
    match side {
        Side::Absent => true,
        Side::Text(bytes) => bytes.split_inclusive(|byte| *byte == b'\n').nth(MAX_LINES).is_none(),
        Side::Other => false,
    }
}

/// Returns the lines of a change, each with its end.
pub(crate) fn unified(change: &Change, before: &Side, after: &Side) -> Vec<(ChangeTag, Vec<u8>)> {
    let path = |prefix: &[u8]| quoted(&[prefix, &change.path].concat());
    let header = |line: String| (ChangeTag::Equal, line.into_bytes());
    let mut lines = vec![header(format!("diff --git {} {}\n", path(b"a/"), path(b"b/")))];
    lines.extend(remarks(change).into_iter().map(header));
    let name = |side: &Side, prefix: &[u8]| match side {
        Side::Absent => "/dev/null".to_owned(),
        Side::Text(_) | Side::Other => path(prefix),
    };
    let old = name(before, b"a/");
    let new = name(after, b"b/");
    if !has_lines(before) || !has_lines(after) {
        lines.push(header(format!("Binary files {old} and {new} differ\n")));
        return lines;
    }
    let names = format!("--- {old}\n+++ {new}\n");
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

/// Returns lines on what the text does not show: why a change is not applied, what to look at, and the
/// kind of the file as git writes it.
fn remarks(change: &Change) -> Vec<String> {
    let mut lines = Vec::new();
    if change.is_conflict {
        lines.push("# conflict: the host changed it too: not applied\n".to_owned());
    }
    lines.extend(change.held.map(|held| format!("# held back: {}\n", held.reason())));
    lines.extend(flags(change).iter().map(|flag| format!("# {flag}\n")));
    let old = change.old.as_ref().and_then(git_mode);
    let new = change.new.as_ref().and_then(git_mode);
    match (change.act, old, new) {
        (Act::Add, _, Some(new)) => lines.push(format!("new file mode {new}\n")),
        (Act::Delete, Some(old), _) => lines.push(format!("deleted file mode {old}\n")),
        (Act::Change, Some(old), Some(new)) if old != new => {
            lines.push(format!("old mode {old}\nnew mode {new}\n"));
        }
        _ => {}
    }
    lines
}

/// Returns the mode that git gives to a file or a link.
fn git_mode(seen: &Seen) -> Option<&'static str> {
    match seen.mode & libc::S_IFMT {
        libc::S_IFLNK => Some("120000"),
        libc::S_IFREG if seen.mode & 0o111 != 0 => Some("100755"),
        libc::S_IFREG => Some("100644"),
        _ => None,
    }
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
    use crate::commands::layers::files::Stamp;

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

    #[test]
    fn a_text_of_too_many_lines_is_not_compared_by_lines() {
        let empty_lines = |count| Side::Text(vec![b'\n'; count]);
        let differ = "diff --git a/a b/a\nBinary files a/a and b/a differ\n";
        assert_eq!(shown(empty_lines(MAX_LINES + 1), empty_lines(1)), differ);
        assert_eq!(shown(empty_lines(1), empty_lines(MAX_LINES + 1)), differ);
        let all = unified(&change("a"), &Side::Absent, &empty_lines(MAX_LINES));
        let inserted = all.iter().filter(|(tag, _)| *tag == ChangeTag::Insert);
        assert_eq!(inserted.count(), MAX_LINES);
    }

    #[test]
    fn a_diff_says_what_a_file_is_and_why_it_is_not_applied() {
        let zero = Stamp(0, 0);
        let seen = |mode| Seen {
            device: 0,
            inode: 0,
            mode,
            size: 0,
            modified: zero,
            changed: zero,
            owner: (0, 0),
        };
        let base = change("a\u{200d}");
        let added = Change { act: Act::Add, new: Some(seen(0o120_777)), ..base.clone() };
        let text = || Side::Text(b"to".to_vec());
        let first = |change: &Change, before: &Side, after: &Side| {
            let lines = unified(change, before, after);
            let lines = lines.iter().take(3).map(|(_, line)| String::from_utf8_lossy(line));
            lines.collect::<String>()
        };
        let name = r"a\342\200\215";
        let head = format!("diff --git \"a/{name}\" \"b/{name}\"\n");
        assert_eq!(
            first(&added, &Side::Absent, &text()),
            format!("{head}new file mode 120000\n--- /dev/null\n+++ \"b/{name}\"\n")
        );
        let changed = Change {
            new: Some(seen(0o120_777)),
            old: Some(seen(0o100_755)),
            is_conflict: true,
            ..base.clone()
        };
        assert_eq!(
            first(&changed, &text(), &text()),
            format!(
                "{head}# conflict: the host changed it too: not applied\nold mode 100755\nnew mode 120000\n"
            )
        );
        let deleted = Change { act: Act::Delete, old: Some(seen(0o100_600)), ..base };
        assert_eq!(
            first(&deleted, &Side::Other, &Side::Absent),
            format!(
                "{head}deleted file mode 100644\nBinary files \"a/{name}\" and /dev/null differ\n"
            )
        );
    }
}
