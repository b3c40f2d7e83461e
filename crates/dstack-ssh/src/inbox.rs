//! What arrived on the channels of one connection and was not read yet.
//!
//! russh grants the peer more window as soon as data arrives, and blocks its whole session loop while one channel's
//! reader is slow: one stalled forward would freeze every other channel, and a command that echoes its input would
//! deadlock. So the protocol side pushes into these queues and never waits for a reader. Memory stays bounded because
//! beyond [`HIGH_WATER`] unread bytes the peer is held back: a server shrinks the windows it grants ([`Choke`]), a
//! client, whose windows russh does not let us choose, slows the whole connection down ([`Inbox::throttle`]).

use std::collections::{HashMap, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use russh::ChannelId;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::Notify;

/// Unread bytes of one connection, all channels together, from which on the peer is held back.
pub const HIGH_WATER: usize = 16 << 20;

/// The window a held-back channel is granted: the least with which russh still grants anything.
const CHOKED_WINDOW: u32 = 2;

/// Pause after a packet of a held-back channel, so that it does not spin through tiny packets.
const CHOKED_PAUSE: Duration = Duration::from_millis(10);

/// Longest pause between two packets of a connection whose readers do not read.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Something that arrived on a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Payload of the channel, not of its error stream.
    Data(Bytes),
    /// Payload of the error stream.
    Stderr(Bytes),
    /// A channel request was granted (`true`) or refused.
    Reply(bool),
    /// Exit status of the remote command.
    Exit(u32),
    /// The remote command was killed by this signal (name without `SIG`).
    Killed(String),
    /// The peer will send no more data.
    Eof,
}

impl Event {
    fn size(&self) -> usize {
        match self {
            Event::Data(bytes) | Event::Stderr(bytes) => bytes.len(),
            _ => 0,
        }
    }
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<Event>,
    closed: bool,
    /// The connection ended before the channel did: nobody knows what else would have come.
    lost: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
    reader_gone: bool,
}

#[derive(Debug, Default)]
struct State {
    queues: HashMap<ChannelId, Queue>,
    unread: usize,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    drained: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The queues of one connection; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Inbox {
    shared: Arc<Shared>,
}

impl Inbox {
    /// An inbox without channels.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts (or finds) the queue of a channel and returns its reader. At most one reader per channel.
    pub fn reader(&self, id: ChannelId) -> InboxReader {
        self.shared.lock().queues.entry(id).or_default();
        InboxReader {
            id,
            shared: Arc::clone(&self.shared),
            rest: Bytes::new(),
            has_ended: false,
        }
    }

    /// Starts the queue of a channel whose reader comes later.
    pub fn expect(&self, id: ChannelId) {
        self.shared.lock().queues.entry(id).or_default();
    }

    /// Appends an event; dropped when the channel is unknown or its reader has gone.
    pub fn push(&self, id: ChannelId, event: Event) {
        let mut state = self.shared.lock();
        let size = event.size();
        let Some(queue) = state.queues.get_mut(&id) else {
            return;
        };
        if queue.reader_gone {
            return;
        }
        queue.events.push_back(event);
        let waker = queue.reader.take();
        state.unread += size;
        drop(state);
        wake(waker);
    }

    /// The channel is closed: its reader sees the rest and then the end.
    pub fn close(&self, id: ChannelId) {
        let mut state = self.shared.lock();
        let Some(queue) = state.queues.get_mut(&id) else {
            return;
        };
        queue.closed = true;
        let wakers = [queue.reader.take(), queue.writer.take()];
        if queue.reader_gone {
            state.queues.remove(&id);
        }
        drop(state);
        wakers.into_iter().for_each(wake);
    }

    /// The connection is gone: every reader sees the rest and then the end, which as a byte stream is an error unless the peer had
    /// sent all.
    pub fn close_all(&self) {
        let mut state = self.shared.lock();
        for queue in state.queues.values_mut() {
            queue.lost |= !queue.closed;
        }
        let ids: Vec<_> = state.queues.keys().copied().collect();
        drop(state);
        for id in ids {
            self.close(id);
        }
    }

    /// Unread bytes, all channels together.
    pub fn unread(&self) -> usize {
        self.shared.lock().unread
    }

    /// To be awaited by the protocol side after each packet: returns at once normally, and pauses while too much is
    /// unread. It never waits for good, because a reader may itself wait for what the protocol side sends next.
    pub async fn throttle(&self) {
        let unread = self.unread();
        if unread < HIGH_WATER {
            return;
        }
        self.drained_or(pause_at(unread)).await;
    }

