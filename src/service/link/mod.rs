//! The front end's side of the link to the supervisor: sends grants and hands out running calls.
//!
//! Only a [`Grant`] can be sent, so no call reaches the supervisor without a policy decision.

mod metrics;
mod requests;
mod sending;
mod streams;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::sync::{Notify, oneshot, watch};

use sending::{MAX_FAILURES, Outgoing, PAUSE};

pub use metrics::Metrics;
pub use requests::Control;
pub use streams::CancelOnDrop;

use config::policy::Grant;
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
use sys::socket::{self, PacketWait, Received};

/// A handle to the supervisor; clones share the link.
#[derive(Debug, Clone)]
pub struct Link {
    shared: Arc<Shared>,
}

/// A call that has its cell. Dropping it cancels the call.
#[derive(Debug)]
pub struct Running {
    pub receipt: Receipt,
    /// Number of the job in its session's shell, from 1; 0 for a call in a fresh cell.
    pub turn: u64,
    /// Present when the job's stdin is a pipe; dropping it is end of file.
    pub stdin: Option<pipe::Sender>,
    pub stdout: pipe::Receiver,
    pub stderr: pipe::Receiver,
    pub control: Control,
    /// Resolves once, when the call has ended. An error means the supervisor is gone.
    pub ended: oneshot::Receiver<Ended>,
    /// Answers to [`Control::ask_input`], each with the number of its question.
    pub input: watch::Receiver<(u32, Waits)>,
    /// Cancels the call on drop, so that it does not run unattended.
    pub guard: CancelOnDrop,
}

/// The supervisor's report of its start: `None` until it has come.
type Greeting = Option<Result<Ready, Unable>>;

#[derive(Debug)]
struct Shared {
    socket: AsyncFd<OwnedFd>,
    state: Mutex<State>,
    greeting: watch::Sender<Greeting>,
    session_ends: watch::Sender<()>,
    /// Wakes the writer after a frame that the socket could not take at once.
    blocked: Notify,
}

#[derive(Debug, Default)]
struct State {
    next: CallId,
    calls: HashMap<CallId, Waiting>,
    /// Listeners for connections of recent calls: a connection may close after its call has ended.
    listeners: VecDeque<(CallId, ConnectionListener)>,
    /// Sessions that ended since [`Link::forgotten`] was last called.
    forgotten: Vec<SessionId>,
    /// Number of the last request for room.
    questions: u32,
    /// Senders for the answers to open requests for room.
    rooms: HashMap<u32, oneshot::Sender<Option<SessionId>>>,
    outgoing: VecDeque<Outgoing>,
    /// Why no more calls can be started.
    closed: Option<Failure>,
    totals: Metrics,
}

/// Maximum number of listeners, including those of ended calls.
const MAX_LISTENERS: usize = 512;

/// Callback for each connection of a call as it closes.
#[derive(Clone)]
pub struct ConnectionListener(Arc<dyn Fn(Connection) + Send + Sync>);

impl ConnectionListener {
    pub fn new(on_closed: impl Fn(Connection) + Send + Sync + 'static) -> Self {
        Self(Arc::new(on_closed))
    }
}

impl fmt::Debug for ConnectionListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConnectionListener")
    }
}

/// Channels to the caller of a call.
#[derive(Debug)]
struct Waiting {
    started: Option<oneshot::Sender<Result<Running, Failure>>>,
    ended: Option<oneshot::Sender<Ended>>,
    /// The receiver of `ended`, until the call has started.
    receiver: Option<oneshot::Receiver<Ended>>,
    input: watch::Sender<(u32, Waits)>,
}

/// Cancels a call on drop if its caller gave up before it started.
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

/// Registers an owned socket with the current tokio runtime.
///
/// # Errors
/// If the runtime cannot poll the socket.
#[expect(deprecated, reason = "for types whose descriptor may change; that of an `OwnedFd` cannot")]
pub fn register(socket: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(socket)
}

impl Link {
    /// Takes over the front end's end of the socket. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// If the socket cannot be registered with the runtime.
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

