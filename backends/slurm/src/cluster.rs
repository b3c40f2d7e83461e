//! One configured cluster: its commands, and what is remembered of it.

use std::sync::Arc;
use std::time::Duration;

use dstack_backend::{Cached, Env, RecentFailures};
use dstack_compute::ComputeError;
use dstack_compute::config::SlurmCluster;
use dstack_model::instances::SshConnectionParams;

use crate::commands::Commands;
use crate::login::LoginNodes;
use crate::nodes::Node;
use crate::partitions::Partitions;

/// How long nodes and partitions are taken for true.
const NODES_LIFETIME: Duration = Duration::from_secs(180);

/// How long old answers serve where there are no new ones.
const STALE_LIFETIME: Duration = Duration::from_secs(600);

/// How long what could not be had is not tried again: the nodes of a cluster are offers each, and all wait in the same queue.
const FAILURE_LIFETIME: Duration = Duration::from_secs(60);

/// A cluster behind one login node, and what was asked of it of late.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// Its name: its region.
    pub(crate) name: String,
    /// How its nodes are reached.
    pub(crate) login: SshConnectionParams,
    pub(crate) commands: Commands,
    pub(crate) partitions: Partitions,
    discovered: Cached<Discovered>,
    /// What it had nothing free for.
    pub(crate) failures: RecentFailures,
}

/// What a cluster has.
#[derive(Debug)]
pub(crate) struct Discovered {
    pub(crate) nodes: Vec<Node>,
    /// Names of partitions.
    pub(crate) partitions: Vec<String>,
}

impl Cluster {
    /// From its configuration. No calls.
    ///
    /// # Errors
    /// The configuration is wrong; the text names the field.
    pub(crate) fn new(config: &SlurmCluster, env: &Env, logins: &dyn LoginNodes) -> Result<Self, String> {
        let port = config.port.unwrap_or(22);
        if !(1..=65_535).contains(&port) {
            return Err(format!("cluster '{}', port: {port} is no port", config.name));
        }
        let clock = || Arc::clone(&env.clock);
        Ok(Self {
            name: config.name.clone(),
            login: SshConnectionParams {
                hostname: config.hostname.clone(),
                username: config.user.clone(),
                port,
            },
            commands: Commands::new(&config.name, logins.login_node(config), env.random.clone()),
            partitions: Partitions::read(config)?,
            discovered: Cached::new(clock(), NODES_LIFETIME, STALE_LIFETIME),
            failures: RecentFailures::new(clock(), FAILURE_LIFETIME),
        })
    }

    /// Its nodes and partitions.
    pub(crate) async fn discovered(&self) -> Result<Arc<Discovered>, ComputeError> {
        let fetch = async || {
            let (nodes, partitions) = tokio::try_join!(self.commands.nodes(), self.commands.partitions())?;
            Ok(Discovered { nodes, partitions })
        };
        self.discovered.get(fetch).await
    }
}
