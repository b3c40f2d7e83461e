//! The body of a client's request on its way to a replica. What was sent of it is kept, as long as it is little, so that it can
//! be sent to another replica.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use dstack_system::Locked;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame};
use tokio::time::Instant;

use super::{BoxError, ProxyBody, full};

/// Most bytes of a body that are kept to be sent again.
pub(crate) const MAX_REPLAY: usize = 64 * 1024;
/// Most pieces that are kept: tiny ones take more memory than they hold.
const MAX_PIECES: usize = 256;

/// So long a client may make a replica wait in any way. After that it is too slow below [`SLOWEST`].
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes per second, on average of the time in which the replica waited for the client.
const SLOWEST: u64 = 1024;

/// Why a body is not read on.
#[derive(Debug, thiserror::Error)]
enum Cut {
    #[error("the request is sent to another replica")]
    Superseded,
    #[error("the client's request has broken off")]
    Broken,
    #[error("the client sends its request too slowly")]
    Slow,
    #[error("the client's request is longer than it was said to be")]
    Long,
    #[error("the replica has answered before the request was complete")]
    Answered,
}

/// The body that a client sends, shared by the attempts to pass it on.
pub(crate) struct Source(Locked<State>);

struct State {
    /// `None` once it has ended, has broken, or is not wanted any more.
    body: Option<ProxyBody>,
    end: End,
    /// What the present attempt has been given, or still gets, of what was read before it.
    kept: VecDeque<Bytes>,
    kept_bytes: usize,
    /// The piece of `kept` that the present attempt gets next.
    next: usize,
    /// What is read is kept, and what was given as well.
    keeps: bool,
    /// What was read is all in `kept`.
    whole: bool,
    attempt: usize,
    /// When a piece was taken the last time.
    progress: Instant,
    /// The replica has taken all that the client has sent, and waits for more.
    waits: Option<Waker>,
    pace: Pace,
    /// The answer has begun: the request may be as slow as it likes, since it may depend on what is answered.
    settled: bool,
}

/// How fast a client sends.
#[derive(Debug, Default)]
struct Pace {
    bytes: u64,
    /// Time in which it was waited for.
    waited: Duration,
    since: Option<Instant>,
}

impl Pace {
    fn waits(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    fn took(&mut self, bytes: usize, now: Instant) {
        let waited = self
            .since
            .take()
            .map(|since| now.saturating_duration_since(since));
        self.waited += waited.unwrap_or_default();
        self.bytes += bytes as u64;
    }

    const fn is_too_slow(&self) -> bool {
        let seconds = self.waited.as_secs();
        seconds >= PATIENCE.as_secs() && self.bytes < seconds.saturating_mul(SLOWEST)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    NotYet,
    Complete,
    Broken,
    Slow,
    Unwanted,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source")
    }
}

impl Source {
    pub(crate) fn new(body: ProxyBody) -> Arc<Self> {
        Arc::new(Self(Locked::new(State {
            body: Some(body),
            end: End::NotYet,
            kept: VecDeque::new(),
            kept_bytes: 0,
            next: 0,
            keeps: true,
            whole: true,
            attempt: 0,
            progress: Instant::now(),
            waits: None,
            pace: Pace::default(),
            settled: false,
        })))
    }

    /// The body from its beginning, for the next attempt. The one of the attempt before is given up.
    fn attempt(self: &Arc<Self>) -> RequestBody {
        let mut state = self.0.lock();
        state.attempt += 1;
        state.progress = Instant::now();
        state.next = 0;
        RequestBody(Some(Reader {
            source: Arc::clone(self),
            attempt: state.attempt,
        }))
    }

    /// Whether it can be sent once more from its beginning.
    fn is_whole(&self) -> bool {
        let state = self.0.lock();
        state.whole && matches!(state.end, End::NotYet | End::Complete)
    }

    /// It is not going to be sent again: what was given is forgotten.
    fn keep_no_more(&self) {
        let mut state = self.0.lock();
        let given = state.next;
        state.settled = true;
        state.keeps = false;
        state.next = 0;
        state.kept.drain(..given);
        if state.kept.is_empty() {
            state.kept = VecDeque::new();
        }
    }

