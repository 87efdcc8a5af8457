//! Tests of the log on a real disk: what is written, what changes do to it, and how it is rotated.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::read::{Unverified, verify};
use super::*;
use model::call::{Argv, Asked, Env, Stdin};

fn call() -> Option<Call> {
    let secret = BTreeMap::from([("TOKEN".to_owned(), "hunter2-secret".to_owned())]);
    Some(Call {
        tool: "bash".into(),
        argv: Argv::new(vec!["true".to_owned(), "x\u{1b}".to_owned()]).ok()?,
        script: None,
        stdin: Stdin::Empty,
        env: Env::new(secret).ok()?,
        cwd: None,
        asked: Asked::default(),
        profile: None,
        only: None,
        correlation: None,
    })
}

fn options(directory: &Path, max_bytes: u64) -> Options {
    let file = directory.join("log/audit.jsonl");
    Options { file, max_bytes, keep: 5, on_error: OnError::Continue }
}

fn written(options: &Options, lines: usize) {
    let audit = Audit::open(options).expect("a log");
    let denial = Denial { rule: "none".to_owned(), why: "a test".to_owned(), hint: String::new() };
    for _ in 0..lines {
        audit.denied("bash", audit.new_record(&call().expect("a call")), &denial);
    }
    assert_eq!(audit.trouble(), None);
}

fn broken_line(file: &Path) -> Option<u64> {
    match verify(file) {
        Err(Unverified::Broken(broken)) => Some(broken.line),
        Ok(_) | Err(Unverified::Read { .. }) => None,
    }
}

#[test]
fn a_chain_verifies_over_openings_and_has_no_value_of_an_environment() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = options(directory.path(), 1 << 20);
    written(&options, 2);
    written(&options, 3);
    let verified = verify(&options.file).expect("in order");
    assert_eq!((verified.files, verified.lines, verified.first), (1, 5, 1));
    let text = fs::read_to_string(&options.file).expect("text");
    assert!(text.contains("\"TOKEN\":\"***\"") && !text.contains("hunter2"), "{text}");
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!(mode(&options.file), 0o600);
    assert_eq!(mode(options.file.parent().expect("a parent")), 0o700);
}

#[test]
fn changed_removed_moved_and_cut_lines_are_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = options(directory.path(), 1 << 20);
    written(&options, 4);
    let whole = fs::read_to_string(&options.file).expect("text");
    let [a, b, c, d] = whole.split_inclusive('\n').collect::<Vec<_>>()[..] else {
        panic!("four lines")
    };
    let changed = b.replace("a test", "a jest");
    let cases = [
        (format!("{a}{changed}{c}{d}"), Some(2)),
        (format!("{a}{c}{d}"), Some(2)),
        (format!("{a}{c}{b}{d}"), Some(2)),
        (format!("{a}{b}{c}{}", d.split_at(50).0), Some(4)),
        (whole.clone(), None),
    ];
    for (text, line) in cases {
        fs::write(&options.file, &text).expect("written");
        assert_eq!(broken_line(&options.file), line, "{text}");
    }
}

#[test]
fn a_fragment_of_a_crash_is_recorded_by_the_next_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = options(directory.path(), 1 << 20);
    written(&options, 2);
    let whole = fs::read(&options.file).expect("text");
    fs::write(&options.file, whole.split_at(whole.len() - 30).0).expect("written");
    assert_eq!(broken_line(&options.file), Some(2));
    written(&options, 1);
    assert_eq!(verify(&options.file).map(|verified| verified.lines).ok(), Some(3));
}

#[test]
fn a_line_that_lost_only_its_newline_stays_a_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = options(directory.path(), 1 << 20);
    written(&options, 2);
    let whole = fs::read(&options.file).expect("text");
    fs::write(&options.file, whole.split_at(whole.len() - 1).0).expect("written");
    assert_eq!(
        verify(&options.file).map(|verified| verified.lines).ok(),
        Some(2),
        "before the next line"
    );
    written(&options, 1);
    let continued = fs::read(&options.file).expect("text");
    assert!(continued.starts_with(&whole), "only the newline was added");
    assert_eq!(verify(&options.file).map(|verified| verified.lines).ok(), Some(3));
    assert!(!String::from_utf8_lossy(&continued).contains("fragment"));
}

#[test]
fn rotation_keeps_the_chain_and_as_many_files_as_configured() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = Options { keep: 2, ..options(directory.path(), 2000) };
    written(&options, 30);
    let verified = verify(&options.file).expect("in order");
    assert_eq!((verified.files, verified.last.seq), (3, 30));
    assert!(verified.first > 1, "the oldest files are gone");
    let rotated = options.file.with_file_name("audit.jsonl.1");
    fs::remove_file(rotated).expect("removed");
    assert_eq!(broken_line(&options.file), Some(1));
}

#[test]
fn a_directory_that_others_can_use_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = options(directory.path(), 2000);
    let parent = options.file.parent().expect("a parent");
    fs::create_dir(parent).expect("made");
    fs::set_permissions(parent, fs::Permissions::from_mode(0o755)).expect("set");
    assert!(matches!(Audit::open(&options), Err(LogFileError::Shared { .. })));
}
