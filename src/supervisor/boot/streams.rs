//! The operator's streams, which no cell gets.

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use sys::process;

/// Puts /dev/null on the three streams: cells inherit them, and their init keeps them. Lines that are logged from
/// here on goes over the link.
pub(crate) fn silence() -> Result<(), Errno> {
    model::log::keep();
    let null = open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())?;
    for number in 0..3 {
        process::duplicate_inheritable(&null, number)?;
    }
    Ok(())
}
