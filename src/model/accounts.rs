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
        home_of_id(uid)
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

/// Returns the home directory of a user by id.
#[must_use]
pub fn home_of_id(uid: u32) -> Option<PathBuf> {
    field("/etc/passwd", uid, 5).filter(|home| !home.is_empty()).map(PathBuf::from)
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

/// Returns the groups that list a user, other than the primary one.
#[must_use]
pub fn supplementary_groups(uid: u32) -> Vec<u32> {
    let table = std::fs::read("/etc/group").unwrap_or_default();
    let name = user(uid);
    name.map(|name| groups_that_list(&String::from_utf8_lossy(&table), &name)).unwrap_or_default()
}

fn groups_that_list(groups: &str, name: &str) -> Vec<u32> {
    let listed = |line: &str| {
        let mut fields = line.split(':').skip(2);
        let gid = fields.next()?.parse().ok()?;
        fields.next()?.split(',').any(|member| member == name).then_some(gid)
    };
    groups.lines().filter_map(listed).collect()
}

/// Returns the users in a group, by their accounts and by its list; `None` if the group is not known, or
/// names a user who is not.
#[must_use]
pub fn members(gid: u32) -> Option<Vec<u32>> {
    let read = |file| Some(String::from_utf8_lossy(&std::fs::read(file).ok()?).into_owned());
    members_of(&read("/etc/passwd")?, &read("/etc/group")?, gid)
}

fn members_of(users: &str, groups: &str, gid: u32) -> Option<Vec<u32>> {
    let listed = field_of(groups, gid, 3)?;
    let account = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        let uid = fields.nth(1)?.parse::<u32>().ok()?;
        Some((name, uid, fields.next()?.parse::<u32>().ok()?))
    };
    let accounts: Vec<_> = users.lines().filter_map(account).collect();
    let own = accounts.iter().filter(|(_, _, group)| *group == gid).map(|(_, uid, _)| Some(*uid));
    let named = listed.split(',').filter(|name| !name.is_empty()).map(|name| {
        let found = accounts.iter().find(|(known, ..)| known == name);
        found.map(|(_, uid, _)| *uid)
    });
    own.chain(named).collect()
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
    fn members_of_a_group_are_those_with_it_and_those_that_it_lists() {
        let users = "a:x:1:10::/:\nb:x:2:20::/:\nc:x:3:10::/:\n";
        let groups = "ten:x:10:b\ntwenty:x:20:\nodd:x:30:a,unknown\n";
        let members = |gid| members_of(users, groups, gid);
        assert_eq!(members(10), Some(vec![1, 3, 2]));
        assert_eq!(members(20), Some(vec![2]));
        assert_eq!(members(30), None);
        assert_eq!(members(40), None);
        assert_eq!(groups_that_list(groups, "a"), [30]);
        assert_eq!(groups_that_list(groups, "b"), [10]);
        assert!(groups_that_list(groups, "c").is_empty());
    }

    #[test]
    fn root_has_a_name_and_a_group() {
        assert_eq!((user(0).as_deref(), group(0).as_deref()), (Some("root"), Some("root")));
        assert_eq!(primary_group(0), Some(0));
    }
}
