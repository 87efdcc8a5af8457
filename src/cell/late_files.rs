//! Files of a template that a separate process makes while the first cell is built.
//!
//! They are many, and only cells need them: a start does not wait for them. The template's
//! filesystem is the same for all cells, so files appear in a cell that exists already. Its job
//! waits until they are complete.

use std::cell::RefCell;
use std::fmt::{Debug, Formatter};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::Signal;

use sys::process::{self, Child, Side};
use sys::raw;
use sys::socket::{self, PacketWait};

/// Time after which the process is killed and jobs do without the missing files: the host's
/// filesystem may not answer.
const MAX_TIME: Duration = Duration::from_secs(2);
/// Maximum processes for one template. Each is started with a cell, after the last one failed.
const MAX_ATTEMPTS: u8 = 3;
/// Exit code of a process that has made files up to a limit. Other codes are an errno, or 0.
const LIMITED: i32 = 255;

/// The files that the process has made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    All,
    /// A limit of their number or size was reached.
    Limited,
}

/// The work of the process. It holds the descriptors that it needs and closes all others. It can be
/// done again after a part of it was done.
pub type Work = Box<dyn Fn() -> Result<Extent, Errno>>;

/// The late files of a template.
pub struct LateFiles {
    state: RefCell<State>,
}

enum State {
    Due(Attempt),
    Begun {
        attempt: Attempt,
        process: FileMaker,
        deadline: Instant,
    },
    /// Complete, but the process has not ended.
    Made {
        process: FileMaker,
    },
    /// Killed, but not ended: the kernel may be in a read that no signal interrupts.
    Killed {
        attempt: Attempt,
        process: FileMaker,
    },
    /// Complete, or given up.
    Over,
}

/// A process that makes files.
#[derive(Debug, Clone)]
pub struct FileMaker {
    child: Rc<Child>,
    /// Socket on which it reports before it ends: freeing its memory takes a while. `None` after the report, or after the
    /// end of the socket, which would wake the loop until the process is reaped.
    reports: Option<Rc<OwnedFd>>,
}

impl FileMaker {
    /// Returns the descriptors on which the process reports, and which is readable when it has ended.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [self.child.pidfd.as_fd()].into_iter().chain(self.reports.as_deref().map(AsFd::as_fd))
    }

    /// Reads what the process has reported: 0, or [`LIMITED`].
    fn read_report(&mut self) -> Option<i32> {
        let mut byte = [0];
        let received = socket::receive(self.reports.as_ref()?, &mut byte, PacketWait::No);
        if received.as_ref().is_err_and(|errno| *errno == Errno::EAGAIN) {
            return None;
        }
        self.reports = None;
        // Anything else counts as no report: its end shows what has happened.
        received.ok().filter(|received| received.bytes == byte.len())?;
        byte.first().map(|code| i32::from(*code)).filter(|code| matches!(*code, 0 | LIMITED))
    }
}

/// Reports that the files are made, on a socket whose other end is that of [`LateFiles::begun`].
///
/// # Errors
/// The errno of write(2).
pub fn report(socket: impl AsFd, extent: Extent) -> Result<(), Errno> {
    let code = u8::try_from(code(Ok(extent))).map_err(|_| Errno::EINVAL)?;
    nix::unistd::write(socket, &[code]).map(drop)
}

/// Work that is to be done, and the number of processes that were started for it.
struct Attempt {
    work: Work,
    started: u8,
}

impl Attempt {
    /// Returns the state after the process has failed.
    fn failed(self) -> State {
        if self.started < MAX_ATTEMPTS { State::Due(self) } else { State::Over }
    }
}

impl LateFiles {
    pub fn new(work: Work) -> Self {
        Self { state: RefCell::new(State::Due(Attempt { work, started: 0 })) }
    }

    /// Returns the state while a process that was started at `began` makes the files, and reports it on `reports`. If it
    /// fails, `work` is done.
    pub fn begun(work: Work, child: Child, reports: OwnedFd, began: Instant) -> Self {
        let attempt = Attempt { work, started: 1 };
        let process = FileMaker { child: Rc::new(child), reports: Some(Rc::new(reports)) };
        let state = State::Begun { attempt, process, deadline: began + MAX_TIME };
        Self { state: RefCell::new(state) }
    }

    /// Returns the state of a template without late files.
    pub fn none() -> Self {
        Self { state: RefCell::new(State::Over) }
    }

