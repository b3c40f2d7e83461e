//! Open channels: a byte stream to a remote port, or a running remote command.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use dstack_system::task;
use russh::ChannelWriteHalf;
use russh::client::Msg;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::inbox::{Event, InboxReader};

/// How a remote command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitStatus {
    /// It exited with this status.
    Code(u32),
    /// It was killed by this signal (name without `SIG`).
    Signal(String),
    /// The connection ended before the command did, or the server did not say.
    Unknown,
}

impl ExitStatus {
    /// Whether the command exited with 0.
    pub fn success(&self) -> bool {
        *self == ExitStatus::Code(0)
    }
}

/// The sending half of a channel; closes it when dropped.
struct Sending {
    half: Option<ChannelWriteHalf<Msg>>,
    writer: Pin<Box<dyn AsyncWrite + Send>>,
}

impl Sending {
    fn new(half: ChannelWriteHalf<Msg>) -> Self {
        let writer = Box::pin(half.make_writer());
        Self {
            half: Some(half),
            writer,
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let Some(half) = self.half.take() else { return };
        // Outside a runtime the protocol task is gone, and the connection with it.
        if tokio::runtime::Handle::try_current().is_ok() {
            task::spawn("ssh-channel-close", async move {
                // A closed connection has closed the channel already.
                let _ = half.close().await;
            });
        }
    }
}

/// A bidirectional byte stream over a channel. Dropping it closes the channel; shutting it down sends end-of-file.
pub struct ChannelStream {
    reader: InboxReader,
    sending: Sending,
}

impl std::fmt::Debug for ChannelStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChannelStream").finish_non_exhaustive()
    }
}

impl ChannelStream {
    pub(crate) fn new(reader: InboxReader, half: ChannelWriteHalf<Msg>) -> Self {
        Self {
            reader,
            sending: Sending::new(half),
        }
    }
}

impl AsyncRead for ChannelStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.reader).poll_read(cx, buf)
    }
}

impl AsyncWrite for ChannelStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        // russh would wait for window that a closed channel never gets.
        if self.reader.poll_closed(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.sending.writer.as_mut().poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.sending.writer.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.sending.writer.as_mut().poll_shutdown(cx)
    }
}

/// A running remote command. Dropping it closes the channel.
///
/// As a stream it carries the command's standard input and output; its error output is only seen by
/// [`ExecChannel::next`].
pub struct ExecChannel {
    stream: ChannelStream,
}

impl std::fmt::Debug for ExecChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExecChannel").finish_non_exhaustive()
    }
}

impl ExecChannel {
    pub(crate) fn new(stream: ChannelStream) -> Self {
        Self { stream }
    }

    /// The next thing that happened: output, end, status. `None` when the channel is closed.
    pub async fn next(&mut self) -> Option<Event> {
        self.stream.reader.next().await
    }

    /// The command's standard input and output as one stream.
    pub fn into_stream(self) -> ChannelStream {
        self.stream
    }

    /// The sides apart: what happens, and the command's standard input.
    pub(crate) fn split(&mut self) -> (&mut InboxReader, Pin<&mut (dyn AsyncWrite + Send)>) {
        (&mut self.stream.reader, self.stream.sending.writer.as_mut())
    }

    /// The writer of the command's standard input: write to it, then shut it down to send end-of-file.
    pub fn stdin(&mut self) -> &mut (impl AsyncWrite + Unpin + use<>) {
        &mut self.stream
    }
}
