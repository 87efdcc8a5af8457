//! Replaces the operator's streams, which no cell may inherit.

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use sys::process;

/// Puts /dev/null on the three streams, which cells and their inits inherit. Log lines are sent
/// over the link from here on.
pub(crate) fn silence() -> Result<(), Errno> {
    model::log::keep();
    let null = open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())?;
    for number in 0..3 {
        process::duplicate_inheritable(&null, number)?;
    }
    Ok(())
}
