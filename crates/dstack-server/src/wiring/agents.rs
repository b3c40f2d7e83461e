//! Reaches the agents of instances: of this machine over its socket, of hosts and containers over SSH.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use dstack_agent_api::http::{Connector, TcpConnector};
use dstack_agent_api::runner_client::RunnerClient;
use dstack_agent_api::shim_client::{ShimClient, UnixConnector};
use dstack_engine::agents::container::{ContainerShim, Link};
use dstack_engine::agents::{HttpRunner, HttpShim};
use dstack_engine::{AgentError, Agents, Runner, Shim};
use dstack_hosts::pool::Pool;
use dstack_hosts::unreachable::UnreachableConnector;
use dstack_model::reach::Reach;
use dstack_store::rows::{AgentAddress, JobRow};
use dstack_system::Secret;
use dstack_units::JobId;

use super::service_port::{ServicePort, service_port};
use crate::services::Ports;

/// The agents that this server reaches. Those of machines on which other servers run are out of reach.
#[derive(Debug, Clone)]
pub struct ConnectedAgents {
    machine: Option<Machine>,
    pool: Pool,
    /// For requests to services: a client that does not read its answer slows the connection down on which it comes, and agents must
    /// not seem away for that.
    requests: Pool,
}

/// This machine, if it is an instance.
#[derive(Debug, Clone)]
pub struct Machine {
    /// As its instance names it.
    pub host: String,
    /// The shim's socket.
    pub socket: PathBuf,
}

impl ConnectedAgents {
    /// With this machine, or without any; agents of hosts are reached through one pool of connections, services through another.
    pub const fn new(machine: Option<Machine>, pool: Pool, requests: Pool) -> Self {
        Self {
            machine,
            pool,
            requests,
        }
    }

    fn here(&self, host: &str) -> Option<&Machine> {
        self.machine.as_ref().filter(|machine| machine.host == host)
    }

    /// To the shim (`None`), or to a port of the loopback interface where the agents of the address are.
    fn connector(&self, address: &AgentAddress, port: Option<u16>) -> Arc<dyn Connector> {
        match address {
            AgentAddress::Ssh { reach, shim_port, .. } => self
                .pool
                .connector(reach.as_ref().clone(), port.unwrap_or(*shim_port)),
            AgentAddress::Container {
                reach, runner_port, ..
            } => self
                .pool
                .connector(reach.as_ref().clone(), port.unwrap_or(*runner_port)),
            AgentAddress::Local { host, .. } => match (self.here(host), port) {
                (Some(machine), None) => Arc::new(UnixConnector {
                    path: machine.socket.clone(),
                }),
                (Some(_), Some(port)) => Arc::new(TcpConnector {
                    address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
                }),
                (None, _) => Arc::new(UnreachableConnector {
                    reason: format!(
                        "only the server {host} reaches this machine, and it does not run: start it again"
                    ),
                }),
            },
        }
    }
}

impl Ports for ConnectedAgents {
    fn port(&self, address: &AgentAddress, job: &JobRow, port: u16) -> Arc<dyn Connector> {
        let elsewhere = match address {
            AgentAddress::Local { host, .. } => self.here(host).is_none(),
            AgentAddress::Ssh { .. } | AgentAddress::Container { .. } => false,
        };
        match service_port(address, job.project_id, job.job_runtime_data.as_deref(), port) {
            // Says why it is not reached.
            _ if elsewhere => self.connector(address, Some(port)),
            Ok(ServicePort::Here(port)) => Arc::new(TcpConnector {
                address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            }),
            Ok(ServicePort::Through(reach, port)) => self.requests.connector(reach, port),
            Err(reason) => Arc::new(UnreachableConnector {
                reason: reason.to_owned(),
            }),
        }
    }
}

/// The connection of a pool.
#[derive(Debug)]
struct PoolLink {
    pool: Pool,
    reach: Reach,
}

#[async_trait]
impl Link for PoolLink {
    async fn broken(&self) -> AgentError {
        let why = match self.pool.connection(&self.reach).await {
            Ok(connection) => {
                connection.closed().await;
                format!("the SSH connection to {} broke", self.reach.host.host)
            }
            Err(error) => error.to_string(),
        };
        AgentError::Unreachable(why)
    }
}

impl Agents for ConnectedAgents {
    fn shim(&self, address: &AgentAddress, token: Option<Secret>) -> Arc<dyn Shim> {
        if let AgentAddress::Container {
            reach,
            runner_port,
            job,
        } = address
        {
            let runner = RunnerClient::new(self.connector(address, Some(*runner_port)));
            let link = PoolLink {
                pool: self.pool.clone(),
                reach: reach.as_ref().clone(),
            };
            let (runner, link) = (Arc::new(HttpRunner(runner)), Arc::new(link));
            return Arc::new(ContainerShim::new(*job, *runner_port, runner, link));
        }
        let client = ShimClient::new(self.connector(address, None));
        Arc::new(HttpShim(match token {
            Some(token) => client.with_token(token),
            None => client,
        }))
    }

    fn runner(&self, address: &AgentAddress, _job: JobId, port: u16, token: Secret) -> Arc<dyn Runner> {
        let connector = self.connector(address, Some(port));
        Arc::new(HttpRunner(RunnerClient::new(connector).with_token(token)))
    }

    fn forget(&self, address: &AgentAddress) {
        if let Some(reach) = address.reach() {
            self.pool.forget(reach);
            self.requests.forget(reach);
        }
    }
}
