//! Moving bytes between a channel and a stream.

use std::io;

use bytes::BytesMut;
use dstack_ssh::inbox::{Event, InboxReader};
use russh::ChannelWriteHalf;
use russh::server::Msg;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

/// The sending half of a channel of this server.
pub(crate) type Sending = ChannelWriteHalf<Msg>;

/// Largest piece read at once: what fits one packet.
const PIECE: usize = 32 * 1024;

/// Connects a channel with a stream until both directions have ended or the channel is closed, then closes it.
pub(crate) async fn join<S: AsyncRead + AsyncWrite + Unpin>(
    mut incoming: InboxReader,
    sending: &Sending,
    stream: S,
) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let incoming_ended = Notify::new();
    let inward = async {
        to_stream(&mut incoming, &mut writer, &incoming_ended).await;
    };
    let outward = async {
        // A broken stream ends like a closed one; the peer sees the channel close.
        let _ = to_channel(&mut reader, sending, None).await;
        let _ = sending.eof().await;
        incoming_ended.notified().await;
    };
    tokio::select! {
        () = inward => {}
        () = outward => {}
    }
    let _ = sending.close().await;
}

/// Writes what arrives to `writer`; returns when the channel is closed. `ended` is notified once no more will be
/// written: the peer has sent end-of-file, or the writer takes no more.
pub(crate) async fn to_stream(
    incoming: &mut InboxReader,
    writer: &mut (impl AsyncWrite + Unpin),
    ended: &Notify,
) {
    let mut open = true;
    while let Some(event) = incoming.next().await {
        let failed = match event {
            Event::Data(data) if open => {
                writer.write_all(&data).await.is_err() || writer.flush().await.is_err()
            }
            Event::Eof if open => true,
            _ => false,
        };
        if failed {
            open = false;
            // A reader that has gone does not need to be told that nothing follows.
            let _ = writer.shutdown().await;
            ended.notify_one();
        }
    }
}

/// Sends what `reader` yields as data (or as the error stream, `stream` 1), until its end.
pub(crate) async fn to_channel(
    reader: &mut (impl AsyncRead + Unpin),
    sending: &Sending,
    stream: Option<u32>,
) -> io::Result<()> {
    let mut buffer = BytesMut::with_capacity(PIECE);
    loop {
        buffer.reserve(PIECE);
        if reader.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
        send(sending, stream, &mut buffer).await?;
    }
}

/// Sends the content of `buffer`.
pub(crate) async fn send(sending: &Sending, stream: Option<u32>, buffer: &mut BytesMut) -> io::Result<()> {
    let piece = buffer.split().freeze();
    let sent = match stream {
        None => sending.data_bytes(piece).await,
        Some(stream) => sending.extended_data_bytes(stream, piece).await,
    };
    sent.map_err(io::Error::other)
}
