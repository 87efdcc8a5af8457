//! The clerk's answer. Any program of its cell may have written it, so it is parsed as hostile
//! input.

use std::collections::BTreeMap;

use model::outcome::errno_text;

/// Result of a request, as the clerk reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileAnswer {
    Lines(Region),
    Directory {
        entries: Vec<DirectoryEntry>,
        /// True if no entry was left out.
        is_whole: bool,
    },
    /// A file was put there; `links` counts the names of the file before.
    Put {
        was: ReplacedFile,
        size: u64,
    },
    /// A file was changed at a line.
    Edited {
        line: usize,
        region: Region,
        was: ReplacedFile,
        /// True if the text got DOS line endings, which the file has.
        dos: bool,
    },
    Bytes {
        size: u64,
        mode: String,
        bytes: Vec<u8>,
    },
}

/// Lines of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// Number of the first of them, from 1 on.
    pub first: usize,
    pub text: Vec<u8>,
    /// True if the text is everything that was asked for.
    pub is_whole: bool,
    /// Number of lines of the whole file.
    pub lines: usize,
    pub size: u64,
}

/// Kind of file that was replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplacedFile {
    Nothing,
    /// A file with so many names.
    File {
        names: u64,
    },
}

/// An entry of a directory, or of a directory in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirectoryEntry {
    /// Path relative to the listed directory.
    pub path: Vec<u8>,
    pub kind: EntryKind,
}

/// Kind of file, as a listing shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryKind {
    File,
    Directory,
    Link,
    Other,
}

/// Reason why nothing was done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    #[error("is not there")]
    Absent,
    #[error("is a {kind}, not a regular file")]
    Kind { kind: String },
    #[error("leads out of /workspace by a symbolic link")]
    Outside,
    #[error("has {size} bytes; at most {} are taken", super::FILE_BYTES)]
    Large { size: u64 },
    #[error("is there already")]
    Exists,
    #[error("does not have this text")]
    NoMatch,
    #[error("has this text {count} times, on lines {lines}")]
    Many { lines: String, count: u64 },
    #[error("has {lines} lines")]
    Range { lines: usize },
    #[error("became another file meanwhile")]
    Changed,
    /// Errno of a failed step.
    #[error("{step}: {}", errno_text(*.errno))]
    Errno { step: String, errno: i32 },
}

/// Key-value pairs of an answer.
struct Facts<'a>(BTreeMap<&'a str, &'a str>);

impl Facts<'_> {
    fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.0.get(name)?.parse().ok()
    }

    fn is_set(&self, name: &str) -> bool {
        self.0.get(name) == Some(&"1")
    }

    fn text(&self, name: &str) -> Option<String> {
        let text = self.0.get(name)?;
        Some(text.chars().take(400).flat_map(char::escape_default).collect())
    }
}

/// Parses an answer; `None` if it is malformed or incomplete.
pub fn read(bytes: &[u8]) -> Option<Result<FileAnswer, FileError>> {
    let rest = bytes.strip_prefix(b"cofferdam-clerk 1\n")?;
    let end = rest.windows(2).position(|pair| pair == b"\n\n")?;
    let (head, body) = rest.split_at_checked(end)?;
    let body = body.get(2..)?;
    let mut lines = std::str::from_utf8(head).ok()?.lines();
    let verdict = lines.next()?;
    let facts = Facts(lines.map(|line| line.split_once(' ')).collect::<Option<_>>()?);
    if facts.number("bytes") != Some(body.len()) {
        return None;
    }
    match verdict {
        "ok" => done(&facts, body).map(Ok),
        refused => no(refused.strip_prefix("no ")?, &facts).map(Err),
    }
}

fn done(facts: &Facts<'_>, body: &[u8]) -> Option<FileAnswer> {
    let is = facts.0.get("is").copied();
    if is == Some("directory") {
        let entries = body.split(|byte| *byte == 0).filter(|entry| !entry.is_empty());
        let entries = entries.map(entry).collect::<Option<_>>()?;
        return Some(FileAnswer::Directory { entries, is_whole: facts.is_set("whole") });
    }
    if let Some(mode) = facts.text("mode") {
        let size = facts.number("size")?;
        let bytes = body.to_vec();
        return Some(FileAnswer::Bytes { size, mode, bytes });
    }
    if facts.0.contains_key("first") {
        let region = Region {
            first: facts.number("first")?,
            text: body.to_vec(),
            is_whole: facts.is_set("whole"),
            lines: facts.number("lines")?,
            size: facts.number("size")?,
        };
        return match facts.number("line") {
            None => Some(FileAnswer::Lines(region)),
            Some(line) => {
                let dos = facts.is_set("dos");
                Some(FileAnswer::Edited { line, region, was: was(facts)?, dos })
            }
        };
    }
    Some(FileAnswer::Put { was: was(facts)?, size: facts.number("size")? })
}

