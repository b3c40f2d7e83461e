//! Fluent's forward protocol, version 1: MessagePack over TCP, in "Forward mode", each message acknowledged by the id of
//! its chunk.

use std::io;
use std::time::Duration;

use dstack_system::{Locked, Random};
use dstack_units::Time;
use rmpv::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Record, STORE};
use crate::LogError;
use crate::remote::retry::{Failure, Patience};

/// For a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// From a message to its acknowledgement.
const ANSWER: Duration = Duration::from_secs(15);
/// Connections kept for the next message.
const IDLE: usize = 8;
/// An acknowledgement is some fifty bytes.
const LONGEST_ANSWER: usize = 4096;

#[derive(Debug)]
pub(super) struct Forward {
    address: (String, u16),
    idle: Locked<Vec<TcpStream>>,
}

impl Forward {
    pub(super) fn new(host: &str, port: u16) -> Self {
        Self {
            address: (host.to_owned(), port),
            idle: Locked::default(),
        }
    }

    /// Sends a message until it is acknowledged.
    pub(super) async fn send(&self, tag: &str, records: &[Record]) -> Result<(), LogError> {
        let chunk = Random::system().uuid().simple().to_string();
        let message = message(tag, records, &chunk);
        let mut patience = Patience::new(STORE);
        while let Err(error) = self.send_once(&message, &chunk).await {
            patience.wait(Failure::passing(error)).await?;
        }
        Ok(())
    }

    /// A connection on which anything fails is closed.
    async fn send_once(&self, message: &[u8], chunk: &str) -> io::Result<()> {
        let mut connection = self.connection().await?;
        let answer = async {
            connection.write_all(message).await?;
            acknowledgement(&mut connection).await
        };
        let acknowledged = timeout(ANSWER, answer).await??;
        if acknowledged != chunk {
            return Err(io::Error::other("it acknowledged something else"));
        }
        let mut idle = self.idle.lock();
        if idle.len() < IDLE {
            idle.push(connection);
        }
        Ok(())
    }

    async fn connection(&self) -> io::Result<TcpStream> {
        loop {
            let kept = self.idle.lock().pop();
            let Some(kept) = kept else {
                break;
            };
            // One that was closed meanwhile can be read: its end.
            if matches!(kept.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
                return Ok(kept);
            }
        }
        let (host, port) = (self.address.0.as_str(), self.address.1);
        let connection = timeout(CONNECT, TcpStream::connect((host, port))).await??;
        connection.set_nodelay(true)?;
        Ok(connection)
    }
}

/// `[tag, [[time, record], …], {chunk, size}]`.
fn message(tag: &str, records: &[Record], chunk: &str) -> Vec<u8> {
    let entry = |record: &Record| {
        let fields = [
            ("message", record.message.as_str().into()),
            ("@timestamp", record.timestamp.to_string().into()),
            ("stream", record.stream.as_str().into()),
            ("dstack_id", record.dstack_id.as_str().into()),
        ];
        let fields = fields.map(|(name, value): (&str, Value)| (Value::from(name), value));
        Value::Array(vec![event_time(record.timestamp), Value::Map(fields.into())])
    };
    let message = Value::Array(vec![
        tag.into(),
        Value::Array(records.iter().map(entry).collect()),
        Value::Map(vec![
            ("chunk".into(), chunk.into()),
            ("size".into(), records.len().into()),
        ]),
    ]);
    let mut bytes = Vec::new();
    // Writing into memory does not fail.
    rmpv::encode::write_value(&mut bytes, &message).ok();
    bytes
}

/// Extension type 0: seconds and nanoseconds.
fn event_time(time: Time) -> Value {
    let micros = time.as_micros();
    let seconds = u32::try_from(micros.div_euclid(1_000_000)).unwrap_or(0);
    let nanos = u32::try_from(micros.rem_euclid(1_000_000) * 1000).unwrap_or(0);
    let bytes = [seconds.to_be_bytes(), nanos.to_be_bytes()].concat();
    Value::Ext(0, bytes)
}

/// Reads `{"ack": chunk}`.
async fn acknowledgement(connection: &mut TcpStream) -> io::Result<String> {
    let mut bytes = Vec::new();
    loop {
        if connection.read_buf(&mut bytes).await? == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the connection was closed before the message was acknowledged",
            ));
        }
        match rmpv::decode::read_value(&mut bytes.as_slice()) {
            Ok(answer) => {
                return chunk_of(&answer).ok_or_else(|| io::Error::other("the answer is no acknowledgement"));
            }
            Err(_) if bytes.len() < LONGEST_ANSWER => {}
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}

fn chunk_of(answer: &Value) -> Option<String> {
    let (_, chunk) = answer
        .as_map()?
        .iter()
        .find(|(key, _)| key.as_str() == Some("ack"))?;
    chunk.as_str().map(str::to_owned)
}
