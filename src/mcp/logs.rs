//! Log messages for a client that wants them: the output of a running command as
//! `notifications/message`.
#![expect(
    deprecated,
    reason = "the newest revision drops logging; clients of those before it have it"
)]

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rmcp::model::{LoggingLevel, LoggingMessageNotificationParam};
use serde_json::{Map, Value};

use crate::context::Context;
use crate::{harmless, tasks};
use projects::ScriptMessage;

/// Messages that a client receives in each [`WINDOW`], at most; the rest is counted.
pub const MAX_IN_WINDOW: u32 = 100;
pub const WINDOW: Duration = Duration::from_secs(60);

/// Error message for an unknown level.
pub(crate) const LEVELS: &str =
    "level: expected debug, info, notice, warning, error, critical, alert or emergency";

/// Log level of one client. Until the client sets one, nothing is sent but messages of a project's scripts.
#[derive(Debug, Default)]
pub struct Logs {
    level: Mutex<Option<LoggingLevel>>,
    window: Mutex<Option<Window>>,
}

#[derive(Debug)]
struct Window {
    since: Instant,
    sent: u32,
    left_out: u32,
}

impl Window {
    /// Reserves one more message and returns how many were dropped since the last one that was
    /// sent.
    fn reserve(slot: &mut Option<Self>, now: Instant) -> Option<u32> {
        let window = slot.get_or_insert(Self { since: now, sent: 0, left_out: 0 });
        if now.saturating_duration_since(window.since) >= WINDOW {
            *window = Self { since: now, sent: 0, ..*window };
        }
        if window.sent >= MAX_IN_WINDOW {
            window.left_out = window.left_out.saturating_add(1);
            return None;
        }
        window.sent += 1;
        Some(std::mem::take(&mut window.left_out))
    }
}

impl Logs {
    /// Sets the lowest level that the client receives from now on.
    pub fn set(&self, level: LoggingLevel) {
        *self.level.lock().unwrap_or_else(PoisonError::into_inner) = Some(level);
    }

    /// Returns true if output, which has level `info`, passes: by the request's own level if it has
    /// one, else by the level that was set.
    fn receives_output(&self, of_request: Option<LoggingLevel>) -> bool {
        let lowest = of_request.or(self.level());
        lowest.is_some_and(|lowest| rank(lowest) <= rank(LoggingLevel::Info))
    }

    fn level(&self) -> Option<LoggingLevel> {
        *self.level.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves one of the messages that the client receives, as [`Window::reserve`] does.
    fn reserve(&self) -> Option<u32> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        Window::reserve(&mut window, Instant::now())
    }

    /// Sends a message of a script, if the client receives its level and has room for it.
    pub(crate) async fn send_script(
        &self,
        context: &Context,
        message: ScriptMessage,
        default_level: &str,
    ) {
        // From MCP 2026-07-28 on a client asks for messages in each request, or gets no messages.
        let default_level =
            (!tasks::is_modern(context)).then(|| serde_json::from_value(default_level.into()).ok());
        let lowest = context.meta.log_level().or(self.level()).or(default_level.flatten());
        let Some(lowest) = lowest else { return };
        let Ok(level) = serde_json::from_value::<LoggingLevel>(message.level) else { return };
        if rank(level) < rank(lowest) || self.reserve().is_none() {
            return;
        }
        let mut note = LoggingMessageNotificationParam::new(level, message.data);
        note.logger = message.logger;
        harmless::value(&mut note.data);
        note.logger.iter_mut().for_each(harmless::text);
        context.notify_log(note).await;
    }

    /// Returns the log of one call's output, if the client receives output.
    pub(crate) fn for_output(
        &self,
        context: &Context,
        logger: &'static str,
    ) -> Option<CallLog<'_>> {
        let request = serde_json::to_value(&context.id).unwrap_or_default();
        let listens = self.receives_output(context.meta.log_level());
        listens.then_some(CallLog { logs: self, logger, request })
    }
}

/// Returns the rank of a level, the lowest first (RFC 5424).
fn rank(level: LoggingLevel) -> u8 {
    match level {
        LoggingLevel::Debug => 0,
        LoggingLevel::Info => 1,
        LoggingLevel::Notice => 2,
        LoggingLevel::Warning => 3,
        LoggingLevel::Error => 4,
        LoggingLevel::Critical => 5,
        LoggingLevel::Alert => 6,
        LoggingLevel::Emergency => 7,
    }
}

/// Log messages about one call.
#[derive(Debug)]
pub struct CallLog<'s> {
    logs: &'s Logs,
    logger: &'static str,
    /// Id of the call, which messages do not name by themselves.
    request: Value,
}

impl CallLog<'_> {
    /// Sends output, or counts it once the client's limit is reached.
    pub(crate) async fn send(&self, context: &Context, what: &'static str, text: &str) {
        let Some(left_out) = self.logs.reserve() else { return };
        let mut fields = Map::new();
        fields.insert("request".to_owned(), self.request.clone());
        fields.insert(what.to_owned(), Value::from(text));
        if left_out > 0 {
            fields.insert("left_out".to_owned(), Value::from(left_out));
        }
        let note = LoggingMessageNotificationParam::new(LoggingLevel::Info, Value::Object(fields));
        context.notify_log(note.with_logger(self.logger)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_capped_and_the_next_one_counts_the_dropped() {
        let mut window = None;
        let start = Instant::now();
        for _ in 0..MAX_IN_WINDOW {
            assert_eq!(Window::reserve(&mut window, start), Some(0));
        }
        for _ in 0..3 {
            assert_eq!(Window::reserve(&mut window, start + WINDOW / 2), None);
        }
        assert_eq!(Window::reserve(&mut window, start + WINDOW), Some(3));
        assert_eq!(Window::reserve(&mut window, start + WINDOW), Some(0));
    }

    #[test]
    fn output_is_sent_from_the_level_info_on_unless_a_request_says_otherwise() {
        let logs = Logs::default();
        assert!(!logs.receives_output(None));
        assert!(logs.receives_output(Some(LoggingLevel::Debug)));
        logs.set(LoggingLevel::Info);
        assert!(logs.receives_output(None));
        assert!(!logs.receives_output(Some(LoggingLevel::Notice)));
        logs.set(LoggingLevel::Warning);
        assert!(!logs.receives_output(None));
    }
}
