//! One configured cluster: its commands, and what is remembered of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dstack_backend::{Cached, Env};
use dstack_compute::ComputeError;
use dstack_compute::config::SlurmCluster;
use dstack_model::instances::SshConnectionParams;
use dstack_system::clock::SharedClock;
use dstack_units::Time;

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

/// A cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// Its name: its region.
    pub(crate) name: String,
    /// How its nodes are reached.
    pub(crate) login: SshConnectionParams,
    pub(crate) commands: Commands,
    pub(crate) partitions: Partitions,
    clock: SharedClock,
    discovered: Cached<Discovered>,
    failures: Mutex<HashMap<String, Time>>,
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
            clock: clock(),
            discovered: Cached::new(clock(), NODES_LIFETIME, STALE_LIFETIME),
            failures: Mutex::default(),
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

    /// What was asked for in these words could not be had just now.
    pub(crate) fn has_failed(&self, what: &str) {
        let now = self.clock.now();
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.retain(|_, at| now < *at + FAILURE_LIFETIME);
        failures.insert(what.to_owned(), now);
    }

    /// Whether the same was asked for a moment ago, and could not be had.
    pub(crate) fn has_just_failed(&self, what: &str) -> bool {
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures
            .get(what)
            .is_some_and(|at| self.clock.now() < *at + FAILURE_LIFETIME)
    }
}
