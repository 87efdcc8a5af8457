//! State of the host that no cell may change, and how it looks from outside.

use std::io::ErrorKind;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::SystemTime;

use nix::time::{ClockId, clock_gettime};

use crate::support::{Caller, Check, Failed, equal, holds, mode, proc_file};

/// Objects of the host that are watched as long as this lives.
pub struct Canaries {
    pub directory: PathBuf,
    process: Child,
    stream: TcpListener,
    datagram: UdpSocket,
    named: UnixDatagram,
    hidden: UnixListener,
    pub name: String,
    before: State,
}

/// A file: its path, what stat(2) says of it, and what is in it.
type FileState = (PathBuf, u64, u32, u64, i64, i64, Vec<u8>);

/// State that must not change.
#[derive(Debug, PartialEq, Eq)]
struct State {
    files: Vec<FileState>,
    /// State of the process: priority, affinity, pending signals, limits.
    process: Vec<String>,
    host_name: String,
}

impl Canaries {
    /// Puts them up, as the caller's own.
    pub fn new(caller: &Caller) -> Result<Self, Failed> {
        let directory = caller.directory("canaries")?;
        mode(&directory, 0o755)?;
        mode(&caller.file("canaries/secret", "do not touch\n")?, 0o600)?;
        let named = UnixDatagram::bind(directory.join("socket"))?;
        mode(&directory.join("socket"), 0o777)?;
        let name = format!("canary-{}", caller.home.display());
        let hidden = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        let stream = TcpListener::bind("127.0.0.1:0")?;
        let datagram = UdpSocket::bind("127.0.0.1:0")?;
        named.set_nonblocking(true)?;
        hidden.set_nonblocking(true)?;
        stream.set_nonblocking(true)?;
        datagram.set_nonblocking(true)?;
        let mut sleep = caller.outside("/bin/sleep");
        let process = sleep.arg("86400").spawn()?;
        // Until it has executed its program and sleeps: loading it takes its time in an emulated machine.
        let mut asleep = 0;
        while asleep < 10 {
            let is_asleep = proc_file(process.id(), "comm")? == b"sleep\n"
                && String::from_utf8_lossy(&proc_file(process.id(), "stat")?).contains(") S ");
            asleep = if is_asleep { asleep + 1 } else { 0 };
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let before = State::now(&directory, process.id())?;
        Ok(Self { directory, process, stream, datagram, named, hidden, name, before })
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn port(&self) -> Result<u16, Failed> {
        Ok(self.stream.local_addr()?.port())
    }

    /// Returns the port on which a datagram would arrive.
    pub fn datagram_port(&self) -> Result<u16, Failed> {
        Ok(self.datagram.local_addr()?.port())
    }

    /// Nothing of them was touched.
    pub fn untouched(&self) -> Check {
        let mut room = [0; 16];
        let came = [
            ("a stream", self.stream.accept().map(drop)),
            ("a datagram", self.datagram.recv_from(&mut room).map(drop)),
            ("a named socket", self.named.recv(&mut room).map(drop)),
            ("an abstract socket", self.hidden.accept().map(drop)),
        ];
        for (what, came) in came {
            equal(what, came.err().map(|error| error.kind()), Some(ErrorKind::WouldBlock))?;
        }
        equal("files, process and names", &State::now(&self.directory, self.pid())?, &self.before)
    }
}

impl State {
    fn now(directory: &Path, pid: u32) -> Result<Self, Failed> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(directory)? {
            let path = entry?.path();
            let data = std::fs::symlink_metadata(&path)?;
            let text = if data.is_file() { std::fs::read(&path)? } else { Vec::new() };
            let size = data.size();
            let mode = data.mode();
            let inode = data.ino();
            files.push((path, size, mode, inode, data.mtime_nsec(), data.ctime_nsec(), text));
        }
        files.sort();
        let text =
            |name| Ok::<_, Failed>(String::from_utf8_lossy(&proc_file(pid, name)?).into_owned());
        let status = text("status")?;
        let kept = ["State", "Uid", "SigPnd", "ShdPnd", "TracerPid", "Cpus_allowed"];
        let mut process: Vec<String> = status
            .lines()
            .filter(|line| kept.iter().any(|name| line.starts_with(name)))
            .map(str::to_owned)
            .collect();
        process.push(text("limits")?);
        process.push(text("oom_score_adj")?);
        // Priority, niceness.
        let stat = text("stat")?;
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        process.extend(fields.split_whitespace().skip(15).take(2).map(str::to_owned));
        let host_name = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
        Ok(Self { files, process, host_name })
    }
}

impl Drop for Canaries {
    fn drop(&mut self) {
        self.process.kill().unwrap_or_default();
        self.process.wait().map(drop).unwrap_or_default();
    }
}

/// The host's time of day compared with a clock that cannot be set.
pub struct Day(i128);

impl Day {
    pub fn now() -> Result<Self, Failed> {
        let since = clock_gettime(ClockId::CLOCK_BOOTTIME)?;
        let day = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let since = i128::from(since.tv_sec()) * 1000 + i128::from(since.tv_nsec()) / 1_000_000;
        Ok(Self(i128::try_from(day.as_millis())? - since))
    }

    /// Checks that the time was not set since; clock synchronization moves it by milliseconds.
    pub fn kept(&self) -> Check {
        let moved = (Self::now()?.0 - self.0).abs();
        holds("the time of day, by milliseconds", moved, moved < 2000)
    }
}
