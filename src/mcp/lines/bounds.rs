//! Bounds on one line, and on the lines of all connections of a server together.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::LINE_BYTES;
use crate::values::{JsonValues, MAX_VALUES};
use config::policy::Principal;
use service::fair::{FairShare, Share};

/// Unit in which memory for lines is given out.
const MEMORY_UNIT: usize = 1 << 10;

/// Value that is kept while a request has no answer.
pub type UntilAnswered = Box<dyn Any + Send + Sync>;

/// Bounds of a connection that shares its server with other, untrusted ones.
#[derive(Clone)]
pub struct SharedBounds {
    room: Arc<FairShare>,
    own: Principal,
    serving: Arc<dyn Fn() -> UntilAnswered + Send + Sync>,
}

impl fmt::Debug for SharedBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBounds").field("own", &self.own).finish_non_exhaustive()
    }
}

impl SharedBounds {
    /// Makes room of so many bytes for the lines of all connections; one connection has half of it at most.
    pub fn room(bytes: usize) -> Arc<FairShare> {
        let room = FairShare::new(bytes / MEMORY_UNIT);
        // A placeholder, so that the first connection cannot take all of the room.
        room.register(&Principal::named("next"));
        room
    }

    /// Makes the bounds of one connection, which has its part of `room` under the name `own`. Whatever `serving`
    /// returns at a request is kept until that is answered.
    pub fn new(
        room: Arc<FairShare>,
        own: Principal,
        serving: impl Fn() -> UntilAnswered + Send + Sync + 'static,
    ) -> Self {
        Self { room, own, serving: Arc::new(serving) }
    }

    /// Has the connection count as serving until the result is dropped.
    pub(crate) fn serve(&self) -> UntilAnswered {
        (self.serving)()
    }
}

/// Things that a request holds until it is answered.
#[derive(Debug)]
pub(super) struct RequestHold {
    _line: Option<Arc<Share>>,
    _serving: Option<UntilAnswered>,
}

impl RequestHold {
    pub(super) fn new(shared: Option<&SharedBounds>, line: Option<Arc<Share>>) -> Self {
        Self { _line: line, _serving: shared.map(SharedBounds::serve) }
    }

    /// Returns the same without a part in serving: a request that is answered at the end of its connection alone would
    /// keep that for ever. The connection is noted as used.
    pub(super) fn waiting(shared: Option<&SharedBounds>, line: Option<Arc<Share>>) -> Self {
        Self { _serving: None, ..Self::new(shared, line) }
    }
}

/// Reason why a line is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unread {
    #[error("a line is at most {LINE_BYTES} bytes")]
    Long,
    #[error("a message has {MAX_VALUES} values of JSON at most")]
    Values,
    #[error("too many large messages are being read or served: send it again later")]
    NoRoom,
}

/// A line that is being read, within its bounds.
#[derive(Debug)]
pub(super) struct PartialLine {
    pub(super) bytes: Vec<u8>,
    max_bytes: usize,
    values: JsonValues,
    /// Its part of the memory for all lines, where that is bounded.
    pub(super) room: Option<Share>,
}

impl PartialLine {
    /// Begins a line of at most `max_bytes`.
    pub(super) fn begin(max_bytes: usize, shared: Option<&SharedBounds>) -> Result<Self, Unread> {
        let room = match shared {
            Some(SharedBounds { room, own, .. }) => Some(room.take(own, 0).ok_or(Unread::NoRoom)?),
            None => None,
        };
        Ok(Self { bytes: Vec::new(), max_bytes, values: JsonValues::default(), room })
    }

    /// Takes the next piece of the line.
    pub(super) fn take(&mut self, piece: &[u8]) -> Result<(), Unread> {
        let length = self.bytes.len().saturating_add(piece.len());
        if length > self.max_bytes {
            return Err(Unread::Long);
        }
        self.values.count(piece);
        if self.values.are_too_many() {
            return Err(Unread::Values);
        }
        if let Some(room) = &mut self.room {
            let held = length.saturating_add(self.values.bytes());
            let more = held.div_ceil(MEMORY_UNIT).saturating_sub(room.places());
            if more > 0 && !room.grow(more) {
                return Err(Unread::NoRoom);
            }
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }
}
