//! The only reader of a cell's notifications: answers each of them, and counts refusals.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::PollFlags;
use nix::sys::stat::{Mode, fstat};

use super::handlers::{Handlers, Served};
use super::refusals::Refusals;
use super::registers::int;
use super::{Mediation, sysinfo};
use crate::kept_network::{self, Reuse, SocketAnswer};
use crate::record::{PathCall, Recorder};
use crate::spec::CellSpec;
use crate::{Clocks, report};
use model::profile::{calls, floor};
use sys::note::Note;
use sys::notify::{self, Notification};
use sys::{Result, interrupt};

/// The cell's memory, which some answers depend on.
pub(crate) trait Memory {
    /// Returns the cell's memory limit in bytes.
    fn limit(&self) -> u64;

    /// Grants `length` bytes of shared memory to a thread of the cell. Returns false if the limit
    /// would be exceeded.
    fn grant_shared(&mut self, thread: i32, length: u64) -> Result<bool>;

    /// Grants a System V segment of `length` bytes to a thread of the cell. Returns false if the
    /// limit would be exceeded.
    fn grant_segment(&mut self, thread: i32, length: u64) -> Result<bool>;

    /// Takes in that a process of the cell becomes the parent of orphans.
    fn expect_subreaper(&mut self);
}

/// The reader of one cell's notifications.
#[derive(Debug)]
pub(crate) struct Mediator<'a> {
    /// Listener of the payload's filter, as long as processes run under it.
    listener: Option<OwnedFd>,
    mediation: Option<&'a Mediation>,
    /// A procfs outside of every mount tree, until the handlers take it.
    procfs: Option<OwnedFd>,
    /// Made before the first mediated call, or with it.
    handlers: Option<Box<Handlers<'a>>>,
    /// Number of sysinfo(2), if init answers it for this profile.
    sysinfo: Option<u32>,
    /// Number of mmap(2). The filter notifies only of shared memory without a file, and of huge
    /// pages.
    shared_memory: Option<u32>,
    /// Number of shmget(2), if the profile has it and no control group bounds the memory.
    segments: Option<u32>,
    /// Number of prctl(2), if the profile has it: the filter asks about one option that is allowed.
    subreaper: Option<u32>,
    /// Calls that make a socket, in cells whose network namespace may be used again.
    reuse: Option<&'a Reuse>,
    /// The note of that namespace; `None` if it is the cell's only one.
    note: Option<&'a Note>,
    clocks: Clocks,
    /// Calls whose paths are recorded for `profile learn` before the kernel executes them.
    recorded: &'a [PathCall],
    recorder: Option<Recorder<'a>>,
    refusals: Refusals,
}

impl<'a> Mediator<'a> {
    /// Prepares to answer. Makes the handlers now if the cell has a directory of the host.
    ///
    /// # Errors
    /// The handlers cannot be made.
    pub(crate) fn new(entry: &CellSpec<'a>, procfs: Option<OwnedFd>) -> Result<Self> {
        let CellSpec { design, shared, network, .. } = *entry;
        let mediation = design.mediation.as_ref();
        let mut mediator = Self {
            listener: None,
            mediation,
            procfs,
            handlers: None,
            sysinfo: calls::number(floor::ANSWERED)
                .filter(|number| design.profile.calls.contains(number)),
            shared_memory: calls::number(floor::SHARES),
            segments: floor::asked_for_segments(&design.profile, shared.memory),
            subreaper: calls::number(floor::SUBREAPER.0)
                .filter(|number| design.profile.calls.contains(number)),
            reuse: design.reuse.as_ref(),
            note: network.map(|lent| lent.note),
            clocks: shared.clocks,
            recorded: &design.recorded,
            recorder: shared.record.as_deref().map(Recorder::new),
            refusals: Refusals::default(),
        };
        if let (Some(mediation), true) = (mediation, mediator.procfs.is_some())
            && mediation.has_directory()
        {
            interrupt::prepare()?;
            mediator.make_handlers(mediation)?;
        }
        // A missing procfs is detected by the payload's probe.
        Ok(mediator)
    }

    /// Sets the listener of the payload's filter; `None` if the payload closed its end.
    pub(crate) fn attach(&mut self, listener: Option<OwnedFd>) {
        self.listener = listener;
        if let (Some(listener), Some(_)) = (&self.listener, &self.handlers) {
            notify::wake_in_step(listener);
        }
    }

