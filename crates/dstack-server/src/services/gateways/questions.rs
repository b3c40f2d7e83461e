//! Gateways ask servers who may use a project, at sockets that the servers open on the hosts of the gateways.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use dstack_ssh::{ChannelStream, RemoteSocket};
use dstack_system::task;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use super::Gateways;
use super::link::Link;
use crate::wiring::GatewayHosts;

/// Pause before a socket is opened again.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// A question takes no longer; gateways wait ten seconds.
const QUESTION_LIMIT: Duration = Duration::from_secs(30);

/// Keeps a socket open at the host of a replica, and answers there.
pub(super) async fn answer(gateways: Arc<Gateways>, link: Arc<Link>, hosts: Arc<GatewayHosts>) {
    let mut told = String::new();
    loop {
        match open(&gateways, &link, &hosts).await {
            Ok(mut socket) => {
                told.clear();
                while let Some(connection) = socket.accept().await {
                    // More wait at the socket.
                    if let Ok(place) = Arc::clone(&link.questions).acquire_owned().await {
                        pass_on(&gateways, connection, place);
                    }
                }
            }
            Err(error) if error != told => {
                tracing::warn!(gateway.replica = %link.replica, error, "a gateway cannot ask this server who may use its services");
                told = error;
            }
            Err(_) => {}
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// Each time another one: nobody removes the file of the last one at once.
async fn open(gateways: &Gateways, link: &Link, hosts: &GatewayHosts) -> Result<RemoteSocket, String> {
    let reach = link.reach(&gateways.database).await?;
    let name = format!("{}.sock", gateways.random.uuid().simple());
    hosts.socket(&reach, &name).await
}

/// Has this server answer what comes, as if it came from this machine.
fn pass_on(gateways: &Gateways, mut connection: ChannelStream, place: OwnedSemaphorePermit) {
    let Some(address) = gateways.address.get().copied() else {
        return;
    };
    task::spawn("question of a gateway", async move {
        let _place = place;
        let opened = TcpStream::connect(own(address)).await;
        let Ok(mut server) = opened else { return };
        // Whoever ends it has what he wanted.
        let asking = tokio::io::copy_bidirectional(&mut connection, &mut server);
        let _ = tokio::time::timeout(QUESTION_LIMIT, asking).await;
    });
}

/// The address at which this machine itself reaches the server.
fn own(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, address.port())
}
