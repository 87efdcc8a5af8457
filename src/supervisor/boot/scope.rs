//! A delegated systemd scope for an ordinary user's supervisor, so that the kernel limits its
//! cells' memory.
//!
//! A short-lived child of `main` asks the user's service manager while the supervisor starts
//! ([`manager`]), prepares the groups ([`groups`]) and hands the directory to the supervisor, which
//! waits for it as late and as briefly as possible. Only the supervisor enters the scope: `main`
//! stays in its unit, and the supervisor dies with `main`.

mod dbus;
mod groups;
mod manager;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use self::manager::{Manager, Request};
use crate::cells::cell::packets;
use cell::cgroup::{Parent, ProcessorShares};
use cell::report;
use model::wire::ScopeResult;
use sys::fork::fork;
use sys::process::{self, Side};
use sys::signals;
use sys::socket::{self, PacketWait};

/// Maximum time for asking.
const MAX_ASKING: Duration = Duration::from_secs(5);
/// Maximum time that the first call waits for the scope, unless the scope is required.
const MAX_FIRST_CALL_WAIT: Duration = Duration::from_millis(50);
/// Maximum bytes of an answer: a reason has at most 200 characters.
const ANSWER_BYTES: usize = 2048;

/// Request for a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    Never,
    /// Ask while starting, for a server whose calls come at any time: the first call waits at most
    /// 50 ms.
    Optional,
    /// Explicitly requested: the following calls should wait for it.
    Needed,
}

/// The manager to ask, and the socket for the answer to the supervisor.
#[derive(Debug)]
pub(crate) struct Asking {
    manager: Manager,
    theirs: OwnedFd,
}

/// State of the request until it is settled.
#[derive(Debug)]
pub(crate) struct Pending {
    /// The result if no answer is awaited.
    pub result: ScopeResult,
    awaited: Option<Awaited>,
}

impl From<ScopeResult> for Pending {
    fn from(result: ScopeResult) -> Self {
        Self { result, awaited: None }
    }
}

/// The supervisor's end of the socket.
#[derive(Debug)]
struct Awaited {
    from: OwnedFd,
    wish: Wish,
}

/// The answer; the descriptor of the scope's directory is attached to it.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    scope: ScopeResult,
    shares_processors: bool,
}

/// Prepares a request, if one is wanted and there is a manager.
///
/// # Errors
/// The errno of socketpair(2).
pub(crate) fn prepare(wish: Wish, cgroups: &Parent) -> Result<(Pending, Option<Asking>), Errno> {
    if wish == Wish::Never || !matches!(cgroups, Parent::None) {
        return Ok((ScopeResult::NotAsked.into(), None));
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let Some(manager) = Manager::find(runtime.as_deref()) else {
        return Ok((ScopeResult::NoManager.into(), None));
    };
    if !groups::unified() {
        let reason = "cgroup v2 is not mounted here with the controller of memory".to_owned();
        return Ok((ScopeResult::Refused { why: reason }.into(), None));
    }
    let (from, theirs) = packets()?;
    let awaited = Some(Awaited { from, wish });
    Ok((Pending { result: ScopeResult::NotAsked, awaited }, Some(Asking { manager, theirs })))
}

impl Asking {
    /// Starts the process that asks for the supervisor with this pid. If it cannot be started, the
    /// supervisor sees the socket close, as no other process has this end.
    pub(crate) fn start(self, supervisor: i32) {
        // The kernel reaps the child: this process does not wait for any child from here on.
        // A failed fork closes the socket, which the supervisor handles like a refusal.
        let forked = signals::forget_children().and_then(|()| fork());
        if let Ok(Side::Child) = forked {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                self.run(supervisor).is_ok()
            }));
            process::exit_now(i32::from(!matches!(done, Ok(true))));
        }
    }

    fn run(self, supervisor: i32) -> Result<(), Errno> {
        process::set_death_signal(Signal::SIGKILL)?;
        // Closes all other descriptors: readers of this program's streams wait for their end, and
        // the link belongs to the supervisor.
        let socket_fd = u32::try_from(self.theirs.as_raw_fd()).map_err(|_| Errno::EBADF)?;
        process::close_range(0, socket_fd.checked_sub(1).ok_or(Errno::EBADF)?)?;
        process::close_range(socket_fd.saturating_add(1), u32::MAX)?;
        let (answer, directory) = self.answer(supervisor);
        let bytes = postcard::to_stdvec(&answer).map_err(|_| Errno::EMSGSIZE)?;
        let directory: Vec<_> = directory.iter().map(AsFd::as_fd).collect();
        socket::send_now(&self.theirs, &bytes, &directory)
    }

    fn answer(&self, supervisor: i32) -> (Answer, Option<OwnedFd>) {
        let begun = Instant::now();
        // Names only need to differ: a manager refuses a name that is in use.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unit = format!("cofferdam-{supervisor}-{:x}.scope", now.as_micros());
        let joined = u32::try_from(supervisor).map_err(|_| "no pid".to_owned()).and_then(|pid| {
            let request = Request { unit: unit.clone(), pid, limits: groups::own_limits() };
            let answer = self.manager.ask(&request, begun + MAX_ASKING);
            answer.map_err(|refusal| refusal.to_string())
        });
        let arranged = joined.and_then(|()| groups::arrange(&unit, supervisor));
        match arranged {
            Ok((directory, processors)) => {
                let shares_processors = processors == ProcessorShares::Shared;
                let scope = ScopeResult::Granted { unit, took: begun.elapsed() };
                (Answer { scope, shares_processors }, Some(directory))
            }
            Err(why) => {
                (Answer { scope: ScopeResult::Refused { why }, shares_processors: false }, None)
            }
        }
    }
}

