//! Host ids for the cells of an ordinary user: a block of the range that subuid(5) and subgid(5)
//! assign.
//!
//! The kernel counts pipe pages, descriptors in flight over Unix sockets and epoll watches per host
//! user. A cell with a separate id cannot use up the share of the user's programs. Only
//! newuidmap(1) and newgidmap(1), which are set-uid, may write such maps. They run for a moment, as
//! children of a process that main forks before it is confined. If that fails for any reason, cells
//! keep the user's id.

use std::fs::{self, DirBuilder, File};
use std::mem::ManuallyDrop;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::idmap::{self, Extent};
use crate::rootfs::grants::KeyGrant;
use cell::ids::{CellIds, HostIds};
use model::accounts;
use model::profile::Profile;
use sys::process;

/// Ids per instance: one for each slot, and the last one for the supervisor.
const BLOCK_IDS: u32 = 1024;
/// Maximum number of instances with separate ids that one user can run at once.
const MAX_INSTANCES: u32 = 64;
/// Directories in which only root can install programs. NixOS keeps set-uid programs in the first.
const TRUSTED_DIRECTORIES: [&str; 3] = ["/run/wrappers/bin", "/usr/bin", "/bin"];
/// Maximum time for both programs together, which normally need about a millisecond.
const MAX_MAPPING_TIME: Duration = Duration::from_secs(2);

/// Request for separate ids for cells without a grant, if an ordinary user starts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnIds {
    Wanted,
    /// For commands that make a single call: starting would take longer.
    Unwanted,
}

/// Why an ordinary user's cells have no separate ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoOwnIds {
    #[error("newuidmap and newgidmap are not installed")]
    Program,
    #[error("{file} gives this user no {BLOCK_IDS} ids")]
    Range { file: &'static str },
    #[error("no_new_privs is set on cofferdam, and newuidmap takes a privilege")]
    NoNewPrivs,
    #[error(
        "/run/user/{uid}, where blocks of ids are locked, is missing or others may write to it"
    )]
    Locks { uid: u32 },
    #[error("all id blocks of this user are in use")]
    Taken,
    #[error("the id block is smaller than {limit} cells")]
    Cells { limit: u16 },
}

/// The two files with ranges, and the programs that map them.
const FILES: [&str; 2] = ["/etc/subuid", "/etc/subgid"];
const PROGRAMS: [&str; 2] = ["newuidmap", "newgidmap"];

/// A block of ids that no other instance of this user has.
#[derive(Debug)]
pub(crate) struct Block {
    /// First uid and first gid, in main's namespace.
    pub first: [u32; 2],
    programs: [PathBuf; 2],
    /// Held as long as the process lives: the confined front end could not unlock it.
    _lock: ManuallyDrop<Flock<File>>,
}

impl Block {
    /// Finds the programs and the ranges of `uid`, and reserves a block.
    ///
    /// # Errors
    /// The first thing that is missing.
    pub(crate) fn take(uid: u32, cells: u16) -> Result<Self, NoOwnIds> {
        let (programs, ranges) = find(uid, cells)?;
        let (first, lock) = lock_block(uid, ranges)?;
        Ok(Self { first, programs, _lock: ManuallyDrop::new(lock) })
    }

    /// Returns the host ids of the block, uids and gids, translated by main's two maps.
    pub(crate) fn host_ids(&self, on_the_host: [impl Fn(u32) -> u32; 2]) -> [HostIds; 2] {
        let [uid, gid] = self.first;
        let [of_uid, of_gid] = on_the_host;
        [HostIds(vec![(1, of_uid(uid), BLOCK_IDS)]), HostIds(vec![(1, of_gid(gid), BLOCK_IDS)])]
    }

    /// Returns the extents of the supervisor's namespace: 0 is the operator's id, the others are
    /// the block's.
    fn extents(&self, operator: [u32; 2]) -> [[Extent; 2]; 2] {
        let [uid, gid] = self.first;
        let map = |operator_id, first| {
            [
                Extent { inside: 0, outside: operator_id, length: 1 },
                Extent { inside: 1, outside: first, length: BLOCK_IDS },
            ]
        };
        [map(operator[0], uid), map(operator[1], gid)]
    }
}

/// The supervisor's real uid in its map: the last of the block, which no slot has.
pub(crate) const SUPERVISOR: u32 = BLOCK_IDS;