    /// Starts the process with a new cell, or before the first one, if the files are missing. Returns
    /// true if jobs must wait from now on.
    pub fn begin(&self, now: Instant) -> bool {
        let mut state = self.state.borrow_mut();
        let mut attempt = match std::mem::replace(&mut *state, State::Over) {
            State::Due(attempt) => attempt,
            other @ (State::Begun { .. }
            | State::Made { .. }
            | State::Killed { .. }
            | State::Over) => {
                *state = other;
                return false;
            }
        };
        attempt.started += 1;
        match start(&attempt.work) {
            Ok(child) => {
                let deadline = now + MAX_TIME;
                let process = FileMaker { child: Rc::new(child), reports: None };
                *state = State::Begun { attempt, process, deadline };
                true
            }
            Err(errno) => {
                tracing::warn!(%errno, "unchanged files of packages are not in /etc of cells");
                *state = attempt.failed();
                false
            }
        }
    }

    /// Reaps the process when it has ended, and kills it after its time. Returns true once it was
    /// reaped.
    ///
    /// # Errors
    /// The errno of waitid(2) or pidfd_send_signal(2).
    pub fn settle(&self, now: Instant) -> Result<bool, Errno> {
        let mut state = self.state.borrow_mut();
        let next = match std::mem::replace(&mut *state, State::Over) {
            State::Begun { attempt, mut process, deadline } => {
                let reported = process.read_report();
                match (process::collect(&process.child.pidfd)?, reported) {
                    (None, Some(code)) => {
                        warn_of_limit(code);
                        State::Made { process }
                    }
                    (Some(ended), _) => after(attempt, reported.or(ended.code)),
                    (None, None) if now < deadline => State::Begun { attempt, process, deadline },
                    (None, None) => {
                        process::signal(&process.child.pidfd, Signal::SIGKILL)?;
                        tracing::warn!("reading /etc took too long: some files are not in cells");
                        State::Killed { attempt, process }
                    }
                }
            }
            State::Made { process } => match process::collect(&process.child.pidfd)? {
                Some(_) => State::Over,
                None => State::Made { process },
            },
            State::Killed { attempt, process } => match process::collect(&process.child.pidfd)? {
                Some(_) => attempt.failed(),
                None => State::Killed { attempt, process },
            },
            other @ (State::Due(_) | State::Over) => other,
        };
        *state = next;
        Ok(matches!(*state, State::Due(_) | State::Over))
    }

    /// Returns true if jobs wait for the process.
    pub fn are_awaited(&self) -> bool {
        matches!(*self.state.borrow(), State::Begun { .. })
    }

    /// Returns the process until it is reaped, and when it must be killed.
    pub fn process(&self) -> Option<(FileMaker, Option<Instant>)> {
        match &*self.state.borrow() {
            State::Begun { process, deadline, .. } => Some((process.clone(), Some(*deadline))),
            State::Made { process } | State::Killed { process, .. } => {
                Some((process.clone(), None))
            }
            State::Due(_) | State::Over => None,
        }
    }
}

/// Starts a process that does `work` and ends.
///
/// # Errors
/// The errno of clone3(2).
pub fn start(work: impl FnOnce() -> Result<Extent, Errno>) -> Result<Child, Errno> {
    match process::clone3(0, None)? {
        Side::Parent(process) => Ok(process),
        Side::Child => process::exit_now(code(work())),
    }
}

/// Returns the exit code of a process with this result.
fn code(result: Result<Extent, Errno>) -> i32 {
    match result {
        Ok(Extent::All) => 0,
        Ok(Extent::Limited) => LIMITED,
        Err(errno) => raw(errno),
    }
}

fn warn_of_limit(code: i32) {
    if code == LIMITED {
        tracing::warn!("the packages' files in /etc exceed a limit: some are not in cells");
    }
}

/// Returns the state after the process has ended with an exit code, or by a signal.
fn after(attempt: Attempt, code: Option<i32>) -> State {
    match code {
        Some(code @ (0 | LIMITED)) => {
            warn_of_limit(code);
            State::Over
        }
        Some(errno) => {
            let errno = Errno::from_raw(errno);
            tracing::warn!(%errno, "some unchanged files of packages are not in /etc of cells");
            attempt.failed()
        }
        None => {
            tracing::warn!("the process that copies files to /etc of cells was killed");
            attempt.failed()
        }
    }
}