/// Takes the control groups that were requested, or continues without them after the time that the
/// wish allows.
pub(crate) fn settle(pending: &mut Pending, link: &OwnedFd, cgroups: &mut Parent) {
    let Some(Awaited { from, wish }) = pending.awaited.take() else { return };
    let refused = |why: &str| ScopeResult::Refused { why: why.to_owned() };
    let answer = match wait(&from, link, wish) {
        Ok(true) => receive_answer(&from).ok_or_else(|| refused("asking for it failed")),
        Ok(false) => Err(refused("the service manager did not answer in time")),
        Err(errno) => Err(refused(&format!("it could not be awaited: {errno}"))),
    };
    let (answer, directory) = match answer {
        Ok(answer) => answer,
        Err(result) => {
            pending.result = result;
            return;
        }
    };
    if let Some(directory) = directory {
        let shared = answer.shares_processors;
        let processors = if shared { ProcessorShares::Shared } else { ProcessorShares::NotOurs };
        *cgroups = Parent::V2 { directory, processors };
    }
    pending.result = answer.scope;
}

/// Waits for the answer. Returns false if it did not come in time.
fn wait(from: &OwnedFd, link: &OwnedFd, wish: Wish) -> Result<bool, Errno> {
    // The asking process gives up earlier than this.
    let mut deadline = Instant::now() + MAX_ASKING + MAX_FIRST_CALL_WAIT;
    let mut listens = wish == Wish::Optional;
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).as_millis();
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut events = vec![PollFd::new(from.as_fd(), PollFlags::POLLIN)];
        if listens {
            events.push(PollFd::new(link.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut events, timeout) {
            Err(Errno::EINTR) => continue,
            count => {
                if count? == 0 {
                    return Ok(false);
                }
            }
        }
        if events.first().is_some_and(|event| event.any().unwrap_or(true)) {
            return Ok(true);
        }
        // A call has come, and now waits for the scope.
        listens = false;
        deadline = deadline.min(Instant::now() + MAX_FIRST_CALL_WAIT);
    }
}

/// Receives the answer; `None` if the asking process ended without one.
fn receive_answer(from: &OwnedFd) -> Option<(Answer, Option<OwnedFd>)> {
    let mut buffer = [0; ANSWER_BYTES];
    let mut received = socket::receive(from, &mut buffer, PacketWait::No).ok()?;
    let answer: Answer = report::decode(buffer.get(..received.bytes)?).ok()?;
    let directory = received.fds.first_mut().and_then(Option::take);
    // A scope only counts if its directory is attached.
    match (&answer.scope, &directory) {
        (ScopeResult::Granted { .. }, Some(_)) => Some((answer, directory)),
        (ScopeResult::Refused { .. }, None) => Some((answer, None)),
        (_, None | Some(_)) => None,
    }
}
