//! An answer on its way through, piece by piece as it comes.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, SizeHint};

use super::failure::Failure;
use super::usage::{Meter, Tail};
use crate::body::{BoxError, ProxyBody};

/// Looks at what passes, and holds nothing back.
struct Watched {
    inner: ProxyBody,
    tail: Tail,
    meter: Meter,
    /// Its pieces are server-sent events.
    is_events: bool,
    is_over: bool,
}

/// The same body; its tokens are counted when it is over or given up. A stream of events that breaks between two of them ends
/// with an event that says so: clients take an end without one for that of the answer, and other breaks for one of the network.
pub(super) fn watched(inner: ProxyBody, meter: Meter, is_events: bool) -> ProxyBody {
    let watched = Watched {
        inner,
        tail: Tail::default(),
        meter,
        is_events,
        is_over: false,
    };
    watched.boxed_unsync()
}

impl Watched {
    /// What is said in the place of an error.
    fn broken(&mut self, error: BoxError) -> Result<Frame<Bytes>, BoxError> {
        self.is_over = true;
        if !(self.is_events && self.tail.is_between_events()) {
            return Err(error);
        }
        let failure = Failure::upstream(format!("The model's answer broke off: {error}"));
        Ok(Frame::data(failure.into_event()))
    }
}

impl Body for Watched {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(context));
        Poll::Ready(match frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.tail.push(data);
                }
                Some(Ok(frame))
            }
            Some(Err(error)) => Some(self.broken(error)),
            None => {
                self.is_over = true;
                None
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.is_over || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // An event may be added.
        match self.is_events {
            true => SizeHint::default(),
            false => self.inner.size_hint(),
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(usage) = self.tail.usage() {
            self.meter.used(usage);
        }
    }
}
