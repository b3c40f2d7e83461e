//! A way to a port on which nothing goes on until it may.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// A port that leads to another one.
pub(crate) struct Held {
    address: SocketAddr,
    asked: Arc<Semaphore>,
    may_go: Arc<Semaphore>,
}

impl Held {
    /// Leads to this port of this machine.
    pub(crate) async fn before(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let held = Self {
            address: listener.local_addr().unwrap(),
            asked: Arc::new(Semaphore::new(0)),
            may_go: Arc::new(Semaphore::new(0)),
        };
        let (asked, may_go) = (Arc::clone(&held.asked), Arc::clone(&held.may_go));
        tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.unwrap();
            asked.add_permits(1);
            let _go = may_go.acquire().await.unwrap();
            let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let _ = copy_bidirectional(&mut client, &mut server).await;
        });
        held
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Waits until somebody is connected.
    pub(crate) async fn is_asked(&self) {
        super::soon(self.asked.acquire()).await.unwrap().forget();
    }

    pub(crate) fn let_go(&self) {
        self.may_go.add_permits(1);
    }
}
