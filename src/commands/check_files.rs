//! Files that are only checked: read without putting them in force, with every mistake reported.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::commands::error::CliError;
use config::document::{Document, Mistake};
use model::accounts;
use model::outcome::in_words;

/// Length of the longest file in bytes (1 MiB), as for files in force.
const FILE_BYTES: u64 = 1 << 20;

/// Reads the named files. Their write permissions matter only once they are in force.
///
/// # Errors
/// The first file that cannot be read.
pub fn documents(paths: &[PathBuf]) -> Result<Vec<Document>, CliError> {
    paths.iter().map(|path| document(path)).collect()
}

fn document(path: &Path) -> Result<Document, CliError> {
    let bad = |why: &str| CliError::new(format!("cannot read {}: {why}", path.display()));
    let read = |error: std::io::Error| bad(&in_words(&error));
    let file = File::open(path).map_err(read)?;
    if file.metadata().map_err(read)?.is_dir() {
        return Err(bad("it is a directory"));
    }
    let mut text = String::new();
    file.take(FILE_BYTES + 1).read_to_string(&mut text).map_err(read)?;
    if u64::try_from(text.len()).is_ok_and(|bytes| bytes > FILE_BYTES) {
        return Err(bad("it is longer than 1M"));
    }
    Ok(Document::new(&path.display().to_string(), &text).with_home(accounts::home()))
}

/// Reads all the documents together. If that fails, reports the first mistake of each; if each is
/// valid by itself, reports how they disagree.
///
/// # Errors
/// The mistakes, each with its place.
pub fn together<T>(
    documents: &[Document],
    parse: impl Fn(&[Document]) -> Result<T, Mistake>,
) -> Result<T, CliError> {
    let disagreed = match parse(documents) {
        Ok(read) => return Ok(read),
        Err(mistake) => mistake,
    };
    let mut mistakes: Vec<String> = Vec::new();
    for document in documents {
        if let Err(mistake) = parse(std::slice::from_ref(document)) {
            mistakes.push(mistake.to_string());
        }
    }
    if mistakes.is_empty() {
        mistakes.push(disagreed.to_string());
    }
    Err(CliError::new(mistakes.join("\n")))
}
