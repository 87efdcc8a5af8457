//! Progress of a running call, for clients that asked for it with a progress token.

use std::time::Duration;

use rmcp::model::{ProgressNotificationParam, ProgressToken};
use tokio::time::Instant;

use crate::context::Context;
use capture::Produced;

/// Interval of progress notifications.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

/// Sends a notification every `INTERVAL` until dropped. Never resolves: race it with the call.
pub(crate) async fn report(context: &Context, token: ProgressToken, produced: Produced) {
    let start = Instant::now();
    let mut ticks = tokio::time::interval_at(start + INTERVAL, INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let elapsed = start.elapsed();
        let note = ProgressNotificationParam::new(token.clone(), elapsed.as_secs_f64())
            .with_message(running(elapsed, produced.bytes()));
        context.notify_progress(note).await;
    }
}

/// Describes a call that runs.
pub(crate) fn running(elapsed: Duration, bytes: u64) -> String {
    format!("running for {} s, {bytes} bytes of output so far", elapsed.as_secs())
}