    /// Returns the listener, for poll(2).
    pub(crate) fn listener(&self) -> Option<BorrowedFd<'_>> {
        self.listener.as_ref().map(AsFd::as_fd)
    }

    /// Reads one notification and answers it.
    ///
    /// # Errors
    /// The listener rejects the answer.
    pub(crate) fn serve(&mut self, events: PollFlags, memory: &mut impl Memory) -> Result<()> {
        if events.is_empty() {
            return Ok(());
        }
        // Dropped on a hangup: the payload and all its descendants have ended.
        let Some(listener) = self.listener.take() else { return Ok(()) };
        if !events.contains(PollFlags::POLLIN) {
            return Ok(());
        }
        if let Some(call) = notify::receive(&listener)? {
            self.answer(listener.as_fd(), call, memory)?;
        }
        self.listener = Some(listener);
        Ok(())
    }

    /// Answers a call: by init's account of memory, by the kernel after recording, by its handler,
    /// or with EPERM.
    fn answer(
        &mut self,
        listener: BorrowedFd<'_>,
        call: Notification,
        memory: &mut impl Memory,
    ) -> Result<()> {
        if Some(call.number) == self.sysinfo {
            return sysinfo::answer(listener, call, memory.limit(), self.clocks);
        }
        if Some(call.number) == self.shared_memory {
            let [_, length, _, flags, ..] = call.arguments;
            // No account covers huge pages. A host without them returns ENOMEM too.
            let is_huge = flags & u64::from(libc::MAP_HUGETLB.cast_unsigned()) != 0;
            // The kernel executes the call that was checked: it has no pointers, and its registers
            // cannot change.
            return match !is_huge && memory.grant_shared(call.pid, length)? {
                true => notify::proceed(listener, call),
                false => notify::refuse(listener, call, Errno::ENOMEM),
            };
        }
        if Some(call.number) == self.segments {
            let [_, length, flags, ..] = call.arguments;
            let is_huge = int(flags) & libc::SHM_HUGETLB != 0;
            // The kernel executes the call that was checked, as above. Beyond the limit it returns
            // the errno of a kernel whose limit of such memory is reached.
            return match !is_huge && memory.grant_segment(call.pid, length)? {
                true => notify::proceed(listener, call),
                false => notify::refuse(listener, call, Errno::ENOSPC),
            };
        }
        match self.reuse.map_or(SocketAnswer::Others, |reuse| reuse.answer(&call)) {
            SocketAnswer::Allowed => {
                self.note_socket();
                // The kernel executes the call that was checked, as above: the only pointer is to the place for a pair.
                return notify::proceed(listener, call);
            }
            SocketAnswer::Quiet(errno) => return notify::refuse(listener, call, errno),
            SocketAnswer::Others => {}
        }
        let [option, ..] = call.arguments;
        // The kernel takes an int, the low half of the register.
        if Some(call.number) == self.subreaper && int(option) == int(floor::SUBREAPER.1.into()) {
            memory.expect_subreaper();
            return notify::proceed(listener, call);
        }
        if let Some(recorder) = &mut self.recorder
            && let Some(path) = self.recorded.iter().find(|path| path.number == call.number)
        {
            recorder.note(path, &call)?;
            return notify::proceed(listener, call);
        }
        match self.handle(listener, call)? {
            Served::Answered => {}
            Served::Guarded(name) => self.refusals.count_guarded(call.number, name),
            Served::Unreadable => self.refusals.count_unreadable(call.number),
            Served::Unreachable(to) => self.refusals.count_unreachable(to),
            Served::NotMediated => {
                notify::refuse(listener, call, Errno::EPERM)?;
                self.refusals.count(call.number);
            }
        }
        Ok(())
    }

    /// Notes that the cell's network namespace has a socket from now on.
    fn note_socket(&self) {
        if let Some(note) = self.note {
            note.set();
        }
    }

    /// Answers a call by its handler, unless the table has no row for it.
    fn handle(&mut self, listener: BorrowedFd<'_>, call: Notification) -> Result<Served> {
        let Some(mediation) = self.mediation.filter(|mediation| mediation.find(call).is_some())
        else {
            return Ok(Served::NotMediated);
        };
        if kept_network::can_make_socket(call.number) {
            self.note_socket();
        }
        if self.handlers.is_none() {
            // If the handlers cannot be made, only this call fails; the cell continues.
            if let Err(errno) = self.make_handlers(mediation) {
                notify::refuse(listener, call, errno)?;
                return Ok(Served::Answered);
            }
            notify::wake_in_step(listener);
        }
        match &mut self.handlers {
            Some(handlers) => handlers.serve(listener, call),
            None => Ok(Served::NotMediated),
        }
    }

    /// Retries pending calls. `is_woken`: one of their descriptors is ready.
    ///
    /// # Errors
    /// The listener rejects an answer.
    pub(crate) fn retry(&mut self, is_woken: bool) -> Result<()> {
        match (&self.listener, &mut self.handlers) {
            (Some(listener), Some(handlers)) => handlers.retry(listener, is_woken),
            (None, _) | (_, None) => Ok(()),
        }
    }

    /// Returns the descriptors that become writable when a pending call should be retried.
    pub(crate) fn waited(&self) -> Vec<BorrowedFd<'_>> {
        self.handlers.as_ref().map_or_else(Vec::new, |handlers| handlers.pending_calls.waited())
    }

    /// Returns the maximum time until pending calls must be retried even if no descriptor is ready.
    pub(crate) fn pending_timeout(&self) -> Option<Duration> {
        self.handlers.as_ref().and_then(|handlers| handlers.pending_calls.timeout())
    }

    /// Returns the counts of refused calls.
    pub(crate) fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Returns the path, inside the cell, of a directory that was to be a repository and that is
    /// still there. Empty without such a directory, and if it was granted by itself.
    pub(crate) fn half_made(&self) -> Vec<u8> {
        let mut buffer = [0; 4096];
        let found = self.refusals.parent().and_then(|parent| {
            let is_there = fstat(parent).is_ok_and(|status| status.st_nlink > 0);
            let path = self.handlers.as_ref()?.name_guard.path(parent, &mut buffer).ok()?;
            let is_granted =
                self.mediation?.granted.iter().any(|granted| granted.as_slice() == path);
            let is_named = is_there && !is_granted && path.len() <= report::MAX_HALF_MADE;
            is_named.then(|| path.to_vec())
        });
        found.unwrap_or_default()
    }

    /// Resets the counts of refused calls.
    pub(crate) fn forget_refusals(&mut self) {
        self.refusals = Refusals::default();
    }

    fn make_handlers(&mut self, mediation: &'a Mediation) -> Result<()> {
        let proc = match self.procfs.take() {
            Some(proc) => proc,
            // A cell with a directory of the host needs a procfs that its programs cannot reach.
            None if mediation.has_directory() => return Err(Errno::EPERM),
            None => {
                let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
                open(c"/proc", flags, Mode::empty())?
            }
        };
        self.handlers = Some(Handlers::new(mediation, proc)?);
        Ok(())
    }
}
