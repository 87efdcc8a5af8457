//! Host ids for the cells of an ordinary user: a block of the range that subuid(5) and subgid(5) give.
//!
//! The kernel counts pages of pipes, descriptors in flight over Unix sockets and epoll watches for each
//! user of the host. With an id of its own a cell cannot use up what the user's programs have. Only
//! newuidmap(1) and newgidmap(1), which are set-uid, may write such maps: they run below a child that main
//! forks before it is confined, for the moment that they take. If that fails for any reason, cells keep the user's own id.

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

/// Ids of one instance: one for each slot, and the last for the supervisor.
const BLOCK: u32 = 1024;
/// Instances of one user that can run at once with ids of their own.
const MOST_INSTANCES: u32 = 64;
/// Directories in which only root can put a program. NixOS keeps set-uid programs in the first.
const PLACES: [&str; 3] = ["/run/wrappers/bin", "/usr/bin", "/bin"];
/// The longest that both programs may take together; they take about a millisecond.
const PATIENCE: Duration = Duration::from_secs(2);

/// The wish that cells without a grant have ids of their own, where an ordinary user starts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnIds {
    Wanted,
    /// For what makes one call: starting would take longer.
    Unwanted,
}

/// Why an ordinary user's cells have no ids of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Without {
    #[error("newuidmap and newgidmap are not installed")]
    Program,
    #[error("{file} gives this user no {BLOCK} ids")]
    Range { file: &'static str },
    #[error("no_new_privs is set on cofferdam, and newuidmap takes a privilege")]
    NoNewPrivs,
    #[error(
        "/run/user/{uid}, where blocks of ids are locked, is not there or not this user's alone"
    )]
    Locks { uid: u32 },
    #[error("all instances of this user's ids are running")]
    Taken,
    #[error("{limit} cells are more than a block of ids has")]
    Cells { limit: u16 },
}

/// The two files of ranges, and the programs that map what they give.
const FILES: [&str; 2] = ["/etc/subuid", "/etc/subgid"];
const PROGRAMS: [&str; 2] = ["newuidmap", "newgidmap"];

/// A block of ids that no other instance of this user has.
#[derive(Debug)]
pub(crate) struct Block {
    /// First uid and first gid, as main's namespace has them.
    pub first: [u32; 2],
    programs: [PathBuf; 2],
    /// Held for as long as the process lives: the confined front end could not let it go.
    _lock: ManuallyDrop<Flock<File>>,
}

impl Block {
    /// Finds the programs and the ranges of `uid`, and takes a block.
    ///
    /// # Errors
    /// The first thing that is missing.
    pub(crate) fn take(uid: u32, cells: u16) -> Result<Self, Without> {
        let (programs, ranges) = found(uid, cells)?;
        let (first, lock) = locked(uid, ranges)?;
        Ok(Self { first, programs, _lock: ManuallyDrop::new(lock) })
    }

    /// Returns the host ids of the block, uids and gids: those of main's namespace by its own two maps.
    pub(crate) fn host_ids(&self, on_the_host: [impl Fn(u32) -> u32; 2]) -> [HostIds; 2] {
        let [uid, gid] = self.first;
        let [of_uid, of_gid] = on_the_host;
        [HostIds(vec![(1, of_uid(uid), BLOCK)]), HostIds(vec![(1, of_gid(gid), BLOCK)])]
    }

    /// The ids of the supervisor's namespace: 0 is the operator's, 1 and on are this block's.
    fn extents(&self, own: [u32; 2]) -> [[Extent; 2]; 2] {
        let [uid, gid] = self.first;
        let map = |own, first| {
            [
                Extent { inside: 0, outside: own, length: 1 },
                Extent { inside: 1, outside: first, length: BLOCK },
            ]
        };
        [map(own[0], uid), map(own[1], gid)]
    }
}

/// The supervisor's real uid, as its map has it: the last of the block, which no slot has.
pub(crate) const SUPERVISOR: u32 = BLOCK;

/// Tells why cells of this user have no ids of their own: a block is locked for a moment, and nothing mapped.
///
/// # Errors
/// The first thing that is missing.
pub fn look(uid: u32, cells: u16) -> Result<(), Without> {
    let (_, ranges) = found(uid, cells)?;
    locked(uid, ranges).map(drop)
}

/// Locks the first block that no other instance has. Returns its first uid and gid.
fn locked(user: u32, ranges: [Range; 2]) -> Result<([u32; 2], Flock<File>), Without> {
    let none = Without::Locks { uid: user };
    let locks = locks(user).ok_or(none)?;
    for number in 0..MOST_INSTANCES {
        let [Some(uid), Some(gid)] = ranges.map(|range| range.block(number)) else { break };
        if let Some(lock) = lock(&locks, uid).map_err(|_| none)? {
            return Ok(([uid, gid], lock));
        }
    }
    Err(Without::Taken)
}

fn found(uid: u32, cells: u16) -> Result<([PathBuf; 2], [Range; 2]), Without> {
    if u32::from(cells) >= BLOCK {
        return Err(Without::Cells { limit: cells });
    }
    let [Some(uids), Some(gids)] = PROGRAMS.map(program) else { return Err(Without::Program) };
    let name = accounts::user(uid);
    let range = |file| Range::of(file, uid, name.as_deref()).ok_or(Without::Range { file });
    let ranges = [range(FILES[0])?, range(FILES[1])?];
    if nix::sys::prctl::get_no_new_privs().unwrap_or(false) {
        return Err(Without::NoNewPrivs);
    }
    Ok(([uids, gids], ranges))
}

