//! The files of a template that are made while its first cell is built.
//!
//! The call of `run` waits for them. The process that makes these is started before the template is built, and reads the
//! host's files meanwhile ([`EarlyReader`]).

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::stat::{Mode, umask};
use syscalls::Sysno;

use super::machine;
use super::packages::{Copier, PackageFiles};
use cell::confine::Filter;
use cell::late_files::{self, Extent, LateFiles, Work};
use cell::{caps, errno_of, fds, seccomp};
use model::defaults::processors;
use model::profile::{ProcView, Profile};
use sys::bpf::{self, Instruction};
use sys::process::Child;
use sys::socket::{self, PacketWait};

/// System calls of the process beyond those of all our processes: reading the host's files, and
/// writing those of the template.
const CALLS: [Sysno; 15] = [
    Sysno::openat,
    Sysno::openat2,
    Sysno::fstat,
    seccomp::FSTATAT,
    Sysno::statx,
    Sysno::getdents64,
    Sysno::readlinkat,
    Sysno::read,
    Sysno::pread64,
    Sysno::write,
    Sysno::fchmod,
    Sysno::mkdirat,
    Sysno::symlinkat,
    Sysno::unlinkat,
    // Builds that check descriptors look at each before they close it.
    Sysno::fcntl,
];

/// An older name of one of these.
#[cfg(target_arch = "x86_64")]
const OLDER: [Sysno; 1] = [Sysno::mkdir];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: [Sysno; 0] = [];

/// Further calls of a process that is started before its template: it receives the template's root, and enters it.
const EARLY: [Sysno; 2] = [Sysno::recvmsg, Sysno::fchdir];
/// Maximum bytes of the paths that such a process gets with the root.
const MAX_SHOWN: usize = 128 << 10;

/// A process that reads files of packages while the template for them is built, and then writes them into it.
#[derive(Debug)]
pub(crate) struct EarlyReader {
    process: Child,
    /// Carries the template's root to the process, and its report back. Closed without the root, the process ends.
    link: OwnedFd,
    began: Instant,
}

impl EarlyReader {
    /// Starts the process for the template of `profile`; `None` if this is not possible or its cells have no such files.
    pub(crate) fn start(profile: &Profile, packages: Option<&Rc<PackageFiles>>) -> Option<Self> {
        let packages = packages.filter(|_| profile.packaged_etc)?;
        let began = Instant::now();
        let machine = Machine::of(profile);
        let skipped = in_place(profile);
        let pair =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
        let started = pair.and_then(|(link, theirs)| {
            let work = || read_early(machine, packages, &skipped, &theirs);
            let process = late_files::start(work)?;
            Ok(Self { process, link, began })
        });
        let failed = |errno: &Errno| tracing::debug!(%errno, "files of packages are read later");
        started.inspect_err(failed).ok()
    }

    /// Gives the process the root, and the paths of the host that cells have. If it fails, `work` is done by another one.
    fn place(self, root: &OwnedFd, shown: &Paths, work: Work) -> LateFiles {
        let Self { process, link, began } = self;
        if let Err(errno) = socket::send_now(&link, &packet(shown), &[root.as_fd()]) {
            // The process sees the end of the link, and fails.
            tracing::debug!(%errno, "a template's root cannot be sent");
        }
        LateFiles::begun(work, process, link, began)
    }
}

/// The machine that a cell with its own `/proc` sees.
#[derive(Debug, Clone, Copy)]
struct Machine {
    processors: usize,
}

impl Machine {
    /// Called before the process is confined, which may not count processors.
    fn of(profile: &Profile) -> Option<Self> {
        (profile.proc == ProcView::Own).then(|| Self { processors: processors() })
    }
}

/// Paths that cells have, as bytes.
type Paths = HashSet<Vec<u8>>;

/// Encodes paths, each between two zero bytes.
fn packet(shown: &Paths) -> Vec<u8> {
    let mut bytes = vec![0];
    for path in shown {
        bytes.extend(path);
        bytes.push(0);
    }
    bytes
}

/// Decodes paths.
fn unpacked(bytes: &[u8]) -> Paths {
    let paths = bytes.split(|byte| *byte == 0).filter(|path| !path.is_empty());
    paths.map(<[u8]>::to_vec).collect()
}

