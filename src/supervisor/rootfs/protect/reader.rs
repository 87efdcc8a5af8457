//! The process that parses configurations: it gets bytes and returns settings over a socket, and
//! can do nothing else.
//!
//! Another user may have written its input, and root may have started it. The process holds one
//! socket and can only read, write and exit. Its answers are checked as if it were hostile.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use nix::unistd::{read, write};
use syscalls::Sysno;

use super::grammar::{self, VALUE, Whole};
use super::rights::Rights;
use super::settings::matters;
use cell::seccomp::{self, Action};
use model::profile::condition::Verdict;
use sys::bpf::{self, Instruction};
use sys::fork::fork;
use sys::process::{self, Child, Dumpable, Side, close_range};

/// Maximum size of a configuration that is read; typical ones have a few kilobytes.
pub(crate) const MAX_TEXT: usize = 1 << 20;
/// Maximum time for one configuration.
const MAX_TIME: Duration = Duration::from_millis(500);
/// Maximum length of a section or key that any known setting has.
const MAX_WORD: usize = 64;

/// A variable of a configuration (git-config(1)) as the reader reported it: names in lower case,
/// without subsections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Variable {
    pub section: Vec<u8>,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

/// The settings of one file, and the rights for what they name.
#[derive(Debug, Clone)]
pub(crate) struct FileSettings {
    pub variables: Rc<Vec<Variable>>,
    pub rights: Rights,
}

/// The process, and our end of its socket.
#[derive(Debug)]
pub(crate) struct Reader {
    link: OwnedFd,
    child: Child,
}

impl Reader {
    /// Forks the process.
    pub(crate) fn start() -> Result<Self, Errno> {
        let kind = (AddressFamily::Unix, SockType::Stream);
        let (link, theirs) = socketpair(kind.0, kind.1, None, SockFlag::SOCK_CLOEXEC)?;
        // Everything is allocated before the fork.
        let calls = [Sysno::read, Sysno::write, Sysno::exit_group];
        let verdicts = calls.map(|call| (seccomp::number(call), Verdict::Allow)).into();
        let filter = seccomp::compile_for_ours(&verdicts, Action::Kill)?;
        let mut text = vec![0; MAX_TEXT];
        let room = Vec::with_capacity(ROOM);
        match fork()? {
            Side::Child => {
                let mut out = Out { to: theirs, room };
                let ended = confined(&mut out, &mut text, &filter);
                process::exit_now(i32::from(ended.is_err()))
            }
            Side::Parent(child) => Ok(Self { link, child }),
        }
    }

    /// Parses a text of at most [`MAX_TEXT`] bytes. Returns its settings, and whether git would
    /// accept it.
    pub(crate) fn read(&self, text: &[u8]) -> Result<(Vec<Variable>, Whole), Errno> {
        let until = Instant::now() + MAX_TIME;
        let length = u32::try_from(text.len()).map_err(|_| Errno::EFBIG)?;
        self.send(&length.to_le_bytes(), until)?;
        self.send(text, until)?;
        let mut answers = Answers { reader: self, room: Vec::new(), taken: 0, until };
        let mut settings = Vec::new();
        // Each setting takes at least two bytes of the text.
        for _ in 0..=text.len() {
            let mut head = [0; 5];
            answers.take(&mut head)?;
            let [section, key, low, high, kind] = head;
            match kind {
                SETTING => {}
                WHOLE => return Ok((settings, Whole::Yes)),
                BROKEN => return Ok((settings, Whole::No)),
                _ => return Err(Errno::EBADMSG),
            }
            let lengths = [
                usize::from(section),
                usize::from(key),
                usize::from(u16::from_le_bytes([low, high])),
            ];
            if lengths
                .iter()
                .zip([MAX_WORD, MAX_WORD, VALUE])
                .any(|(length, limit)| *length > limit)
            {
                return Err(Errno::EBADMSG);
            }
            let [section, key, value] = lengths.map(|length| vec![0; length]);
            let mut setting = Variable { section, key, value };
            for part in [&mut setting.section, &mut setting.key, &mut setting.value] {
                answers.take(part)?;
            }
            settings.push(setting);
        }
        Err(Errno::EBADMSG)
    }

