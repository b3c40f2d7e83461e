//! Services of this process.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;

use anyhow::Result;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::hosts::Host;
use crate::load::Head;

/// Connections that may wait to be accepted: all that are opened at once, so that none is tried again a second later.
const BACKLOG: u32 = 4096;

/// Most bytes of a request that are kept.
const KEPT: usize = 64 * 1024;

/// A service whose connections are each answered so, on one thread, until this process ends. Returns its port of the loopback
/// interface.
pub(super) fn serve<A>(answer: impl Fn(TcpStream) -> A + Send + 'static) -> Result<u16>
where
    A: Future<Output = Result<()>> + Send + 'static,
{
    serve_at(0, answer)
}

/// The same, reached only from within a host, at this port of its loopback interface.
pub(super) fn serve_within<A>(
    host: &Host<'_>,
    port: u16,
    answer: impl Fn(TcpStream) -> A + Send + 'static,
) -> Result<()>
where
    A: Future<Output = Result<()>> + Send + 'static,
{
    // A thread of its own, which does not come back from there.
    let served = thread::scope(|scope| {
        scope
            .spawn(|| {
                host.enter_network()?;
                serve_at(port, answer)
            })
            .join()
    });
    served
        .map_err(|_| anyhow::anyhow!("the service panicked"))?
        .map(drop)
}

fn serve_at<A>(port: u16, answer: impl Fn(TcpStream) -> A + Send + 'static) -> Result<u16>
where
    A: Future<Output = Result<()>> + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let listener = {
        let _inside = runtime.enter();
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
        socket.listen(BACKLOG)?
    };
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        runtime.block_on(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream));
            }
        });
    });
    Ok(port)
}

/// Answers every request without a body with the same few bytes.
pub(super) async fn hello_at_once(stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    hello(stream).await
}

/// The same, on any stream.
pub(in crate::bench) async fn hello(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> Result<()> {
    let mut heads = Vec::with_capacity(4096);
    while stream.read_buf(&mut heads).await? > 0 {
        // One request at a time on a connection.
        if heads.ends_with(b"\r\n\r\n") {
            heads.clear();
            stream.write_all(HELLO).await?;
        }
    }
    Ok(())
}

pub(super) const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n";

/// An answer with a body of a type.
pub(super) fn whole(media_type: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {media_type}\r\ncontent-length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// A connection to a service, on which requests come one after the other.
pub(super) struct Connection {
    stream: TcpStream,
    /// The beginning of the present request.
    request: Vec<u8>,
    /// Where the rest of it is read to.
    rest: Vec<u8>,
}

impl Connection {
    pub(super) fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            request: Vec::with_capacity(KEPT),
            rest: Vec::new(),
        })
    }

    /// The next request, once all of it has come; of a long one, the beginning. `None`: the client has gone.
    pub(super) async fn request(&mut self) -> Result<Option<&[u8]>> {
        self.request.clear();
        let head = loop {
            if self.stream.read_buf(&mut self.request).await? == 0 {
                return Ok(None);
            }
            if let Some(head) = Head::of(&self.request) {
                break head;
            }
        };
        let bytes = head.bytes + head.body_bytes().unwrap_or(0);
        let mut left = bytes.saturating_sub(self.request.len());
        while left > 0 {
            let size = match self.request.len() < KEPT {
                true => self.stream.read_buf(&mut self.request).await?,
                false => self.throw_away().await?,
            };
            if size == 0 {
                return Ok(None);
            }
            left = left.saturating_sub(size);
        }
        Ok(Some(&self.request))
    }

    async fn throw_away(&mut self) -> Result<usize> {
        self.rest.clear();
        self.rest.reserve(KEPT);
        Ok(self.stream.read_buf(&mut self.rest).await?)
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(bytes).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Bulk, Destination};
    use std::time::Duration;

    /// Says how long requests are of which it is told all.
    async fn lengths(stream: TcpStream) -> Result<()> {
        let mut connection = Connection::new(stream)?;
        while let Some(request) = connection.request().await? {
            let answer = "x".repeat(request.len());
            connection.send(&whole("text/plain", answer.as_bytes())).await?;
        }
        Ok(())
    }

    #[test]
    fn requests_are_read_to_their_ends_and_their_beginnings_are_kept() {
        let port = serve(lengths).unwrap();
        let load = Bulk {
            clients: 2,
            duration: Duration::from_millis(20),
        };
        let kept = |body: usize| {
            let measured = load
                .post(&Destination::here(port, "/", None), &vec![b'x'; body])
                .unwrap();
            measured.body_bytes
        };
        assert_eq!(kept(2000) - kept(1000), 1000);
        assert_eq!(kept(5 * KEPT), KEPT);
    }
}
