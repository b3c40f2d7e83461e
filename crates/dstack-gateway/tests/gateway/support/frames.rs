//! HTTP/2 (RFC 9113) as bytes: a client that may break every rule.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Types of frames (RFC 9113, 6).
pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const PRIORITY: u8 = 2;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PUSH_PROMISE: u8 = 5;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
}

pub(crate) const END_STREAM: u8 = 0x1;
pub(crate) const ACK: u8 = 0x1;
pub(crate) const END_HEADERS: u8 = 0x4;
pub(crate) const PADDED: u8 = 0x8;

/// Codes of errors (RFC 9113, 7).
pub(crate) mod code {
    pub(crate) const PROTOCOL: u32 = 1;
    pub(crate) const FLOW_CONTROL: u32 = 3;
    pub(crate) const STREAM_CLOSED: u32 = 5;
    pub(crate) const FRAME_SIZE: u32 = 6;
    pub(crate) const REFUSED_STREAM: u32 = 7;
    pub(crate) const COMPRESSION: u32 = 9;
    pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;
}

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: impl Into<Vec<u8>>) -> Vec<u8> {
    let payload = payload.into();
    let mut bytes = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A block of header lines, none of them compressed nor remembered (RFC 7541, 6.2.2).
pub(crate) fn block(lines: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in lines {
        bytes.push(0);
        for text in [name, value] {
            bytes.extend(length(text.len()));
            bytes.extend(text.as_bytes());
        }
    }
    bytes
}

/// A number in seven bits and as many bytes as it needs (RFC 7541, 5.1).
fn length(number: usize) -> Vec<u8> {
    let Some(mut rest) = number.checked_sub(127) else {
        return vec![u8::try_from(number).unwrap()];
    };
    let mut bytes = vec![127];
    while rest >= 128 {
        bytes.push(u8::try_from(rest % 128 + 128).unwrap());
        rest /= 128;
    }
    bytes.push(u8::try_from(rest).unwrap());
    bytes
}

/// How an exchange ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The connection is over, with this code, or without a word.
    Connection(Option<u32>),
    /// The stream is, the connection goes on.
    Stream(u32),
    /// It was answered with these header lines, packed.
    Answered(Vec<u8>),
}

fn code_at(payload: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(payload[at..at + 4].try_into().unwrap())
}

/// A connection.
pub(crate) struct Frames(TlsStream<TcpStream>);

impl Frames {
    /// Has said hello, and heard the other side's settings.
    pub(crate) async fn open(mut stream: TlsStream<TcpStream>) -> Self {
        stream.write_all(PREFACE).await.unwrap();
        stream.write_all(&frame(kind::SETTINGS, 0, 0, [])).await.unwrap();
        let mut frames = Self(stream);
        let first = frames.next().await.unwrap();
        assert_eq!((first.kind, first.flags & ACK), (kind::SETTINGS, 0), "{first:?}");
        frames.send(&frame(kind::SETTINGS, ACK, 0, [])).await;
        frames
    }

    /// A connection that was not begun.
    pub(crate) const fn raw(stream: TlsStream<TcpStream>) -> Self {
        Self(stream)
    }

    /// The other side may have ended it meanwhile.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes).await;
        let _ = self.0.flush().await;
    }

    /// `None` when the connection is over.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.read(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        self.read(&mut payload).await?;
        Some(Frame {
            kind: head[3],
            flags: head[4],
            stream: u32::from_be_bytes([head[5], head[6], head[7], head[8]]),
            payload,
        })
    }

    async fn read(&mut self, bytes: &mut [u8]) -> Option<()> {
        let read = timeout(Duration::from_secs(20), self.0.read_exact(bytes)).await;
        read.expect("the connection is neither used nor ended")
            .ok()
            .map(drop)
    }

    /// What has become of it when all that was sent was read; [`Outcome::Stream`] with 0 when it goes on.
    pub(crate) async fn settled(&mut self) -> Outcome {
        self.send(&frame(kind::PING, 0, 0, *b"read all")).await;
        while let Some(frame) = self.next().await {
            match frame.kind {
                kind::GOAWAY => return Outcome::Connection(Some(code_at(&frame.payload, 4))),
                kind::PING if frame.flags & ACK != 0 => return Outcome::Stream(0),
                _ => {}
            }
        }
        Outcome::Connection(None)
    }

    /// What becomes of it, and of this stream.
    pub(crate) async fn outcome(&mut self, stream: u32) -> Outcome {
        while let Some(frame) = self.next().await {
            match frame.kind {
                kind::GOAWAY => return Outcome::Connection(Some(code_at(&frame.payload, 4))),
                kind::RST_STREAM if frame.stream == stream => {
                    return Outcome::Stream(code_at(&frame.payload, 0));
                }
                kind::HEADERS if frame.stream == stream => return Outcome::Answered(frame.payload),
                _ => {}
            }
        }
        Outcome::Connection(None)
    }
}