fn was(facts: &Facts<'_>) -> Option<ReplacedFile> {
    match *facts.0.get("was")? {
        "created" => Some(ReplacedFile::Nothing),
        "replaced" => Some(ReplacedFile::File { names: facts.number("links")? }),
        _ => None,
    }
}

fn entry(text: &[u8]) -> Option<DirectoryEntry> {
    let (kind, path) = text.split_at_checked(2)?;
    let kind = match kind {
        b"f " => EntryKind::File,
        b"d " => EntryKind::Directory,
        b"l " => EntryKind::Link,
        b"o " => EntryKind::Other,
        _ => return None,
    };
    Some(DirectoryEntry { path: path.to_vec(), kind })
}

fn no(kind: &str, facts: &Facts<'_>) -> Option<FileError> {
    Some(match kind {
        "absent" => FileError::Absent,
        "kind" => FileError::Kind { kind: facts.text("kind")? },
        "outside" => FileError::Outside,
        "large" => FileError::Large { size: facts.number("size")? },
        "exists" => FileError::Exists,
        "no-match" => FileError::NoMatch,
        "many" => FileError::Many {
            lines: facts.text("lines")?.replace(',', ", "),
            count: facts.number("count")?,
        },
        "range" => FileError::Range { lines: facts.number("lines")? },
        "changed" => FileError::Changed,
        "errno" => FileError::Errno { step: facts.text("step")?, errno: facts.number("errno")? },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_whole_or_not_at_all() {
        let put = b"cofferdam-clerk 1\nok\nwas created\nsize 3\nbytes 0\n\n";
        assert_eq!(read(put), Some(Ok(FileAnswer::Put { was: ReplacedFile::Nothing, size: 3 })));
        for cut in 0..put.len() {
            assert_eq!(put.get(..cut).map(read), Some(None), "{cut}");
        }
        let get = b"cofferdam-clerk 1\nok\nsize 5\nmode 0644\nbytes 4\n\na\n\nb";
        let bytes =
            FileAnswer::Bytes { size: 5, mode: "0644".to_owned(), bytes: b"a\n\nb".to_vec() };
        assert_eq!(read(get), Some(Ok(bytes)));
        assert_eq!(read(&[get.as_slice(), b"x"].concat()), None, "more than was said");
        assert_eq!(read(&[b"x".as_slice(), get].concat()), None, "something before it");
    }

    #[test]
    fn a_refusal_has_its_facts() {
        let many = b"cofferdam-clerk 1\nno many\nlines 3,17\ncount 2\nbytes 0\n\n";
        let no = FileError::Many { lines: "3, 17".to_owned(), count: 2 };
        assert_eq!(read(many), Some(Err(no)));
        let errno = b"cofferdam-clerk 1\nno errno\nstep opening\nerrno 13\nbytes 0\n\n";
        let message = read(errno).and_then(Result::err).map(|no| no.to_string());
        assert_eq!(message.as_deref(), Some("opening: permission denied (EACCES)"));
        for forged in ["no other\nbytes 0\n\n", "no many\nbytes 0\n\n", "yes\nbytes 0\n\n"] {
            assert_eq!(read(format!("cofferdam-clerk 1\n{forged}").as_bytes()), None, "{forged}");
        }
    }

    #[test]
    fn names_of_a_listing_may_be_any_bytes() {
        let list =
            b"cofferdam-clerk 1\nok\nis directory\nwhole 1\nbytes 14\n\nd a\nb\0f a\nb/\xff\0";
        let entry = |path: &[u8], kind| DirectoryEntry { path: path.to_vec(), kind };
        let entries =
            vec![entry(b"a\nb", EntryKind::Directory), entry(b"a\nb/\xff", EntryKind::File)];
        assert_eq!(read(list), Some(Ok(FileAnswer::Directory { entries, is_whole: true })));
    }
}
