//! The walls of a review: it reads what cells have written.

use std::os::fd::{AsFd, OwnedFd};

use nix::fcntl::openat;
use nix::sys::stat::Mode;
use syscalls::Sysno;

use crate::commands::error::CliError;
use crate::commands::layers::files::DIRECTORY;
use crate::commands::layers::layer::Layer;
use cell::confine::{Filter, enclose, narrow, one_of};
use cell::landlock::{self, LandlockPlan, Use};
use cell::seccomp::FSTATAT;
use cell::{StepFailed, errno_of};
use model::egress::NetworkClass;
use sys::lookup::Follow;
use sys::process;

/// System calls of a review, in addition to those of each confined process.
const READING: [Sysno; 17] = [
    Sysno::openat,
    Sysno::openat2,
    Sysno::getdents64,
    Sysno::fstat,
    FSTATAT,
    Sysno::statx,
    Sysno::fstatfs,
    Sysno::lseek,
    Sysno::read,
    Sysno::write,
    Sysno::readlinkat,
    Sysno::fgetxattr,
    Sysno::fcntl,
    Sysno::flock,
    Sysno::geteuid,
    Sysno::mprotect,
    Sysno::sched_yield,
];
/// The one ioctl: whether a directory takes two spellings of a name for the same (FS_IOC_GETFLAGS).
const GET_FLAGS: u64 = 0x8008_6601;
/// Calls of one that applies changes.
const WRITING: [Sysno; 18] = [
    Sysno::copy_file_range,
    Sysno::sendfile,
    Sysno::mkdirat,
    Sysno::unlinkat,
    Sysno::symlinkat,
    Sysno::renameat,
    Sysno::renameat2,
    Sysno::fchmod,
    Sysno::fchmodat,
    Sysno::fchown,
    Sysno::utimensat,
    Sysno::fsync,
    Sysno::syncfs,
    Sysno::umask,
    Sysno::fsetxattr,
    Sysno::fremovexattr,
    Sysno::ftruncate,
    Sysno::splice,
];

/// Calls of root, which applies changes with the rights of the directory's owner.
const TAKING_IDS: [Sysno; 4] =
    [Sysno::getgroups, Sysno::setgroups, Sysno::setfsuid, Sysno::setfsgid];

/// Confines this process to the directories of the layer and of the host, which it only reads unless
/// it `applies` changes.
///
/// # Errors
/// The step that failed.
pub(crate) fn confine(layer: &Layer, host: &OwnedFd, applies: bool) -> Result<(), CliError> {
    let error = |errno: nix::errno::Errno| {
        CliError::new(format!("review: this process cannot be confined: {errno}"))
            .with_hint("`cofferdam doctor` shows what is missing here")
    };
    // The directory of the layers, from which an empty layer is removed.
    let layers = openat(&layer.directory, "..", DIRECTORY, Mode::empty()).map_err(error)?;
    let layer = layer.directory.try_clone().map_err(|cause| error(errno_of(&cause)))?;
    let rules = |abi| {
        let plan = LandlockPlan {
            abi,
            rules: Vec::new(),
            links: Follow::Nothing,
            network: NetworkClass::None,
        };
        let directories = match applies {
            true => [(layers.as_fd(), Use::Write), (host.as_fd(), Use::Write)],
            false => [(layer.as_fd(), Use::Read), (host.as_fd(), Use::Read)],
        };
        landlock::build(&plan, &directories)
    };
    let is_root = nix::unistd::geteuid().is_root();
    let calls: Vec<Sysno> = match (applies, is_root) {
        (true, true) => READING.into_iter().chain(WRITING).chain(TAKING_IDS).collect(),
        (true, false) => READING.into_iter().chain(WRITING).collect(),
        (false, _) => READING.to_vec(),
    };
    let flags = (Sysno::ioctl, one_of(1, [GET_FLAGS]));
    let filter = Filter::of_calls(calls).with([flags]);
    let done = match is_root {
        // Root reads files of other users, and takes the ids of the directory's owner.
        true => {
            process::set_no_new_privs().map_err(error)?;
            narrow(rules, &filter)
        }
        false => enclose(rules, &filter),
    };
    done.map_err(|StepFailed { errno, .. }| error(errno))
}