    /// Reads no more of it: the client is told so, and the connection to the replica is closed, unless it was complete.
    fn cut(&self) {
        let mut state = self.0.lock();
        let body = state.finish(End::Unwanted);
        let waker = state.waits.take();
        drop(state);
        drop(body);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl State {
    /// Ends it, unless it has ended already.
    fn finish(&mut self, end: End) -> Option<ProxyBody> {
        if self.end == End::NotYet {
            self.end = end;
        }
        self.body.take()
    }

    /// The next of the pieces that were read before.
    fn kept_piece(&mut self) -> Option<Bytes> {
        if !self.keeps {
            return self.kept.pop_front();
        }
        let piece = self.kept.get(self.next)?.clone();
        self.next += 1;
        Some(piece)
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(piece) = self.kept_piece() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        match self.end {
            End::NotYet => self.poll_client(cx),
            End::Complete => Poll::Ready(None),
            End::Broken => Poll::Ready(Some(Err(Cut::Broken.into()))),
            End::Slow => Poll::Ready(Some(Err(Cut::Slow.into()))),
            End::Unwanted => Poll::Ready(Some(Err(Cut::Answered.into()))),
        }
    }

    fn poll_client(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(&mut *body).poll_frame(cx);
        self.waits = polled.is_pending().then(|| cx.waker().clone());
        let now = Instant::now();
        let Poll::Ready(frame) = polled else {
            self.pace.waits(now);
            return Poll::Pending;
        };
        self.progress = now;
        match frame {
            Some(Ok(frame)) => {
                self.pace.took(frame.data_ref().map_or(0, Bytes::len), now);
                if body.is_end_stream() {
                    self.finish(End::Complete);
                } else if self.pace.is_too_slow() && !self.settled {
                    self.finish(End::Slow);
                    return Poll::Ready(Some(Err(Cut::Slow.into())));
                }
                self.note(&frame);
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => {
                self.finish(End::Broken);
                Poll::Ready(Some(Err(error)))
            }
            None => {
                self.finish(End::Complete);
                Poll::Ready(None)
            }
        }
    }

    /// Keeps a piece, or forgets all if it is too much.
    fn note(&mut self, frame: &Frame<Bytes>) {
        let Some(data) = frame.data_ref() else {
            // Trailers come last and with a body that ended: it is not worth keeping them.
            self.whole = false;
            return;
        };
        if self.keeps && self.kept_bytes + data.len() <= MAX_REPLAY && self.kept.len() < MAX_PIECES {
            self.kept_bytes += data.len();
            self.kept.push_back(data.clone());
            self.next += 1;
        } else {
            self.whole = false;
            self.keeps = false;
            self.kept = VecDeque::new();
            self.next = 0;
        }
    }
}

/// The body of a request, while it may still be sent to another replica; none if the request has none.
#[derive(Debug, Clone)]
pub(crate) struct Sendable(Option<Arc<Source>>);

impl Sendable {
    pub(crate) fn new(body: ProxyBody) -> Self {
        Self((!body.is_end_stream()).then(|| Source::new(body)))
    }

    /// The body from its beginning, for the next attempt.
    pub(crate) fn attempt(&self) -> RequestBody {
        match &self.0 {
            Some(source) => source.attempt(),
            None => RequestBody(None),
        }
    }

    /// Reads all of it, before it is sent for the first time.
    ///
    /// # Errors
    /// The client's request has broken off, or is longer than `max_bytes`.
    pub(crate) async fn gather(&mut self, max_bytes: usize) -> Result<Bytes, BoxError> {
        let body = self.0.as_ref().and_then(|source| source.0.lock().body.take());
        let Some(mut body) = body else {
            return Ok(Bytes::new());
        };
        let mut all = BytesMut::new();
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame?.into_data() {
                all.extend_from_slice(&data);
            }
            if all.len() > max_bytes {
                return Err(Cut::Long.into());
            }
        }
        let bytes = all.freeze();
        *self = Self::new(full(bytes.clone()));
        Ok(bytes)
    }

    /// Whether it can be sent once more.
    pub(crate) fn is_whole(&self) -> bool {
        self.0.as_ref().is_none_or(|source| source.is_whole())
    }

    /// It is not going to be sent again: what follows concerns the attempt that goes on.
    pub(crate) fn settle(self) -> Sent {
        if let Some(source) = &self.0 {
            source.keep_no_more();
        }
        Sent(self.0)
    }

    /// When the replica was given a piece the last time; `None` if there is none to give.
    pub(crate) fn progress(&self) -> Option<Instant> {
        Some(self.0.as_ref()?.0.lock().progress)
    }

    /// The replica waits for the client.
    pub(crate) fn waits_for_client(&self) -> bool {
        self.0.as_ref().is_some_and(|source| {
            let state = source.0.lock();
            state.end == End::NotYet && state.waits.is_some()
        })
    }

    /// The client's request has broken off.
    pub(crate) fn is_broken(&self) -> bool {
        self.has_ended(End::Broken)
    }

    /// The client sends its request too slowly.
    pub(crate) fn is_slow(&self) -> bool {
        self.has_ended(End::Slow)
    }

    fn has_ended(&self, end: End) -> bool {
        self.0.as_ref().is_some_and(|source| source.0.lock().end == end)
    }
}

/// The body of a request that is being answered.
#[derive(Debug)]
pub(crate) struct Sent(Option<Arc<Source>>);

impl Sent {
    /// The replica has got all of it.
    pub(crate) fn is_complete(&self) -> bool {
        self.0
            .as_ref()
            .is_none_or(|source| source.0.lock().end == End::Complete)
    }

    /// The client's request has broken off.
    pub(crate) fn is_broken(&self) -> bool {
        self.0
            .as_ref()
            .is_some_and(|source| source.0.lock().end == End::Broken)
    }

    /// When the replica was given a piece the last time; `None` if there was none to give.
    pub(crate) fn progress(&self) -> Option<Instant> {
        Some(self.0.as_ref()?.0.lock().progress)
    }
}

impl Drop for Sent {
    /// The answer has ended: the rest is of no use.
    fn drop(&mut self) {
        if let Some(source) = &self.0 {
            source.cut();
        }
    }
}

/// The body of one attempt.
#[derive(Debug)]
pub(crate) struct RequestBody(Option<Reader>);

#[derive(Debug)]
struct Reader {
    source: Arc<Source>,
    attempt: usize,
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(Reader { source, attempt }) = &mut self.0 else {
            return Poll::Ready(None);
        };
        let mut state = source.0.lock();
        match state.attempt == *attempt {
            true => state.poll_piece(cx),
            false => Poll::Ready(Some(Err(Cut::Superseded.into()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|reader| {
            let state = reader.source.0.lock();
            state.end == End::Complete && state.attempt == reader.attempt && state.next >= state.kept.len()
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body_util::StreamBody;

    use super::*;

    fn pieces(pieces: &[&'static str]) -> Sendable {
        let frames: Vec<_> = pieces
            .iter()
            .map(|piece| Ok::<_, BoxError>(Frame::data(Bytes::from_static(piece.as_bytes()))))
            .collect();
        Sendable::new(StreamBody::new(stream::iter(frames)).boxed_unsync())
    }

    async fn next(body: &mut RequestBody) -> Option<Bytes> {
        body.frame().await?.ok()?.into_data().ok()
    }

    #[tokio::test]
    async fn each_attempt_begins_anew_and_ends_the_one_before() {
        let body = pieces(&["a", "b", "c"]);
        let mut first = body.attempt();
        assert_eq!(next(&mut first).await.unwrap(), "a");
        assert_eq!(next(&mut first).await.unwrap(), "b");
        let mut second = body.attempt();
        assert!(first.frame().await.unwrap().is_err(), "two would share the rest");
        assert_eq!(next(&mut second).await.unwrap(), "a");
        let sent = body.settle();
        let rest = second.collect().await.unwrap().to_bytes();
        assert_eq!(rest, "bc", "what was kept before it was settled is sent as well");
        assert!(sent.is_complete());
    }

    #[tokio::test]
    async fn what_is_gathered_is_sent_as_it_came() {
        let mut body = pieces(&["a", "b", "c"]);
        assert_eq!(body.gather(3).await.unwrap(), "abc");
        for _ in 0..2 {
            assert_eq!(body.attempt().collect().await.unwrap().to_bytes(), "abc");
            assert!(body.is_whole());
        }
        assert!(body.settle().is_complete());
        assert!(pieces(&["a", "bc"]).gather(2).await.is_err());
    }

    #[tokio::test]
    async fn no_more_is_kept_than_the_limits_say() {
        let one = |_| "x";
        let few: Vec<_> = (0..MAX_PIECES).map(one).collect();
        let many: Vec<_> = (0..=MAX_PIECES).map(one).collect();
        for (given, whole) in [(few, true), (many, false)] {
            let body = pieces(&given);
            let sent = body.attempt().collect().await.unwrap().to_bytes();
            assert_eq!((sent.len(), body.is_whole()), (given.len(), whole));
        }
    }

    #[tokio::test]
    async fn what_was_kept_goes_when_it_is_not_sent_again() {
        let given = Bytes::from(vec![1; 100]);
        let frame = Ok::<_, BoxError>(Frame::data(given.clone()));
        let body = Sendable::new(StreamBody::new(stream::iter([frame])).boxed_unsync());
        drop(body.attempt().collect().await.unwrap());
        assert!(!given.is_unique(), "it could be sent again");
        let sent = body.settle();
        assert!(given.is_unique() && sent.is_complete());
    }

    #[tokio::test]
    async fn what_nobody_needs_is_not_read_and_the_attempt_breaks() {
        let body = pieces(&["a", "b"]);
        let mut attempt = body.attempt();
        assert_eq!(next(&mut attempt).await.unwrap(), "a");
        drop(body.settle());
        assert!(attempt.frame().await.unwrap().is_err(), "never its end");
    }
}
