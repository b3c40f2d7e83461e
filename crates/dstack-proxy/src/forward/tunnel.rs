//! Connections that have become WebSockets.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use dstack_system::{Locked, task};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional_with_sizes};
use tokio::time::{Instant, sleep_until, timeout};

use crate::later::later;
use crate::limits::Permit;
use crate::replica::Visit;
use crate::stats::Record;

/// Bytes under way in each direction.
const BUFFER: usize = 16 * 1024;

/// Time for both sides to speak the other protocol, once both have said that they will: the client has to take the answer.
const UPGRADE_LIMIT: Duration = Duration::from_secs(30);

/// Both sides of a connection, which counts as a request until it is closed.
#[derive(Debug)]
pub(crate) struct Tunnel {
    pub(crate) client: OnUpgrade,
    pub(crate) replica: OnUpgrade,
    pub(crate) visit: Visit,
    pub(crate) record: Record,
    /// It ends when nothing has come from either side for so long.
    pub(crate) silence: Duration,
    pub(crate) permit: Permit,
}

impl Tunnel {
    /// Passes on what comes from both sides until both have ended.
    pub(crate) fn start(self) {
        task::spawn("websocket", async move {
            let Self {
                client,
                replica,
                visit,
                record,
                silence,
                permit,
            } = self;
            if let Err(error) = pass_on(client, replica, &visit, silence).await {
                tracing::debug!(%error, "a WebSocket broke");
            }
            drop((visit, record, permit));
        });
    }
}

async fn pass_on(client: OnUpgrade, replica: OnUpgrade, visit: &Visit, silence: Duration) -> io::Result<()> {
    let upgraded = timeout(UPGRADE_LIMIT, async { tokio::try_join!(client, replica) }).await?;
    let (client, replica) = upgraded.map_err(io::Error::other)?;
    visit.completed();
    let last = Arc::new(Locked::new(Instant::now()));
    let mut client = Watched::new(client, &last);
    let mut replica = Watched::new(replica, &last);
    tokio::select! {
        copied = copy_bidirectional_with_sizes(&mut client, &mut replica, BUFFER, BUFFER) => copied.map(drop),
        () = silent(&last, silence) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Ends when nothing has come for so long.
async fn silent(last: &Locked<Instant>, limit: Duration) {
    loop {
        let over = later(*last.lock(), limit);
        if Instant::now() >= over {
            return;
        }
        sleep_until(over).await;
    }
}

/// A side of a tunnel that notes when something came from it.
struct Watched {
    side: TokioIo<Upgraded>,
    last: Arc<Locked<Instant>>,
}

impl Watched {
    fn new(side: Upgraded, last: &Arc<Locked<Instant>>) -> Self {
        Self {
            side: TokioIo::new(side),
            last: Arc::clone(last),
        }
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = ready!(Pin::new(&mut self.side).poll_read(cx, buffer));
        *self.last.lock() = Instant::now();
        Poll::Ready(read)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.side).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.side).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.side).poll_shutdown(cx)
    }
}
