//! The network namespaces that this supervisor keeps for further cells (`cell::kept_network`).
//!
//! *Invariant:* a namespace has at most one living cell, because it is moved into the [`Cell`] that is
//! cloned into it, and comes back only when that cell's init is reaped. Dropped with a cell, it is gone.
//!
//! [`Cell`]: super::cell::Cell

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sched::{CloneFlags, setns};
use nix::sys::stat::{Mode, fstat};

use cell::init::unresolved;
use cell::kept_network::{self, Habit, LentNetwork, MadeNetwork, NetworkKind, Reuse, SocketCounts};
use cell::measure::UnfitCell;
use cell::slot::Slot;
use cell::{Design, Shared};
use model::receipt::NetworkOrigin;
use sys::note::Note;
use sys::process;
use sys::sharing::Stack;

/// How long a namespace is kept that no cell has.
const KEEP_TIME: Duration = Duration::from_secs(60);
/// The kernel counts a closed socket until it has freed it, which can take some milliseconds. A namespace that has one
/// for longer is thrown away.
const SETTLE_TIME: Duration = Duration::from_secs(1);
/// Maximum number of namespaces that are looked at for one cell.
const MAX_LOOKS: usize = 3;

/// A network namespace in which no program of a cell has made a socket, unless its note is set.
#[derive(Debug)]
pub(crate) struct KeptNetwork {
    kind: NetworkKind,
    namespace: OwnedFd,
    inode: u64,
    counts: SocketCounts,
    note: Note,
    origin: NetworkOrigin,
    /// The habit of the design whose cell has it, or had it last.
    habit: Rc<Habit>,
    /// When its last cell was reaped.
    free_since: Instant,
    /// Counts the namespaces that are kept, free or lent.
    _counted: Rc<()>,
}

/// The namespaces that no cell has, and the inodes of those of living cells.
#[derive(Debug)]
pub(crate) struct Networks {
    /// This process's network namespace, while namespaces are kept.
    own: Option<OwnNetwork>,
    /// In the order in which they became free.
    free: Vec<KeptNetwork>,
    max: usize,
    counted: Rc<()>,
    /// Inode of each living cell's namespace, kept or not.
    living: BTreeMap<Slot, u64>,
}

#[derive(Debug)]
struct OwnNetwork {
    namespace: OwnedFd,
    inode: u64,
    /// Stack of the children that make namespaces.
    stack: Stack,
}

impl Networks {
    /// Keeps at most `max` namespaces.
    ///
    /// # Errors
    /// This process's own namespace cannot be opened, or there is no memory.
    pub(crate) fn new(max: u16, shared: &Shared) -> Result<Self, Errno> {
        let own = (max > 0).then(|| {
            let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
            let namespace = openat(&shared.proc, "self/ns/net", flags, Mode::empty())?;
            let inode = fstat(&namespace)?.st_ino;
            Ok::<_, Errno>(OwnNetwork { namespace, inode, stack: Stack::new()? })
        });
        Ok(Self {
            own: own.transpose()?,
            free: Vec::new(),
            max: usize::from(max),
            counted: Rc::new(()),
            living: BTreeMap::new(),
        })
    }

