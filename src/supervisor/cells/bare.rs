//! Ends and counts processes of cells without a pid namespace.

use std::os::fd::OwnedFd;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;

use cell::bare::Domain;
use cell::proc_files::Fields;
use sys::process;

/// Kills every process of every cell, and reaps those that have ended so far.
pub(crate) fn end_all(domain: Domain) -> Result<(), Errno> {
    domain.signal_all(Signal::SIGKILL)?;
    while let Ok(Some(_)) = process::reap() {}
    Ok(())
}

/// Returns the number of processes and threads of this uid, which RLIMIT_NPROC counts together with
/// a cell's.
pub(crate) fn count_threads(proc: &OwnedFd) -> Result<u64, Errno> {
    let uid = nix::unistd::geteuid().as_raw().to_string();
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut list = Dir::openat(proc, ".", flags, Mode::empty())?;
    let mut count = 0_u64;
    for entry in list.iter() {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !name.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        // A process that has ended meanwhile does not count.
        let Ok(status) = Fields::read(proc, &format!("{name}/status")) else { continue };
        if status.get("Uid").split_ascii_whitespace().next() == Some(uid.as_str()) {
            count += status.get("Threads").parse::<u64>().unwrap_or(1);
        }
    }
    Ok(count)
}
