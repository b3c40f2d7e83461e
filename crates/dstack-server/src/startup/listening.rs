//! Where clients connect.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::net::sockopt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpSocket, lookup_host};

use super::ServerError;

/// Connections that may wait to be accepted. A client that finds the queue full tries again a second later, so that a
/// burst of clients must fit; the system has a limit of its own (`net.core.somaxconn`, 4096).
const BACKLOG: u32 = 4096;

/// Listens on the first address that can be listened on of a host and a port.
pub(super) async fn listen(address: String) -> Result<TcpListener, ServerError> {
    first_bound(&address)
        .await
        .map_err(|source| ServerError::Listen { address, source })
}

/// What to do about a failure.
pub(super) fn remedy(failure: &io::Error) -> &'static str {
    match failure.kind() {
        io::ErrorKind::AddrInUse => "use another --port, or stop what uses it",
        io::ErrorKind::PermissionDenied => "use a --port of 1024 or more",
        _ => "use another --host, one of this machine",
    }
}

async fn first_bound(address: &str) -> io::Result<TcpListener> {
    let mut failure = io::Error::new(io::ErrorKind::InvalidInput, "the host has no address");
    for address in lookup_host(address).await? {
        match bind(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_reuseaddr(true)?; // so that a server can start again where one has just ended
    watch_silent_clients(&socket)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// How long a client may be silent before the system asks whether it is still there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);

/// How often it is asked, and how many times in vain.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 4;

/// How long a client may leave unread what was sent to it.
const UNREAD: Duration = Duration::from_secs(120);

/// Closes connections of clients that are gone without a word, or do not read. Connections inherit what is set of the
/// socket that listens.
fn watch_silent_clients(socket: &TcpSocket) -> io::Result<()> {
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    let unread = u32::try_from(UNREAD.as_millis()).unwrap_or(u32::MAX);
    Ok(sockopt::set_tcp_user_timeout(socket, unread)?)
}

/// Takes as many open files, connections among them, as this process may have. Services are started with 1,024, so that
/// programs that know no more go on to work; the server has one for each client and each host. Returns how many may be
/// open; `None`: any number.
pub(super) fn raise_file_limit() -> Option<u64> {
    let before = getrlimit(Resource::Nofile);
    if before.current == before.maximum {
        return before.current;
    }
    let raised = Rlimit {
        current: before.maximum,
        ..before
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => before.maximum,
        Err(error) => {
            tracing::warn!(%error, "the limit of open files stays as it is");
            before.current
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn a_burst_of_clients_need_not_come_again() {
        let listener = listen("127.0.0.1:0".to_owned()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let limit = fs_err::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        let burst = limit.trim().parse::<usize>().unwrap().min(1000);
        // Nobody accepts them.
        let clients: Vec<TcpStream> = (0..burst)
            .map(|_| TcpStream::connect_timeout(&address, Duration::from_millis(900)).unwrap())
            .collect();
        assert_eq!(clients.len(), burst);
    }

    #[tokio::test]
    async fn a_name_is_listened_on_and_a_failure_tells_what_to_do() {
        let failure = async |address: &str| listen(address.to_owned()).await.unwrap_err().to_string();
        let listener = listen("localhost:0".to_owned()).await.unwrap();
        let taken = listener.local_addr().unwrap();
        assert!(taken.ip().is_loopback());
        assert_eq!(
            failure(&taken.to_string()).await,
            format!("cannot listen on {taken}: use another --port, or stop what uses it")
        );
        assert!(remedy(&io::ErrorKind::PermissionDenied.into()).contains("1024"));
        // An address for documentation, which is no machine's.
        assert_eq!(
            failure("192.0.2.1:0").await,
            "cannot listen on 192.0.2.1:0: use another --host, one of this machine"
        );
    }

    #[tokio::test]
    async fn clients_that_are_gone_are_found() {
        let listener = listen("127.0.0.1:0".to_owned()).await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        assert!(sockopt::socket_keepalive(&accepted).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&accepted).unwrap(), KEEPALIVE_IDLE);
        assert_eq!(sockopt::tcp_keepintvl(&accepted).unwrap(), KEEPALIVE_INTERVAL);
        assert_eq!(sockopt::tcp_keepcnt(&accepted).unwrap(), KEEPALIVE_PROBES);
        assert_eq!(sockopt::tcp_user_timeout(&accepted).unwrap(), 120_000);
        drop(client);
    }

    #[test]
    fn all_files_that_may_be_open_can_be() {
        let files = raise_file_limit();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
        assert_eq!(files, limit.maximum);
    }
}
