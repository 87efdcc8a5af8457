//! Reads bodies of requests whole, within bounds on size, time and memory. Answers are charged to the same memory until
//! they are sent.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt;

use crate::access::{Client, ClientRights};
use crate::respond::Refusal;
use config::policy::Principal;
use mcp::values::{JsonValues, MAX_VALUES};
use service::fair::{FairShare, Share};

/// Unit of the memory for bodies, in bytes.
const MEMORY_UNIT: usize = 1 << 10;

/// Bytes that are reserved for requests of operators.
const OPERATOR_BYTES: usize = 4 << 20;

/// Memory for the bodies of all requests, and for their answers.
#[derive(Debug)]
pub struct BodyMemory {
    room: Arc<FairShare>,
    operators: Arc<FairShare>,
    max_bytes: usize,
    time: Duration,
}

/// Kinds of content that a body is read as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyForm {
    Json,
    /// Fields and files, whose bytes are not parsed.
    Form,
}

/// A body, and the memory that its request holds.
#[derive(Debug)]
pub(crate) struct HeldBody {
    pub(crate) bytes: Bytes,
    pub(crate) room: RequestMemory,
}

/// Memory of one request, until all clones are dropped.
#[derive(Debug, Clone)]
pub(crate) struct RequestMemory(Arc<Mutex<Share>>);

impl RequestMemory {
    /// Takes memory for `bytes` more. Returns false, and takes nothing, if the client cannot have it now.
    #[must_use]
    pub(crate) fn grow(&self, bytes: usize) -> bool {
        let mut share = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        share.grow(bytes.div_ceil(MEMORY_UNIT))
    }
}

impl BodyMemory {
    /// Registers a client, so that memory is reserved for it, until [`Self::unregister`].
    pub(crate) fn register(&self, client: &Principal, rights: ClientRights) {
        self.share_of(rights).register(client);
    }

    /// Takes back a registration.
    pub(crate) fn unregister(&self, client: &Principal, rights: ClientRights) {
        self.share_of(rights).unregister(client);
    }

    /// Bounds one body by `max_bytes` bytes and `time`, and all of them together by `room` bytes.
    pub fn new(max_bytes: usize, room: usize, time: Duration) -> Self {
        let operators = FairShare::new(OPERATOR_BYTES / MEMORY_UNIT);
        Self { room: FairShare::new(room / MEMORY_UNIT), operators, max_bytes, time }
    }

    fn share_of(&self, rights: ClientRights) -> &Arc<FairShare> {
        match rights {
            ClientRights::Agent => &self.room,
            ClientRights::Operator => &self.operators,
        }
    }

    /// Reads a body of a client to its end.
    ///
    /// # Errors
    /// A body that is too large, too slow, or broken off; or no memory for it now.
    pub(crate) async fn read(
        &self,
        client: &Client,
        headers: &HeaderMap,
        form: BodyForm,
        body: Body,
    ) -> Result<HeldBody, Refusal> {
        let declared = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        let declared = declared.and_then(|text| text.parse::<usize>().ok());
        if declared.is_some_and(|length| length > self.max_bytes) {
            return Err(self.too_large());
        }
        let late = |_| {
            let message = format!("the body did not arrive within {} s", self.time.as_secs());
            Refusal::new(StatusCode::REQUEST_TIMEOUT, "timeout", message)
        };
        tokio::time::timeout(self.time, self.read_to_end(client, form, body)).await.map_err(late)?
    }

    async fn read_to_end(
        &self,
        client: &Client,
        form: BodyForm,
        mut body: Body,
    ) -> Result<HeldBody, Refusal> {
        let full = || busy("too many large requests are being read");
        let mut room = self.share_of(client.rights).take(&client.principal, 0).ok_or_else(full)?;
        let mut bytes = Vec::new();
        let mut values = JsonValues::default();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| {
                Refusal::new(StatusCode::BAD_REQUEST, "bad_request", "the body is broken off")
            })?;
            let Ok(piece) = frame.into_data() else { continue };
            let length = bytes.len().saturating_add(piece.len());
            if length > self.max_bytes {
                return Err(self.too_large());
            }
            if form == BodyForm::Json {
                values.count(&piece);
            }
            if values.are_too_many() {
                let message = format!("a body has {MAX_VALUES} values of JSON at most");
                return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message));
            }
            let held = length.saturating_add(values.bytes());
            let more = held.div_ceil(MEMORY_UNIT).saturating_sub(room.places());
            if more > 0 && !room.grow(more) {
                return Err(full());
            }
            bytes.extend_from_slice(&piece);
        }
        let room = RequestMemory(Arc::new(Mutex::new(room)));
        Ok(HeldBody { bytes: bytes.into(), room })
    }

    fn too_large(&self) -> Refusal {
        let message = format!("a body has {} bytes at most", self.max_bytes);
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }
}