/// Checks whether cells of this user can have separate ids: locks a block for a moment, and maps
/// nothing.
///
/// # Errors
/// The first thing that is missing.
pub fn check(uid: u32, cells: u16) -> Result<(), NoOwnIds> {
    let (_, ranges) = find(uid, cells)?;
    lock_block(uid, ranges).map(drop)
}

/// Locks the first block that no other instance has. Returns its first uid and gid.
fn lock_block(user: u32, ranges: [Range; 2]) -> Result<([u32; 2], Flock<File>), NoOwnIds> {
    let no_locks = NoOwnIds::Locks { uid: user };
    let locks = locks(user).ok_or(no_locks)?;
    for number in 0..MAX_INSTANCES {
        let [Some(uid), Some(gid)] = ranges.map(|range| range.block(number)) else { break };
        if let Some(lock) = lock(&locks, uid).map_err(|_| no_locks)? {
            return Ok(([uid, gid], lock));
        }
    }
    Err(NoOwnIds::Taken)
}

fn find(uid: u32, cells: u16) -> Result<([PathBuf; 2], [Range; 2]), NoOwnIds> {
    if u32::from(cells) >= BLOCK_IDS {
        return Err(NoOwnIds::Cells { limit: cells });
    }
    let [Some(uids), Some(gids)] = PROGRAMS.map(program) else { return Err(NoOwnIds::Program) };
    let name = accounts::user(uid);
    let range = |file| Range::find(file, uid, name.as_deref()).ok_or(NoOwnIds::Range { file });
    let ranges = [range(FILES[0])?, range(FILES[1])?];
    if nix::sys::prctl::get_no_new_privs().unwrap_or(false) {
        return Err(NoOwnIds::NoNewPrivs);
    }
    Ok(([uids, gids], ranges))
}

/// Finds a program in a directory and file that only root can write to.
fn program(name: &str) -> Option<PathBuf> {
    let trusted = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|file| {
            file.is_file()
                && file.uid() == 0
                && file.mode() & 0o022 == 0
                && file.mode() & 0o111 != 0
        })
    };
    TRUSTED_DIRECTORIES.iter().map(|directory| Path::new(directory).join(name)).find(trusted)
}

/// Consecutive ids that a user may map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    first: u32,
    count: u32,
}

impl Range {
    /// Returns the longest range that `file` assigns to the user, by name or by number (subuid(5)).
    fn find(file: &str, uid: u32, name: Option<&str>) -> Option<Self> {
        Self::parse(&String::from_utf8_lossy(&fs::read(file).ok()?), uid, name)
    }

    fn parse(table: &str, uid: u32, name: Option<&str>) -> Option<Self> {
        let range = |line: &str| {
            let mut fields = line.split(':');
            let owner = fields.next()?;
            let is_users = Some(owner) == name || owner.parse() == Ok(uid);
            let first = fields.next()?.parse().ok()?;
            let count = fields.next()?.trim().parse().ok()?;
            // 0 is the host's root, whatever the file says.
            (is_users && first > 0).then_some(Self { first, count })
        };
        let longest = table.lines().filter_map(range).max_by_key(|range| range.count);
        longest.filter(|range| range.block(0).is_some())
    }

    /// Returns the first id of a block, counted from the end: the user's containers use the first
    /// ids.
    fn block(self, number: u32) -> Option<u32> {
        let below = number.checked_add(1)?.checked_mul(BLOCK_IDS)?;
        self.first.checked_add(self.count.checked_sub(below)?)
    }
}

/// Returns the directory for locks, which only the user can write to.
///
/// There is a single directory, so that no two instances take the same block. It must be below a
/// directory of the user: in `/tmp` another user could create it first.
fn locks(uid: u32) -> Option<PathBuf> {
    let is_users = |path: &Path| {
        fs::symlink_metadata(path).is_ok_and(|directory| {
            directory.is_dir() && directory.uid() == uid && directory.mode() & 0o022 == 0
        })
    };
    let runtime = Some(PathBuf::from(format!("/run/user/{uid}"))).filter(|path| is_users(path))?;
    let locks = runtime.join("cofferdam");
    // Fails if the directory exists or cannot be made; the check below decides.
    DirBuilder::new().mode(0o700).create(&locks).unwrap_or_default();
    is_users(&locks).then_some(locks)
}

