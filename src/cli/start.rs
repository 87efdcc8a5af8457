//! From a small process with one thread to a front end with a runtime: the order of steps, once.

use std::future::Future;
use std::io::IsTerminal;
use std::os::fd::OwnedFd;

use tokio::runtime::Builder;
use tracing_subscriber::EnvFilter;

use super::error::CliError;
use model::log;
use model::outcome::in_words;

/// The log of a server when nobody says otherwise: warnings that an operator should act on.
pub const SERVER_LOG: &str = "warn,rmcp=error";
/// The same for a command that makes one call: it says itself how that call failed.
pub const COMMAND_LOG: &str = "warn,cofferdam::supervisor::dispatch=error";

/// Freed memory that a front end keeps, in bytes: a call's buffers, several times over.
const KEPT_BYTES: i32 = 2 << 20;

/// Logs to standard error, as `COFFERDAM_LOG` or else `RUST_LOG` says, and otherwise as `usual` does. Both
/// are read here, before confinement and before the environment is cleared.
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
/// The supervisor runs and the front end is confined by now; a runtime built earlier would have
/// had threads that the confinement does not reach.
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
    // A thread may sit in a read of standard input that nobody will end.
    runtime.shutdown_background();
    done
}
