//! Probes of `doctor`: each layer tried by using it, here and now.
//!
//! First a throw-away process tries the steps of a cell's set-up, one call at a time, so that a
//! refusal can be reported by its call and errno. Then real cells of the default profiles run, and
//! their measurements give the other layers.

use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::{MsFlags, mount};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::stat::Mode;
use serde::{Deserialize, Serialize};

use super::doctor::{LayerCheck, LayerState};
use super::kernel_probe::{self, NamespaceKind};
use super::surroundings::Surroundings;
use cell::ids::write_map;
use cell::{landlock, report};
use model::accounts;
use model::core_dumps::{self, CoreHandler};
use supervisor::{IdRange, OPEN_FILES_HELD, core_handler};
use sys::mount::{attribute, new_filesystem, pivot_here};
use sys::process::{self, Side};
use sys::socket::{self, PacketWait};

/// Result of each step in a new set of namespaces: an errno, or 0 if the call worked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespaces {
    /// clone3(2) with every namespace.
    pub clone: i32,
    /// Writing the id maps.
    pub maps: i32,
    /// mount(2) of a tmpfs: AppArmor on Ubuntu lets the clone pass and refuses this.
    pub mount: i32,
    /// pivot_root(2) onto that tmpfs: refused where the root is the initramfs itself.
    pub pivot: i32,
    /// A procfs: refused where parts of the outer /proc are masked.
    pub proc: i32,
}

const EVERY: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// Tries namespaces in a process that ends with the trial, mapping the ids that a supervisor would have. Needs a
/// single-threaded caller.
pub fn namespaces(range: IdRange) -> Result<Namespaces, Errno> {
    let (ours, theirs) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    let failed = |clone: Errno| Namespaces {
        clone: report::raw(clone),
        maps: 0,
        mount: 0,
        pivot: 0,
        proc: 0,
    };
    match process::clone3(EVERY, None) {
        Err(errno) => Ok(failed(errno)),
        Ok(Side::Child) => {
            drop(ours);
            let told = try_mounts(theirs.as_fd());
            process::exit_now(i32::from(told.is_err()));
        }
        Ok(Side::Parent(child)) => {
            drop(theirs);
            let maps = map(child.pid, range);
            socket::send(&ours, &[0], &[])?;
            let mut buffer = [0; 64];
            let received = socket::receive(&ours, &mut buffer, PacketWait::Yes)?;
            nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(child.pid), None)?;
            let bytes = buffer.get(..received.bytes).unwrap_or_default();
            let found: Namespaces = report::decode(bytes)?;
            Ok(Namespaces { maps: maps.err().map_or(0, report::raw), ..found })
        }
    }
}

fn map(pid: i32, range: IdRange) -> Result<(), Errno> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let process = open(format!("/proc/{pid}").as_str(), flags, Mode::empty())?;
    let own = nix::unistd::geteuid().as_raw();
    let uid = supervisor::first_id(range).map_err(|error| cell::errno_of(&error))?;
    let gid = if uid == own { nix::unistd::getegid().as_raw() } else { uid };
    write_map(process.as_fd(), "setgroups", "deny")?;
    write_map(process.as_fd(), "gid_map", &format!("0 {gid} 1"))?;
    write_map(process.as_fd(), "uid_map", &format!("0 {uid} 1"))
}

/// Runs the child's side: waits for its maps, tries each step, reports.
fn try_mounts(parent: BorrowedFd<'_>) -> Result<(), Errno> {
    const NONE: Option<&str> = None;
    socket::receive(parent, &mut [0; 8], PacketWait::Yes)?;
    let errno = |result: Result<(), Errno>| result.err().map_or(0, report::raw);
    let private = mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE);
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let tmpfs =
        private.and_then(|()| mount(Some("tmpfs"), "/tmp", Some("tmpfs"), flags, Some("size=1m")));
    // Mounted before the root changes, after which nothing of the outer /proc is in sight.
    let proc = new_filesystem(c"proc", attribute::NOSUID).map(drop);
    let pivot = match tmpfs {
        Ok(()) => nix::unistd::chdir("/tmp").and_then(|()| pivot_here()),
        Err(_) => Ok(()),
    };
    let found = Namespaces {
        clone: 0,
        maps: 0,
        mount: errno(tmpfs),
        pivot: errno(pivot),
        proc: errno(proc),
    };
    report::send(parent, &found, &[])
}

