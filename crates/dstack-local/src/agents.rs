//! Reaches the agents of this machine.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use dstack_agent_api::http::TcpConnector;
use dstack_agent_api::runner_client::RunnerClient;
use dstack_agent_api::shim_client::{ShimClient, UnixConnector};
use dstack_engine::agents::{HttpRunner, HttpShim};
use dstack_engine::{Agents, Runner, Shim};
use dstack_store::rows::AgentAddress;
use dstack_units::JobId;

/// The agents of this machine.
#[derive(Debug, Clone)]
pub struct LocalAgents {
    socket: PathBuf,
}

impl LocalAgents {
    /// With the shim's socket.
    pub const fn new(socket: PathBuf) -> Self {
        Self { socket }
    }
}

impl Agents for LocalAgents {
    fn shim(&self, address: &AgentAddress) -> Arc<dyn Shim> {
        match address {
            AgentAddress::Local { .. } => Arc::new(HttpShim(ShimClient::new(Arc::new(UnixConnector {
                path: self.socket.clone(),
            })))),
        }
    }

    fn runner(&self, address: &AgentAddress, _job: JobId, port: u16) -> Arc<dyn Runner> {
        match address {
            AgentAddress::Local { .. } => {
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
                Arc::new(HttpRunner(RunnerClient::new(Arc::new(TcpConnector { address }))))
            }
        }
    }
}