    /// Waits for the supervisor's report of its start.
    ///
    /// # Errors
    /// The set-up step that failed, or that the supervisor ended without a report.
    pub async fn ready(&self) -> Result<Ready, Failure> {
        let mut greeting = self.shared.greeting.subscribe();
        loop {
            let greeted = greeting.borrow_and_update().clone();
            // Read second: it is set before the greeting changes, so that an end is not missed.
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

    /// Returns the supervisor's report if it has come already.
    pub fn greeted(&self) -> Option<Ready> {
        self.shared.greeting.borrow().as_ref()?.as_ref().ok().cloned()
    }

    /// Returns true if the supervisor reported that it cannot make cells.
    pub(crate) fn is_unable(&self) -> bool {
        matches!(&*self.shared.greeting.borrow(), Some(Err(_)))
    }

    /// Returns true if the supervisor is gone.
    pub fn is_closed(&self) -> bool {
        self.shared.state().closed.is_some()
    }

    /// Resolves when the supervisor is gone.
    pub async fn closed(&self) {
        let mut greeting = self.shared.greeting.subscribe();
        // The greeting changes at most twice: when it comes, and when the link ends.
        while self.shared.state().closed.is_none() {
            if greeting.changed().await.is_err() {
                return;
            }
        }
    }

    /// Starts a granted job, in the shell of a session if given. Returns when its cell has passed its checks and the job
    /// is handed over. Its connections are reported to `listener`.
    ///
    /// # Errors
    /// Why the cell or the program in it could not start; nothing ran.
    pub async fn start(
        &self,
        grant: Grant,
        within: Option<Within>,
        listener: Option<ConnectionListener>,
    ) -> Result<Running, Failure> {
        let job = Job { session: within, ..grant.into_job() };
        let (sender, started) = oneshot::channel();
        let call = self.shared.register_call(sender)?;
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
        // Removes a listener of an ended call only: a running call needs its own.
        let is_over = |(one, _): &(CallId, ConnectionListener)| !self.calls.contains_key(one);
        if self.listeners.len() > MAX_LISTENERS
            && let Some(at) = self.listeners.iter().position(is_over)
        {
            self.listeners.remove(at);
        }
    }

    fn listener(&self, call: CallId) -> Option<ConnectionListener> {
        let mut listeners = self.listeners.iter();
        listeners.find(|(known, _)| *known == call).map(|(_, listener)| listener.clone())
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // The lock is not held across code that may panic; if it were, the state would still be
        // consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register_call(
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
        let mut was_reset = false;
        let mut failures = 0;
        loop {
            let Ok(mut ready) = self.socket.readable().await else { break };
            match socket::receive_into(self.socket.get_ref(), &mut buffer, PacketWait::No) {
                Ok(received) if received.bytes > 0 => {
                    failures = 0;
                    // The supervisor speaks for itself only; an undecodable frame means that the
                    // two processes are different builds.
                    let Ok(event) = wire::decode::<Event>(&buffer) else { break };
                    self.take(event, received);
                }
                Ok(_) => break,
                Err(Errno::EAGAIN) => ready.clear_ready(),
                // The supervisor ended with a frame of ours unread, which is reported once; frames
                // that it sent before can still be read.
                Err(Errno::ECONNRESET) if !was_reset => was_reset = true,
                // May be temporary, such as a lack of kernel memory: no reason to fail every call.
                Err(errno) if errno != Errno::ECONNRESET && failures < MAX_FAILURES => {
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

    /// Ends all calls, and refuses later ones, with `failure` unless a better reason is known.
    fn close(&self, failure: Failure) {
        let mut state = self.state();
        let reason = state.closed.get_or_insert(failure).clone();
        state.rooms.clear();
        for (_, waiting) in state.calls.drain() {
            if let Some(started) = waiting.started {
                // Fails only if the caller is gone.
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
                self.started(call, stdin, receipt, turn, received);
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
                    // Fails only if the caller is gone.
                    waiting.send(ends).unwrap_or_default();
                }
            }
            Event::Connection { call, connection } => {
                let listener = self.state().listener(call);
                if let Some(ConnectionListener(on_closed)) = listener {
                    on_closed(connection);
                }
            }
            Event::Logged { lines } => {
                for line in lines {
                    // Without a reader of standard error the line is lost, which is accepted.
                    log::to_standard_error(line.as_bytes()).unwrap_or_default();
                }
            }
        }
    }

    fn started(
        self: &Arc<Self>,
        call: CallId,
        stdin: StdinKind,
        receipt: Receipt,
        turn: u64,
        received: Received,
    ) {
        let mut state = self.state();
        let Some(waiting) = state.calls.get_mut(&call) else { return };
        let Some(started) = waiting.started.take() else { return };
        let Some(ended) = waiting.receiver.take() else { return };
        let input = waiting.input.subscribe();
        drop(state);
        let control = Control { call, shared: Arc::clone(self) };
        let running = Running::take(stdin, receipt, turn, received, control, ended, input);
        // If the caller is gone, the guard in `running` cancels the call on drop.
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
                    // Ended before it started: by a cancel, which the caller requested.
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
    async fn a_supervisor_that_ends_without_a_report_fails_the_wait() {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (near, other) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        let link = Link::attach(near).unwrap();
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
