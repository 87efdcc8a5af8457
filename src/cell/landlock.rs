//! Landlock: restricts which files a cell may open, and how, inside the kernel (landlock(7)).
//!
//! Mounts decide which files are visible. This layer restricts their use a second time, by an
//! independent mechanism.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::stat::Mode;

use super::mounts::TERMINALS;
use model::egress::NetworkClass;
use model::profile::{ProcView, Profile};
use model::receipt::MemoryHold;
use sys::Result;
use sys::lookup::{self, Follow};

/// Access granted beneath a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// List directories.
    List,
    /// Read, list, execute.
    Read,
    /// Read and write an existing device.
    Device,
    /// Read an existing device.
    ReadDevice,
    /// Everything except making devices.
    Write,
}

/// The file in a directory that cells cannot reach, which Landlock must refuse.
pub const CANARY: &CStr = c"canary";

/// The rules for the cells of one key.
#[derive(Debug, Clone)]
pub struct LandlockPlan {
    pub abi: u32,
    /// Paths inside the cell.
    pub rules: Vec<(CString, Use)>,
    /// Symbolic links that the paths of rules may pass through.
    pub links: Follow,
    pub network: NetworkClass,
}

/// Returns the rules of a cell: host files of the template are readable, private and granted
/// writable files are writable, devices are usable as devices. Everything else can only be listed.
///
/// # Errors
/// EINVAL: a path contains a NUL.
pub fn rules(
    profile: &Profile,
    memory: MemoryHold,
    inside: &Inside<'_>,
) -> Result<Vec<(CString, Use)>> {
    let mut rules = vec![(c"/".to_owned(), Use::List), (c"/etc".to_owned(), Use::Read)];
    for path in inside.readable {
        let access = if path.starts_with("/dev") { device(path, memory) } else { Use::Read };
        rules.push((super::c_path(path)?, access));
    }
    for path in inside.granted {
        let access = if inside.writable.contains(path) { Use::Write } else { Use::Read };
        rules.push((super::c_path(path)?, access));
    }
    if profile.proc == ProcView::Own {
        rules.push((c"/proc".to_owned(), Use::Read));
        rules.push((c"/sys".to_owned(), Use::Read));
    }
    rules.extend(inside.private.iter().map(|path| (path.clone(), Use::Write)));
    Ok(rules)
}

/// Returns the rule for the pseudo-terminals of a cell.
///
/// # Errors
/// EINVAL: never, as the path has no NUL.
pub fn terminals() -> Result<(CString, Use)> {
    Ok((super::c_path(Path::new(TERMINALS))?, Use::Device))
}

/// Returns the access to a device that cells have.
///
/// A program that opens `/dev/zero` for writing can map it shared, which makes memory that no
/// account counts after it is unmapped (`init::watch` counts mappings without a file).
#[must_use]
pub fn device(path: &Path, memory: MemoryHold) -> Use {
    match memory {
        MemoryHold::BestEffort if path.ends_with("zero") => Use::ReadDevice,
        MemoryHold::BestEffort | MemoryHold::CgroupV1 | MemoryHold::CgroupV2 => Use::Device,
    }
}

/// Contents of a cell's root, as paths of the cell.
#[derive(Debug, Clone, Copy)]
pub struct Inside<'a> {
    /// Paths of the host, by the profile.
    pub readable: &'a [PathBuf],
    /// Paths of the host, by the operator's grant, and the writable ones among them.
    pub granted: &'a [PathBuf],
    pub writable: &'a [PathBuf],
    /// Private paths of the cell.
    pub private: &'a [CString],
}

/// Returns the Landlock ABI of this kernel; 0 without Landlock (landlock_create_ruleset(2)).
pub fn kernel_abi() -> u32 {
    sys::process::landlock_abi()
}

/// Returns the newest ABI of the `landlock` crate that this kernel supports.
fn known(abi: u32) -> ABI {
    match abi {
        0 => ABI::Unsupported,
        1 => ABI::V1,
        2 => ABI::V2,
        3 => ABI::V3,
        4 => ABI::V4,
        5 => ABI::V5,
        6 => ABI::V6,
        // 7 and later add logging and socket rights, which this ruleset does not use.
        _ => ABI::V7,
    }
}

fn rights(access: Use, abi: ABI, kind: Kind) -> BitFlags<AccessFs> {
    let all = AccessFs::from_all(abi);
    let wanted = match access {
        Use::List => AccessFs::ReadDir.into(),
        Use::Read => AccessFs::from_read(abi),
        Use::Device => AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev,
        Use::ReadDevice => AccessFs::ReadFile | AccessFs::IoctlDev,
        Use::Write => all & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev),
    };
    // The kernel rejects directory rights on a file.
    let possible = match kind {
        Kind::Directory => all,
        Kind::File => AccessFs::from_file(abi),
    };
    wanted & possible & all
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Directory,
    File,
}

