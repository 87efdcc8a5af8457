//! Bodies of requests: read whole before anything looks at them, within bounds on size, time and memory.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt;

use crate::respond::Refusal;
use policy::Principal;
use service::fair::{FairShare, Share};

/// Unit in which memory for bodies is given out.
const PIECE: usize = 1 << 10;
/// Values of JSON in one body. Each takes so many bytes once it is read, and two that it is written in.
const VALUES: usize = 100_000;
const VALUE_BYTES: usize = 96;

/// Memory for the bodies of all requests.
#[derive(Debug)]
pub struct Bodies {
    room: Arc<FairShare>,
    most: usize,
    time: Duration,
}

/// A body, and its share of the memory until it is dropped.
#[derive(Debug)]
pub(crate) struct HeldBody {
    pub(crate) bytes: Bytes,
    _room: Share,
}

impl Bodies {
    /// Reckons with a client from now on: it finds room, however much another has.
    pub(crate) fn know(&self, client: &Principal) {
        self.room.know(client);
    }

    /// Bounds one body by `most` bytes and `time`, and all of them together by `room` bytes.
    pub fn new(most: usize, room: usize, time: Duration) -> Self {
        Self { room: FairShare::new(room / PIECE), most, time }
    }

    /// Reads a body of a client to its end.
    ///
    /// # Errors
    /// A body that is too large, too slow, or broken off; or no memory for it now.
    pub(crate) async fn read(
        &self,
        client: &Principal,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<HeldBody, Refusal> {
        let declared = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        let declared = declared.and_then(|text| text.parse::<usize>().ok());
        if declared.is_some_and(|length| length > self.most) {
            return Err(self.too_large());
        }
        let late = |_| {
            let message = format!("the body did not arrive within {} s", self.time.as_secs());
            Refusal::new(StatusCode::REQUEST_TIMEOUT, "timeout", message)
        };
        tokio::time::timeout(self.time, self.whole(client, body)).await.map_err(late)?
    }

    async fn whole(&self, client: &Principal, mut body: Body) -> Result<HeldBody, Refusal> {
        let full = || busy("too many large requests are being read");
        let mut room = self.room.take(client, 0).ok_or_else(full)?;
        let (mut bytes, mut values) = (Vec::new(), JsonValues::default());
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| {
                Refusal::new(StatusCode::BAD_REQUEST, "bad_request", "the body is broken off")
            })?;
            let Ok(piece) = frame.into_data() else { continue };
            let length = bytes.len().saturating_add(piece.len());
            if length > self.most {
                return Err(self.too_large());
            }
            values.count(&piece);
            if values.counted > VALUES {
                let message = format!("a body has {VALUES} values of JSON at most");
                return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message));
            }
            let held = length.saturating_add(values.counted.saturating_mul(VALUE_BYTES));
            let more = held.div_ceil(PIECE).saturating_sub(room.places());
            if more > 0 && !room.grow(more) {
                return Err(full());
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(HeldBody { bytes: bytes.into(), _room: room })
    }

    fn too_large(&self) -> Refusal {
        let message = format!("a body has {} bytes at most", self.most);
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }
}

/// Counts the values in a text of JSON, which may come in pieces: a short text of many takes much memory once it is
/// read. What is not JSON is read as nothing else either.
#[derive(Debug, Default)]
struct JsonValues {
    counted: usize,
    in_text: bool,
    is_escaped: bool,
}

impl JsonValues {
    fn count(&mut self, piece: &[u8]) {
        for byte in piece {
            match (self.in_text, byte) {
                (true, _) if self.is_escaped => self.is_escaped = false,
                (true, b'\\') => self.is_escaped = true,
                (_, b'"') => self.in_text = !self.in_text,
                // Each value but the first stands behind one of these.
                (false, b',' | b'[' | b'{' | b':') => self.counted += 1,
                (_, _) => {}
            }
        }
    }
}

/// Makes the refusal of a request for which there is no room now.
pub(crate) fn busy(message: &str) -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message).after(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies() -> Bodies {
        Bodies::new(4 * PIECE, 6 * PIECE, Duration::from_secs(60))
    }

    fn own() -> Principal {
        Principal::named("a")
    }

    async fn read(bodies: &Bodies, length: usize) -> Result<HeldBody, u16> {
        let body = Body::from(vec![b'x'; length]);
        bodies
            .read(&own(), &HeaderMap::new(), body)
            .await
            .map_err(|refusal| refusal.status.as_u16())
    }

    #[tokio::test]
    async fn a_body_has_its_size_and_all_have_theirs_together() {
        let bodies = bodies();
        let first = read(&bodies, 4 * PIECE).await.expect("it is not too large");
        assert_eq!(first.bytes.len(), 4 * PIECE);
        assert_eq!(read(&bodies, 4 * PIECE + 1).await.err(), Some(413));
        assert_eq!(
            read(&bodies, 3 * PIECE).await.err(),
            Some(503),
            "the first has most of the room"
        );
        drop(first);
        assert!(read(&bodies, 3 * PIECE).await.is_ok(), "the room came back");
    }

    #[tokio::test]
    async fn a_length_that_is_too_large_is_refused_before_a_byte_is_read() {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_LENGTH, "67108864".parse().expect("a value"));
        let never = Body::new(http_body_util::channel::Channel::<Bytes>::new(1).1);
        let refused =
            bodies().read(&own(), &headers, never).await.map_err(|refusal| refusal.status.as_u16());
        assert_eq!(refused.err(), Some(413));
    }

    #[test]
    fn values_are_counted_across_pieces_and_not_within_texts() {
        let text = br#"{"a": [1, 2, {"b,[": "\\\",,,[[", "c": []}]}"#;
        let whole = |size: usize| {
            let mut values = JsonValues::default();
            text.chunks(size).for_each(|piece| values.count(piece));
            values.counted
        };
        // An object, two lists, another object, three colons, three commas.
        assert_eq!((whole(text.len()), whole(1), whole(3)), (10, 10, 10));
    }

    #[tokio::test]
    async fn a_small_text_of_many_values_is_too_large_and_none_keeps_another_client_out() {
        let bodies = Bodies::new(16 << 20, 64 << 20, Duration::from_secs(60));
        let (greedy, modest) = (own(), Principal::named("b"));
        bodies.know(&modest);
        let read = async |client: &Principal, text: String| {
            let read = bodies.read(client, &HeaderMap::new(), Body::from(text)).await;
            read.map_err(|refusal| refusal.status.as_u16())
        };
        let many = |values: usize| format!("[{}0]", "0,".repeat(values));
        assert_eq!(read(&greedy, many(VALUES + 1)).await.err(), Some(413));
        let mut held = Vec::new();
        let refused = loop {
            match read(&greedy, many(VALUES - 2)).await {
                Ok(body) => held.push(body),
                Err(status) => break status,
            }
        };
        assert_eq!(refused, 503);
        assert!((2..=4).contains(&held.len()), "{}: memory was reckoned with", held.len());
        assert!(read(&modest, " ".repeat(8 << 20)).await.is_ok(), "another finds room");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_arrive_is_not_waited_for() {
        let (_sender, never) = http_body_util::channel::Channel::<Bytes>::new(1);
        let refused = bodies().read(&own(), &HeaderMap::new(), Body::new(never)).await;
        assert_eq!(refused.map_err(|refusal| refusal.status.as_u16()).err(), Some(408));
    }
}
