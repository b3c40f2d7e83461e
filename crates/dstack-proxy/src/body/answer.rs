//! The body of a replica's answer on its way to the client.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use super::BoxError;
use super::request::Sent;
use crate::later::later;
use crate::limits::Permit;
use crate::replica::{Sender, Visit};
use crate::stats::Record;

/// What an answer keeps busy until its end.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) sender: Sender,
    pub(crate) visit: Visit,
    pub(crate) sent: Sent,
    /// Counts the request when it is dropped.
    pub(crate) record: Record,
    /// How long the replica keeps the connection after the answer, if it says so.
    pub(crate) keep_alive: Option<Duration>,
    pub(crate) permit: Permit,
}

impl Lease {
    /// The answer has come to its end: the connection is free for the next request.
    pub(crate) fn complete(self) {
        let Self {
            sender,
            visit,
            sent,
            record,
            keep_alive,
            permit,
        } = self;
        drop((record, permit));
        visit.completed();
        if sent.is_complete() {
            visit.replica().pool().give(sender, keep_alive);
        }
    }

    /// The replica has broken the answer off. It has not if that comes of the client's request, which broke off.
    fn break_off(mut self) {
        if !self.sent.is_broken() {
            self.visit.failed();
            self.record.broke();
        }
    }
}

/// Why the body of an answer is not read on.
#[derive(Debug, thiserror::Error)]
#[error("the replica has been silent for {} s", after.as_secs())]
struct Silent {
    after: Duration,
}

/// The body of an answer. When it is dropped before its end, its connection is closed.
#[derive(Debug)]
pub(crate) struct AnswerBody {
    incoming: Incoming,
    /// `None` after the end.
    lease: Option<Lease>,
    silence: Silence,
    broken: bool,
}

impl AnswerBody {
    /// `limit`: as long as the replica may be silent.
    pub(crate) const fn new(incoming: Incoming, lease: Lease, limit: Duration) -> Self {
        Self {
            incoming,
            lease: Some(lease),
            silence: Silence::new(limit),
            broken: false,
        }
    }

    /// Whether the replica is silent for too long. It may be as long as it is given pieces of the request.
    fn poll_silent(&mut self, cx: &mut Context<'_>) -> bool {
        while self.silence.poll_over(cx) {
            let given = self.lease.as_ref().and_then(|lease| lease.sent.progress());
            if !self.silence.put_off(given) {
                return true;
            }
        }
        false
    }

    fn complete(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.complete();
        }
    }

    fn break_off(&mut self) {
        self.broken = true;
        if let Some(lease) = self.lease.take() {
            lease.break_off();
        }
    }

    /// The replica is silent: how it is goes unsaid, since it may only be slow.
    fn give_up(&mut self) -> BoxError {
        self.broken = true;
        if let Some(mut lease) = self.lease.take() {
            lease.record.broke();
        }
        Silent {
            after: self.silence.limit,
        }
        .into()
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let body = &mut *self;
        if body.broken {
            return Poll::Ready(None);
        }
        match Pin::new(&mut body.incoming).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                body.silence.broken();
                if let (Some(lease), true) = (&mut body.lease, frame.is_data()) {
                    lease.record.piece();
                }
                if body.incoming.is_end_stream() {
                    body.complete();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                tracing::debug!(error = %dstack_system::chain(&error), "a replica has broken its answer off");
                body.break_off();
                Poll::Ready(Some(Err(error.into())))
            }
            Poll::Ready(None) => {
                body.complete();
                Poll::Ready(None)
            }
            Poll::Pending if body.poll_silent(cx) => Poll::Ready(Some(Err(body.give_up()))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        !self.broken && self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// How long nothing has come while something was waited for.
#[derive(Debug)]
struct Silence {
    limit: Duration,
    since: Option<Instant>,
    /// Made when something is waited for, and set anew only when it goes off.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Silence {
    const fn new(limit: Duration) -> Self {
        Self {
            limit,
            since: None,
            timer: None,
        }
    }

    /// Something has come.
    const fn broken(&mut self) {
        self.since = None;
    }

    /// What was waited for is waited for from this time on; returns whether that is later than it was.
    fn put_off(&mut self, to: Option<Instant>) -> bool {
        let later = to > self.since;
        if later {
            self.since = to;
        }
        later
    }

    /// Nothing has come yet: whether that is so for too long.
    fn poll_over(&mut self, cx: &mut Context<'_>) -> bool {
        let since = *self.since.get_or_insert_with(Instant::now);
        let over = later(since, self.limit);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(over)));
        while timer.as_mut().poll(cx).is_ready() {
            if Instant::now() >= over {
                return true;
            }
            timer.as_mut().reset(over);
        }
        false
    }
}