/// First kernel with clone3(2).
const CLONE3: (u32, u32) = (5, 3);

/// Settings of the system that explain a refusal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hints {
    /// `kernel.apparmor_restrict_unprivileged_userns` is 1.
    pub apparmor: bool,
    /// Value of `user.max_user_namespaces`.
    pub most_namespaces: Option<u64>,
    /// Value of `kernel.unprivileged_userns_clone`, which Debian's kernels had.
    pub debian_switch: Option<u64>,
    /// Namespace that the kernel does not have at all.
    pub lacking: Option<NamespaceKind>,
    /// Release of the kernel, as uname(2) tells it.
    pub release: String,
    /// Engine or machine around this process.
    pub surroundings: Surroundings,
    /// Path of this program, for an AppArmor profile that names it.
    pub program: String,
}

impl Hints {
    /// Reads them from this machine. Needs a single-threaded caller.
    pub fn read(found: &Namespaces) -> Self {
        let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        let program = std::env::current_exe().ok();
        Self {
            apparmor: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == Some(1),
            most_namespaces: number("/proc/sys/user/max_user_namespaces"),
            debian_switch: number("/proc/sys/kernel/unprivileged_userns_clone"),
            lacking: if found.clone == 0 { None } else { kernel_probe::missing_namespace() },
            release: nix::sys::utsname::uname()
                .map(|name| name.release().to_string_lossy().into_owned())
                .unwrap_or_default(),
            surroundings: Surroundings::now(),
            program: program
                .map_or_else(|| "/usr/bin/cofferdam".to_owned(), |path| path.display().to_string()),
        }
    }
}

const ROOT_REMEDY: &str = "the root is the initramfs, which cannot be left by pivot_root(2): start \
    from a root of its own, such as a tmpfs with a copy of it: mount -t tmpfs none /mnt && \
    cp -ax / /mnt && exec switch_root /mnt /sbin/init";

/// Remedy for a process that may have too few open files.
pub const OPEN_FILES_REMEDY: &str = "raise the hard limit, as root: `ulimit -Hn 4096` in the shell \
    that starts cofferdam, LimitNOFILE=4096 in its systemd unit, --ulimit nofile=4096 for its \
    container";

/// Describes the limit on open files, if it is too low.
pub fn open_files_layer() -> Option<LayerCheck> {
    let (_, most) = rlimit::getrlimit(rlimit::Resource::NOFILE).ok()?;
    (most < OPEN_FILES_HELD).then(|| LayerCheck {
        name: "open files".to_owned(),
        state: LayerState::Missing,
        how: format!("{most} are allowed, and {OPEN_FILES_HELD} are needed for every profile"),
        remedy: Some(OPEN_FILES_REMEDY.to_owned()),
    })
}

/// Describes who takes the memory of a process that crashes.
pub fn core_dumps_layer() -> LayerCheck {
    let (soft, hard) = cell::limits::core_limits().unwrap_or_default();
    core_dumps(core_handler(), (soft, hard))
}

fn core_dumps(handler: CoreHandler, (soft, hard): (u64, u64)) -> LayerCheck {
    let layer = |state, how: String, remedy: Option<&str>| LayerCheck {
        name: "core dumps".to_owned(),
        state,
        how,
        remedy: remedy.map(str::to_owned),
    };
    if handler == CoreHandler::Socket {
        let how = "kernel.core_pattern is a socket, which heeds no limit: a crash in a cell is handed to the host's handler";
        return layer(LayerState::Weak, how.to_owned(), Some(core_dumps::SOCKET_REMEDY));
    }
    if !handler.may_have(soft, hard) {
        let how = format!(
            "the limit of core files is {soft} {hard} and cannot be raised: a crash in a cell would start the host's handler"
        );
        return layer(LayerState::Missing, how, Some(core_dumps::HARD_LIMIT_REMEDY));
    }
    let limit = format!("the limit of core files is {soft} {hard}");
    match handler {
        CoreHandler::Unknown => {
            let how = format!(
                "{limit}; kernel.core_pattern cannot be read, and a socket there heeds no limit"
            );
            layer(LayerState::Weak, how, None)
        }
        CoreHandler::File | CoreHandler::Pipe | CoreHandler::Socket => layer(
            LayerState::Ok,
            format!("{limit}: a crash in a cell starts no program of the host"),
            None,
        ),
    }
}

