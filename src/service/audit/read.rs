//! Reads a log from its files, oldest first, and checks its chain.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::chain::{self, BadLine, Checked, FIRST, Tip};
use super::file::numbered;
use config::server::MAX_LOG_FILES;
use model::outcome::in_words;

/// The first line that breaks the chain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {reason}", file = .file.display())]
pub struct Broken {
    pub file: PathBuf,
    pub line: u64,
    pub reason: String,
}

/// Why a log could not be verified.
#[derive(Debug, thiserror::Error)]
pub enum Unverified {
    #[error(transparent)]
    Broken(#[from] Broken),
    #[error("`{path}` cannot be read: {}", in_words(.source), path = .path.display())]
    Read { path: PathBuf, source: std::io::Error },
}

/// The result of verifying a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    pub files: usize,
    pub lines: u64,
    /// Sequence number of the first line; above 1 if older files are gone.
    pub first: u64,
    pub last: Tip,
}

/// Returns the existing files of a log, oldest first.
pub fn files(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_owned();
    let rotated =
        (1..=MAX_LOG_FILES).rev().map(|number| path.with_file_name(numbered(&name, number)));
    rotated.filter(|file| file.exists()).chain([path.to_owned()]).collect()
}

/// Checks every line of a log and of its rotated files.
///
/// # Errors
/// The first line that breaks the chain, or a file that cannot be read.
pub fn verify(path: &Path) -> Result<Verified, Unverified> {
    let files = files(path);
    let mut walk = Walk { tip: None, first: 0, lines: 0, fragment: None };
    for file in &files {
        each_line(file, |number, line| {
            walk.step(line)
                .map_err(|reason| Broken { file: file.clone(), line: number, reason }.into())
        })?;
        if let Some(bad) = &walk.fragment {
            let line = bad.number;
            return Err(Broken { file: file.clone(), line, reason: bad.reason.to_string() }.into());
        }
        walk.lines = 0;
    }
    let last = walk.tip.unwrap_or_else(Tip::start);
    let lines = if walk.first == 0 { 0 } else { last.seq + 1 - walk.first };
    Ok(Verified { files: files.len(), lines, first: walk.first, last })
}

/// Calls `visit` with text and fields of every line that is valid by itself, oldest first.
///
/// # Errors
/// If a file cannot be read.
pub fn records(path: &Path, mut visit: impl FnMut(&str, &Value)) -> Result<(), Unverified> {
    for file in files(path) {
        each_line(&file, |_, line| {
            if let (Ok(checked), Ok(text)) = (chain::check(line), std::str::from_utf8(line)) {
                visit(text, &checked.fields);
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn each_line(
    file: &Path,
    mut step: impl FnMut(u64, &[u8]) -> Result<(), Unverified>,
) -> Result<(), Unverified> {
    let unread = |source| Unverified::Read { path: file.to_owned(), source };
    let mut reader = BufReader::new(File::open(file).map_err(unread)?);
    let mut line = Vec::new();
    let mut number = 0;
    while reader.read_until(b'\n', &mut line).map_err(unread)? > 0 {
        number += 1;
        step(number, line.strip_suffix(b"\n").unwrap_or(&line))?;
        line.clear();
    }
    Ok(())
}

struct Walk {
    tip: Option<Tip>,
    first: u64,
    /// Number of lines of the current file.
    lines: u64,
    /// An invalid line without a hash, accepted only if the next line records it as a fragment.
    fragment: Option<Fragment>,
}

struct Fragment {
    number: u64,
    sha256: String,
    reason: BadLine,
}

impl Walk {
    fn step(&mut self, line: &[u8]) -> Result<(), String> {
        self.lines += 1;
        if let Some(fragment) = self.fragment.take() {
            let next = chain::check(line).ok();
            let is_recorded = next.as_ref().is_some_and(|next| {
                let field = |name| next.fields.get(name).and_then(Value::as_str);
                field("event") == Some("fragment") && field("sha256") == Some(&fragment.sha256)
            });
            if !is_recorded {
                return Err(format!("{} (the line before this one)", fragment.reason));
            }
        }
        match chain::check(line) {
            Ok(checked) => self.follow(&checked),
            Err(BadLine::NoHash) => {
                let number = self.lines;
                let sha256 = chain::sha256(line);
                self.fragment = Some(Fragment { number, sha256, reason: BadLine::NoHash });
                Ok(())
            }
            Err(reason) => Err(reason.to_string()),
        }
    }

    fn follow(&mut self, line: &Checked) -> Result<(), String> {
        match &self.tip {
            None if line.seq == 1 && line.prev != FIRST => {
                return Err("it is the first line and continues another".to_owned());
            }
            None => self.first = line.seq,
            Some(tip) if line.seq != tip.seq + 1 || line.prev != tip.hash => {
                return Err(format!(
                    "line {} of the log does not continue line {}: lines were removed, added or moved",
                    line.seq, tip.seq
                ));
            }
            Some(_) => {}
        }
        self.tip = Some(line.tip());
        Ok(())
    }
}
