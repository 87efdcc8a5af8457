//! The files of a template that are made while its first cell is built.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;

use nix::errno::Errno;
use nix::sys::stat::{Mode, umask};
use syscalls::Sysno;

use super::machine;
use super::packages::PackageFiles;
use cell::confine::Filter;
use cell::late_files::{Extent, LateFiles, Work};
use cell::{caps, errno_of, fds, seccomp};
use model::defaults::processors;
use model::profile::{ProcView, Profile};
use sys::bpf::{self, Instruction};

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

/// Returns the late files of a template with the writable root `root`. `shown` are the paths of
/// the host that its cells have.
pub(crate) fn late_files(
    profile: &Profile,
    root: &Rc<OwnedFd>,
    packages: Option<&Rc<PackageFiles>>,
    shown: Vec<PathBuf>,
) -> LateFiles {
    let has_machine = profile.proc == ProcView::Own;
    let packages = packages.filter(|_| profile.packaged_etc).cloned();
    if !has_machine && packages.is_none() {
        return LateFiles::none();
    }
    let root = Rc::clone(root);
    let processors = processors();
    let work: Work = Box::new(move || {
        let held = packages.iter().flat_map(|packages| packages.descriptors());
        fds::keep_only(held.chain([root.as_fd()]))?;
        // Reads only what every user may read: no capability of the supervisor helps it.
        caps::clear_current()?;
        // Cells with other ids read the files.
        umask(Mode::from_bits_truncate(0o022));
        nix::unistd::fchdir(&*root)?;
        // `run` starts the process before the supervisor has a filter.
        bpf::load(&filter()?)?;
        if has_machine {
            machine::write(processors).map_err(|error| errno_of(&error))?;
        }
        packages.as_ref().map_or(Ok(Extent::All), |packages| packages.copy(&root, &shown))
    });
    LateFiles::new(work)
}

/// Compiles the filter of the process.
fn filter() -> Result<Vec<Instruction>, Errno> {
    Filter::of_calls(CALLS.into_iter().chain(OLDER)).compile()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    use nix::fcntl::{AtFlags, OFlag, RenameFlags, openat, renameat2};
    use nix::sched::{CloneFlags, unshare};
    use nix::sys::signal::{Signal, kill};
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    use nix::sys::stat::{fstatat, mkdirat};
    use nix::unistd::Pid;

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
        let filter = filter()?;
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
}