impl Debug for LateFiles {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        let state = match &*self.state.borrow() {
            State::Due(_) => "due",
            State::Begun { .. } => "begun",
            State::Made { .. } => "made",
            State::Killed { .. } => "killed",
            State::Over => "over",
        };
        formatter.debug_tuple("LateFiles").field(&state).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    /// Calls `settle` until the process is reaped.
    fn settled(late: &LateFiles, now: Instant) {
        let patience = Instant::now() + Duration::from_secs(20);
        while !late.settle(now).expect("settles") {
            assert!(Instant::now() < patience, "the process does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    // The processes below only make system calls: another thread may hold a lock at the clone.

    #[test]
    fn a_process_is_started_once_if_it_succeeds() {
        for extent in [Extent::All, Extent::Limited] {
            let late = LateFiles::new(Box::new(move || Ok(extent)));
            let now = Instant::now();
            assert!(late.begin(now));
            assert!(late.are_awaited() && !late.begin(now));
            settled(&late, now);
            assert!(!late.are_awaited() && !late.begin(now), "{extent:?}");
        }
    }

    #[test]
    fn a_failed_process_is_started_again_twice() {
        let late = LateFiles::new(Box::new(|| Err(Errno::ENOSPC)));
        let now = Instant::now();
        for _ in 0..3 {
            assert!(late.begin(now));
            settled(&late, now);
        }
        assert!(!late.begin(now) && late.process().is_none());
    }

    /// Starts the work `first` in a process that can report on the socket that it gets, and `ENOSPC` after it.
    fn begun(first: impl FnOnce(&OwnedFd) -> Result<Extent, Errno>, now: Instant) -> LateFiles {
        let kind = SockType::SeqPacket;
        let (ours, theirs) = socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC)
            .expect("a pair of sockets");
        let child = start(|| first(&theirs)).expect("a process");
        LateFiles::begun(Box::new(|| Err(Errno::ENOSPC)), child, ours, now)
    }

    #[test]
    fn the_work_is_done_where_the_process_that_was_started_before_it_has_failed() {
        for (first, processes) in [(Ok(Extent::All), 0), (Err(Errno::EPIPE), 2)] {
            let now = Instant::now();
            let late = begun(|_| first, now);
            assert!(late.are_awaited() && !late.begin(now), "not two at a time");
            settled(&late, now);
            for _ in 0..processes {
                assert!(late.begin(now));
                settled(&late, now);
            }
            assert!(!late.begin(now) && late.process().is_none(), "{first:?}");
        }
    }

    #[test]
    fn jobs_do_not_wait_for_the_end_of_a_process_that_has_reported() {
        for extent in [Extent::All, Extent::Limited] {
            let now = Instant::now();
            let late = begun(
                |socket| {
                    report(socket, extent)?;
                    loop {
                        nix::unistd::pause();
                    }
                },
                now,
            );
            let patience = now + Duration::from_secs(20);
            while late.are_awaited() {
                assert_eq!(late.settle(now), Ok(false));
                assert!(Instant::now() < patience, "no report");
            }
            let (process, deadline) = late.process().expect("a process to reap");
            assert!(deadline.is_none() && !late.begin(now));
            assert_eq!(
                process.descriptors().count(),
                1,
                "its end is awaited, and not the socket's"
            );
            process::signal(&process.child.pidfd, Signal::SIGKILL).expect("a signal");
            settled(&late, now);
            assert!(late.process().is_none() && !late.begin(now), "{extent:?}");
        }
    }

    #[test]
    fn a_process_that_reports_something_else_has_not_made_the_files() {
        let now = Instant::now();
        let late = begun(|socket| nix::unistd::write(socket, b"x").and(Err(Errno::EPIPE)), now);
        settled(&late, now);
        assert!(late.begin(now), "the work is done");
        settled(&late, now);
    }

    #[test]
    fn a_process_that_hangs_holds_nothing_up_after_its_time() {
        let late = LateFiles::new(Box::new(|| {
            loop {
                nix::unistd::pause();
            }
        }));
        let now = Instant::now();
        for _ in 0..3 {
            assert!(late.begin(now));
            assert_eq!(late.settle(now), Ok(false));
            assert_eq!(late.process().map(|(_, deadline)| deadline), Some(Some(now + MAX_TIME)));
            assert!(late.are_awaited());
            // Killed: it is polled for, without a deadline, and jobs do not wait for its end.
            assert_eq!(late.settle(now + MAX_TIME), Ok(false));
            assert_eq!(late.process().map(|(_, deadline)| deadline), Some(None));
            assert!(!late.are_awaited() && !late.begin(now), "not two at a time");
            settled(&late, now);
        }
        assert!(!late.begin(now) && late.process().is_none());
    }
}
