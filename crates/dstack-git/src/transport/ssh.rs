//! Git over ssh: runs `git-upload-pack` on the remote side.
//!
//! Host keys are checked as with OpenSSH's `StrictHostKeyChecking=accept-new`: a host in `known_hosts` must have a key that is
//! there, another host may have any, which must stay the same while the repo is cloned. Nothing is written to `known_hosts`.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use dstack_ssh::inbox::Event;
use dstack_ssh::{ConnectOptions, Connection, Endpoint, ExecChannel};
use git2::Error;
use git2::transport::{Service, SmartSubtransport, SmartSubtransportStream};
use tokio::io::AsyncWriteExt;
use tokio::runtime::Runtime;

use super::{Access, TransportError, known_hosts};
use crate::remote::Remote;

/// For connection, handshake and authentication.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a waiting clone looks whether it was cancelled.
const STOP_CHECK: Duration = Duration::from_millis(500);
/// As much of the remote side's error output as is shown.
const MAX_MESSAGE: usize = 2000;

/// The transport of one remote.
pub(super) struct Ssh {
    access: Arc<Access>,
}

impl Ssh {
    pub(super) fn new(access: Arc<Access>) -> Self {
        Self { access }
    }

    fn open(&self, url: &str) -> Result<Stream, TransportError> {
        let remote = Remote::parse(url)?;
        let key = self.access.key_for(&remote)?;
        let Remote::Ssh {
            user,
            host,
            port,
            path,
        } = remote
        else {
            return Err(crate::remote::RemoteError.into());
        };
        let network = |source: Box<dyn std::error::Error + Send + Sync>| TransportError::Network {
            host: host.clone(),
            source,
        };
        // libgit2 blocks its thread: the protocol runs on one of its own.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let runtime = runtime.map_err(|source| network(source.into()))?;
        let endpoint = Endpoint {
            host: host.clone(),
            port,
            user,
            keys: vec![key],
            host_key: self.access.seen_key(&host, port),
            known_keys: known_hosts::keys_of(&self.access.known_hosts, &host, port)?,
        };
        let options = ConnectOptions {
            timeout: CONNECT_TIMEOUT,
            keepalive_interval: Duration::from_secs(30),
            ..ConnectOptions::default()
        };
        let command = format!("git-upload-pack {}", quote(&path));
        let opened = runtime.block_on(async {
            let connection = Connection::open(&endpoint, &[], &options).await?;
            let channel = connection.start(&command).await?;
            Ok::<_, dstack_ssh::SshError>((connection, channel))
        });
        let (connection, channel) = opened.map_err(|source| network(source.into()))?;
        self.access.saw_key(&host, port, connection.host_key());
        Ok(Stream {
            access: Arc::clone(&self.access),
            host,
            channel,
            _connection: connection,
            received: Bytes::new(),
            message: Vec::new(),
            answered: false,
            runtime,
        })
    }
}

impl SmartSubtransport for Ssh {
    fn action(&self, url: &str, action: Service) -> Result<Box<dyn SmartSubtransportStream>, Error> {
        match action {
            // One stream carries both: libgit2 keeps it from the first to the second.
            Service::UploadPackLs | Service::UploadPack => {
                let stream = self
                    .open(url)
                    .map_err(|error| Error::from_str(&self.access.fail(error)))?;
                Ok(Box::new(stream))
            }
            Service::ReceivePackLs | Service::ReceivePack => Err(Error::from_str("this client never pushes")),
        }
    }

    fn close(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// A path as the remote shell must see it.
fn quote(path: &str) -> String {
    format!("'{}'", path.replace('\'', r"'\''").replace('!', r"'\!'"))
}

struct Stream {
    access: Arc<Access>,
    host: String,
    channel: ExecChannel,
    _connection: Connection,
    received: Bytes,
    message: Vec<u8>,
    answered: bool,
    // Last: what stands above needs it to be dropped.
    runtime: Runtime,
}

impl Stream {
    /// The next event; `None` at the end.
    fn next(&mut self) -> io::Result<Option<Event>> {
        loop {
            if self.access.stopped() {
                return Err(io::Error::other(self.access.fail(TransportError::Stopped)));
            }
            let next = self
                .runtime
                .block_on(async { tokio::time::timeout(STOP_CHECK, self.channel.next()).await });
            if let Ok(event) = next {
                return Ok(event);
            }
        }
    }

    fn refused(&self) -> io::Error {
        let message = String::from_utf8_lossy(&self.message).trim().to_owned();
        io::Error::other(self.access.fail(TransportError::SshRefused {
            host: self.host.clone(),
            message: if message.is_empty() {
                "the connection ended".to_owned()
            } else {
                message
            },
        }))
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.received.is_empty() {
            match self.next()? {
                Some(Event::Data(data)) => {
                    self.answered = true;
                    self.received = data;
                }
                Some(Event::Stderr(text)) => {
                    let room = MAX_MESSAGE.saturating_sub(self.message.len());
                    self.message.extend(text.iter().take(room));
                }
                // The error output may still follow an early end of the output.
                Some(Event::Eof) if self.answered => return Ok(0),
                Some(_) => {}
                None if self.answered => return Ok(0),
                None => return Err(self.refused()),
            }
        }
        let length = self.received.len().min(buffer.len());
        self.received
            .copy_to_slice(buffer.get_mut(..length).unwrap_or_default());
        Ok(length)
    }
}

impl Write for Stream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.runtime.block_on(self.channel.stdin().write(data))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_survive_the_remote_shell() {
        assert_eq!(quote("a/b.git"), "'a/b.git'");
        assert_eq!(quote("it's !x"), r"'it'\''s '\!'x'");
    }
}
