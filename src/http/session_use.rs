//! Counts the use of one client's MCP sessions: at their cap, the one that was unused for longest ends for a new one.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use service::session::SessionActivity;
use tokio::time::Instant;

/// Returns what runs in the shells of an MCP session.
pub(crate) type ActivityProbe = Arc<dyn Fn() -> SessionActivity + Send + Sync>;

/// The sessions of a client.
#[derive(Default)]
pub(crate) struct SessionUses(Mutex<HashMap<String, SessionUse>>);

struct SessionUse {
    /// Requests and streams that are being served.
    serving: usize,
    /// When the last of them began or ended.
    since: Instant,
    activity: Option<ActivityProbe>,
}

impl SessionUses {
    fn uses(&self) -> MutexGuard<'_, HashMap<String, SessionUse>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a session that has been opened.
    pub(crate) fn opened(&self, id: &str, activity: Option<ActivityProbe>) {
        let now = SessionUse { serving: 0, since: Instant::now(), activity };
        self.uses().insert(id.to_owned(), now);
    }

    /// Removes sessions that are not among `open`.
    pub(crate) fn keep(&self, open: &[String]) {
        self.uses().retain(|id, _| open.contains(id));
    }

    /// Counts a request to a session until the returned guard is dropped.
    pub(crate) fn serves(self: &Arc<Self>, id: &str) -> Serving {
        self.note(id, |serving| serving.saturating_add(1));
        Serving { uses: Arc::clone(self), id: id.to_owned() }
    }

    fn note(&self, id: &str, serving: impl FnOnce(usize) -> usize) {
        if let Some(one) = self.uses().get_mut(id) {
            one.serving = serving(one.serving);
            one.since = Instant::now();
        }
    }

    /// Returns the session of `open` that was unused for longest, among those without a request, a stream or a running
    /// command. One whose opening was given up counts as never used.
    pub(crate) fn unused(&self, open: &[String]) -> Option<String> {
        let uses = self.uses();
        let free = open.iter().filter(|id| uses.get(*id).is_none_or(SessionUse::is_free));
        free.min_by_key(|id| uses.get(*id).map(|one| one.since)).cloned()
    }
}

impl SessionUse {
    fn is_free(&self) -> bool {
        let activity = self.activity.as_ref().map_or(SessionActivity::None, |activity| activity());
        self.serving == 0 && activity != SessionActivity::Running
    }
}

/// A request or a stream of a session.
pub(crate) struct Serving {
    uses: Arc<SessionUses>,
    id: String,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.uses.note(&self.id, |serving| serving.saturating_sub(1));
    }
}

/// The body of an answer, which counts as served while it exists.
pub(crate) struct ServedBody {
    pub body: Body,
    pub _serving: Serving,
}

impl HttpBody for ServedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_session_unused_for_longest_is_one_that_serves_and_runs_nothing() {
        let uses = Arc::new(SessionUses::default());
        let names = ["a", "b", "c", "d"].map(str::to_owned);
        for name in &names {
            let runs = name == "b";
            let activity =
                move || if runs { SessionActivity::Running } else { SessionActivity::None };
            uses.opened(name, Some(Arc::new(activity)));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let stream = uses.serves("a");
        assert_eq!(uses.unused(&names).as_deref(), Some("c"), "`a` serves and `b` runs");
        drop(uses.serves("c"));
        assert_eq!(uses.unused(&names).as_deref(), Some("d"), "`c` was used since");
        drop(stream);
        assert_eq!(uses.unused(&names[..1]).as_deref(), Some("a"));
        assert_eq!(uses.unused(&names[1..2]), None);
        let given_up = ["a", "e", "d"].map(str::to_owned);
        assert_eq!(uses.unused(&given_up).as_deref(), Some("e"));
        uses.keep(&names[..1]);
        assert_eq!(uses.uses().len(), 1);
    }
}
