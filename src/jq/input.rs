//! Reads input values from standard input or files: a stream of strict JSON documents, or lines of
//! text.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use jaq_json::Val;

/// Size of a read in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// How input becomes values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// True if the filter is run once, with null.
    pub(crate) is_null: bool,
    /// True if all values are read into one array, or with `is_raw` all text into one string.
    pub(crate) is_slurped: bool,
    /// True if each line is a string, and is not parsed as JSON.
    pub(crate) is_raw: bool,
}

/// Input values in order, with an error for each that is invalid.
pub(crate) struct Inputs {
    pub(crate) reading: Reading,
    pub(crate) values: Box<dyn Iterator<Item = Result<Val, String>>>,
}

impl Inputs {
    /// Opens the files, or standard input without any.
    ///
    /// # Errors
    /// A file that cannot be opened.
    pub(crate) fn open(files: &[PathBuf], reading: Reading) -> Result<Self, String> {
        let mut all: Box<dyn Read> = Box::new(io::empty());
        for path in files {
            let file = open(path)
                .map_err(|error| format!("Could not open {}: {error}", path.display()))?;
            all = Box::new(all.chain(file));
        }
        if files.is_empty() {
            all = Box::new(io::stdin());
        }
        let text = BufReader::with_capacity(CHUNK_BYTES, Lossy::new(all));
        let values: Box<dyn Iterator<Item = Result<Val, String>>> = match reading {
            Reading { is_raw: true, is_slurped: true, .. } => {
                Box::new(std::iter::once_with(|| whole(text)))
            }
            Reading { is_raw: true, is_slurped: false, .. } => Box::new(lines(text)),
            Reading { is_raw: false, is_slurped: true, .. } => {
                Box::new(std::iter::once_with(|| documents(text).collect()))
            }
            Reading { is_raw: false, is_slurped: false, .. } => Box::new(documents(text)),
        };
        Ok(Self { reading, values })
    }
}

/// Opens a file. A directory fails here rather than when it is read.
fn open(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    match file.metadata()?.is_dir() {
        true => Err(io::ErrorKind::IsADirectory.into()),
        false => Ok(file),
    }
}

fn documents(text: impl Read) -> impl Iterator<Item = Result<Val, String>> {
    let stream = serde_json::Deserializer::from_reader(text).into_iter::<Val>();
    stream.map(|document| document.map_err(|error| format!("parse error: {error}")))
}

fn lines(mut text: impl BufRead) -> impl Iterator<Item = Result<Val, String>> {
    std::iter::from_fn(move || {
        let mut line = String::new();
        match text.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => {
                let line = line.strip_suffix('\n').map(str::to_owned).unwrap_or(line);
                Some(Ok(Val::utf8_str(line)))
            }
            Err(error) => Some(Err(error.to_string())),
        }
    })
}

fn whole(mut text: impl Read) -> Result<Val, String> {
    let mut all = String::new();
    text.read_to_string(&mut all).map_err(|error| error.to_string())?;
    Ok(Val::utf8_str(all))
}

/// Parses a text that is one JSON document.
pub(crate) fn parse_one(text: &str) -> Result<Val, serde_json::Error> {
    serde_json::from_str(text)
}

/// Parses a text of any number of JSON documents.
pub(crate) fn parse_all(text: &str) -> Result<Vec<Val>, serde_json::Error> {
    serde_json::Deserializer::from_str(text).into_iter().collect()
}

/// Replaces invalid UTF-8 in what it reads, as jq(1) does.
struct Lossy<R> {
    inner: R,
    /// First bytes of a character that is not completely read yet.
    partial: Vec<u8>,
    /// Valid UTF-8 to return next, from `at`.
    ready: Vec<u8>,
    at: usize,
}

impl<R: Read> Lossy<R> {
    fn new(inner: R) -> Self {
        Self { inner, partial: Vec::new(), ready: Vec::new(), at: 0 }
    }

    /// Reads until text is ready or the input ends.
    fn fill(&mut self) -> io::Result<()> {
        let mut chunk = vec![0; CHUNK_BYTES];
        while self.at >= self.ready.len() {
            let length = match self.inner.read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            let is_end = length == 0;
            let mut bytes = std::mem::take(&mut self.partial);
            bytes.extend_from_slice(chunk.get(..length).unwrap_or_default());
            let mut text = String::with_capacity(bytes.len());
            let mut chunks = bytes.utf8_chunks().peekable();
            while let Some(part) = chunks.next() {
                text.push_str(part.valid());
                let rest = part.invalid();
                let is_cut = || std::str::from_utf8(rest).is_err_and(|e| e.error_len().is_none());
                if chunks.peek().is_none() && !is_end && is_cut() {
                    self.partial = rest.to_vec();
                } else if !rest.is_empty() {
                    text.push(char::REPLACEMENT_CHARACTER);
                }
            }
            self.ready = text.into_bytes();
            self.at = 0;
            if is_end {
                break;
            }
        }
        Ok(())
    }
}

impl<R: Read> Read for Lossy<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.at >= self.ready.len() {
            self.fill()?;
        }
        let mut ready = self.ready.get(self.at..).unwrap_or_default();
        let length = ready.read(to)?;
        self.at += length;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns one byte per read.
    struct Slow<'b>(&'b [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let (mut next, later) = self.0.split_at(self.0.len().min(1));
            self.0 = later;
            next.read(to)
        }
    }

    #[test]
    fn invalid_utf_8_is_replaced_however_reads_cut_it() {
        for bytes in [
            &b"a\xc3\xa9b"[..],
            b"\xff",
            b"a\xe2\x82",
            b"\xe2\x82\xac\xf0\x9f\x98\x80",
            b"\xc3(",
            b"",
        ] {
            let mut text = String::new();
            Lossy::new(Slow(bytes)).read_to_string(&mut text).expect("text");
            assert_eq!(text, String::from_utf8_lossy(bytes), "{bytes:?}");
        }
    }

    #[test]
    fn documents_are_strict_json_and_are_read_one_by_one() {
        let read: Vec<_> = documents(&b"1 {\"a\":[2]} nul"[..]).collect();
        assert_eq!(read.len(), 3);
        assert!(read.first().is_some_and(Result::is_ok) && read.last().is_some_and(Result::is_err));
        for bad in ["NaN", "# a\n1", "{1:2}", "[1,]", "b\"x\"", "+1"] {
            assert!(documents(bad.as_bytes()).next().is_some_and(|value| value.is_err()), "{bad}");
        }
    }
}
