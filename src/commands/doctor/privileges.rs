//! Probes of what this process inherits: supplementary groups, and the limits on open files and core dumps.

use model::accounts;
use model::core_dumps::{self, CoreHandler};
use supervisor::{OPEN_FILES_HELD, core_handler};

use super::layer::{ProbeResult, missing, ok, weak};
use super::remedies;

/// Groups that are equivalent to root: cells of an ordinary user keep supplementary groups.
const POWERFUL: [&str; 8] = ["docker", "disk", "kvm", "sudo", "wheel", "adm", "lxd", "shadow"];

/// Lists supplementary groups, which only root can take from a cell (setgroups(2) in user namespaces).
pub(super) fn supplementary_groups() -> ProbeResult {
    let euid = nix::unistd::geteuid();
    if euid.is_root() {
        return ok("started as root: cells have none");
    }
    // `serve` has the same cells, where a grant has the operator's ids (see `own_ids`).
    let cells = match supervisor::check_own_ids(euid.as_raw(), 1) {
        Ok(()) => "cells with a grant",
        Err(_) => "cells",
    };
    let primary = nix::unistd::getegid();
    let groups = nix::unistd::getgroups().unwrap_or_default();
    let named = groups
        .into_iter()
        .filter(|group| *group != primary)
        .map(|group| accounts::group(group.as_raw()).unwrap_or_else(|| group.to_string()));
    let (powerful, others): (Vec<_>, Vec<_>) =
        named.partition(|name| POWERFUL.contains(&name.as_str()));
    if !powerful.is_empty() {
        let groups = powerful.join(", ");
        weak(format!(
            "{cells} keep {groups}: granted paths that these groups may use are open to them"
        ))
        .with_remedy("run cofferdam as a user who is not in these groups")
    } else if others.is_empty() {
        ok("none")
    } else {
        let groups = others.join(", ");
        ok(format!("{cells} keep {groups}: none is known to be powerful"))
    }
}

/// Reports the limit on open files, if it is too low.
pub(super) fn open_files() -> Option<ProbeResult> {
    let (_, hard) = rlimit::getrlimit(rlimit::Resource::NOFILE).ok()?;
    (hard < OPEN_FILES_HELD).then(|| {
        missing(format!("{hard} are allowed, and {OPEN_FILES_HELD} are needed for every profile"))
            .with_remedy(remedies::OPEN_FILES)
    })
}

/// Reports which program of the host gets the memory of a process that crashes.
pub(super) fn core_dumps() -> ProbeResult {
    // Limits that cannot be read count as 0 0, which a pipe in core_pattern would be started with.
    let (soft, hard) = cell::limits::core_limits().unwrap_or_default();
    crash_handler(core_handler(), soft, hard)
}

/// Describes a handler of crashes, under the soft and the hard limit of core files.
fn crash_handler(handler: CoreHandler, soft: u64, hard: u64) -> ProbeResult {
    let limit = format!("the limit of core files is {soft} {hard}");
    let is_started = !handler.may_have(soft, hard);
    match handler {
        CoreHandler::Socket => weak(
            "kernel.core_pattern is a socket, which heeds no limit: a crash in a cell is handed to the host's handler",
        )
        .with_remedy(core_dumps::SOCKET_REMEDY),
        CoreHandler::Unknown | CoreHandler::File | CoreHandler::Pipe if is_started => {
            missing(format!(
                "{limit} and cannot be raised: a crash in a cell would start the host's handler"
            ))
            .with_remedy(core_dumps::HARD_LIMIT_REMEDY)
        }
        CoreHandler::Unknown => weak(format!(
            "{limit}; kernel.core_pattern cannot be read, and a socket there heeds no limit"
        )),
        CoreHandler::File | CoreHandler::Pipe => {
            ok(format!("{limit}: a crash in a cell starts no program of the host"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::layer::LayerState;

    /// Returns the result for this pattern, under these soft and hard limits.
    fn result(pattern: &str, limits: (u64, u64)) -> (LayerState, String, Option<String>) {
        let handler = CoreHandler::of_pattern(pattern.as_bytes());
        let result = crash_handler(handler, limits.0, limits.1);
        (result.state, result.how, result.remedy)
    }

    #[test]
    fn a_socket_for_crashes_is_weak_with_its_remedy() {
        let how = "kernel.core_pattern is a socket, which heeds no limit: a crash in a cell is handed to the host's handler";
        let remedy = "as root: sysctl -w kernel.core_pattern=core, or a pattern that begins with `|`, which heeds the limit";
        for pattern in ["@/run/systemd/coredump\n", "@@/run/systemd/coredump\n"] {
            for limits in [(1, 1), (0, 0)] {
                let expected = (LayerState::Weak, how.to_owned(), Some(remedy.to_owned()));
                assert_eq!(result(pattern, limits), expected, "{pattern} {limits:?}");
            }
        }
    }

    #[test]
    fn a_pipe_for_crashes_needs_a_limit_of_1() {
        let pipe = "|/usr/lib/systemd/systemd-coredump %P\n";
        let fine =
            "the limit of core files is 1 1: a crash in a cell starts no program of the host";
        assert_eq!(result(pipe, (1, 1)), (LayerState::Ok, fine.to_owned(), None));
        let how = "the limit of core files is 0 0 and cannot be raised: a crash in a cell would start the host's handler";
        let remedy = "start cofferdam with a hard limit of core files of 1 or more: LimitCORE=1 in a systemd unit, \
                      `USER hard core 1` in /etc/security/limits.conf, --ulimit core=1 for a container, or as root \
                      sysctl -w kernel.core_pattern=core";
        let expected = (LayerState::Missing, how.to_owned(), Some(remedy.to_owned()));
        assert_eq!(result(pipe, (0, 0)), expected);
        let fine =
            "the limit of core files is 0 0: a crash in a cell starts no program of the host";
        assert_eq!(result("core\n", (0, 0)), (LayerState::Ok, fine.to_owned(), None));
        let unread = crash_handler(CoreHandler::Unknown, 1, 1);
        let how = "the limit of core files is 1 1; kernel.core_pattern cannot be read, and a socket there heeds no limit";
        assert_eq!((unread.state, unread.how.as_str()), (LayerState::Weak, how));
    }
}
