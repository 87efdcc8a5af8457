//! Tests of the walls of the process that reads a layer.

use super::*;
use crate::commands::reading_walls::{self, Reader};

#[test]
fn the_process_reads_files_and_changes_or_reaches_nothing() {
    let [own, other] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let layer = OwnedFd::from(File::open(own.path()).expect("the directory"));
    let opened = |path: &std::path::Path, flags| open(path, flags, Mode::empty()).map(drop);
    reading_walls::check(Reader::Layer, own.path(), other.path(), &opened, || confine(&layer));
}