/// Makes the refusal of a request that there is no room for now.
pub(crate) fn busy(message: &str) -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message).after(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Standing;

    const AS_JSON: BodyForm = BodyForm::Json;

    fn bodies() -> BodyMemory {
        BodyMemory::new(4 * MEMORY_UNIT, 6 * MEMORY_UNIT, Duration::from_secs(60))
    }

    fn named(name: &str, rights: ClientRights) -> Client {
        let principal = Principal::named(name);
        Client { principal, standing: Standing::Known, rights, until: None }
    }

    fn own() -> Client {
        named("a", ClientRights::Agent)
    }

    async fn read(bodies: &BodyMemory, length: usize) -> Result<HeldBody, u16> {
        let body = Body::from(vec![b'x'; length]);
        bodies
            .read(&own(), &HeaderMap::new(), AS_JSON, body)
            .await
            .map_err(|refusal| refusal.status.as_u16())
    }

    #[tokio::test]
    async fn a_body_has_its_size_and_all_have_theirs_together() {
        let bodies = bodies();
        let first = read(&bodies, 4 * MEMORY_UNIT).await.expect("it is not too large");
        assert_eq!(first.bytes.len(), 4 * MEMORY_UNIT);
        assert_eq!(read(&bodies, 4 * MEMORY_UNIT + 1).await.err(), Some(413));
        assert_eq!(
            read(&bodies, 3 * MEMORY_UNIT).await.err(),
            Some(503),
            "the first has most of the room"
        );
        drop(first);
        assert!(read(&bodies, 3 * MEMORY_UNIT).await.is_ok(), "the room came back");
    }

    #[tokio::test]
    async fn a_length_that_is_too_large_is_refused_before_a_byte_is_read() {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_LENGTH, "67108864".parse().expect("a value"));
        let never = Body::new(http_body_util::channel::Channel::<Bytes>::new(1).1);
        let refused = bodies().read(&own(), &headers, AS_JSON, never).await;
        let refused = refused.map_err(|refusal| refusal.status.as_u16());
        assert_eq!(refused.err(), Some(413));
    }

    #[tokio::test]
    async fn a_small_text_of_many_values_is_too_large_and_keeps_no_client_out() {
        let bodies = BodyMemory::new(16 << 20, 64 << 20, Duration::from_secs(60));
        let greedy = own();
        let modest = named("b", ClientRights::Agent);
        bodies.register(&modest.principal, modest.rights);
        let read = async |client: &Client, text: String| {
            let read = bodies.read(client, &HeaderMap::new(), AS_JSON, Body::from(text)).await;
            read.map_err(|refusal| refusal.status.as_u16())
        };
        let many = |values: usize| format!("[{}0]", "0,".repeat(values));
        assert_eq!(read(&greedy, many(MAX_VALUES + 1)).await.err(), Some(413));
        let mut held = Vec::new();
        let refused = loop {
            match read(&greedy, many(MAX_VALUES - 2)).await {
                Ok(body) => held.push(body),
                Err(status) => break status,
            }
        };
        assert_eq!(refused, 503);
        assert!((2..=4).contains(&held.len()), "{}: memory was counted", held.len());
        assert!(read(&modest, " ".repeat(8 << 20)).await.is_ok(), "another finds room");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_arrive_is_not_waited_for() {
        let (_sender, never) = http_body_util::channel::Channel::<Bytes>::new(1);
        let refused = bodies().read(&own(), &HeaderMap::new(), AS_JSON, Body::new(never)).await;
        assert_eq!(refused.map_err(|refusal| refusal.status.as_u16()).err(), Some(408));
    }

    #[tokio::test]
    async fn an_operator_and_agents_take_no_memory_from_each_other() {
        let bodies = BodyMemory::new(4 * MEMORY_UNIT, 8 * MEMORY_UNIT, Duration::from_secs(60));
        let agent = own();
        let operator = named("ops", ClientRights::Operator);
        for client in [&agent, &operator] {
            bodies.register(&client.principal, client.rights);
        }
        let read = async |client: &Client, length: usize| {
            let body = Body::from(vec![b'x'; length]);
            bodies.read(client, &HeaderMap::new(), AS_JSON, body).await
        };
        let held = [read(&agent, 4 * MEMORY_UNIT).await, read(&agent, 4 * MEMORY_UNIT).await];
        assert!(held.iter().all(Result::is_ok), "the only agent has all of it");
        assert!(read(&agent, 1).await.is_err());
        assert!(read(&operator, MEMORY_UNIT).await.is_ok());
    }

    #[tokio::test]
    async fn values_are_counted_in_json_and_not_in_files() {
        let bodies = BodyMemory::new(16 << 20, 64 << 20, Duration::from_secs(60));
        let many = ",".repeat(MAX_VALUES + 1);
        let read = async |form: BodyForm| {
            let body = Body::from(many.clone());
            bodies.read(&own(), &HeaderMap::new(), form, body).await.is_ok()
        };
        assert_eq!((read(BodyForm::Json).await, read(BodyForm::Form).await), (false, true));
    }
}
