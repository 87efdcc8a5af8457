//! Metrics for the operator of a server, and a reset of its tools, on signals: no client can send one.

use std::io::Write;
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};

use service::Executor;
use service::link::Link;

/// Writes the metrics to standard error at each SIGUSR1, as one line of JSON: the supervisor's, and those of
/// command-line tools if there are any. Never returns.
pub(crate) async fn at_signal(link: Link, executor: Arc<Executor>) {
    let Ok(mut signals) = signal(SignalKind::user_defined1()) else {
        return tracing::warn!("SIGUSR1 cannot be watched: no metrics");
    };
    while signals.recv().await.is_some() {
        let mut line = serde_json::json!({ "cofferdam_metrics": link.metrics() });
        let figures = executor.tool_figures();
        if let (Some(line), false) = (line.as_object_mut(), figures.is_empty()) {
            line.insert("cofferdam_tools".to_owned(), serde_json::json!(figures));
        }
        // A failure to write cannot be reported anywhere else.
        writeln!(std::io::stderr(), "{line}").unwrap_or_default();
    }
}

/// Closes every circuit breaker and clears the caches of tools at each SIGUSR2. Never returns.
pub(crate) async fn reset_at_signal(executor: Arc<Executor>) {
    let Ok(mut signals) = signal(SignalKind::user_defined2()) else {
        return tracing::warn!("SIGUSR2 cannot be watched: no reset of tools");
    };
    while signals.recv().await.is_some() {
        // Without the name of a breaker, the reset has no error.
        let closed = executor.reset_breakers(None).unwrap_or_default();
        executor.clear_caches();
        let line = serde_json::json!({ "cofferdam_reset": { "breakers_closed": closed } });
        // A failure to write cannot be reported anywhere else.
        writeln!(std::io::stderr(), "{line}").unwrap_or_default();
    }
}