/// Does the work of an early process. `skipped` are files and directories that cells have in any case.
fn read_early(
    machine: Option<Machine>,
    packages: &PackageFiles,
    skipped: &Paths,
    link: &OwnedFd,
) -> Result<Extent, Errno> {
    // The host's mounts are still there: of these the process sees its read-only mount of `/etc`.
    nix::unistd::fchdir(packages.etc())?;
    nix::unistd::chroot(".")?;
    confine(packages.descriptors().chain([link.as_fd()]), &EARLY)?;
    let mut room = Vec::with_capacity(MAX_SHOWN);
    let mut copier = None;
    let (mut left, rest) = packages.find(skipped, |read| {
        if copier.is_none() {
            copier = entered(machine, link, &mut room, PacketWait::No)?;
        }
        copier.as_mut().map_or(Ok(()), |copier: &mut Copier| copier.files(read))
    })?;
    let copier = match copier {
        Some(copier) => Some(copier),
        None => entered(machine, link, &mut room, PacketWait::Yes)?,
    };
    let mut copier = copier.ok_or(Errno::EPIPE)?;
    copier.files(&mut left)?;
    let extent = copier.rest(rest)?;
    late_files::report(link, extent)?;
    Ok(extent)
}

/// Receives the template's root, enters it and writes the files of a machine. Returns `None` if it has not come.
fn entered(
    machine: Option<Machine>,
    link: &OwnedFd,
    room: &mut Vec<u8>,
    wait: PacketWait,
) -> Result<Option<Copier>, Errno> {
    let received = match socket::receive_into(link, room, wait) {
        Err(Errno::EAGAIN) => return Ok(None),
        received => received?,
    };
    let [root, ..] = received.fds;
    let root = root.filter(|_| !received.cut).ok_or(Errno::EPIPE)?;
    nix::unistd::fchdir(&root)?;
    write_machine(machine)?;
    Ok(Some(Copier::new(Rc::new(root), Rc::new(unpacked(room)))))
}

/// Returns the files and directories of the host that the profile shows where they are.
fn in_place(profile: &Profile) -> Paths {
    let rows = profile.paths.iter().filter(|row| row.host == row.cell);
    rows.map(|row| row.cell.as_os_str().as_bytes().to_vec()).collect()
}

/// Returns the late files of a template with the writable root `root`. `shown` are the paths of
/// the host that its cells have. `early` is the process that has begun with them.
pub(crate) fn late_files(
    profile: &Profile,
    root: &Rc<OwnedFd>,
    packages: Option<&Rc<PackageFiles>>,
    shown: &[PathBuf],
    early: Option<EarlyReader>,
) -> LateFiles {
    let packages = packages.filter(|_| profile.packaged_etc).cloned();
    let machine = Machine::of(profile);
    if machine.is_none() && packages.is_none() {
        return LateFiles::none();
    }
    let shown: Rc<Paths> =
        Rc::new(shown.iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect());
    let work: Work = {
        let root = Rc::clone(root);
        let shown = Rc::clone(&shown);
        Box::new(move || {
            let held = packages.iter().flat_map(|packages| packages.descriptors());
            nix::unistd::fchdir(&*root)?;
            confine(held.chain([root.as_fd()]), &[])?;
            write_machine(machine)?;
            let Some(packages) = &packages else { return Ok(Extent::All) };
            let mut copier = Copier::new(Rc::clone(&root), Rc::clone(&shown));
            let (_, rest) = packages.find(&shown, |read| copier.files(read))?;
            copier.rest(rest)
        })
    };
    match early {
        Some(reader) => reader.place(root, &shown, work),
        None => LateFiles::new(work),
    }
}

/// Confines the process, which then has no descriptors but `held`.
fn confine<'a>(held: impl Iterator<Item = BorrowedFd<'a>>, further: &[Sysno]) -> Result<(), Errno> {
    fds::keep_only(held)?;
    // Reads only what every user may read: no capability of the supervisor helps it.
    caps::clear_current()?;
    // Cells with other ids read the files.
    umask(Mode::from_bits_truncate(0o022));
    // `run` starts the process before the supervisor has a filter.
    bpf::load(&filter(further)?)
}

/// Writes the files of a machine into the template whose root is the current directory.
fn write_machine(machine: Option<Machine>) -> Result<(), Errno> {
    let Some(Machine { processors }) = machine else { return Ok(()) };
    machine::write(processors).map_err(|error| errno_of(&error))
}

