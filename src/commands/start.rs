//! Start of a front end: the order of steps from a small process with one thread to a runtime.

use std::future::Future;
use std::io::IsTerminal;
use std::os::fd::OwnedFd;

use tokio::runtime::Builder;
use tracing_subscriber::EnvFilter;

use super::error::CliError;
use model::log;
use model::outcome::in_words;

/// Default log of a server: warnings that an operator should act on.
pub const SERVER_LOG: &str = "warn,rmcp=error";
/// Default log of a command that makes one call, which reports the failure of that call itself.
pub const COMMAND_LOG: &str = "warn,cofferdam_supervisor::event_loop::dispatch=error";

/// Freed memory that a front end keeps, in bytes: a call's buffers, several times over.
const KEPT_BYTES: i32 = 2 << 20;

/// Logs to standard error, at the level of `COFFERDAM_LOG` or else `RUST_LOG`, and otherwise of
/// `usual`. Both are read here, before confinement and before the environment is cleared.
pub fn logging(usual: &str) {
    let wanted = ["COFFERDAM_LOG", "RUST_LOG"].iter().find_map(|name| std::env::var(name).ok());
    let wanted = wanted.unwrap_or_else(|| usual.to_owned());
    let filter = EnvFilter::try_new(&wanted).unwrap_or_else(|error| {
        eprintln!("cofferdam: COFFERDAM_LOG or RUST_LOG is not understood: {error}");
        EnvFilter::new(usual)
    });
    let logging = tracing_subscriber::fmt()
        .with_writer(|| log::Output)
        .with_ansi(std::io::stderr().is_terminal())
        .with_env_filter(filter)
        .try_init();
    if let Err(error) = logging {
        eprintln!("cofferdam: nothing can be logged: {error}");
    }
}

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
