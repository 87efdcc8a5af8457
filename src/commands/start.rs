//! Makes the runtime of a front end, after the supervisor was started and this process was confined.

use std::future::Future;
use std::os::fd::OwnedFd;

use tokio::runtime::Builder;

use crate::commands::error::CliError;
use model::outcome::in_words;

/// Freed memory that a front end keeps, in bytes: a call's buffers, several times over.
const KEPT_BYTES: i32 = 2 << 20;

/// Builds the runtime and runs `conduct` on it with the link's socket.
///
/// The supervisor runs and the front end is confined by now; an earlier runtime would have had
/// threads that the confinement does not reach.
pub fn conducted<F, T>(socket: OwnedFd, conduct: impl FnOnce(OwnedFd) -> F) -> Result<T, CliError>
where
    F: Future<Output = Result<T, CliError>>,
{
    sys::memory::keep_freed(KEPT_BYTES);
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::new(format!("no runtime: {}", in_words(&error))))?;
    let done = runtime.block_on(conduct(socket));
    // A thread may be blocked for ever in a read of standard input.
    runtime.shutdown_background();
    done
}
