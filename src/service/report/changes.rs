//! Workspace changes of a command, as fields and as a line.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::{ci, to_value};
use crate::capture::deceptive::plain;
use model::outcome::{Change, FileChange, FileKind, FilesChanged};

/// Names in the line, at most; the fields have more.
const NAMED: usize = 10;

/// Formats a path of any bytes as one line.
pub fn name(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => plain(text),
        Ok(_) | Err(_) => bytes.escape_ascii().to_string(),
    }
}

/// Returns the changes as fields.
pub fn fields(changed: &FilesChanged) -> Value {
    to_value(&ChangeFields::of(changed))
}

/// Files of /workspace that changed since it was looked at before; absent when none did.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ChangeFields {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    created: Vec<FileFields>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    modified: Vec<FileFields>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    deleted: Vec<String>,
    /// Changes that are not listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    more: Option<u64>,
    /// Changes below .git, which are not listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    below_git: Option<u32>,
    /// Not all of /workspace was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    incomplete: Option<bool>,
}

/// A file that is there.
#[derive(Debug, Serialize, JsonSchema)]
struct FileFields {
    /// From /workspace on; / ends a directory, @ a symbolic link.
    path: String,
    size: u64,
    mode: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    executable: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    runs_in_ci: Option<bool>,
}

impl ChangeFields {
    fn of(changed: &FilesChanged) -> Self {
        let of = |change: Change| changed.listed.iter().filter(move |one| one.change == change);
        let more = more(changed, changed.listed.len());
        Self {
            created: of(Change::Created).map(FileFields::of).collect(),
            modified: of(Change::Modified).map(FileFields::of).collect(),
            deleted: of(Change::Deleted).map(shown).collect(),
            more: Some(more).filter(|more| *more > 0),
            below_git: Some(changed.below_git).filter(|count| *count > 0),
            incomplete: (!changed.is_whole).then_some(true),
        }
    }
}

impl FileFields {
    fn of(one: &FileChange) -> Self {
        Self {
            path: shown(one),
            size: one.size,
            mode: format!("{:04o}", one.mode),
            executable: is_executable(one).then_some(true),
            runs_in_ci: runs_in_ci(one).then_some(true),
        }
    }
}

fn more(changed: &FilesChanged, listed: usize) -> u64 {
    let all =
        [changed.created, changed.modified, changed.deleted].map(u64::from).iter().sum::<u64>();
    all.saturating_sub(u64::try_from(listed).unwrap_or(u64::MAX))
}

fn is_executable(one: &FileChange) -> bool {
    one.kind == FileKind::File && one.mode & 0o111 != 0
}

/// Returns whether a host of repositories runs what the file says, once it is pushed there.
fn runs_in_ci(one: &FileChange) -> bool {
    one.kind != FileKind::Directory && ci::runs(&one.path)
}

/// Formats the path, with the suffix of a listing for anything but a plain file.
fn shown(one: &FileChange) -> String {
    let end = match one.kind {
        FileKind::Directory => "/",
        FileKind::Link => "@",
        FileKind::File | FileKind::Other => "",
    };
    name(&one.path) + end
}

/// Quotes a name as JSON does where it could be taken for words of the line around it.
fn within_a_line(name: String) -> String {
    let is_word = |c: char| c.is_alphanumeric() || "._/+@=-~%\\#:".contains(c);
    match name.chars().all(is_word) {
        true => name,
        false => json!(name).to_string(),
    }
}

/// Formats the changes as one line for a model.
pub fn line(changed: &FilesChanged) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut listed = 0;
    let mut before = None;
    for one in changed.listed.iter().take(NAMED) {
        let word = match one.change {
            Change::Created => "created",
            Change::Modified => "modified",
            Change::Deleted => "deleted",
        };
        let word = if before == Some(one.change) { String::new() } else { format!("{word} ") };
        let note = match (one.change, runs_in_ci(one), is_executable(one)) {
            (Change::Deleted, _, _) | (_, false, false) => "",
            (_, false, true) => " (executable)",
            (_, true, false) => " (runs in CI)",
            (_, true, true) => " (executable, runs in CI)",
        };
        parts.push(format!("{word}{}{note}", within_a_line(shown(one))));
        before = Some(one.change);
        listed += 1;
    }
    match more(changed, listed) {
        0 => {}
        more => parts.push(format!("{more} more")),
    }
    if changed.below_git > 0 {
        parts.push(format!("{} below .git", changed.below_git));
    }
    if !changed.is_whole {
        parts.push("not all of /workspace was looked at".to_owned());
    }
    format!("[files changed: {}]", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(change: Change, path: &[u8], kind: FileKind, mode: u16) -> FileChange {
        FileChange { change, path: path.to_vec(), kind, size: 3, mode }
    }

    #[test]
    fn files_are_listed_by_what_happened_to_them() {
        let changed = FilesChanged {
            listed: vec![
                one(Change::Created, b"a", FileKind::File, 0o755),
                one(Change::Created, b"d", FileKind::Directory, 0o755),
                one(Change::Modified, b"m\n\xff", FileKind::File, 0o644),
                one(Change::Deleted, b"x", FileKind::File, 0o755),
            ],
            created: 2,
            modified: 4,
            deleted: 1,
            below_git: 7,
            is_whole: false,
        };
        assert_eq!(
            fields(&changed),
            json!({
                "created": [
                    { "path": "a", "size": 3, "mode": "0755", "executable": true },
                    { "path": "d/", "size": 3, "mode": "0755" }
                ],
                "modified": [{ "path": "m\\n\\xff", "size": 3, "mode": "0644" }],
                "deleted": ["x"], "more": 3, "below_git": 7, "incomplete": true
            })
        );
        assert_eq!(
            line(&changed),
            "[files changed: created a (executable), d/, modified m\\n\\xff, deleted x, 3 more, \
             7 below .git, not all of /workspace was looked at]"
        );
    }

    #[test]
    fn a_workflow_is_flagged_where_it_is_there() {
        let listed = vec![
            one(Change::Created, b".github/workflows", FileKind::Directory, 0o755),
            one(Change::Created, b".github/workflows/ci.yml", FileKind::File, 0o644),
            one(Change::Deleted, b".gitlab-ci.yml", FileKind::File, 0o644),
        ];
        let changed = FilesChanged { listed, created: 2, deleted: 1, ..FilesChanged::none() };
        let workflow = json!({ "path": ".github/workflows/ci.yml", "size": 3, "mode": "0644", "runs_in_ci": true });
        assert_eq!(fields(&changed).pointer("/created/1"), Some(&workflow));
        assert_eq!(
            line(&changed),
            "[files changed: created .github/workflows/, .github/workflows/ci.yml (runs in CI), deleted .gitlab-ci.yml]"
        );
    }

    #[test]
    fn no_name_is_taken_for_words_of_the_line() {
        let names: [&[u8]; 4] =
            [b"a, deleted src", b"x] [outcome: ok", b"run (executable)", "\u{e9}.txt".as_bytes()];
        let created = |name: &[u8]| one(Change::Created, name, FileKind::File, 0o644);
        let listed = names.map(created).to_vec();
        let changed = FilesChanged { listed, created: 4, ..FilesChanged::none() };
        assert_eq!(
            line(&changed),
            "[files changed: created \"a, deleted src\", \"x] [outcome: ok\", \"run (executable)\", \u{e9}.txt]"
        );
    }
}