/// Compiles the filter of the process, which allows these further calls.
fn filter(further: &[Sysno]) -> Result<Vec<Instruction>, Errno> {
    Filter::of_calls(CALLS.into_iter().chain(OLDER).chain(further.iter().copied())).compile()
}

#[cfg(test)]
mod tests {
    use super::*;

    use nix::fcntl::{AtFlags, OFlag, RenameFlags, openat, renameat2};
    use nix::sched::{CloneFlags, unshare};
    use nix::sys::signal::{Signal, kill};
    use nix::sys::socket::socket;
    use nix::sys::stat::{fstatat, mkdirat};
    use nix::unistd::Pid;
    use sys::process;
    use sys::socket as packets;

    /// Makes calls that the filter refuses, and calls that it allows.
    fn calls(root: &OwnedFd) -> [Result<(), Errno>; 7] {
        let unix = AddressFamily::Unix;
        let mode = Mode::from_bits_truncate(0o755);
        [
            socket(unix, SockType::Stream, SockFlag::empty(), None).map(drop),
            unshare(CloneFlags::CLONE_NEWUSER),
            kill(Pid::this(), Signal::SIGCONT),
            renameat2(root, "one", root, "two", RenameFlags::empty()),
            mkdirat(root, "one", mode),
            openat(root, "one", OFlag::O_DIRECTORY, Mode::empty()).map(drop),
            fstatat(root, "one", AtFlags::empty()).map(drop),
        ]
    }

    #[test]
    fn the_process_can_read_and_make_files_and_nothing_else()
    -> Result<(), Box<dyn std::error::Error>> {
        let directory = tempfile::tempdir()?;
        let root = OwnedFd::from(std::fs::File::open(directory.path())?);
        // Compiled here: the process only makes system calls, as another thread may hold a lock.
        let filter = filter(&[])?;
        let late = LateFiles::new(Box::new(move || {
            bpf::load(&filter)?;
            let refused = Err(Errno::EPERM);
            let expected = [refused, refused, refused, refused, Ok(()), Ok(()), Ok(())];
            if calls(&root) == expected { Ok(Extent::All) } else { Err(Errno::EPROTO) }
        }));
        let now = Instant::now();
        assert!(late.begin(now));
        while !late.settle(now)? {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(directory.path().join("one").is_dir());
        assert!(!late.begin(now), "the process has failed");
        Ok(())
    }

    #[test]
    fn an_early_process_can_receive_a_root_and_send_nothing()
    -> Result<(), Box<dyn std::error::Error>> {
        let directory = tempfile::tempdir()?;
        let root = OwnedFd::from(std::fs::File::open(directory.path())?);
        let early = filter(&EARLY)?;
        let late = filter(&[])?;
        for (filter, received) in [(early, Ok(true)), (late, Err(Errno::EPERM))] {
            let flags = SockFlag::SOCK_CLOEXEC;
            let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
            packets::send(&ours, &[0], &[root.as_fd()])?;
            let process = late_files::start(|| {
                bpf::load(&filter)?;
                let got = packets::receive(&theirs, &mut [0; 8], PacketWait::No);
                let is_same = got.map(|got| got.fds.iter().flatten().count() == 1) == received;
                let is_entered = nix::unistd::fchdir(&root) == received.map(drop);
                let is_silent = packets::send(&theirs, &[0], &[]) == Err(Errno::EPERM);
                let is_outside = nix::unistd::chroot(".") == Err(Errno::EPERM);
                let is_as_expected = is_same && is_entered && is_silent && is_outside;
                if is_as_expected { Ok(Extent::All) } else { Err(Errno::EPROTO) }
            })?;
            let ended = loop {
                match process::collect(&process.pidfd)? {
                    Some(ended) => break ended,
                    None => std::thread::sleep(std::time::Duration::from_millis(1)),
                }
            };
            assert_eq!(ended.code, Some(0), "{received:?}");
        }
        Ok(())
    }

    #[test]
    fn paths_arrive_as_they_were_sent() {
        for paths in [&[][..], &["/etc/a"], &["/etc/a", "/etc/b c/\n"]] {
            let paths: Paths = paths.iter().map(|path| path.as_bytes().to_vec()).collect();
            let bytes = packet(&paths);
            assert!(!bytes.is_empty(), "an empty packet is the end of the link");
            assert_eq!(unpacked(&bytes), paths);
        }
    }
}