/// A program that only root can have put there.
fn program(name: &str) -> Option<PathBuf> {
    let trusted = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|file| {
            file.is_file()
                && file.uid() == 0
                && file.mode() & 0o022 == 0
                && file.mode() & 0o111 != 0
        })
    };
    PLACES.iter().map(|place| Path::new(place).join(name)).find(trusted)
}

/// Ids in a row that a user may map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    first: u32,
    count: u32,
}

impl Range {
    /// The longest range that `file` gives the user, by name or by number (subuid(5)).
    fn of(file: &str, uid: u32, name: Option<&str>) -> Option<Self> {
        Self::parse(&String::from_utf8_lossy(&fs::read(file).ok()?), uid, name)
    }

    fn parse(table: &str, uid: u32, name: Option<&str>) -> Option<Self> {
        let range = |line: &str| {
            let mut fields = line.split(':');
            let owner = fields.next()?;
            let own = Some(owner) == name || owner.parse() == Ok(uid);
            let (first, count) =
                (fields.next()?.parse().ok()?, fields.next()?.trim().parse().ok()?);
            // 0 is the host's root, whatever the file says.
            (own && first > 0).then_some(Self { first, count })
        };
        let longest = table.lines().filter_map(range).max_by_key(|range| range.count);
        longest.filter(|range| range.block(0).is_some())
    }

    /// The first id of a block, counted from the end: containers of this user begin with the first.
    fn block(self, number: u32) -> Option<u32> {
        let below = number.checked_add(1)?.checked_mul(BLOCK)?;
        self.first.checked_add(self.count.checked_sub(below)?)
    }
}

/// The directory for locks, which nobody but the user can change.
///
/// There is one place, so that no two instances have one block, and it is below a directory of the user's own: in
/// `/tmp` another user could make it first.
fn locks(uid: u32) -> Option<PathBuf> {
    let own = |path: &Path| {
        fs::symlink_metadata(path)
            .is_ok_and(|found| found.is_dir() && found.uid() == uid && found.mode() & 0o022 == 0)
    };
    let runtime = Some(PathBuf::from(format!("/run/user/{uid}"))).filter(|path| own(path))?;
    let place = runtime.join("cofferdam");
    // There already, or not to be had: the look decides.
    DirBuilder::new().mode(0o700).create(&place).unwrap_or_default();
    own(&place).then_some(place)
}

/// The lock of the block that begins with `first`; `None` where another instance has it.
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

/// The two programs at work on a new namespace.
#[derive(Debug)]
pub(crate) struct Mapping {
    extents: [[Extent; 2]; 2],
    pid: i32,
    children: [Option<Child>; 2],
}

impl Mapping {
    /// Starts both programs for the namespace of the process `pid`.
    pub(crate) fn start(block: &Block, pid: i32, own: [u32; 2]) -> Self {
        let extents = block.extents(own);
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

    /// Waits for both. Returns for each map whether it is there, and as it was asked for.
    pub(crate) fn finish(self) -> [bool; 2] {
        let Self { extents, pid, children } = self;
        let end = Instant::now() + PATIENCE;
        for child in children.into_iter().flatten() {
            if let Err(error) = ended(child, end) {
                tracing::warn!(%error, "newuidmap or newgidmap did not end well");
            }
        }
        let is_there = |file: &str, map: &[Extent; 2]| {
            let text = fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
            idmap::extents(&text) == map
        };
        let [uids, gids] = &extents;
        [is_there("uid_map", uids), is_there("gid_map", gids)]
    }
}

/// Waits for a child until `end`, then kills it: set-uid or not, its real uid is ours.
fn ended(mut child: Child, end: Instant) -> std::io::Result<()> {
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

/// Whose ids the cells of a supervisor have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ids {
    /// All the same kind.
    All(CellIds),
    /// Their own where nothing was granted, else the operator's.
    ByGrant,
}

impl Ids {
    /// Those of a key's cells.
    ///
    /// A granted directory or socket is the operator's by its modes: what a cell makes there must belong
    /// to the user, a file of mode 0600 must stay readable where the grant is for reading, and a
    /// granted socket opens to its owner alone.
    pub(crate) fn of_key(self, profile: &Profile, grant: &KeyGrant) -> CellIds {
        let has_grant = !grant.directories.is_empty() || !grant.sockets.is_empty();
        match self {
            Self::All(ids) => ids,
            Self::ByGrant if has_grant || !is_for_everybody(profile) => CellIds::Operator,
            Self::ByGrant => CellIds::BySlot,
        }
    }
}

/// Returns true where what `profile` lists can be read by anybody: a program of the user's own, or a
/// tree that is closed to others, needs the user's own id.
///
/// Ids are those of the supervisor's namespace, in which the operator is 0 and root is not.
fn is_for_everybody(profile: &Profile) -> bool {
    profile.paths.iter().all(|path| match fs::metadata(&path.host) {
        Ok(found) => {
            let read = if found.is_dir() { 0o005 } else { 0o004 };
            found.uid() != 0 && found.mode() & read == read
        }
        // Told when the template is built.
        Err(_) => true,
    })
}

#[cfg(test)]
#[path = "subordinate_tests.rs"]
mod tests;