/// Locks the block that begins with `first`; `None` if another instance has it.
fn lock(directory: &Path, first: u32) -> std::io::Result<Option<Flock<File>>> {
    let mut options = File::options();
    options.create(true).truncate(false).write(true).mode(0o600);
    options.custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits());
    let file = options.open(directory.join(format!("{first}.lock")))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, errno)) => Err(errno.into()),
    }
}

/// The two running programs that write the maps of a new namespace.
#[derive(Debug)]
pub(crate) struct Mapping {
    extents: [[Extent; 2]; 2],
    pid: i32,
    children: [Option<Child>; 2],
}

impl Mapping {
    /// Starts both programs for the namespace of the process `pid`.
    pub(crate) fn start(block: &Block, pid: i32, operator: [u32; 2]) -> Self {
        let extents = block.extents(operator);
        let started = |which: usize| {
            let program = block.programs.get(which)?;
            let map = extents.get(which)?;
            let mut command = Command::new(program);
            command.arg(pid.to_string());
            for Extent { inside, outside, length } in map {
                command.args([inside, outside, length].map(u32::to_string));
            }
            command.env_clear().current_dir("/");
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().ok()
        };
        Self { extents, pid, children: [started(0), started(1)] }
    }

    /// Waits for both programs. Returns for each map whether it was written as requested.
    pub(crate) fn finish(self) -> [bool; 2] {
        let Self { extents, pid, children } = self;
        let end = Instant::now() + MAX_MAPPING_TIME;
        for child in children.into_iter().flatten() {
            if let Err(error) = wait_until(child, end) {
                tracing::warn!(%error, "newuidmap or newgidmap did not end well");
            }
        }
        let is_written = |file: &str, map: &[Extent; 2]| {
            let text = fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
            idmap::extents(&text) == map
        };
        let [uids, gids] = &extents;
        [is_written("uid_map", uids), is_written("gid_map", gids)]
    }
}

/// Waits for a child until `end`, then kills it, which is allowed despite set-uid because its real
/// uid is ours.
fn wait_until(mut child: Child, end: Instant) -> std::io::Result<()> {
    let pid = i32::try_from(child.id()).map_err(std::io::Error::other)?;
    let pidfd = process::open_pidfd(pid)?;
    let left = end.saturating_duration_since(Instant::now());
    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
    let mut waited = [PollFd::new(std::os::fd::AsFd::as_fd(&pidfd), PollFlags::POLLIN)];
    if poll(&mut waited, timeout).unwrap_or(0) == 0 {
        child.kill()?;
    }
    child.wait().map(drop)
}

/// Which ids the cells of a supervisor have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ids {
    /// The same kind for all cells.
    All(CellIds),
    /// Separate ids for cells without grants, the operator's for the others.
    ByGrant,
}

impl Ids {
    /// Returns the ids of a key's cells.
    ///
    /// Access to a granted directory or socket depends on the operator's id: files that a cell
    /// makes there must belong to the user, files of mode 0600 must be readable, and only its owner
    /// can connect to a granted socket.
    pub(crate) fn of_key(self, profile: &Profile, grant: &KeyGrant) -> CellIds {
        let has_grant = !grant.directories.is_empty() || !grant.sockets.is_empty();
        match (self, grant.layer_id) {
            (Self::All(CellIds::BySlot), Some(id)) => CellIds::One(id),
            (Self::All(ids), _) => ids,
            (Self::ByGrant, _) if has_grant || !is_readable_by_all(profile) => CellIds::Operator,
            (Self::ByGrant, _) => CellIds::BySlot,
        }
    }
}

/// Returns true if all users can read the paths of `profile`. A private program of the user, or a
/// tree that is closed to others, needs the user's id.
///
/// Ids are those of the supervisor's namespace, where 0 is the operator, not root.
fn is_readable_by_all(profile: &Profile) -> bool {
    profile.paths.iter().all(|path| match fs::metadata(&path.host) {
        Ok(file) => {
            let read = if file.is_dir() { 0o005 } else { 0o004 };
            file.uid() != 0 && file.mode() & read == read
        }
        // Reported when the template is built.
        Err(_) => true,
    })
}

#[cfg(test)]
#[path = "subordinate_tests.rs"]
mod tests;