    fn send(&self, mut bytes: &[u8], until: Instant) -> Result<(), Errno> {
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        while !bytes.is_empty() {
            match send(self.link.as_raw_fd(), bytes, flags) {
                Ok(sent) => bytes = bytes.get(sent..).unwrap_or_default(),
                Err(Errno::EAGAIN) => self.wait(PollFlags::POLLOUT, until)?,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Fills `room` with available bytes; waits for some if necessary.
    fn receive(&self, room: &mut Vec<u8>, until: Instant) -> Result<(), Errno> {
        room.resize(ROOM, 0);
        loop {
            match recv(self.link.as_raw_fd(), room, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return Err(Errno::EPIPE),
                Ok(length) => {
                    room.truncate(length);
                    return Ok(());
                }
                Err(Errno::EAGAIN) => self.wait(PollFlags::POLLIN, until)?,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    fn wait(&self, what: PollFlags, until: Instant) -> Result<(), Errno> {
        let left = until.saturating_duration_since(Instant::now());
        let left = PollTimeout::try_from(left).map_err(|_| Errno::EINVAL)?;
        match poll(&mut [PollFd::new(self.link.as_fd(), what)], left) {
            Ok(0) => Err(Errno::ETIMEDOUT),
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

/// Reads the answers of the process.
struct Answers<'r> {
    reader: &'r Reader,
    room: Vec<u8>,
    taken: usize,
    until: Instant,
}

impl Answers<'_> {
    fn take(&mut self, mut bytes: &mut [u8]) -> Result<(), Errno> {
        while !bytes.is_empty() {
            let here = self.room.get(self.taken..).unwrap_or_default();
            if here.is_empty() {
                self.reader.receive(&mut self.room, self.until)?;
                self.taken = 0;
                continue;
            }
            let length = here.len().min(bytes.len());
            let (now, later) = bytes.split_at_mut(length);
            now.copy_from_slice(here.get(..length).unwrap_or_default());
            self.taken += length;
            bytes = later;
        }
        Ok(())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        process::signal(&self.child.pidfd, Signal::SIGKILL).unwrap_or_default();
        process::wait(&self.child.pidfd).unwrap_or_default();
    }
}

const SETTING: u8 = 0;
const WHOLE: u8 = 1;
const BROKEN: u8 = 2;

/// Gives up everything except for the socket, then parses texts until the socket is closed.
fn confined(out: &mut Out, text: &mut [u8], filter: &[Instruction]) -> Result<(), Errno> {
    process::set_death_signal(Signal::SIGKILL)?;
    process::set_dumpable(Dumpable::No)?;
    let number = out.to.as_raw_fd().cast_unsigned();
    close_range(number + 1, u32::MAX)?;
    if number > 0 {
        close_range(0, number - 1)?;
    }
    cell::limits::no_core_dumps()?;
    rlimit::setrlimit(rlimit::Resource::CPU, 2, 2).map_err(|_| Errno::EPERM)?;
    bpf::load(filter)?;
    loop {
        let mut head = [0; 4];
        fill(&out.to, &mut head)?;
        let length = usize::try_from(u32::from_le_bytes(head)).map_err(|_| Errno::EFBIG)?;
        let text = text.get_mut(..length).ok_or(Errno::EFBIG)?;
        fill(&out.to, text)?;
        answer(text, out)?;
    }
}

fn answer(text: &[u8], out: &mut Out) -> Result<(), Errno> {
    let mut outcome = Ok(());
    let verdict = grammar::settings(text, |setting| {
        if !matters(setting.section, setting.key) {
            return;
        }
        let value = setting.value.unwrap_or_default();
        let lengths = (
            u8::try_from(setting.section.len())
                .ok()
                .filter(|length| usize::from(*length) <= MAX_WORD),
            u8::try_from(setting.key.len()).ok().filter(|length| usize::from(*length) <= MAX_WORD),
            u16::try_from(value.len()),
        );
        let (Some(section), Some(key), Ok(length)) = lengths else { return };
        let [low, high] = length.to_le_bytes();
        let head = [section, key, low, high, SETTING];
        for part in [&head[..], setting.section, setting.key, value] {
            outcome = outcome.and_then(|()| out.put(part));
        }
    });
    outcome?;
    let end = match verdict {
        Whole::Yes => WHOLE,
        Whole::No => BROKEN,
    };
    out.put(&[0, 0, 0, 0, end])?;
    out.flush()
}

const ROOM: usize = 64 << 10;

/// Buffered answers to the parent.
struct Out {
    to: OwnedFd,
    room: Vec<u8>,
}

impl Out {
    fn put(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        if self.room.len() + bytes.len() > ROOM {
            self.flush()?;
        }
        self.room.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Errno> {
        let mut rest = self.room.as_slice();
        while !rest.is_empty() {
            let written = write(&self.to, rest)?;
            rest = rest.get(written..).unwrap_or_default();
        }
        self.room.clear();
        Ok(())
    }
}

/// Fills `bytes` from a socket.
fn fill(from: &OwnedFd, mut bytes: &mut [u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match read(from, bytes)? {
            0 => return Err(Errno::EPIPE),
            length => bytes = bytes.get_mut(length..).unwrap_or_default(),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_returned_and_a_second_text_is_parsed_by_the_same_process()
    -> Result<(), Box<dyn std::error::Error>> {
        let reader = Reader::start()?;
        let (settings, verdict) = reader.read(b"[Core] # see [docs]\n hooksPath = a\\\nb\n")?;
        let expected = Variable {
            section: b"core".to_vec(),
            key: b"hookspath".to_vec(),
            value: b"ab".to_vec(),
        };
        assert_eq!((settings, verdict), (vec![expected], Whole::Yes));
        assert_eq!(reader.read(b"[x\ny")?.1, Whole::No);
        let large = b"[include]\npath=/etc/shadow\n".repeat(30_000);
        assert_eq!(reader.read(&large)?.0.len(), 30_000);
        // A text above the limit ends the process, and that is reported.
        assert!(reader.read(&vec![b'\n'; MAX_TEXT + 1]).is_err());
        assert!(reader.read(b"[a]\nb=c\n").is_err());
        Ok(())
    }
}
