//! Makes the runtime of a front end, after the supervisor was started and this process was confined.

use std::future::Future;
use std::os::fd::OwnedFd;

use tokio::runtime::Builder;

use crate::commands::error::CliError;
use model::outcome::in_words;
use service::link::Link;

/// Freed memory that a front end keeps, in bytes: a call's buffers, several times over.
const KEPT_BYTES: i32 = 2 << 20;

/// Builds the runtime, attaches the link to the supervisor, and runs `conduct` with it.
///
/// The supervisor runs and the front end is confined by now; an earlier runtime would have had
/// threads that the confinement does not reach.
pub fn conducted<F, T>(socket: OwnedFd, conduct: impl FnOnce(Link) -> F) -> Result<T, CliError>
where
    F: Future<Output = Result<T, CliError>>,
{
    sys::memory::keep_freed(KEPT_BYTES);
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::new(format!("no runtime: {}", in_words(&error))))?;
    let done = runtime.block_on(async {
        let link = Link::attach(socket).map_err(|error| {
            CliError::new(format!("no link to the supervisor: {}", in_words(&error)))
        })?;
        conduct(link).await
    });
    // A thread may be blocked for ever in a read of standard input.
    runtime.shutdown_background();
    done
}
