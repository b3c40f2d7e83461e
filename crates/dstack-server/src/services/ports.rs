//! The way to the ports of jobs.

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

use dstack_agent_api::http::Connector;
use dstack_hosts::unreachable::UnreachableConnector;
use dstack_store::rows::{AgentAddress, JobRow};

/// Reaches ports of jobs.
pub trait Ports: Send + Sync + Debug {
    /// Connects to a port of a job that runs on the instance with this address.
    fn port(&self, address: &AgentAddress, job: &JobRow, port: u16) -> Arc<dyn Connector>;
}

/// The ports that a server reaches, once it is said how.
#[derive(Debug, Default)]
pub(super) struct Reachable(OnceLock<Arc<dyn Ports>>);

impl Reachable {
    /// Jobs are reached so from now on; the first ones stay.
    pub(super) fn through(&self, ports: Arc<dyn Ports>) {
        self.0.set(ports).ok();
    }

    /// Connects to a port of a job.
    pub(super) fn connector(
        &self,
        address: Option<&AgentAddress>,
        job: &JobRow,
        port: u16,
    ) -> Arc<dyn Connector> {
        match (self.0.get(), address) {
            (Some(ports), Some(address)) => ports.port(address, job, port),
            (None, _) => unreachable("this server reaches no hosts"),
            (_, None) => unreachable("the instance of the job has no agent"),
        }
    }
}

fn unreachable(reason: &str) -> Arc<dyn Connector> {
    Arc::new(UnreachableConnector {
        reason: reason.to_owned(),
    })
}
