//! The front end's end of the link: sends grants, hands out running calls.
//!
//! Only a [`Grant`] can be sent, and only what the supervisor tells comes back.

#![deny(unreachable_pub)]

mod control;
mod metrics;
mod sending;
mod sessions;
mod streams;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::sync::{Notify, oneshot, watch};

use sending::{MOST_FAILURES, Outgoing, PAUSE};

pub use control::Control;
pub use metrics::Metrics;
pub use streams::CancelOnDrop;

use model::call::Stdin;
use model::egress::Connection;
use model::job::{Job, SessionId, Within};
use model::log;
use model::outcome::{Ended, Failure, Outcome, Waits};
use model::receipt::Receipt;
use model::wire::{
    self, Block, CallId, Carried, Event, FRAME_BYTES, JobInput, Ready, Request, Start, StdinKind,
    Unable, WireError,
};
use policy::Grant;
use sys::socket::{self, PacketWait, Received};

/// A handle to the supervisor; clones share the one link.
#[derive(Debug, Clone)]
pub struct Link {
    shared: Arc<Shared>,
}

/// A call whose program has a cell. Dropping it cancels the call.
#[derive(Debug)]
pub struct Running {
    pub receipt: Receipt,
    /// Which job of its session's shell it is, from 1 on; 0 where it has a cell of its own.
    pub turn: u64,
    /// Present when the job's stdin is a pipe; dropping it is end of file.
    pub stdin: Option<pipe::Sender>,
    pub stdout: pipe::Receiver,
    pub stderr: pipe::Receiver,
    pub control: Control,
    /// Resolves once, when the call has ended. An error means the supervisor is gone.
    pub ended: oneshot::Receiver<Ended>,
    /// Answers about its input, by the number of the question.
    pub input: watch::Receiver<(u32, Waits)>,
    /// Cancels on drop, so that a call nobody waits for does not go on.
    pub guard: CancelOnDrop,
}

/// The supervisor that came up at the other end.
type Greeting = Option<Result<Ready, Unable>>;

#[derive(Debug)]
struct Shared {
    socket: AsyncFd<OwnedFd>,
    state: Mutex<State>,
    greeting: watch::Sender<Greeting>,
    session_ends: watch::Sender<()>,
    /// Wakes the writer when the socket could not take a frame at once.
    blocked: Notify,
}

#[derive(Debug, Default)]
struct State {
    next: CallId,
    calls: HashMap<CallId, Waiting>,
    /// Listeners for connections, of the last calls that have one: a connection may close after its call has ended.
    listeners: VecDeque<(CallId, ConnectionListener)>,
    /// Sessions that ended since somebody asked.
    forgotten: Vec<SessionId>,
    /// Number of the last question about room, and who waits for answers.
    questions: u32,
    rooms: HashMap<u32, oneshot::Sender<Option<SessionId>>>,
    outgoing: VecDeque<Outgoing>,
    /// Why no call can be started any more.
    closed: Option<Failure>,
    totals: Metrics,
}

/// Most calls whose connections are listened for, those that have ended among them.
const LISTENERS: usize = 512;

/// Listener for the connections of a call, each as it closes.
#[derive(Clone)]
pub struct ConnectionListener(Arc<dyn Fn(Connection) + Send + Sync>);

impl ConnectionListener {
    pub fn new(hear: impl Fn(Connection) + Send + Sync + 'static) -> Self {
        Self(Arc::new(hear))
    }
}

impl fmt::Debug for ConnectionListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConnectionListener")
    }
}

/// The receiver of a call's frames.
#[derive(Debug)]
struct Waiting {
    started: Option<oneshot::Sender<Result<Running, Failure>>>,
    ended: Option<oneshot::Sender<Ended>>,
    /// The other end of `ended`, until the call has started.
    receiver: Option<oneshot::Receiver<Ended>>,
    input: watch::Sender<(u32, Waits)>,
}

/// Removes a call nobody waits for any more before it started, and cancels it.
struct Unstarted<'a> {
    control: &'a Control,
    armed: bool,
}