/// Describes the layers that namespaces make, each with its remedy if it is refused.
pub fn namespace_layers(found: &Namespaces, hints: &Hints) -> Vec<LayerCheck> {
    let root = layer("root", found.pivot, "", || ROOT_REMEDY.to_owned());
    let mut layers = vec![
        layer("user namespaces", found.clone, "clone3 with all seven namespaces worked", || {
            user_namespaces_remedy(found.clone, hints)
        }),
        layer("id maps", found.maps, "the maps could be written", || {
            if nix::unistd::geteuid().is_root() {
                super::tier::NO_ROOT.to_owned()
            } else {
                "run as a user whose id this user namespace maps".to_owned()
            }
        }),
        layer("mounts", found.mount, "a tmpfs could be mounted in them", || mount_remedy(hints)),
        layer("own /proc", found.proc, "a procfs of its own could be mounted", || {
            if found.mount != 0 {
                "mounts first".to_owned()
            } else {
                format!("parts of /proc are masked here: {}", hints.surroundings.remedy())
            }
        }),
    ];
    // The root is listed only if it is refused.
    layers.extend(Some(root).filter(|root| root.state != LayerState::Ok));
    layers
}

fn layer(name: &str, errno: i32, how: &str, remedy: impl FnOnce() -> String) -> LayerCheck {
    let refused = errno != 0;
    LayerCheck {
        name: name.to_owned(),
        state: if refused { LayerState::Missing } else { LayerState::Ok },
        how: if refused {
            format!("refused: {}", model::outcome::errno_text(errno))
        } else {
            how.to_owned()
        },
        remedy: refused.then(remedy),
    }
}

fn user_namespaces_remedy(errno: i32, hints: &Hints) -> String {
    if let Some(lacking) = hints.lacking {
        let (name, option) = (lacking.name, lacking.option);
        format!("this kernel has no {name} namespaces: boot one that was built with {option}")
    } else if errno == report::raw(Errno::ENOSYS) && kernel_probe::is_older(&hints.release, CLONE3)
    {
        format!("this kernel is {}: boot Linux 5.19 or newer", hints.release)
    } else if hints.most_namespaces == Some(0) || errno == report::raw(Errno::ENOSPC) {
        "as root: sysctl -w user.max_user_namespaces=15000".to_owned()
    } else if hints.debian_switch == Some(0) {
        "as root: sysctl -w kernel.unprivileged_userns_clone=1".to_owned()
    } else {
        hints.surroundings.remedy().to_owned()
    }
}

fn mount_remedy(hints: &Hints) -> String {
    if hints.apparmor {
        format!(
            "as root, put this into /etc/apparmor.d/cofferdam and run `apparmor_parser -r \
             /etc/apparmor.d/cofferdam`: abi <abi/4.0>, include <tunables/global> profile \
             cofferdam {} flags=(unconfined) {{ userns, }}",
            hints.program
        )
    } else {
        hints.surroundings.remedy().to_owned()
    }
}

/// Describes Landlock by its version call; the cells show that it holds.
pub fn landlock_layer() -> LayerCheck {
    let abi = landlock::kernel_abi();
    let (state, how, remedy) = match abi {
        0 => (
            LayerState::Missing,
            "this kernel has none, or it is switched off".to_owned(),
            Some("boot Linux 5.19 or newer with `landlock` in lsm= (see /proc/cmdline)".to_owned()),
        ),
        1 => (
            LayerState::Missing,
            "ABI 1; the default profiles require 2".to_owned(),
            Some("boot Linux 5.19 or newer".to_owned()),
        ),
        2..=5 => (
            LayerState::Ok,
            format!(
                "ABI {abi}; signals and abstract sockets are held by \
            namespaces alone"
            ),
            None,
        ),
        _ => (LayerState::Ok, format!("ABI {abi}"), None),
    };
    LayerCheck { name: "Landlock".to_owned(), state, how, remedy }
}

