//! Bodies of requests: read whole before anything looks at them, within bounds on size, time and memory.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::respond::Refusal;

/// Unit in which memory for bodies is given out.
const PIECE: usize = 1 << 10;

/// Memory for the bodies of all requests.
#[derive(Debug)]
pub struct Bodies {
    room: Arc<Semaphore>,
    most: usize,
    time: Duration,
}

/// A body, and its share of the memory until it is dropped.
#[derive(Debug)]
pub(crate) struct HeldBody {
    pub(crate) bytes: Bytes,
    _room: Option<OwnedSemaphorePermit>,
}

impl Bodies {
    /// Bounds one body by `most` bytes and `time`, and all of them together by `room` bytes.
    pub fn new(most: usize, room: usize, time: Duration) -> Self {
        Self { room: Arc::new(Semaphore::new(room / PIECE)), most, time }
    }

    /// Reads a body to its end.
    ///
    /// # Errors
    /// A body that is too large, too slow, or broken off; or no memory for it now.
    pub(crate) async fn read(&self, headers: &HeaderMap, body: Body) -> Result<HeldBody, Refusal> {
        let declared = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        let declared = declared.and_then(|text| text.parse::<usize>().ok());
        if declared.is_some_and(|length| length > self.most) {
            return Err(self.too_large());
        }
        let late = |_| {
            let message = format!("the body did not arrive within {} s", self.time.as_secs());
            Refusal::new(StatusCode::REQUEST_TIMEOUT, "timeout", message)
        };
        tokio::time::timeout(self.time, self.whole(body)).await.map_err(late)?
    }

    async fn whole(&self, mut body: Body) -> Result<HeldBody, Refusal> {
        let (mut bytes, mut room): (Vec<u8>, Option<OwnedSemaphorePermit>) = (Vec::new(), None);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| {
                Refusal::new(StatusCode::BAD_REQUEST, "bad_request", "the body is broken off")
            })?;
            let Ok(piece) = frame.into_data() else { continue };
            let length = bytes.len().saturating_add(piece.len());
            if length > self.most {
                return Err(self.too_large());
            }
            let held = room.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
            let more = length.div_ceil(PIECE).saturating_sub(held);
            if more > 0 {
                let more = u32::try_from(more).unwrap_or(u32::MAX);
                let more = Arc::clone(&self.room).try_acquire_many_owned(more);
                let more = more.map_err(|_| busy("too many large requests are being read"))?;
                match &mut room {
                    Some(room) => room.merge(more),
                    None => room = Some(more),
                }
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

    async fn read(bodies: &Bodies, length: usize) -> Result<HeldBody, u16> {
        let body = Body::from(vec![b'x'; length]);
        bodies.read(&HeaderMap::new(), body).await.map_err(|refusal| refusal.status.as_u16())
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
            bodies().read(&headers, never).await.map_err(|refusal| refusal.status.as_u16());
        assert_eq!(refused.err(), Some(413));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_arrive_is_not_waited_for() {
        let (_sender, never) = http_body_util::channel::Channel::<Bytes>::new(1);
        let refused = bodies().read(&HeaderMap::new(), Body::new(never)).await;
        assert_eq!(refused.map_err(|refusal| refusal.status.as_u16()).err(), Some(408));
    }
}