impl Drop for Unstarted<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.control.cancel();
        }
    }
}

/// Registers a socket that it owns with the tokio runtime in force.
///
/// # Errors
/// When the runtime's poll cannot take it.
#[expect(deprecated, reason = "for types whose descriptor may change; that of an `OwnedFd` cannot")]
pub fn register(socket: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(socket)
}

impl Link {
    /// Takes the front end's end of the socket. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// When the socket cannot be registered with the runtime.
    pub fn attach(socket: OwnedFd) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            socket: register(socket)?,
            state: Mutex::default(),
            greeting: watch::Sender::new(None),
            session_ends: watch::Sender::new(()),
            blocked: Notify::new(),
        });
        tokio::spawn(Arc::clone(&shared).read());
        tokio::spawn(Arc::clone(&shared).write());
        Ok(Self { shared })
    }

    /// Waits for the supervisor's findings at its start, or the reason why it did not start.
    ///
    /// # Errors
    /// The step of its set-up that failed, or the end of the supervisor without a report.
    pub async fn ready(&self) -> Result<Ready, Failure> {
        let mut greeting = self.shared.greeting.subscribe();
        loop {
            let greeted = greeting.borrow_and_update().clone();
            // Second: it is set before the greeting changes, so that no end is missed.
            let closed = self.shared.state().closed.clone();
            match (greeted, closed) {
                (Some(Ok(ready)), _) => return Ok(ready),
                (Some(Err(unable)), _) => return Err(unable.into()),
                (None, Some(closed)) => return Err(closed),
                (None, None) => {}
            }
            if greeting.changed().await.is_err() {
                return Err(Failure::Supervisor);
            }
        }
    }

    /// Returns the supervisor's findings, if it has reported them already.
    pub fn greeted(&self) -> Option<Ready> {
        self.shared.greeting.borrow().as_ref()?.as_ref().ok().cloned()
    }

    /// Returns true if the supervisor told that it can make no cell.
    pub fn is_unable(&self) -> bool {
        matches!(&*self.shared.greeting.borrow(), Some(Err(_)))
    }

    /// Returns whether the supervisor is gone.
    pub fn is_closed(&self) -> bool {
        self.shared.state().closed.is_some()
    }

    /// Resolves when the supervisor is gone.
    pub async fn closed(&self) {
        let mut greeting = self.shared.greeting.subscribe();
        // The greeting changes twice at most: when it comes, and when the link ends.
        while self.shared.state().closed.is_none() {
            if greeting.changed().await.is_err() {
                return;
            }
        }
    }

    /// Starts a granted job. Resolves when its cell has measured up and the job is handed over.
    ///
    /// # Errors
    /// Why there is no cell or no program in it; nothing ran then.
    pub async fn start(&self, grant: Grant) -> Result<Running, Failure> {
        self.start_job(grant.into_job(), None).await
    }

    /// Starts a call as [`Link::start`] does, and has its connections told to `listener`.
    ///
    /// # Errors
    /// The same as of [`Link::start`].
    pub async fn start_heard(
        &self,
        grant: Grant,
        within: Option<Within>,
        listener: Option<ConnectionListener>,
    ) -> Result<Running, Failure> {
        self.start_job(Job { session: within, ..grant.into_job() }, listener).await
    }

    /// Starts a call as [`Link::start`] does, in the shell of a session.
    ///
    /// # Errors
    /// The same as of [`Link::start`].
    pub async fn start_within(&self, grant: Grant, within: Within) -> Result<Running, Failure> {
        self.start_heard(grant, Some(within), None).await
    }

    async fn start_job(
        &self,
        job: Job,
        listener: Option<ConnectionListener>,
    ) -> Result<Running, Failure> {
        let (sender, started) = oneshot::channel();
        let call = self.shared.enlist(sender)?;
        if let Some(listener) = listener {
            self.shared.state().listen(call, listener);
        }
        let control = Control { call, shared: Arc::clone(&self.shared) };
        if let Err(error) = self.shared.request(call, job) {
            self.shared.state().calls.remove(&call);
            return Err(error.into());
        }
        let mut unstarted = Unstarted { control: &control, armed: true };
        let outcome = started.await.unwrap_or(Err(Failure::Supervisor));
        unstarted.armed = false;
        outcome
    }
}