    /// Waits until readers have caught up, at most this long.
    async fn drained_or(&self, pause: Duration) {
        // Both outcomes are fine.
        let _ = tokio::time::timeout(pause, self.shared.drained.notified()).await;
    }
}

/// Decides which window a server grants next.
///
/// russh grants a channel that has used up half of its window a full one, of a size that is one for the whole
/// connection. While too much is unread this size is tiny: a channel that goes on sending uses up the window it has and
/// then trickles, two bytes per round trip, which is how it finds out that readers have caught up. Channels that have
/// window left are not disturbed.
#[derive(Debug)]
pub struct Choke {
    open_window: u32,
    choked: bool,
}

impl Choke {
    /// `open_window` is granted as long as readers keep up.
    pub const fn new(open_window: u32) -> Self {
        Self {
            open_window,
            choked: false,
        }
    }

    /// The window to grant from now on, with this many bytes unread.
    pub const fn window(&mut self, unread: usize) -> u32 {
        self.choked = unread >= if self.choked { HIGH_WATER / 2 } else { HIGH_WATER };
        if self.choked {
            CHOKED_WINDOW
        } else {
            self.open_window
        }
    }

    /// To be awaited after a packet of this size.
    pub async fn pace(&self, inbox: &Inbox, size: usize) {
        if self.choked && size <= CHOKED_WINDOW as usize && inbox.unread() >= HIGH_WATER / 2 {
            inbox.drained_or(CHOKED_PAUSE).await;
        }
    }
}

/// How long a connection pauses with this many unread bytes: doubles with every further eighth of the high water.
fn pause_at(unread: usize) -> Duration {
    let steps = unread.saturating_sub(HIGH_WATER) / (HIGH_WATER / 8);
    let factor = 1u32 << u32::try_from(steps).unwrap_or(u32::MAX).min(16);
    Duration::from_millis(10)
        .saturating_mul(factor)
        .min(LONGEST_PAUSE)
}

fn connection_lost() -> io::Error {
    io::Error::new(
        io::ErrorKind::ConnectionReset,
        "the SSH connection ended before the stream on it did",
    )
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Reads one channel's queue: as events, or as a byte stream, which fails with [`io::ErrorKind::ConnectionReset`] when the connection
/// ends before the peer has sent all.
#[derive(Debug)]
pub struct InboxReader {
    id: ChannelId,
    shared: Arc<Shared>,
    rest: Bytes,
    /// As a byte stream it has been read to its end.
    has_ended: bool,
}

impl InboxReader {
    /// The next event; `None` when the channel is closed and everything was read.
    pub async fn next(&mut self) -> Option<Event> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Ready once the channel is closed, read or not: whoever writes to it must not wait for window any more.
    pub fn poll_closed(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self.shared.lock().queues.get_mut(&self.id) {
            Some(queue) if !queue.closed => {
                queue.writer = Some(cx.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    fn is_lost(&self) -> bool {
        let state = self.shared.lock();
        state.queues.get(&self.id).is_some_and(|queue| queue.lost)
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let mut state = self.shared.lock();
        let Some(queue) = state.queues.get_mut(&self.id) else {
            return Poll::Ready(None);
        };
        let Some(event) = queue.events.pop_front() else {
            if queue.closed {
                return Poll::Ready(None);
            }
            queue.reader = Some(cx.waker().clone());
            return Poll::Pending;
        };
        state.unread = state.unread.saturating_sub(event.size());
        if state.unread < HIGH_WATER / 2 {
            self.shared.drained.notify_waiters();
        }
        Poll::Ready(Some(event))
    }
}

impl AsyncRead for InboxReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.rest.is_empty() {
            // Whoever reads on after the end is told of it again: the channel itself may stay open until he closes it.
            if self.has_ended {
                return Poll::Ready(Ok(()));
            }
            match std::task::ready!(self.poll_next(cx)) {
                Some(Event::Data(data)) => self.rest = data,
                None if self.is_lost() => return Poll::Ready(Err(connection_lost())),
                Some(Event::Eof) | None => self.has_ended = true,
                Some(_) => {}
            }
        }
        let len = self.rest.len().min(buf.remaining());
        let chunk = self.rest.split_to(len);
        buf.put_slice(&chunk);
        Poll::Ready(Ok(()))
    }
}

impl Drop for InboxReader {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let Some(queue) = state.queues.get_mut(&self.id) else {
            return;
        };
        queue.reader_gone = true;
        let freed: usize = queue.events.drain(..).map(|event| event.size()).sum();
        if queue.closed {
            state.queues.remove(&self.id);
        }
        state.unread = state.unread.saturating_sub(freed);
        if state.unread < HIGH_WATER / 2 {
            self.shared.drained.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    fn id(n: u32) -> ChannelId {
        // Channel ids have no public constructor except decoding.
        use russh::keys::ssh_encoding::Decode;
        let bytes = n.to_be_bytes();
        ChannelId::decode(&mut bytes.as_slice()).unwrap()
    }

    #[tokio::test]
    async fn data_arrives_in_order_and_ends_after_close() {
        let inbox = Inbox::new();
        let mut reader = inbox.reader(id(1));
        inbox.push(id(1), Event::Data(Bytes::from_static(b"one ")));
        inbox.push(id(1), Event::Data(Bytes::from_static(b"two")));
        inbox.close(id(1));
        let mut text = String::new();
        reader.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "one two");
        assert_eq!(inbox.unread(), 0);
    }

    /// As of any other byte stream: some readers look for the end before they take it.
    #[tokio::test(start_paused = true)]
    async fn the_end_is_told_however_often_it_is_read() {
        let inbox = Inbox::new();
        let mut reader = inbox.reader(id(1));
        inbox.push(id(1), Event::Data(Bytes::from_static(b"all")));
        inbox.push(id(1), Event::Eof);
        let mut buffer = [0; 8];
        for wanted in [3, 0, 0] {
            let read = tokio::time::timeout(LONGEST_PAUSE, reader.read(&mut buffer)).await;
            assert_eq!(
                read.expect("nobody waits for an end that has come").unwrap(),
                wanted
            );
        }
    }

    /// What was cut off must not pass for the whole.
    #[tokio::test]
    async fn the_end_of_the_connection_is_no_end_of_a_stream() {
        let inbox = Inbox::new();
        let [mut cut, mut whole, mut closed] = [1, 2, 3].map(|n| inbox.reader(id(n)));
        for n in 1..=3 {
            inbox.push(id(n), Event::Data(Bytes::from_static(b"some")));
        }
        inbox.push(id(2), Event::Eof);
        inbox.close(id(3));
        inbox.close_all();
        let mut text = String::new();
        let error = cut.read_to_string(&mut text).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        for reader in [&mut whole, &mut closed] {
            let mut text = String::new();
            reader.read_to_string(&mut text).await.unwrap();
            assert_eq!(text, "some");
        }
    }

    #[tokio::test]
    async fn a_waiting_reader_is_woken() {
        let inbox = Inbox::new();
        let mut reader = inbox.reader(id(1));
        let pushing = inbox.clone();
        let (event, ()) = tokio::join!(reader.next(), async move {
            tokio::task::yield_now().await;
            pushing.push(id(1), Event::Exit(3));
        });
        assert_eq!(event, Some(Event::Exit(3)));
    }

    #[tokio::test]
    async fn a_waiting_writer_learns_of_the_end() {
        let inbox = Inbox::new();
        let reader = inbox.reader(id(1));
        inbox.push(id(1), Event::Exit(3));
        let closing = inbox.clone();
        tokio::join!(std::future::poll_fn(|cx| reader.poll_closed(cx)), async move {
            tokio::task::yield_now().await;
            closing.close(id(1));
        });
    }

    #[tokio::test]
    async fn what_nobody_will_read_is_not_kept() {
        let inbox = Inbox::new();
        let reader = inbox.reader(id(1));
        inbox.push(id(1), Event::Data(Bytes::from(vec![0; 100])));
        drop(reader);
        assert_eq!(inbox.unread(), 0);
        inbox.push(id(1), Event::Data(Bytes::from(vec![0; 100])));
        inbox.push(id(2), Event::Data(Bytes::from(vec![0; 100])));
        assert_eq!(inbox.unread(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_inbox_pauses_until_it_is_read_but_never_for_good() {
        let inbox = Inbox::new();
        let mut reader = inbox.reader(id(1));
        inbox.push(id(1), Event::Data(Bytes::from(vec![0; 3 * HIGH_WATER])));
        let before = tokio::time::Instant::now();
        inbox.throttle().await;
        assert_eq!(before.elapsed(), LONGEST_PAUSE);
        let before = tokio::time::Instant::now();
        tokio::join!(inbox.throttle(), async {
            reader.next().await;
        });
        assert_eq!(before.elapsed(), Duration::ZERO);
    }

    #[test]
    fn a_server_chokes_late_and_opens_early_enough() {
        let mut choke = Choke::new(1000);
        let windows = [0, HIGH_WATER - 1, HIGH_WATER, HIGH_WATER / 2, HIGH_WATER / 2 - 1]
            .map(|unread| choke.window(unread));
        assert_eq!(windows, [1000, 1000, CHOKED_WINDOW, CHOKED_WINDOW, 1000]);
    }

    #[test]
    fn the_pause_grows_with_what_is_unread() {
        assert_eq!(pause_at(HIGH_WATER), Duration::from_millis(10));
        assert!(pause_at(HIGH_WATER * 3 / 2) > pause_at(HIGH_WATER));
        assert_eq!(pause_at(usize::MAX), LONGEST_PAUSE);
    }
}
