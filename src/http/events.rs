//! `GET /events`: health and figures every few seconds, as server-sent events, until the client or the server ends it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use hyper::body::Frame;
use serde_json::{Value, json};
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::health::Health;
use crate::memory::OwnMemory;
use crate::scopes::Scopes;

/// Time between two reports.
const INTERVAL: Duration = Duration::from_secs(5);

/// Reports until the reader disconnects. Reports are made one at a time: a slow reader gets the latest, never a backlog.
struct Reports {
    scopes: Arc<Scopes>,
    next: Interval,
    ready: VecDeque<Value>,
}

/// Begins a stream. The first report comes at once.
pub(crate) async fn events(State(scopes): State<Arc<Scopes>>) -> Response {
    let mut next = interval(INTERVAL);
    next.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut response = Response::new(Body::new(Reports { scopes, next, ready: VecDeque::new() }));
    let kind = HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

impl Reports {
    fn report(&mut self) {
        let figures = self.scopes.executor.figures();
        let health = Health::from_figures(&figures);
        let resident = self.scopes.memory.as_ref().and_then(OwnMemory::resident);
        let status = json!({ "status": health.status.name() });
        self.ready.push_back(json!({ "type": "health", "data": status }));
        let figures = json!({ "figures": figures, "resident_memory_bytes": resident });
        self.ready.push_back(json!({ "type": "metrics", "data": figures }));
    }
}

impl HttpBody for Reports {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.ready.is_empty() {
            ready!(self.next.poll_tick(cx));
            self.report();
        }
        let event = self.ready.pop_front().map(|event| format!("data: {event}\n\n"));
        Poll::Ready(event.map(|event| Ok(Frame::data(event.into()))))
    }
}
