//! Looks up users and groups in `/etc/passwd` and `/etc/group`, and finds the user's home.
//!
//! The C library would load the modules listed in nsswitch.conf(5). A program without shared
//! libraries must not do that: such modules have crashed it.

use std::path::PathBuf;

/// Returns the home directory: `$HOME`, or that of the user in `/etc/passwd`.
#[must_use]
pub fn home() -> Option<PathBuf> {
    let variable = std::env::var_os("HOME").filter(|home| !home.is_empty());
    variable.map(PathBuf::from).or_else(|| {
        let uid = nix::unistd::getuid().as_raw();
        field("/etc/passwd", uid, 5).filter(|home| !home.is_empty()).map(PathBuf::from)
    })
}

/// Returns the home directory of a user by name.
#[must_use]
pub fn home_of(user: &str) -> Option<PathBuf> {
    let table = std::fs::read("/etc/passwd").ok()?;
    let table = String::from_utf8_lossy(&table).into_owned();
    let mut lines = table.lines().map(|line| line.split(':'));
    let line = lines.find(|line| line.clone().next() == Some(user));
    line?.nth(5).filter(|home| !home.is_empty()).map(PathBuf::from)
}

/// Returns the name of a user.
#[must_use]
pub fn user(uid: u32) -> Option<String> {
    field("/etc/passwd", uid, 0)
}

/// Returns the primary group of a user.
#[must_use]
pub fn primary_group(uid: u32) -> Option<u32> {
    field("/etc/passwd", uid, 3)?.parse().ok()
}

/// Returns the name of a group.
#[must_use]
pub fn group(gid: u32) -> Option<String> {
    field("/etc/group", gid, 0)
}

/// Returns a field of the line with this id (passwd(5), group(5)).
fn field(file: &str, id: u32, number: usize) -> Option<String> {
    // The file may hold names in any encoding.
    field_of(&String::from_utf8_lossy(&std::fs::read(file).ok()?), id, number)
}

fn field_of(table: &str, id: u32, number: usize) -> Option<String> {
    let mut lines = table.lines().map(|line| line.split(':'));
    let line = lines.find(|line| line.clone().nth(2).is_some_and(|text| text.parse() == Ok(id)));
    line?.nth(number).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_found_by_its_whole_id_and_malformed_lines_are_skipped() {
        let table = "broken\nten:x:10:10::/home/ten:/bin/sh\none:x:1:1:One:/home/one:/bin/sh\n";
        assert_eq!(field_of(table, 1, 0).as_deref(), Some("one"));
        assert_eq!(field_of(table, 1, 5).as_deref(), Some("/home/one"));
        assert_eq!(field_of(table, 10, 5).as_deref(), Some("/home/ten"));
        assert_eq!(field_of(table, 0, 0), None);
    }

    #[test]
    fn root_has_a_name_and_a_group() {
        assert_eq!((user(0).as_deref(), group(0).as_deref()), (Some("root"), Some("root")));
        assert_eq!(primary_group(0), Some(0));
    }
}