    /// Clones a cell of `design` into a namespace that is kept, by `clone`; `None` if the cell gets a fresh one.
    /// This process is in the namespace only meanwhile.
    ///
    /// # Errors
    /// The errno of `clone`, or of entering the namespace.
    pub(super) fn clone_into<T>(
        &mut self,
        design: &Design,
        shared: &Shared,
        clone: impl FnOnce(LentNetwork<'_>) -> Result<T, Errno>,
    ) -> Result<Option<(T, KeptNetwork)>, Errno> {
        let Some(reuse) = &design.reuse else { return Ok(None) };
        if self.max == 0 || !reuse.habit.take_turn() {
            return Ok(None);
        }
        let network = self.take_free(reuse);
        let network = network.or_else(|| self.make(reuse, design, shared));
        let (Some(network), Some(own)) = (network, &self.own) else { return Ok(None) };
        let cloned = own.within(&network, || {
            // The only socket that is made here.
            let is_asked = unresolved::is_asked(&design.profile);
            let questions = match is_asked.then(unresolved::open).transpose() {
                Ok(questions) => questions,
                Err(errno) => return give_up(&reuse.habit, errno),
            };
            let questions = questions.as_ref().map(AsFd::as_fd);
            let note = &network.note;
            note.share(|| clone(LentNetwork { note, questions }))?.map(Some)
        })??;
        Ok(cloned.map(|cloned| (cloned, network)))
    }

    /// Takes a free namespace of the right kind without sockets.
    fn take_free(&mut self, reuse: &Reuse) -> Option<KeptNetwork> {
        let mut index = self.free.len();
        let mut looks = 0;
        while index > 0 && looks < MAX_LOOKS {
            index -= 1;
            if self.free.get(index).is_none_or(|network| network.kind != reuse.kind) {
                continue;
            }
            looks += 1;
            let network = self.free.remove(index);
            match network.counts.are_zero() {
                Ok(true) => {
                    let habit = Rc::clone(&reuse.habit);
                    let origin = NetworkOrigin::Untouched;
                    return Some(KeptNetwork { habit, origin, ..network });
                }
                Ok(false) if network.free_since.elapsed() < SETTLE_TIME => {
                    self.free.insert(index, network);
                }
                // Has a socket, or cannot be looked at.
                Ok(false) | Err(_) => drop(network),
            }
        }
        None
    }

    /// Makes a namespace; `None` if enough are kept, or if it fails.
    fn make(&mut self, reuse: &Reuse, design: &Design, shared: &Shared) -> Option<KeptNetwork> {
        let own = self.own.as_mut()?;
        // One reference is this value's.
        if Rc::strong_count(&self.counted) > self.max {
            return None;
        }
        let made = kept_network::make(design, shared, &mut own.stack).and_then(|made| {
            let MadeNetwork { namespace, counts } = made;
            Ok(KeptNetwork {
                kind: reuse.kind,
                inode: fstat(&namespace)?.st_ino,
                namespace,
                counts,
                note: Note::new()?,
                origin: NetworkOrigin::Fresh,
                habit: Rc::clone(&reuse.habit),
                free_since: Instant::now(),
                _counted: Rc::clone(&self.counted),
            })
        });
        made.map_or_else(|errno| give_up(&reuse.habit, errno).ok().flatten(), Some)
    }

    /// Checks that the network namespace of the cell in `slot` is neither this process's nor another living cell's, and
    /// that it is `kept` if the cell was cloned into that. `process` is the procfs directory of the payload.
    ///
    /// # Errors
    /// The namespace is another one, or cannot be read.
    pub(super) fn check(
        &mut self,
        slot: Slot,
        process: &OwnedFd,
        kept: Option<&KeptNetwork>,
    ) -> Result<NetworkOrigin, UnfitCell> {
        let Some(own) = &self.own else { return Ok(NetworkOrigin::Fresh) };
        let inode = inode_of(process)?;
        let unfit = |what: &str| Err(UnfitCell(format!("the net namespace is {what}")));
        if inode == own.inode {
            return unfit("the supervisor's");
        }
        if self.living.iter().any(|(other, theirs)| *other != slot && *theirs == inode) {
            return unfit("another cell's");
        }
        if self.free.iter().any(|network| network.inode == inode) {
            return unfit("one that no cell has");
        }
        if kept.is_some_and(|network| network.inode != inode) {
            return unfit("not the one that the cell was given");
        }
        self.living.insert(slot, inode);
        Ok(kept.map_or(NetworkOrigin::Fresh, |network| network.origin))
    }

    /// Forgets the namespace of the cell that was in `slot`.
    pub(crate) fn forget(&mut self, slot: Slot) {
        self.living.remove(&slot);
    }

    /// Takes back the namespace of a cell that was reaped. One with a socket is thrown away.
    pub(crate) fn take_back(&mut self, network: KeptNetwork, now: Instant) {
        let is_spent = network.note.is_set();
        network.habit.record(is_spent);
        if !is_spent && self.max > 0 {
            self.free.push(KeptNetwork { free_since: now, ..network });
        }
    }

    /// Throws away the namespaces that no cell has, and makes no more: this user may have too few for cells that need fresh
    /// ones (`user.max_net_namespaces`).
    pub(super) fn keep_no_more(&mut self) {
        if self.max > 0 {
            tracing::warn!("network namespaces are not kept any more, as there are too few");
        }
        self.max = 0;
        self.free.clear();
    }

    /// Throws away the namespaces that no cell had for [`KEEP_TIME`].
    pub(crate) fn expire(&mut self, now: Instant) {
        let is_used =
            |network: &KeptNetwork| now.saturating_duration_since(network.free_since) < KEEP_TIME;
        self.free.retain(is_used);
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.free.iter().map(|network| network.free_since + KEEP_TIME).min()
    }
}

impl OwnNetwork {
    /// Runs `act` in a namespace. If this process cannot go back it ends, because the sockets of its further cells would
    /// belong to that namespace.
    fn within<T>(&self, network: &KeptNetwork, act: impl FnOnce() -> T) -> Result<T, Errno> {
        setns(&network.namespace, CloneFlags::CLONE_NEWNET)?;
        let done = act();
        let go_back = || setns(&self.namespace, CloneFlags::CLONE_NEWNET);
        // A second time where the kernel was short of memory for a moment.
        if go_back().is_err() && go_back().is_err() {
            process::exit_now(1);
        }
        Ok(done)
    }
}

/// Lets the next cells of a design have fresh namespaces, after a failure that concerns this one alone.
fn give_up<T>(habit: &Habit, errno: Errno) -> Result<Option<T>, Errno> {
    tracing::debug!(%errno, "a network namespace cannot be kept");
    habit.skip();
    Ok(None)
}

/// Reads the inode of a process's network namespace, as in `net:[4026531840]`.
fn inode_of(process: &OwnedFd) -> Result<u64, Errno> {
    let link = readlinkat(process, "ns/net")?;
    let text = link.to_str().and_then(|text| text.strip_prefix("net:[")?.strip_suffix(']'));
    text.and_then(|number| number.parse().ok()).ok_or(Errno::EPROTO)
}