impl State {
    fn listen(&mut self, call: CallId, listener: ConnectionListener) {
        self.listeners.push_back((call, listener));
        // None of a call that runs: it would have no line for its connections.
        let is_over = |(one, _): &(CallId, ConnectionListener)| !self.calls.contains_key(one);
        if self.listeners.len() > LISTENERS
            && let Some(at) = self.listeners.iter().position(is_over)
        {
            self.listeners.remove(at);
        }
    }

    fn listener(&self, call: CallId) -> Option<ConnectionListener> {
        let mut all = self.listeners.iter();
        all.find(|(known, _)| *known == call).map(|(_, listener)| listener.clone())
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock; if one did, its numbers are still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enlist(
        &self,
        started: oneshot::Sender<Result<Running, Failure>>,
    ) -> Result<CallId, Failure> {
        let mut state = self.state();
        if let Some(closed) = &state.closed {
            return Err(closed.clone());
        }
        state.next += 1;
        let call = state.next;
        let (ended, receiver) = oneshot::channel();
        let waiting = Waiting {
            started: Some(started),
            ended: Some(ended),
            receiver: Some(receiver),
            input: watch::Sender::default(),
        };
        state.calls.insert(call, waiting);
        Ok(call)
    }

    fn request(&self, call: CallId, job: Job) -> Result<(), WireError> {
        streams::have_room(self.socket.get_ref(), &job.stdin)?;
        let (block, sealed) = Block::carry(&job)?;
        let mut fds = Vec::from_iter(sealed);
        let mut carry = |name, bytes| {
            let (carried, sealed) = Carried::new(name, bytes)?;
            fds.extend(sealed);
            Ok::<_, WireError>(carried)
        };
        let script = job.script.map(|script| carry(c"cofferdam-script", script.into_bytes()));
        let script = script.transpose()?;
        let stdin = match job.stdin {
            Stdin::Empty => JobInput::Empty,
            Stdin::Pipe(_) => JobInput::Pipe,
            Stdin::Terminal(_) => JobInput::Terminal,
            Stdin::Bytes(bytes) => JobInput::Bytes(carry(c"cofferdam-stdin", bytes)?),
        };
        let frame = wire::encode(&Request::Start(Start {
            call,
            profile: job.profile,
            workspace: job.workspace,
            only: job.only,
            session_profile: job.session_profile,
            session: job.session,
            changes: job.changes,
            limits: job.limits,
            stdin,
            script,
            block,
        }))?;
        self.push(Outgoing::job(call, frame, fds));
        Ok(())
    }

    async fn read(self: Arc<Self>) {
        let mut buffer = Vec::with_capacity(FRAME_BYTES);
        let (mut reset, mut failures) = (false, 0);
        loop {
            let Ok(mut ready) = self.socket.readable().await else { break };
            match socket::receive_into(self.socket.get_ref(), &mut buffer, PacketWait::No) {
                Ok(received) if received.bytes > 0 => {
                    failures = 0;
                    // The supervisor speaks for nobody but itself; a frame that cannot be read
                    // means that the two ends are not of one build.
                    let Ok(event) = wire::decode::<Event>(&buffer) else { break };
                    self.take(event, received);
                }
                Ok(_) => break,
                Err(Errno::EAGAIN) => ready.clear_ready(),
                // It ended with a frame of ours unread, which is told once: what it said before, such as
                // why, comes after that.
                Err(Errno::ECONNRESET) if !reset => reset = true,
                // The kernel has no memory for it now, say: no reason to give up every call.
                Err(errno) if errno != Errno::ECONNRESET && failures < MOST_FAILURES => {
                    failures += 1;
                    tracing::warn!(%errno, "the link could not be read");
                    tokio::time::sleep(PAUSE).await;
                }
                Err(errno) => {
                    tracing::error!(%errno, "the link cannot be read: the supervisor is given up");
                    break;
                }
            }
        }
        self.close(Failure::Supervisor);
    }

    /// Ends every call, and those to come, with `failure` unless a better reason is known.
    fn close(&self, failure: Failure) {
        let mut state = self.state();
        let reason = state.closed.get_or_insert(failure).clone();
        state.rooms.clear();
        for (_, waiting) in state.calls.drain() {
            if let Some(started) = waiting.started {
                // The receiver has gone.
                started.send(Err(reason.clone())).unwrap_or_default();
            }
        }
        drop(state);
        self.greeting.send_modify(|_| {});
    }

    fn take(self: &Arc<Self>, event: Event, received: Received) {
        match event {
            Event::Ready(ready) => drop(self.greeting.send_replace(Some(Ok(ready)))),
            Event::Unable(unable) => {
                self.close(unable.clone().into());
                self.greeting.send_replace(Some(Err(unable)));
            }
            Event::Started { call, stdin, receipt, turn } => {
                self.started(call, stdin, (receipt, turn), received);
            }
            Event::Ended { call, ended } => self.ended(call, ended),
            Event::Input { call, number, waits } => {
                if let Some(waiting) = self.state().calls.get(&call) {
                    waiting.input.send_replace((number, waits));
                }
            }
            Event::Forgotten { session } => {
                self.state().forgotten.push(session);
                self.session_ends.send_replace(());
            }
            Event::Room { number, ends } => {
                if let Some(waiting) = self.state().rooms.remove(&number) {
                    // The receiver has gone.
                    waiting.send(ends).unwrap_or_default();
                }
            }
            Event::Connection { call, connection } => {
                let listener = self.state().listener(call);
                if let Some(ConnectionListener(hear)) = listener {
                    hear(connection);
                }
            }
            Event::Logged { lines } => {
                for line in lines {
                    // Nobody reads it: then nobody misses it.
                    log::to_standard_error(line.as_bytes()).unwrap_or_default();
                }
            }
        }
    }

    fn started(
        self: &Arc<Self>,
        call: CallId,
        stdin: StdinKind,
        receipt: (Receipt, u64),
        received: Received,
    ) {
        let mut state = self.state();
        let Some(waiting) = state.calls.get_mut(&call) else { return };
        let (Some(started), Some(ended)) = (waiting.started.take(), waiting.receiver.take()) else {
            return;
        };
        let input = waiting.input.subscribe();
        drop(state);
        let control = Control { call, shared: Arc::clone(self) };
        let running = Running::take(stdin, receipt, received, control, (ended, input));
        // The receiver has gone: the guard in `running` cancels the call on drop.
        drop(started.send(running));
    }

    fn ended(&self, call: CallId, ended: Ended) {
        let mut state = self.state();
        state.add(&ended);
        let Some(waiting) = state.calls.remove(&call) else { return };
        drop(state);
        match (waiting.started, waiting.ended) {
            (Some(started), _) => {
                let failure = match ended.outcome {
                    Outcome::Failed(failure) => failure,
                    // Ended before it started: by a cancel, of which the caller knows.
                    Outcome::Exited { .. }
                    | Outcome::Signaled { .. }
                    | Outcome::Timeout
                    | Outcome::Limit(_)
                    | Outcome::Cancelled => Failure::Lost,
                };
                drop(started.send(Err(failure)));
            }
            (None, Some(sender)) => drop(sender.send(ended)),
            (None, None) => {}
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "what cannot be set up is a failed test")]
mod tests {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    use super::*;

    #[tokio::test]
    async fn a_supervisor_that_ends_without_a_word_is_told_to_who_waits_for_it() {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (own, other) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        let link = Link::attach(own).unwrap();
        let waits = tokio::spawn({
            let link = link.clone();
            async move { link.ready().await }
        });
        tokio::task::yield_now().await;
        drop(other);
        let waited = tokio::time::timeout(std::time::Duration::from_secs(10), waits).await;
        assert_eq!(waited.unwrap().unwrap().unwrap_err(), Failure::Supervisor);
    }
}
