//! Bodies in transit: searches request bodies for placeholders, and removes secrets from answer
//! bodies.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::HeaderMap;
use hyper::body::Incoming;
use hyper::header::HeaderValue;

use super::request::{CellSeed, check_fields, end_to_end};
use super::scan::{Finder, Scrubber};
use super::traces::Traces;

/// Why a body was cut.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    #[error("the body holds a placeholder")]
    Placeholder,
    #[error("the body broke off")]
    Broken(#[from] hyper::Error),
}

/// The body of an answer: the server's, or one that the gateway makes.
pub(super) type AnswerBody = UnsyncBoxBody<Bytes, BodyError>;

/// Makes a body from a text.
pub(super) fn text(text: String) -> AnswerBody {
    Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync()
}

/// The body of a request; ends in an error if it holds a placeholder.
#[derive(Debug)]
pub(super) struct SearchedBody {
    inner: Incoming,
    finder: Finder,
    cell: CellSeed,
    /// Set before the error is returned: hyper's error does not say which one it was.
    has_placeholder: Arc<AtomicBool>,
}

impl SearchedBody {
    pub(super) fn new(inner: Incoming, cell: CellSeed, has_placeholder: Arc<AtomicBool>) -> Self {
        Self { inner, finder: Finder::new(cell.marks.clone()), cell, has_placeholder }
    }

    /// Passes a frame on, unless a placeholder ends in it. Trailers are searched and dropped.
    fn check(&mut self, frame: Frame<Bytes>) -> Result<Option<Frame<Bytes>>, BodyError> {
        let is_found = match (frame.data_ref(), frame.trailers_ref()) {
            (Some(data), _) => self.finder.finds(data),
            (None, Some(trailers)) => check_fields(trailers, &self.cell).is_err(),
            (None, None) => false,
        };
        if is_found {
            self.has_placeholder.store(true, Ordering::Relaxed);
            return Err(BodyError::Placeholder);
        }
        Ok(frame.is_data().then_some(frame))
    }
}

impl Body for SearchedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            let Some(frame) = ready!(Pin::new(&mut self.inner).poll_frame(context)?) else {
                return Poll::Ready(None);
            };
            if let Some(frame) = self.check(frame).transpose() {
                return Poll::Ready(Some(frame));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The body of an answer, with secrets replaced by asterisks of the same length.
pub(super) struct ScrubbedBody {
    inner: Incoming,
    secrets: Traces,
    scrubber: Scrubber,
    /// Trailers, kept until the held bytes have been passed on.
    trailers: Option<HeaderMap>,
    is_over: bool,
}

impl ScrubbedBody {
    pub(super) fn new(inner: Incoming, secrets: &Traces) -> Self {
        let scrubber = Scrubber::new(secrets.clone());
        Self { inner, secrets: secrets.clone(), scrubber, trailers: None, is_over: false }
    }

    /// Returns what remains after the server's body has ended.
    fn last_frame(&mut self) -> Option<Frame<Bytes>> {
        let last_bytes = self.scrubber.finish();
        if !last_bytes.is_empty() {
            return Some(Frame::data(last_bytes));
        }
        self.trailers.take().map(Frame::trailers)
    }
}

impl Body for ScrubbedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        while !self.is_over {
            let Some(frame) = ready!(Pin::new(&mut self.inner).poll_frame(context)?) else {
                self.is_over = true;
                break;
            };
            match frame.into_data() {
                Ok(data) => {
                    let passed = self.scrubber.pass(data);
                    if !passed.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(passed))));
                    }
                }
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        self.trailers = Some(scrubbed_fields(end_to_end(trailers), &self.secrets));
                    }
                }
            }
        }
        Poll::Ready(self.last_frame().map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        // Held bytes are still to come.
        self.inner.is_end_stream() && self.is_over && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Replaces secrets in headers and trailers by asterisks; drops a field whose name holds a secret.
pub(super) fn scrubbed_fields(fields: HeaderMap, secrets: &Traces) -> HeaderMap {
    if secrets.is_empty() {
        return fields;
    }
    let mut scrubbed = HeaderMap::with_capacity(fields.len());
    let mut last = None;
    for (name, value) in fields {
        // For a name with several values, only the first item has the name.
        last = name.or(last);
        let Some(name) = last.clone() else { continue };
        if secrets.are_in(name.as_str().as_bytes()) {
            continue;
        }
        let value = match secrets.masked(value.as_bytes()) {
            Some(masked) => {
                HeaderValue::from_bytes(&masked).unwrap_or(HeaderValue::from_static("*"))
            }
            None => value,
        };
        scrubbed.append(name, value);
    }
    scrubbed
}
