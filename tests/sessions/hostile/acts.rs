//! Forbidden acts of a front end, each tried once with and once without its
//! confinement.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, sendto, socket, socketpair,
};
use syscalls::Sysno;

use super::raw;

/// Objects that exist before confinement.
pub struct Place {
    /// A directory of the operator's.
    pub home: PathBuf,
    /// Another process of the operator's.
    pub other: u32,
    /// The operator's terminal, which controls this process.
    pub terminal: OwnedFd,
    /// Kept open: a terminal needs its master.
    _master: nix::pty::PtyMaster,
}

impl Place {
    pub fn new(home: PathBuf, other: u32) -> nix::Result<Self> {
        let master = nix::pty::posix_openpt(nix::fcntl::OFlag::O_RDWR)?;
        nix::pty::grantpt(&master)?;
        nix::pty::unlockpt(&master)?;
        // A terminal that hangs up would end this process before it has reported its acts.
        let mut hangup = nix::sys::signal::SigSet::empty();
        hangup.add(nix::sys::signal::Signal::SIGHUP);
        hangup.thread_block()?;
        // A new session without a terminal: the next one opened is its own.
        nix::unistd::setsid()?;
        let path = nix::pty::ptsname_r(&master)?;
        let flags = nix::fcntl::OFlag::O_RDWR;
        let terminal = nix::fcntl::open(path.as_str(), flags, nix::sys::stat::Mode::empty())?;
        Ok(Self { home, other, terminal, _master: master })
    }
}

/// One act: what it is called, what it meets behind the walls, and how it is tried.
pub struct Act {
    pub name: &'static str,
    pub refused: Errno,
    pub tried: fn(&Place) -> nix::Result<()>,
}

const fn act(name: &'static str, refused: Errno, tried: fn(&Place) -> nix::Result<()>) -> Act {
    Act { name, refused, tried }
}

/// In this order: from the namespace on, an act without walls changes the process.
pub const ACTS: [Act; 19] = [
    act("reading a file", Errno::EACCES, |_| io(File::open("/etc/passwd"))),
    act("listing a directory", Errno::EACCES, |_| io(std::fs::read_dir("/"))),
    act("making a file", Errno::EACCES, |place| io(File::create(place.home.join("made")))),
    act("opening its own memory", Errno::EACCES, |_| io(File::open("/proc/self/mem"))),
    act("starting a program", Errno::EPERM, |_| io(Command::new("/bin/true").status())),
    act("a network socket", Errno::EPERM, |_| {
        socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None).map(drop)
    }),
    act("connecting to a service", Errno::EPERM, |place| {
        io(UnixStream::connect(place.home.join("service")))
    }),
    act("a datagram to a service", Errno::EPERM, datagram),
    act("signalling another process", Errno::EPERM, |place| {
        let pid = u64::from(place.other);
        raw::call(number(Sysno::tgkill), [pid, pid, 0, 0, 0, 0]).map(drop)
    }),
    act("the limits of another process", Errno::EPERM, |place| {
        let nofile = u64::from(libc::RLIMIT_NOFILE);
        let arguments = [u64::from(place.other), nofile, 0, 0, 0, 0];
        raw::call(number(Sysno::prlimit64), arguments).map(drop)
    }),
    act("a signal on input for another process", Errno::EPERM, |place| {
        let terminal = unsigned(place.terminal.as_raw_fd());
        let arguments = [terminal, unsigned(libc::F_SETOWN), u64::from(place.other), 0, 0, 0];
        raw::call(number(Sysno::fcntl), arguments).map(drop)
    }),
    act("typing into the operator's terminal", Errno::EPERM, |place| {
        let key = b'x';
        let address = u64::try_from((&raw const key).addr()).unwrap_or_default();
        let terminal = unsigned(place.terminal.as_raw_fd());
        raw::call(number(Sysno::ioctl), [terminal, libc::TIOCSTI, address, 0, 0, 0]).map(drop)
    }),
    act("the names of network devices", Errno::EPERM, |_| {
        let (socket, _peer) = UnixStream::pair().map_err(|error| errno(&error))?;
        let nothing = [0_u64; 2];
        let address = u64::try_from(nothing.as_ptr().addr()).unwrap_or_default();
        let fd = unsigned(socket.as_fd().as_raw_fd());
        raw::call(number(Sysno::ioctl), [fd, 0x8912, address, 0, 0, 0]).map(drop)
    }),
    act("a BPF filter on a socket", Errno::EPERM, |_| {
        // One instruction that lets everything pass: a program for the kernel all the same.
        let instruction = libc::sock_filter { code: 6, jt: 0, jf: 0, k: u32::MAX };
        let program = libc::sock_fprog { len: 1, filter: (&raw const instruction).cast_mut() };
        let address = u64::try_from((&raw const program).addr()).unwrap_or_default();
        set_option(libc::SO_ATTACH_FILTER, address, size_of::<libc::sock_fprog>())
    }),
    act("larger buffers of a socket", Errno::EPERM, |_| {
        let size = 1_u32 << 20;
        let address = u64::try_from((&raw const size).addr()).unwrap_or_default();
        set_option(libc::SO_SNDBUF, address, size_of::<u32>())
    }),
    act("the memory of another process", Errno::EPERM, |place| {
        let pid = u64::from(place.other);
        raw::call(number(Sysno::process_vm_readv), [pid, 0, 0, 0, 0, 0]).map(drop)
    }),
    act("a namespace", Errno::EPERM, |_| {
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)
    }),
    act("a mount", Errno::EPERM, |place| {
        const NONE: Option<&str> = None;
        mount(Some(&place.home), &place.home, NONE, MsFlags::MS_BIND, NONE)
    }),
    // Without walls it does not come back: the program says the line itself.
    act("execve", Errno::EPERM, |_| {
        let arguments = [c"echo", c"execve: ok"];
        nix::unistd::execve::<_, &std::ffi::CStr>(c"/bin/echo", &arguments, &[]).map(drop)
    }),
];

fn number(call: Sysno) -> u64 {
    u64::try_from(call.id()).unwrap_or(u64::MAX)
}

fn unsigned(value: i32) -> u64 {
    u64::from(value.unsigned_abs())
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(0))
}

fn io<T>(result: std::io::Result<T>) -> nix::Result<()> {
    result.map(drop).map_err(|error| errno(&error))
}

/// Sets an option of a socket that a front end can make.
fn set_option(option: libc::c_int, address: u64, length: usize) -> nix::Result<()> {
    let (socket, _peer) = UnixStream::pair().map_err(|error| errno(&error))?;
    let length = u64::try_from(length).unwrap_or_default();
    let fd = unsigned(socket.as_fd().as_raw_fd());
    let arguments = [fd, unsigned(libc::SOL_SOCKET), unsigned(option), address, length, 0];
    raw::call(number(Sysno::setsockopt), arguments).map(drop)
}

/// A pair of datagram sockets is enough to reach any other that the uid may write to.
fn datagram(cgroup: &Place) -> nix::Result<()> {
    let (one, _other) =
        socketpair(AddressFamily::Unix, SockType::Datagram, None, SockFlag::empty())?;
    let to = UnixAddr::new(&cgroup.home.join("inbox"))?;
    sendto(one.as_raw_fd(), b"hello", &to, MsgFlags::empty()).map(drop)
}
