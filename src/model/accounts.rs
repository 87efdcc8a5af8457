//! Users and groups as `/etc/passwd` and `/etc/group` name them, and the home of who runs this.
//!
//! The C library would ask whatever nsswitch.conf(5) lists, by loading it: into a program without
//! shared libraries that is not to be done, and what is loaded there has crashed it.

use std::path::PathBuf;

/// The home directory: `$HOME`, else that of the user in `/etc/passwd`.
#[must_use]
pub fn home() -> Option<PathBuf> {
    let told = std::env::var_os("HOME").filter(|home| !home.is_empty());
    told.map(PathBuf::from).or_else(|| {
        let own = nix::unistd::getuid().as_raw();
        field("/etc/passwd", own, 5).filter(|home| !home.is_empty()).map(PathBuf::from)
    })
}

/// The home directory of a user by name.
#[must_use]
pub fn home_of(user: &str) -> Option<PathBuf> {
    let table = std::fs::read("/etc/passwd").ok()?;
    let table = String::from_utf8_lossy(&table).into_owned();
    let mut lines = table.lines().map(|line| line.split(':'));
    let line = lines.find(|line| line.clone().next() == Some(user));
    line?.nth(5).filter(|home| !home.is_empty()).map(PathBuf::from)
}

/// The name of a user.
#[must_use]
pub fn user(uid: u32) -> Option<String> {
    field("/etc/passwd", uid, 0)
}

/// The name of a group.
#[must_use]
pub fn group(gid: u32) -> Option<String> {
    field("/etc/group", gid, 0)
}

/// A field of the line with this id (passwd(5), group(5)).
fn field(file: &str, id: u32, number: usize) -> Option<String> {
    // Names of people are written there in any encoding.
    found(&String::from_utf8_lossy(&std::fs::read(file).ok()?), id, number)
}

fn found(table: &str, id: u32, number: usize) -> Option<String> {
    let mut lines = table.lines().map(|line| line.split(':'));
    let line = lines.find(|line| line.clone().nth(2).is_some_and(|text| text.parse() == Ok(id)));
    line?.nth(number).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_found_by_its_whole_id_and_a_broken_line_is_passed_over() {
        let table = "broken\nten:x:10:10::/home/ten:/bin/sh\none:x:1:1:One:/home/one:/bin/sh\n";
        assert_eq!(found(table, 1, 0).as_deref(), Some("one"));
        assert_eq!(found(table, 1, 5).as_deref(), Some("/home/one"));
        assert_eq!(found(table, 10, 5).as_deref(), Some("/home/ten"));
        assert_eq!(found(table, 0, 0), None);
    }

    #[test]
    fn root_has_a_name() {
        assert_eq!((user(0).as_deref(), group(0).as_deref()), (Some("root"), Some("root")));
    }
}
