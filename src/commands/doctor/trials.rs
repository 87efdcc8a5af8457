//! Trials of `doctor` in processes that end with the trial, so that a refusal has its call and its errno.
//!
//! Each needs a single-threaded caller.

use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::stat::Mode;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use cell::ids::write_map;
use cell::network::NetworkPlan;
use cell::report;
use supervisor::IdRange;
use sys::bpf::{self, Instruction};
use sys::fork::fork;
use sys::mount::{attribute, new_filesystem, pivot_here};
use sys::process::{self, Side};
use sys::socket::{self, PacketWait};

/// Result of each step in a new set of namespaces: an errno, or 0 for a step that worked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NamespaceErrors {
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

const ALL_NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// Makes the namespaces of a cell, and maps the ids that a supervisor would map.
pub(super) fn namespaces(range: IdRange) -> Result<NamespaceErrors, Errno> {
    let (ours, theirs) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    let failed = |clone: Errno| NamespaceErrors {
        clone: report::raw(clone),
        maps: 0,
        mount: 0,
        pivot: 0,
        proc: 0,
    };
    match process::clone3(ALL_NAMESPACES, None) {
        Err(errno) => Ok(failed(errno)),
        Ok(Side::Child) => {
            drop(ours);
            let reported = try_mounts(theirs.as_fd());
            process::exit_now(i32::from(reported.is_err()));
        }
        Ok(Side::Parent(child)) => {
            drop(theirs);
            let maps = map(child.pid, range);
            socket::send(&ours, &[0], &[])?;
            let mut buffer = [0; 64];
            let received = socket::receive(&ours, &mut buffer, PacketWait::Yes)?;
            waitpid(Pid::from_raw(child.pid), None)?;
            let bytes = buffer.get(..received.bytes).unwrap_or_default();
            let errors: NamespaceErrors = report::decode(bytes)?;
            Ok(NamespaceErrors { maps: maps.err().map_or(0, report::raw), ..errors })
        }
    }
}

/// Writes the id maps of a process.
fn map(pid: i32, range: IdRange) -> Result<(), Errno> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let process = open(format!("/proc/{pid}").as_str(), flags, Mode::empty())?;
    let euid = nix::unistd::geteuid().as_raw();
    let uid = supervisor::first_id(range).map_err(|error| cell::errno_of(&error))?;
    let gid = if uid == euid { nix::unistd::getegid().as_raw() } else { uid };
    write_map(process.as_fd(), "setgroups", "deny")?;
    write_map(process.as_fd(), "gid_map", &format!("0 {gid} 1"))?;
    write_map(process.as_fd(), "uid_map", &format!("0 {uid} 1"))
}

/// Runs the child's side: waits for its maps, tries each step, reports.
fn try_mounts(parent: BorrowedFd<'_>) -> Result<(), Errno> {
    const UNUSED: Option<&str> = None;
    socket::receive(parent, &mut [0; 8], PacketWait::Yes)?;
    let errno = |result: Result<(), Errno>| result.err().map_or(0, report::raw);
    let private = mount(UNUSED, "/", UNUSED, MsFlags::MS_REC | MsFlags::MS_PRIVATE, UNUSED);
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let tmpfs =
        private.and_then(|()| mount(Some("tmpfs"), "/tmp", Some("tmpfs"), flags, Some("size=1m")));
    // Mounted before the root changes: the kernel compares a new procfs with the visible one.
    let proc = new_filesystem(c"proc", attribute::NOSUID).map(drop);
    let pivot = match tmpfs {
        Ok(()) => nix::unistd::chdir("/tmp").and_then(|()| pivot_here()),
        Err(_) => Ok(()),
    };
    let errors = NamespaceErrors {
        clone: 0,
        maps: 0,
        mount: errno(tmpfs),
        pivot: errno(pivot),
        proc: errno(proc),
    };
    report::send(parent, &errors, &[])
}

/// One kind of namespace, and the option with which a kernel is built to have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NamespaceKind {
    flag: CloneFlags,
    pub name: &'static str,
    pub option: &'static str,
}

const fn kind(flag: CloneFlags, name: &'static str, option: &'static str) -> NamespaceKind {
    NamespaceKind { flag, name, option }
}

/// The namespaces of a cell. The user namespace comes first: the others need its rights.
const KINDS: [NamespaceKind; 7] = [
    kind(CloneFlags::CLONE_NEWUSER, "user", "CONFIG_USER_NS"),
    kind(CloneFlags::CLONE_NEWNS, "mount", "CONFIG_NAMESPACES"),
    kind(CloneFlags::CLONE_NEWPID, "pid", "CONFIG_PID_NS"),
    kind(CloneFlags::CLONE_NEWNET, "network", "CONFIG_NET_NS"),
    kind(CloneFlags::CLONE_NEWIPC, "IPC", "CONFIG_IPC_NS"),
    kind(CloneFlags::CLONE_NEWUTS, "UTS", "CONFIG_UTS_NS"),
    kind(CloneFlags::CLONE_NEWCGROUP, "cgroup", "CONFIG_CGROUPS"),
];

/// Exit code of a trial that worked.
const WORKED: i32 = 0;

/// Runs `trial` in a child and returns its exit code.
fn in_child(trial: impl FnOnce() -> i32) -> Result<i32, Errno> {
    match fork()? {
        Side::Child => process::exit_now(trial()),
        Side::Parent(child) => {
            let ended = waitpid(Pid::from_raw(child.pid), None)?;
            // A filter killed it otherwise.
            if let WaitStatus::Exited(_, code) = ended { Ok(code) } else { Err(Errno::EPERM) }
        }
    }
}

/// Returns the first kind of namespace that this kernel was built without. `None` if it has them all, or refuses them for
/// another reason.
pub(super) fn missing_namespace() -> Option<NamespaceKind> {
    let lacks = |kind: &NamespaceKind| unshare(kind.flag) == Err(Errno::EINVAL);
    let trial = || {
        let missing = KINDS.iter().zip(1..).find(|(kind, _)| lacks(kind));
        missing.map_or(WORKED, |(_, number)| number)
    };
    let number = usize::try_from(in_child(trial).ok()?).ok()?;
    KINDS.get(number.checked_sub(1)?).copied()
}

/// Loads a filter with a listener, by which refused calls are counted.
pub(super) fn filter_listener() -> Result<(), Errno> {
    const ALLOW: Instruction = Instruction { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 };
    errno_of(in_child(|| {
        let loaded = process::set_no_new_privs().and_then(|()| bpf::load_with_listener(&[ALLOW]));
        loaded.err().map_or(WORKED, report::raw)
    }))
}

/// Makes the network of a cell in a namespace that ends with the trial.
pub(super) fn network() -> Result<(), Errno> {
    // Made here: the child of a process with several threads must not allocate.
    let plan = NetworkPlan::new();
    errno_of(in_child(|| {
        let namespaces = CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET;
        let made = unshare(namespaces).and_then(|()| plan.attempt());
        made.err().map_or(WORKED, report::raw)
    }))
}

/// Converts the exit code of a trial that exits with an errno.
fn errno_of(code: Result<i32, Errno>) -> Result<(), Errno> {
    match code? {
        WORKED => Ok(()),
        errno => Err(Errno::from_raw(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_lacks_nothing_that_a_cell_takes() {
        // In a thread of the test program: the child has but one, and touches no lock.
        assert_eq!(missing_namespace(), None);
        assert_eq!(filter_listener(), Ok(()));
        assert_eq!(network(), Ok(()));
    }
}
