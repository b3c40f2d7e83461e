//! Reaches the agents of this machine.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use dstack_agent_api::http::{Connector, TcpConnector};
use dstack_agent_api::runner_client::RunnerClient;
use dstack_agent_api::shim_client::{ShimClient, UnixConnector};
use dstack_engine::agents::{HttpRunner, HttpShim};
use dstack_engine::{Agents, Runner, Shim};
use dstack_store::rows::AgentAddress;
use dstack_system::Secret;
use dstack_units::JobId;

use crate::unreachable::UnreachableConnector;

/// The agents of this machine. Those of machines on which other servers run are out of reach.
#[derive(Debug, Clone)]
pub struct LocalAgents {
    machine: Option<Machine>,
}

/// This machine, if it is an instance.
#[derive(Debug, Clone)]
pub struct Machine {
    /// As its instance names it.
    pub host: String,
    /// The shim's socket.
    pub socket: PathBuf,
}

impl LocalAgents {
    /// With this machine, or without any.
    pub const fn new(machine: Option<Machine>) -> Self {
        Self { machine }
    }

    fn here(&self, host: &str) -> Option<&Machine> {
        self.machine.as_ref().filter(|machine| machine.host == host)
    }
}

impl Agents for LocalAgents {
    fn shim(&self, address: &AgentAddress) -> Arc<dyn Shim> {
        let AgentAddress::Local { host, .. } = address;
        let connector: Arc<dyn Connector> = match self.here(host) {
            Some(machine) => Arc::new(UnixConnector {
                path: machine.socket.clone(),
            }),
            None => Arc::new(UnreachableConnector { host: host.clone() }),
        };
        Arc::new(HttpShim(ShimClient::new(connector)))
    }

    fn runner(&self, address: &AgentAddress, _job: JobId, port: u16, token: Secret) -> Arc<dyn Runner> {
        let AgentAddress::Local { host, .. } = address;
        let connector: Arc<dyn Connector> = match self.here(host) {
            Some(_) => Arc::new(TcpConnector {
                address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            }),
            None => Arc::new(UnreachableConnector { host: host.clone() }),
        };
        Arc::new(HttpRunner(RunnerClient::new(connector).with_token(token)))
    }
}
