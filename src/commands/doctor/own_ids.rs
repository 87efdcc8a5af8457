//! Probe of the counts that the kernel keeps for each user of the host. Cells share them if they have the operator's id.

use super::layer::{ProbeResult, ok, weak};
use model::accounts;
use supervisor::{NoOwnIds, check_own_ids};

/// First id of a range on most systems (`SUB_UID_MIN` of login.defs(5)).
const FIRST_RANGE: u64 = 100_000;
const RANGE_LENGTH: u64 = 65_536;

/// Facts that must be read before confinement: the user, and why cells cannot have other ids.
#[derive(Debug)]
pub(super) struct OwnIdFacts {
    uid: u32,
    reason: String,
    remedy: String,
}

impl OwnIdFacts {
    /// Inspects the programs and files of this machine, for a server with this many cells.
    pub(super) fn read(cells: u16) -> Self {
        let uid = nix::unistd::geteuid().as_raw();
        let result = check_own_ids(uid, cells);
        let reason = match &result {
            Ok(()) => "newuidmap or newgidmap refused".to_owned(),
            Err(reason) => reason.to_string(),
        };
        Self { uid, reason, remedy: remedy(uid, result) }
    }

    /// Describes the counts of a cell that was measured to have this host uid.
    pub(super) fn probe(&self, host_uid: u32) -> ProbeResult {
        if self.uid == 0 || host_uid != self.uid {
            return ok(
                "measured: a cell without a grant has a separate id; epoll watches, descriptors in \
                 flight and pages of pipes are counted for it alone",
            );
        }
        weak(format!(
            "cells share epoll watches, descriptors in flight and pages of pipes with your programs: {}",
            self.reason
        ))
        .with_remedy(self.remedy.as_str())
    }
}

/// Returns the steps by which cells get other ids than the operator's.
fn remedy(uid: u32, result: Result<(), NoOwnIds>) -> String {
    let user = accounts::user(uid);
    let named = user.clone().unwrap_or_else(|| uid.to_string());
    match result {
        Err(NoOwnIds::Program) => {
            "install newuidmap (Debian: apt-get install uidmap; Fedora: dnf install shadow-utils)".to_owned()
        }
        Err(NoOwnIds::Range { .. }) => {
            let first = free_range();
            let last = first + RANGE_LENGTH - 1;
            format!(
                "as root: usermod --add-subuids {first}-{last} --add-subgids {first}-{last} {named}, \
                 which puts `{named}:{first}:{RANGE_LENGTH}` into /etc/subuid and /etc/subgid"
            )
        }
        Err(NoOwnIds::NoNewPrivs) => {
            "start cofferdam without no_new_privs (systemd: NoNewPrivileges=no; a container: without \
             --security-opt no-new-privileges)"
                .to_owned()
        }
        Err(NoOwnIds::Locks { .. }) => format!(
            "loginctl enable-linger {named}, which makes /run/user/{uid}; without systemd, as root: install -d -o \
             {named} -m 700 /run/user/{uid}"
        ),
        Err(NoOwnIds::Taken) => format!(
            "end other servers of yours, or give {named} a longer range in /etc/subuid and /etc/subgid"
        ),
        Err(NoOwnIds::Cells { .. }) => "lower `cells` under `[limits]`".to_owned(),
        Ok(()) if user.is_none() => format!("give the uid {uid} a line in /etc/passwd"),
        Ok(()) => format!(
            "try `unshare --user --map-auto true` as {named}: it says what refuses newuidmap; `getsubids \
             {named}` shows the range"
        ),
    }
}

/// Returns the first id above every range that is in use.
fn free_range() -> u64 {
    let ends = ["/etc/subuid", "/etc/subgid"].into_iter().flat_map(|file| {
        // A file that is missing has no ranges.
        let table = std::fs::read(file).unwrap_or_default();
        let table = String::from_utf8_lossy(&table).into_owned();
        table.lines().filter_map(end_of).collect::<Vec<_>>()
    });
    ends.max().unwrap_or(FIRST_RANGE).max(FIRST_RANGE)
}

/// Returns the first id above the range of a line.
fn end_of(line: &str) -> Option<u64> {
    let mut numbers = line.split(':').skip(1).map(|word| word.trim().parse::<u64>());
    numbers.next()?.ok()?.checked_add(numbers.next()?.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_ends_where_the_next_may_begin() {
        assert_eq!(end_of("me:100000:65536"), Some(165_536));
        assert_eq!(end_of("me:100000"), None);
        assert_eq!(end_of("# a comment"), None);
    }

    #[test]
    fn each_reason_has_a_different_remedy() {
        let all = [
            NoOwnIds::Program,
            NoOwnIds::Range { file: "/etc/subuid" },
            NoOwnIds::NoNewPrivs,
            NoOwnIds::Locks { uid: 1000 },
            NoOwnIds::Taken,
            NoOwnIds::Cells { limit: 2000 },
        ];
        let remedies: Vec<String> =
            all.iter().map(|reason| remedy(4_000_000, Err(*reason))).collect();
        let mut distinct = remedies.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), all.len(), "{remedies:?}");
        let range = remedies.get(1).map(String::as_str).unwrap_or_default();
        assert!(range.contains(" 4000000,") && range.contains(":65536`"), "{range}");
        assert!(remedy(4_000_000, Ok(())).contains("/etc/passwd"));
    }
}
