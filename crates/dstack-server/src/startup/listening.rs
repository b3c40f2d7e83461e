//! Where clients connect.

use std::io;
use std::net::SocketAddr;

use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpSocket, lookup_host};

use super::ServerError;

/// Connections that may wait to be accepted. A client that finds the queue full tries again a second later, so that a
/// burst of clients must fit; the system has a limit of its own (`net.core.somaxconn`, 4096).
const BACKLOG: u32 = 4096;

/// Listens on the first address of a host that can be listened on.
pub(super) async fn listen(host: &str, port: u16) -> Result<TcpListener, ServerError> {
    first_bound(host, port)
        .await
        .map_err(|source| ServerError::Listen {
            address: format!("{host}:{port}"),
            source,
        })
}

async fn first_bound(host: &str, port: u16) -> io::Result<TcpListener> {
    let mut failure = io::Error::new(io::ErrorKind::InvalidInput, "the host has no address");
    for address in lookup_host((host, port)).await? {
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
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Takes as many open files, connections among them, as this process may have. Services are started with 1,024, so that
/// programs that know no more go on to work; the server has one for each client and each host.
pub(super) fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_burst_of_clients_need_not_come_again() {
        let listener = listen("127.0.0.1", 0).await.unwrap();
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
    async fn a_name_is_listened_on_and_a_wrong_one_is_told() {
        let listener = listen("localhost", 0).await.unwrap();
        assert!(listener.local_addr().unwrap().ip().is_loopback());
        let taken = listener.local_addr().unwrap();
        let error = listen(&taken.ip().to_string(), taken.port()).await.unwrap_err();
        assert!(error.to_string().contains(&taken.port().to_string()), "{error}");
    }

    #[test]
    fn all_files_that_may_be_open_can_be() {
        raise_file_limit();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
