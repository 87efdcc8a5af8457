//! The processes of cells that have no pid namespace: ended and counted all at once.

use std::os::fd::OwnedFd;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;

use cell::bare::Domain;
use cell::measure::Fields;
use sys::process;

/// Ends every process of every cell, and collects what has ended so far.
pub(crate) fn end_all(domain: Domain) -> Result<(), Errno> {
    domain.signal_all(Signal::SIGKILL)?;
    while let Ok(Some(_)) = process::reap() {}
    Ok(())
}

/// Processes and threads that this process's uid has: RLIMIT_NPROC counts them with a cell's.
pub(crate) fn others(proc: &OwnedFd) -> Result<u64, Errno> {
    let own = nix::unistd::geteuid().as_raw().to_string();
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut list = Dir::openat(proc, ".", flags, Mode::empty())?;
    let mut count = 0_u64;
    for entry in list.iter() {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !name.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        // One that has just ended counts no more.
        let Ok(status) = Fields::read(proc, &format!("{name}/status")) else { continue };
        if status.get("Uid").split_ascii_whitespace().next() == Some(own.as_str()) {
            count += status.get("Threads").parse::<u64>().unwrap_or(1);
        }
    }
    Ok(count)
}
