//! Bodies of requests, which have a longest length.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use dstack_proxy::{BoxError, ProxyBody};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, SizeHint};

/// Tells that a body was longer than it may be.
#[derive(Debug, Clone, Default)]
pub(crate) struct TooLong(Arc<AtomicBool>);

impl TooLong {
    pub(crate) fn is_so(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Breaks off after so many bytes.
struct Bounded {
    inner: ProxyBody,
    left: u64,
    too_long: TooLong,
}

/// A body that breaks off when it is longer than `limit` bytes.
pub(crate) fn bounded(inner: ProxyBody, limit: u64, too_long: TooLong) -> ProxyBody {
    let bounded = Bounded {
        inner,
        left: limit,
        too_long,
    };
    bounded.boxed_unsync()
}

impl Body for Bounded {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            let length = frame.data_ref().map_or(0, |data| data.len() as u64);
            match self.left.checked_sub(length) {
                Some(left) => self.left = left,
                None => {
                    self.too_long.0.store(true, Ordering::Release);
                    return Poll::Ready(Some(Err("the request's body is too long".into())));
                }
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
