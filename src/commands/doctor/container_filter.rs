//! The seccomp profile for a container in which cofferdam runs, made from the tables of cofferdam's filters.
//!
//! A flat list in the form of the OCI runtime specification, without conditions: Docker, Podman and the kubelets' runtimes
//! all read it. Arguments of calls are not checked here; each cell has a filter that checks them.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use syscalls::{aarch64, x86_64};

use crate::commands::confine;
use crate::commands::error::CliError;
use crate::commands::layer_reader;
use crate::commands::serve::file_reader;
use config::profile::Profiles;
use model::profile::floor;

/// Calls that no cell may make, but programs of a container outside of cells do. They are in the default profiles of
/// engines too: each needs capabilities, or reaches processes of the same user only.
const OUTSIDE_OF_CELLS: [&str; 7] = [
    "chroot",
    "get_robust_list",
    "name_to_handle_at",
    "ptrace",
    "process_mrelease",
    "set_thread_area",
    "sysfs",
];

/// Returns the calls that are refused in cells and in the container. Those that cofferdam makes are allowed again later.
fn refused() -> BTreeSet<&'static str> {
    let never = floor::never().filter(|(_, errno)| *errno == libc::EPERM);
    let never = never.flat_map(|(group, _)| group.names.iter().copied());
    never.filter(|name| !OUTSIDE_OF_CELLS.contains(name)).collect()
}

/// Returns the names of the calls that the profile allows, of both architectures.
pub(super) fn names() -> BTreeSet<String> {
    let refused = refused();
    let known = x86_64::Sysno::iter().map(|call| call.name());
    let known = known.chain(aarch64::Sysno::iter().map(|call| call.name()));
    let listed = floor::classified().chain(known).filter(|name| !refused.contains(name));
    let shipped = Profiles::compiled_in();
    let of_profiles = shipped.iter().flat_map(|profile| profile.calls.iter());
    let of_profiles = of_profiles.map(|call| model::profile::calls::name(*call));
    let confined = confine::calls().chain(gateway::calls()).chain(projects::watcher::calls());
    let confined = confined.chain(file_reader::calls()).chain(layer_reader::calls());
    let confined = confined.map(|call| call.name());
    let made_by_us = supervisor::outer_calls().into_iter().chain(confined);
    let mut names: BTreeSet<String> = listed.chain(made_by_us).map(str::to_owned).collect();
    names.extend(of_profiles);
    // The kernel's name of the call: the table of aarch64 has the name of the C library's function.
    if names.remove("fstatat") {
        names.insert("newfstatat".to_owned());
    }
    names
}

/// Returns the profile.
pub(super) fn profile() -> Value {
    // ENOSYS: a newer C library tries new calls first, and falls back to older ones then.
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 38,
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
        "syscalls": [{ "names": names(), "action": "SCMP_ACT_ALLOW" }],
    })
}

/// Formats the profile as it is shipped.
///
/// # Errors
/// JSON that cannot be written.
pub(super) fn text() -> Result<String, CliError> {
    let text = serde_json::to_string_pretty(&profile())
        .map_err(|error| CliError::new(format!("doctor: {error}")))?;
    Ok(text + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Calls that control the whole machine.
    const MACHINE_CALLS: [&str; 26] = [
        "bpf",
        "init_module",
        "finit_module",
        "delete_module",
        "kexec_load",
        "kexec_file_load",
        "reboot",
        "swapon",
        "swapoff",
        "open_by_handle_at",
        "add_key",
        "keyctl",
        "request_key",
        "userfaultfd",
        "io_uring_setup",
        "perf_event_open",
        "settimeofday",
        "clock_settime",
        "acct",
        "iopl",
        "ioperm",
        "syslog",
        "quotactl",
        "move_pages",
        "mbind",
        "fanotify_init",
    ];

    #[test]
    fn the_shipped_profile_is_up_to_date() {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/containers/cofferdam.json");
        let made = text().expect("JSON");
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
            std::fs::write(&path, &made).expect("written");
        }
        let shipped = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(made, shipped, "UPDATE_SNAPSHOTS=1 writes the file again");
    }

    #[test]
    fn every_call_of_cofferdam_is_allowed_and_calls_that_control_the_machine_are_not() {
        let names = names();
        for call in supervisor::outer_calls() {
            assert!(names.contains(call), "{call}");
        }
        for call in confine::calls().chain(gateway::calls()).chain(projects::watcher::calls()) {
            assert!(names.contains(call.name()), "{}", call.name());
        }
        // Calls of `main`, which opens a listener, and of the supervisor, which gives a cell its network.
        for call in ["socket", "bind", "listen", "accept4", "setsockopt", "setns", "ioctl"] {
            assert!(names.contains(call), "{call}");
        }
        let for_cells = [
            "clone3",
            "unshare",
            "mount",
            "umount2",
            "pivot_root",
            "setns",
            "sethostname",
            "open_tree",
            "move_mount",
            "fsopen",
            "fsconfig",
            "fsmount",
            "mount_setattr",
        ];
        for call in for_cells {
            assert!(names.contains(call), "{call}");
        }
        for call in MACHINE_CALLS {
            assert!(!names.contains(call), "{call}");
        }
    }
}
