//! Figures for the operator of a server, on a signal: no client can send one.

use std::io::Write;

use tokio::signal::unix::{SignalKind, signal};

use link::Link;

/// Writes the metrics to standard error at each SIGUSR1, a JSON object on a line. Never returns.
pub(crate) async fn at_signal(link: Link) {
    let Ok(mut asked) = signal(SignalKind::user_defined1()) else {
        return tracing::warn!("SIGUSR1 cannot be watched: no metrics");
    };
    while asked.recv().await.is_some() {
        let line = serde_json::json!({ "cofferdam_metrics": link.metrics() });
        // A failure to write has no other place to be reported.
        writeln!(std::io::stderr(), "{line}").unwrap_or_default();
    }
}
