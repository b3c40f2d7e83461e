//! Gateways: how servers reach them, and how they reach the replicas of services.

use std::sync::Arc;

use dstack_agent_api::gateway::{RegisterReplica, SshHop};
use dstack_agent_api::gateway_client::GatewayClient;
use dstack_control::keys::Keys;
use dstack_engine::InputsError;
use dstack_hosts::deploy::Deployer;
use dstack_hosts::pool::{Keyring as _, Pool};
use dstack_model::reach::{Hop, KeyRef, Reach};
use dstack_ssh::RemoteSocket;
use dstack_store::Database;
use dstack_store::rows::{AgentAddress, GatewayReplicaRow, JobRow};
use dstack_system::{Secret, chain};
use dstack_units::ProjectId;

use super::agent_tokens::AgentTokens;
use super::keyring::DatabaseKeyring;
use super::service_port::{ServicePort, service_port};

/// SSH servers on the way that gateways of dstack 0.22.5 can be told of.
const MOST_JUMPS: usize = 2;

/// Why a gateway cannot be told how a job is reached; the texts are for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoWay {
    /// As the job is.
    Never(String),
    /// It cannot be found out now.
    Now(String),
}

/// The hosts of gateways.
#[derive(Debug)]
pub struct GatewayHosts {
    deployer: Deployer,
    pool: Pool,
    keyring: Arc<DatabaseKeyring>,
    tokens: AgentTokens,
}

impl GatewayHosts {
    /// Reached through this pool, with these keys.
    pub fn new(
        deployer: Deployer,
        pool: Pool,
        keyring: Arc<DatabaseKeyring>,
        database: Database,
        keys: Arc<Keys>,
    ) -> Self {
        Self {
            deployer,
            pool,
            keyring,
            tokens: AgentTokens::new(database, keys),
        }
    }

    /// The gateway that is reached so.
    pub(crate) async fn client(
        &self,
        replica: &GatewayReplicaRow,
        reach: &Reach,
    ) -> Result<GatewayClient, String> {
        let token = self.tokens.of_gateway(replica.project_id, replica.id).await;
        let token = token.map_err(|error| match error {
            InputsError::Refused(text) => text,
            InputsError::Transient(cause) => chain(cause.as_ref()).to_string(),
        })?;
        Ok(self.deployer.gateway(reach, token))
    }

    /// Opens a socket on the host of a gateway, at which it asks this server.
    pub(crate) async fn socket(&self, reach: &Reach, name: &str) -> Result<RemoteSocket, String> {
        let connection = self.pool.connection(reach).await;
        let connection = connection.map_err(|error| error.to_string())?;
        let path = format!("{}/{name}", self.deployer.gateway_servers());
        let socket = connection.listen_streamlocal(&path).await;
        socket.map_err(|error| chain(&error).to_string())
    }

    /// The private key of a project.
    pub(crate) async fn project_key(&self, project: ProjectId) -> Result<Secret, String> {
        let key = self.keyring.private_key(&KeyRef::Project { project }).await?;
        key.ok_or_else(|| "the project is gone".to_owned())
    }

    /// A job as it is registered at a gateway, which reaches it over SSH as servers do.
    ///
    /// # Errors
    /// It cannot be reached so.
    pub(crate) async fn replica(
        &self,
        address: Option<&AgentAddress>,
        job: &JobRow,
    ) -> Result<RegisterReplica, NoWay> {
        let (reach, port) = way_to(address, job).map_err(NoWay::Never)?;
        let own = KeyRef::Project {
            project: job.project_id,
        };
        let mut jumps = Vec::new();
        for hop in &reach.jumps {
            jumps.push((ssh_hop(hop), self.key_of(hop, &own).await?));
        }
        let (ssh_proxy, ssh_proxy_private_key) = jumps.pop().unzip();
        let (ssh_head_proxy, ssh_head_proxy_private_key) = jumps.pop().unzip();
        Ok(RegisterReplica {
            job_id: job.id.uuid().simple().to_string(),
            app_port: port,
            ssh_host: format!("{}@{}", reach.host.user, reach.host.host),
            ssh_port: reach.host.port,
            ssh_proxy,
            ssh_proxy_private_key: ssh_proxy_private_key.flatten(),
            ssh_head_proxy,
            ssh_head_proxy_private_key: ssh_head_proxy_private_key.flatten(),
        })
    }

    /// The key of a server on the way, where it is not that of the project.
    async fn key_of(&self, hop: &Hop, own: &KeyRef) -> Result<Option<Secret>, NoWay> {
        if hop.keys.contains(own) {
            return Ok(None);
        }
        for key in &hop.keys {
            if let Some(found) = self.keyring.private_key(key).await.map_err(NoWay::Now)? {
                return Ok(Some(found));
            }
        }
        Err(NoWay::Never(format!("there is no key for {}", hop.host)))
    }
}

/// The SSH server next to a job, and its port for requests there.
fn way_to(address: Option<&AgentAddress>, job: &JobRow) -> Result<(Reach, u16), String> {
    let address = address.ok_or("the instance of the job has no agent")?;
    let port = job
        .job_spec
        .service_port
        .ok_or("the job has no port for requests")?;
    let runtime = job.job_runtime_data.as_deref();
    let ServicePort::Through(reach, port) = service_port(address, job.project_id, runtime, port)? else {
        return Err(
            "the job runs on the machine of the server, which gateways do not reach: set `gateway: false`, or `fleets` in the \
             configuration of the service"
                .to_owned(),
        );
    };
    let own = KeyRef::Project {
        project: job.project_id,
    };
    if !reach.host.keys.contains(&own) {
        let host = &reach.host.host;
        return Err(format!(
            "{host} cannot be logged in to with the key of the project"
        ));
    }
    if reach.jumps.len() > MOST_JUMPS {
        return Err(format!(
            "gateways reach hosts behind {MOST_JUMPS} jump hosts at most"
        ));
    }
    Ok((reach, port))
}

fn ssh_hop(hop: &Hop) -> SshHop {
    SshHop {
        hostname: hop.host.clone(),
        username: hop.user.clone(),
        port: hop.port,
    }
}
