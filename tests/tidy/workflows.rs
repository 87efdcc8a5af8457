//! Workflows and actions: what they run of others is one commit, which a tag would not be.

use std::path::{Path, PathBuf};

use crate::form::assert_no_faults;

/// Returns the workflows of this repository, and the action for others.
fn workflows() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let entries = std::fs::read_dir(root.join(".github/workflows")).expect("a directory");
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.push(root.join("packaging/github/action.yml"));
    files
}

/// Returns true for `OWNER/NAME@COMMIT # vVERSION`.
fn is_pinned(action: &str) -> bool {
    let Some((name, rest)) = action.split_once('@') else { return false };
    let Some((commit, version)) = rest.split_once(" # v") else { return false };
    let is_version =
        !version.is_empty() && version.split('.').all(|part| part.parse::<u32>().is_ok());
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    name.contains('/') && commit.len() == 40 && commit.bytes().all(is_hex) && is_version
}

#[test]
fn actions_of_others_are_pinned_by_their_commit() {
    let mut faults = Vec::new();
    let mut count = 0;
    for file in workflows() {
        let text = std::fs::read_to_string(&file).expect("a workflow");
        // Comments have no such key at the start of their line.
        let lines = text.lines().map(|line| line.trim_start().trim_start_matches("- "));
        for action in lines.filter_map(|line| line.strip_prefix("uses: ")) {
            count += 1;
            if !is_pinned(action) {
                faults.push(format!("{}: {action}", file.display()));
            }
        }
    }
    assert_no_faults(&faults);
    assert!(count > 8, "only {count} were found");
    assert!(!is_pinned("actions/checkout@v4"));
    assert!(!is_pinned("actions/checkout@08eba0b27e820071cde6df949e0beb9ba4906955"));
}