/// Returns a ruleset without rules that handles every right this kernel knows, and so denies all of
/// them.
///
/// TCP is handled only if the cell has no network. With a loopback, the network namespace is the
/// limit, as Landlock cannot express "any port".
fn empty(abi: ABI, network: NetworkClass) -> Result<RulesetCreated> {
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(abi))
        .map_err(|error| errno_behind(&error))?;
    let ruleset = match network {
        NetworkClass::None if abi >= ABI::V4 => {
            ruleset.handle_access(AccessNet::from_all(abi)).map_err(|error| errno_behind(&error))?
        }
        NetworkClass::None
        | NetworkClass::Loopback
        | NetworkClass::AllowList
        | NetworkClass::Private
        | NetworkClass::Any => ruleset,
    };
    let ruleset = if abi >= ABI::V6 {
        ruleset
            .scope(Scope::AbstractUnixSocket | Scope::Signal)
            .map_err(|error| errno_behind(&error))?
    } else {
        ruleset
    };
    ruleset.create().map_err(|error| errno_behind(&error))
}

/// Returns the errno of the failed system call behind an error of the crate: that of the I/O error
/// at the end of its sources. EINVAL if no call failed, as for a right that the requested ABI
/// lacks.
fn errno_behind(error: &(dyn std::error::Error + 'static)) -> Errno {
    let sources = std::iter::successors(Some(error), |error| error.source());
    let io = sources.filter_map(|error| error.downcast_ref::<std::io::Error>()).last();
    io.map_or(Errno::EINVAL, super::errno_of)
}

/// Opens a path only to use it in a rule.
fn open_for_rule(path: &CStr, links: Follow) -> Result<OwnedFd> {
    lookup::open(AT_FDCWD, path, libc::O_PATH | libc::O_CLOEXEC, 0, links)
}

fn allow(
    ruleset: RulesetCreated,
    fd: BorrowedFd<'_>,
    access: Use,
    abi: ABI,
) -> Result<RulesetCreated> {
    let mode = nix::sys::stat::fstat(fd)?.st_mode;
    let kind = if mode & libc::S_IFMT == libc::S_IFDIR { Kind::Directory } else { Kind::File };
    ruleset
        .add_rule(PathBeneath::new(fd, rights(access, abi, kind)))
        .map_err(|error| errno_behind(&error))
}

/// A ruleset that can be enforced. Init enforces it once, and the payload once more: its domain is
/// then one layer deeper, so that it can neither trace init nor access its memory.
#[derive(Debug)]
pub struct PreparedRules(RulesetCreated);

/// Builds the ruleset of `plan` and adds the rules in `more`. The cell's mounts must exist already.
/// Restricts nothing yet.
pub fn build(plan: &LandlockPlan, more: &[(BorrowedFd<'_>, Use)]) -> Result<PreparedRules> {
    let abi = known(plan.abi);
    let mut ruleset = empty(abi, plan.network)?.no_new_privs(false);
    for (path, access) in &plan.rules {
        ruleset = allow(ruleset, open_for_rule(path, plan.links)?.as_fd(), *access, abi)?;
    }
    for (directory, access) in more {
        ruleset = allow(ruleset, *directory, *access, abi)?;
    }
    Ok(PreparedRules(ruleset))
}

/// Returns a ruleset that confines signals, and restricts nothing else.
///
/// # Errors
/// ENOTSUP below ABI 6.
pub fn signals(abi: u32) -> Result<PreparedRules> {
    if known(abi) < ABI::V6 {
        return Err(Errno::ENOTSUP);
    }
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let ruleset = ruleset
        .scope(Scope::Signal)
        .and_then(Ruleset::create)
        .map_err(|error| errno_behind(&error))?;
    Ok(PreparedRules(ruleset.no_new_privs(false)))
}

/// Returns a ruleset without rules, for a process that needs no file; or with one rule, for files
/// in `directory`.
pub fn only(abi: u32, directory: Option<BorrowedFd<'_>>) -> Result<PreparedRules> {
    let abi = known(abi);
    let ruleset = empty(abi, NetworkClass::None)?.no_new_privs(false);
    let Some(directory) = directory else { return Ok(PreparedRules(ruleset)) };
    // Truncate: needed to remove an incomplete line after a full disk (a right from ABI 3 on).
    let wanted = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::ReadDir;
    let wanted = wanted | AccessFs::MakeReg | AccessFs::RemoveFile | AccessFs::Truncate;
    let rule = PathBeneath::new(directory, wanted & AccessFs::from_all(abi));
    ruleset.add_rule(rule).map(PreparedRules).map_err(|error| errno_behind(&error))
}

/// Returns a ruleset for a process that lists, moves and removes files beneath `directory`,
/// but cannot read them.
///
/// # Errors
/// ENOTSUP below ABI 2, which cannot move files between directories.
pub fn removes(abi: u32, directory: BorrowedFd<'_>) -> Result<PreparedRules> {
    let abi = known(abi);
    if abi < ABI::V2 {
        return Err(Errno::ENOTSUP);
    }
    let ruleset = empty(abi, NetworkClass::None)?.no_new_privs(false);
    let removes = AccessFs::RemoveFile | AccessFs::RemoveDir;
    let moves = AccessFs::MakeDir | AccessFs::Refer;
    let rule = PathBeneath::new(directory, removes | moves | AccessFs::ReadDir);
    ruleset.add_rule(rule).map(PreparedRules).map_err(|error| errno_behind(&error))
}

/// Returns a ruleset for a process that reads files and lists directories beneath `directories`.
pub fn reads<'d>(
    abi: u32,
    directories: impl IntoIterator<Item = BorrowedFd<'d>>,
) -> Result<PreparedRules> {
    let abi = known(abi);
    let mut ruleset = empty(abi, NetworkClass::None)?.no_new_privs(false);
    for directory in directories {
        let rule = PathBeneath::new(directory, AccessFs::ReadFile | AccessFs::ReadDir);
        ruleset = ruleset.add_rule(rule).map_err(|error| errno_behind(&error))?;
    }
    Ok(PreparedRules(ruleset))
}

/// Returns a ruleset for a process that needs no file and accepts no connection. From ABI 4 on it
/// can connect by TCP only to `ports`, or to any port if there is no list.
pub fn network_client(abi: u32, ports: Option<&[u16]>) -> Result<PreparedRules> {
    let abi = known(abi);
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(abi))
        .map_err(|error| errno_behind(&error))?;
    if abi >= ABI::V4 {
        let network = match ports {
            Some(_) => AccessNet::BindTcp | AccessNet::ConnectTcp,
            None => AccessNet::BindTcp.into(),
        };
        ruleset = ruleset.handle_access(network).map_err(|error| errno_behind(&error))?;
    }
    if abi >= ABI::V6 {
        let scope = Scope::AbstractUnixSocket | Scope::Signal;
        ruleset = ruleset.scope(scope).map_err(|error| errno_behind(&error))?;
    }
    let mut ruleset = ruleset.create().map_err(|error| errno_behind(&error))?.no_new_privs(false);
    for port in ports.into_iter().flatten().filter(|_| abi >= ABI::V4) {
        let rule = NetPort::new(*port, AccessNet::ConnectTcp);
        ruleset = ruleset.add_rule(rule).map_err(|error| errno_behind(&error))?;
    }
    Ok(PreparedRules(ruleset))
}

impl PreparedRules {
    /// Enforces the ruleset on the calling thread, which must have set no_new_privs.
    pub fn restrict(&self) -> Result<()> {
        let copy = self.0.try_clone().map_err(|error| super::errno_of(&error))?;
        let status = copy.restrict_self().map_err(|error| errno_behind(&error))?;
        // HardRequirement implies this; checked again because a partly enforced ruleset must never
        // pass.
        if status.ruleset == RulesetStatus::FullyEnforced { Ok(()) } else { Err(Errno::ENOTSUP) }
    }
}

/// Opens the canary. Before Landlock this must succeed.
pub(crate) fn open_canary(hidden: impl AsFd) -> Result<()> {
    openat(hidden, CANARY, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()).map(drop)
}

#[cfg(test)]
mod tests {
    use std::io::Error;

    use super::*;

    /// An error shaped like the crate's: an enum around the failed call, inside another enum.
    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] Inner);

    #[derive(Debug, thiserror::Error)]
    enum Inner {
        #[error("a call failed")]
        Call(#[source] Error),
        #[error("no call was made")]
        None,
    }

    #[test]
    fn the_errno_is_that_of_the_failed_call_and_not_of_the_last_one() {
        let failed = Outer(Inner::Call(Error::from_raw_os_error(libc::ENOMEM)));
        // Another call of this thread fails in between.
        assert_eq!(nix::unistd::close(-1), Err(Errno::EBADF));
        assert_eq!(errno_behind(&failed), Errno::ENOMEM);
        assert_eq!(errno_behind(&Outer(Inner::None)), Errno::EINVAL);
    }

    #[test]
    fn a_rule_that_the_kernel_refuses_has_its_errno() -> std::io::Result<()> {
        let file = tempfile::tempfile()?;
        let ruleset = empty(ABI::V1, NetworkClass::Loopback).map_err(std::io::Error::from)?;
        // A directory right on a file.
        let refused = ruleset.add_rule(PathBeneath::new(&file, AccessFs::MakeDir));
        assert_eq!(refused.err().map(|error| errno_behind(&error)), Some(Errno::EINVAL));
        Ok(())
    }
}
