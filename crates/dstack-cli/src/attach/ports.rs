//! Local ports of a job's ports, reserved before the job runs so that nobody takes them in between.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use dstack_units::PortMapping;

use crate::error::{CliError, ErrorKind};

/// Connections that may wait until the tunnel is open.
const BACKLOG: u32 = 128;

/// Why a port cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// Somebody listens there.
    #[error("Port {local} is already in use")]
    InUse {
        /// The local port.
        local: u16,
        /// The job's port for which it was wished.
        remote: u16,
    },
    /// The job has no such port.
    #[error("Cannot override port {0} not exposed by the run")]
    NotExposed(u16),
    /// The machine refuses.
    #[error("cannot reserve local port {port}")]
    Bind {
        /// The local port.
        port: u16,
        /// What the operating system said.
        #[source]
        source: std::io::Error,
    },
}

impl PortError {
    /// As users see it; `command` is the command whose `-p` helps.
    pub fn into_cli(self, what: &str, command: &str) -> CliError {
        match self {
            Self::InUse { local, remote } => CliError::new(
                ErrorKind::PortInUse,
                format!("Failed to {what}: port {local} is already in use."),
            )
            .hint(format!(
                "use `-p` in `{command}` to override the local port mapping, e.g. `-p {}:{remote}`",
                local.saturating_add(1)
            )),
            other => CliError::from_error(ErrorKind::PortInUse, other),
        }
    }
}

/// Remote ports and the local ones wished for; `None` is any.
pub type Wishes = BTreeMap<u16, Option<u16>>;

/// Listening local sockets by remote port. Who connects before the tunnel is open waits for it.
#[derive(Debug, Default)]
pub struct Reserved {
    listeners: BTreeMap<u16, tokio::net::TcpListener>,
}

/// Puts the user's `-p` mappings over the job's own.
///
/// # Errors
/// A mapping of a port that the job does not have.
pub fn merge(mut wishes: Wishes, overrides: &[PortMapping]) -> Result<Wishes, PortError> {
    for mapping in overrides {
        let wish = wishes
            .get_mut(&mapping.container_port)
            .ok_or(PortError::NotExposed(mapping.container_port))?;
        *wish = mapping.local_port;
    }
    Ok(wishes)
}

/// Binds one socket per wish: the wished port exactly, otherwise the remote port's number or the next free one above.
///
/// # Errors
/// A wished port is taken, or none is free.
pub fn reserve(wishes: &Wishes, address: IpAddr) -> Result<Reserved, PortError> {
    let mut listeners = BTreeMap::new();
    for (remote, local) in wishes
        .iter()
        .filter_map(|(remote, local)| Some((*remote, (*local)?)))
    {
        listeners.insert(
            remote,
            bind(address, local)?.ok_or(PortError::InUse { local, remote })?,
        );
    }
    for remote in wishes
        .iter()
        .filter(|(_, local)| local.is_none())
        .map(|(remote, _)| *remote)
    {
        let mut candidate = remote;
        let socket = loop {
            if let Some(socket) = bind(address, candidate)? {
                break socket;
            }
            candidate = candidate.checked_add(1).ok_or(PortError::InUse {
                local: candidate,
                remote,
            })?;
        };
        listeners.insert(remote, socket);
    }
    Ok(Reserved { listeners })
}

impl Reserved {
    /// Remote and local ports.
    pub fn ports(&self) -> BTreeMap<u16, u16> {
        let local = |listener: &tokio::net::TcpListener| Some(listener.local_addr().ok()?.port());
        self.listeners
            .iter()
            .filter_map(|(remote, listener)| Some((*remote, local(listener)?)))
            .collect()
    }

    /// The listeners by remote port.
    pub fn into_listeners(self) -> BTreeMap<u16, tokio::net::TcpListener> {
        self.listeners
    }
}

/// A listening socket; `None` when somebody else listens there.
fn bind(address: IpAddr, port: u16) -> Result<Option<tokio::net::TcpListener>, PortError> {
    let failed = |source: std::io::Error| PortError::Bind { port, source };
    let socket = if address.is_ipv4() {
        tokio::net::TcpSocket::new_v4()
    } else {
        tokio::net::TcpSocket::new_v6()
    };
    let socket = socket.map_err(failed)?;
    // Connections of an attachment that ended a moment ago do not block the port.
    socket.set_reuseaddr(true).map_err(failed)?;
    let bound = socket.bind(SocketAddr::new(address, port));
    match bound.and_then(|()| socket.listen(BACKLOG)) {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// The address to bind: `--host`, by default this machine only.
///
/// # Errors
/// The name stands for no address.
pub async fn bind_address(host: Option<&str>) -> Result<IpAddr, CliError> {
    let Some(host) = host.filter(|host| *host != "localhost") else {
        return Ok(IpAddr::V4(Ipv4Addr::LOCALHOST));
    };
    let unknown = || {
        CliError::new(
            ErrorKind::Argument,
            format!("`{host}` is not an address of this machine"),
        )
    };
    let mut addresses = tokio::net::lookup_host((host, 0)).await.map_err(|_| unknown())?;
    addresses.next().map(|address| address.ip()).ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[tokio::test]
    async fn a_wished_port_is_exact_and_an_unwished_one_counts_up() {
        let taken = std::net::TcpListener::bind((HERE, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        assert!(
            matches!(reserve(&Wishes::from([(80, Some(port))]), HERE), Err(PortError::InUse { local, remote: 80 }) if local == port)
        );
        let reserved = reserve(&Wishes::from([(port, None)]), HERE).unwrap();
        assert!(reserved.ports()[&port] > port);
        assert!(reserved.into_listeners().contains_key(&port));
    }

    #[test]
    fn only_ports_of_the_job_can_be_overridden() {
        let wishes = Wishes::from([(10999, None), (8080, Some(8080))]);
        let merged = merge(wishes.clone(), &["9000:8080".parse().unwrap()]).unwrap();
        assert_eq!(merged[&8080], Some(9000));
        assert!(matches!(
            merge(wishes, &["1:2".parse().unwrap()]),
            Err(PortError::NotExposed(2))
        ));
    }

    #[test]
    fn the_remedy_names_a_free_mapping() {
        let error = PortError::InUse {
            local: 8080,
            remote: 80,
        }
        .into_cli("attach", "dstack attach");
        assert_eq!(
            error.message().unwrap(),
            "Failed to attach: port 8080 is already in use."
        );
        assert!(error.hint_text().unwrap().contains("-p 8081:80"));
    }
}