/// Groups that are equivalent to root: cells of an ordinary user keep supplementary groups.
const POWERFUL: [&str; 8] = ["docker", "disk", "kvm", "sudo", "wheel", "adm", "lxd", "shadow"];

/// Describes supplementary groups, which only root can take from a cell (setgroups(2) in user
/// namespaces).
pub fn groups_layer() -> LayerCheck {
    let name = "supplementary groups".to_owned();
    if nix::unistd::geteuid().is_root() {
        let how = "started as root: cells have none".to_owned();
        return LayerCheck { name, state: LayerState::Ok, how, remedy: None };
    }
    // `serve` has the same cells, where a grant has the operator's ids (see `own_ids`).
    let uid = nix::unistd::geteuid().as_raw();
    let cells = match supervisor::look_for_own_ids(uid, 1) {
        Ok(()) => "cells with a grant",
        Err(_) => "cells",
    };
    let own = nix::unistd::getegid();
    let groups = nix::unistd::getgroups().unwrap_or_default();
    let named = groups
        .into_iter()
        .filter(|group| *group != own)
        .map(|group| accounts::group(group.as_raw()).unwrap_or_else(|| group.to_string()));
    let (powerful, others): (Vec<_>, Vec<_>) =
        named.partition(|name| POWERFUL.contains(&name.as_str()));
    if powerful.is_empty() {
        let how = if others.is_empty() {
            "none".to_owned()
        } else {
            format!("{cells} keep {}: none is known to be powerful", others.join(", "))
        };
        return LayerCheck { name, state: LayerState::Ok, how, remedy: None };
    }
    LayerCheck {
        name,
        state: LayerState::Weak,
        how: format!(
            "{cells} keep {}: granted paths that these groups may use are open to them",
            powerful.join(", ")
        ),
        remedy: Some("run cofferdam as a user who is not in these groups".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `doctor` says where this is the pattern, and these are the soft and the hard limit.
    fn said(pattern: &str, limits: (u64, u64)) -> (LayerState, String, Option<String>) {
        let layer = core_dumps(CoreHandler::of_pattern(pattern.as_bytes()), limits);
        assert_eq!(layer.name, "core dumps");
        (layer.state, layer.how, layer.remedy)
    }

    #[test]
    fn a_socket_for_crashes_is_weak_with_its_remedy() {
        let how = "kernel.core_pattern is a socket, which heeds no limit: a crash in a cell is handed to the host's handler";
        let remedy = "as root: sysctl -w kernel.core_pattern=core, or a pattern that begins with `|`, which heeds the limit";
        for pattern in ["@/run/systemd/coredump\n", "@@/run/systemd/coredump\n"] {
            for limits in [(1, 1), (0, 0)] {
                let expected = (LayerState::Weak, how.to_owned(), Some(remedy.to_owned()));
                assert_eq!(said(pattern, limits), expected, "{pattern} {limits:?}");
            }
        }
    }

    #[test]
    fn a_pipe_for_crashes_needs_a_limit_of_1() {
        let pipe = "|/usr/lib/systemd/systemd-coredump %P\n";
        let fine =
            "the limit of core files is 1 1: a crash in a cell starts no program of the host";
        assert_eq!(said(pipe, (1, 1)), (LayerState::Ok, fine.to_owned(), None));
        let how = "the limit of core files is 0 0 and cannot be raised: a crash in a cell would start the host's handler";
        let remedy = "start cofferdam with a hard limit of core files of 1 or more: LimitCORE=1 in a systemd unit, \
                      `USER hard core 1` in /etc/security/limits.conf, --ulimit core=1 for a container, or as root \
                      sysctl -w kernel.core_pattern=core";
        let expected = (LayerState::Missing, how.to_owned(), Some(remedy.to_owned()));
        assert_eq!(said(pipe, (0, 0)), expected);
        let fine =
            "the limit of core files is 0 0: a crash in a cell starts no program of the host";
        assert_eq!(said("core\n", (0, 0)), (LayerState::Ok, fine.to_owned(), None));
        let unread = core_dumps(CoreHandler::Unknown, (1, 1));
        let how = "the limit of core files is 1 1; kernel.core_pattern cannot be read, and a socket there heeds no limit";
        assert_eq!((unread.state, unread.how.as_str()), (LayerState::Weak, how));
    }
}
