//! The link in hostile hands: every event is checked against what was sent, whatever that was.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use model::call::{Argv, Cwd, Env};
use model::outcome::{Ended, Outcome};
use model::wire::{self, Block, Event, FRAME_BYTES, Request, Start, StdinKind};
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use sys::memory;
use sys::socket::{self, PacketWait, Received};

use crate::support::patience;

pub type Check<T = ()> = Result<T, String>;

/// Streams of running programs that are kept, unread.
const HELD: usize = 64;

/// Known facts about a number that was used for calls.
#[derive(Debug, Default)]
struct Life {
    asked: u32,
    running: bool,
    ended: u32,
    last: Option<Ended>,
}

pub struct Link {
    socket: OwnedFd,
    calls: BTreeMap<u64, Life>,
    held: Vec<Received>,
    /// The number of the next call that nothing else is done with.
    next: u64,
}

impl Link {
    /// Takes the link once the supervisor has greeted.
    pub fn greeted(socket: OwnedFd) -> Check<Self> {
        let mut link = Self { socket, calls: BTreeMap::new(), held: Vec::new(), next: 1 << 32 };
        let end = Instant::now() + patience();
        while Instant::now() < end {
            match link.receive()? {
                Some((Event::Ready(_), _)) => return Ok(link),
                Some((other, _)) => return Err(format!("greeted by {other:?}")),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        Err("no greeting".to_owned())
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// A number that was never used.
    pub fn fresh(&mut self) -> u64 {
        self.next += 1;
        // A frame with a flipped bit may have used a number that was to come.
        while self.calls.contains_key(&self.next) {
            self.next += 1;
        }
        self.next
    }

    fn receive(&mut self) -> Check<Option<(Event, Received)>> {
        let mut buffer = vec![0; FRAME_BYTES];
        match socket::receive(&self.socket, &mut buffer, PacketWait::No) {
            Ok(received) if received.bytes == 0 => Err("the supervisor is gone".to_owned()),
            Ok(received) => {
                let bytes = buffer.get(..received.bytes).unwrap_or_default();
                let event = wire::decode(bytes).map_err(|error| error.to_string())?;
                Ok(Some((event, received)))
            }
            Err(Errno::EAGAIN) => Ok(None),
            Err(errno) => Err(format!("receiving: {errno}")),
        }
    }

    /// Reads what the supervisor has said so far.
    pub fn listen(&mut self) -> Check {
        while let Some((event, received)) = self.receive()? {
            match event {
                Event::Started { call, stdin, .. } => self.started(call, stdin, received)?,
                Event::Ended { call, ended } => {
                    let life = self.calls.entry(call).or_default();
                    (life.running, life.ended, life.last) = (false, life.ended + 1, Some(ended));
                    if life.ended > life.asked {
                        return Err(format!("call {call} ended more often than it was asked for"));
                    }
                }
                Event::Forgotten { .. }
                | Event::Room { .. }
                | Event::Input { .. }
                | Event::Connection { .. }
                | Event::Logged { .. } => {}
                Event::Ready(_) | Event::Unable(_) => return Err(format!("once more: {event:?}")),
            }
        }
        Ok(())
    }

    fn started(&mut self, call: u64, stdin: StdinKind, received: Received) -> Check {
        let life = self.calls.entry(call).or_default();
        if life.running || life.ended >= life.asked {
            return Err(format!("call {call} started though it runs or was never asked for"));
        }
        life.running = true;
        let streams = received.fds.iter().flatten().count();
        let more = matches!(stdin, StdinKind::Pipe | StdinKind::Terminal);
        if streams != 2 + usize::from(more) {
            return Err(format!("call {call} came with {streams} streams"));
        }
        self.held.push(received);
        if self.held.len() > HELD {
            drop(self.held.remove(0));
        }
        Ok(())
    }

    /// Sends bytes and descriptors, however many. Notes the call where the bytes are a job.
    pub fn send(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Check {
        let raw: Vec<i32> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let control = if raw.is_empty() { &[][..] } else { &rights[..] };
        if let Ok(Request::Start(start)) = wire::decode::<Request>(bytes) {
            self.calls.entry(start.call).or_default().asked += 1;
        }
        let parts = [std::io::IoSlice::new(bytes)];
        let end = Instant::now() + patience();
        while Instant::now() < end {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            match sendmsg::<()>(self.socket.as_raw_fd(), &parts, control, flags, None) {
                Ok(_) => return Ok(()),
                // The other side reads no more until we listen.
                Err(Errno::EAGAIN) => self.listen()?,
                // More on their way than this user may have: the kernel keeps us back.
                Err(Errno::ETOOMANYREFS) => std::thread::sleep(Duration::from_millis(1)),
                Err(errno) => return Err(format!("sending: {errno}")),
            }
        }
        Err("it takes nothing any more".to_owned())
    }

    pub fn request(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> Check {
        let frame = wire::encode(request).map_err(|error| error.to_string())?;
        self.send(&frame, fds)
    }

    /// Cancels every call and waits for its end: exactly one end for a number that was used once.
    pub fn settle(&mut self) -> Check {
        let numbers: Vec<u64> = self.calls.keys().copied().collect();
        for call in numbers {
            self.request(&Request::Cancel { call }, &[])?;
        }
        self.held.clear();
        let owed = |life: &Life| life.running || (life.asked == 1 && life.ended == 0);
        let end = Instant::now() + patience();
        while self.calls.values().any(owed) && Instant::now() < end {
            self.listen()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        let open = self.calls.iter().find(|(_, life)| owed(life));
        open.map_or(Ok(()), |(call, life)| Err(format!("call {call} has no end: {life:?}")))
    }

    /// An honest call to its end.
    pub fn run(&mut self, start: Start, words: &[&str]) -> Check<Outcome> {
        let call = start.call;
        let block = block(words)?;
        self.held.clear();
        self.request(&Request::Start(start), &[block.as_fd()])?;
        let end = Instant::now() + patience();
        while self.calls.get(&call).is_none_or(|life| life.ended == 0) {
            if Instant::now() > end {
                return Err("an honest call was not served".to_owned());
            }
            self.listen()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        let ended = self.calls.get(&call).and_then(|life| life.last.clone());
        ended.map(|ended| ended.outcome).ok_or_else(|| "an end without an outcome".to_owned())
    }

    /// Makes an ordinary call: a cell, its output, its end.
    pub fn served(&mut self, start: Start) -> Check {
        let outcome = self.run(start, &["bash", "-c", "echo alive"])?;
        if outcome != (Outcome::Exited { code: 0 }) {
            return Err(format!("an honest call ended with {outcome:?}"));
        }
        let mut text = String::new();
        let stdout = self.held.pop().and_then(|received| received.fds.into_iter().flatten().next());
        let mut stdout = std::fs::File::from(stdout.ok_or("no stream")?);
        stdout.read_to_string(&mut text).map_err(|error| error.to_string())?;
        if text == "alive\n" { Ok(()) } else { Err(format!("an honest call printed {text:?}")) }
    }
}

/// A block as an honest front end sends it.
pub fn block(words: &[&str]) -> Check<OwnedFd> {
    let words = words.iter().map(|word| (*word).to_owned()).collect();
    let argv = Argv::new(words).map_err(|error| error.to_string())?;
    // Every profile has this directory.
    let cwd = Cwd::new("cwd", "/tmp").map_err(|error| error.to_string())?;
    let block = Block { argv, env: Env::default(), cwd };
    let bytes = postcard::to_stdvec(&block).map_err(|error| error.to_string())?;
    memory::sealed(c"block", &bytes).map_err(|error| error.to_string())
}
