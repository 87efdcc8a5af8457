//! One connection from its start to its end: the events that end it, and the end of calls in
//! flight.

use std::io;
use std::time::Duration;

use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;

use super::gate::SecretGate;
use super::lines::{Dialect, Ends, Lines, SharedBounds};
use super::server::Server;
pub use crate::server::Offer;

/// Failures that end serving.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("signals cannot be watched")]
    Signals(#[source] io::Error),
    #[error("the session could not be opened: {0}")]
    Open(#[source] Box<ServerInitializeError>),
    #[error("the listener cannot be served: {0}")]
    Listener(#[source] io::Error),
    #[error("the connection ended by a fault")]
    Fault(#[source] tokio::task::JoinError),
}

/// Trips the switches of a server at a signal, or when no call can run any more. Dropping this ends the watch.
#[derive(Debug)]
pub struct Watch([JoinHandle<()>; 2]);

impl Watch {
    /// Watches for SIGTERM, SIGINT, and the end of `gone`.
    ///
    /// # Errors
    /// Signals that cannot be watched.
    pub fn begin(
        ends: &Ends,
        gone: impl Future<Output = ()> + Send + 'static,
    ) -> Result<Self, ServeError> {
        let terminate = signal(SignalKind::terminate()).map_err(ServeError::Signals)?;
        let interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Signals)?;
        let watch = tokio::spawn(watch_signals(terminate, interrupt, ends.clone()));
        let lost = ends.lost.clone();
        let end = tokio::spawn(async move {
            gone.await;
            lost.cancel();
        });
        Ok(Self([watch, end]))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// Stops at the first signal, and kills at the second.
async fn watch_signals(mut terminate: Signal, mut interrupt: Signal, ends: Ends) {
    for switch in [&ends.stop, &ends.kill] {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        switch.cancel();
    }
}

/// Serves one connection until its input ends or one of the `ends` is tripped. A connection that is one of several is
/// served within the bounds `shared`.
///
/// # Errors
/// A session that cannot be opened, or a fault.
pub async fn connection<R, W>(
    server: Server,
    reader: R,
    writer: W,
    ends: Ends,
    shared: Option<SharedBounds>,
) -> Result<(), ServeError>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let settings = server.last_project().map(|project| project.settings.clone());
    let dialect = settings.as_ref().map_or_else(Dialect::default, |settings| Dialect {
        keeps_order: true,
        has_batches: settings.has_batches,
        shut_grace: Some(Duration::from_secs(settings.shutdown_seconds)),
        idle: Some(Duration::from_secs(settings.idle_seconds)).filter(|idle| !idle.is_zero()),
    });
    let tasks = server.tasks().cloned();
    if let (Some(tasks), Some(bounds)) = (&tasks, &shared) {
        tasks.serve_by(bounds.clone());
    }
    let lines = Lines::of_connection(reader, writer, ends, dialect, shared);
    let running = match SecretGate::new(server, settings.as_ref()).serve(lines).await {
        Ok(running) => running,
        // The client left before it opened a session: nothing was asked, nothing failed.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(ServeError::Open(Box::new(error))),
    };
    let ended = running.waiting().await;
    if let Some(tasks) = tasks {
        tasks.end();
    }
    let reason = ended.map_err(ServeError::Fault)?;
    tracing::debug!(?reason, "the connection has ended");
    Ok(())
}
