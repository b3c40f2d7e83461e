//! What calls to the runners of jobs, to the shims of hosts and to gateways are authorized with.
//!
//! Derived, not stored: from the private key of the project, which is in the database and encrypted there. So every server that
//! shares the database has the same token for a job or a host, before and after a restart, and no row has it in clear. The keys
//! that encrypt the database may be rotated meanwhile: the project's key stays (docs/adr/019-runner-tokens.md).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use dstack_control::keys::Keys;
use dstack_engine::InputsError;
use dstack_store::Database;

use dstack_system::Secret;
use dstack_units::{GatewayReplicaId, InstanceId, JobId, ProjectId};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Tell these uses of a project's key from others. Changing them locks this server out of the jobs that run, and of its hosts.
const RUNNER: &str = "dstack runner token 1";
const SHIM: &str = "dstack shim token 1";
const GATEWAY: &str = "dstack gateway token 1";
/// Projects whose keys are kept open; when there are more, all are forgotten.
const KEPT: usize = 1000;

/// Makes the tokens.
#[derive(Debug)]
pub struct AgentTokens {
    database: Database,
    keys: Arc<Keys>,
    /// Private keys of projects, which never change.
    known: Mutex<HashMap<ProjectId, Secret>>,
}

impl AgentTokens {
    /// Of the jobs and hosts in this database.
    pub fn new(database: Database, keys: Arc<Keys>) -> Self {
        Self {
            database,
            keys,
            known: Mutex::default(),
        }
    }

    /// The token of a job's runner.
    pub async fn of_job(&self, project: ProjectId, job: JobId) -> Result<Secret, InputsError> {
        let key = self.key_of(project).await?;
        derive(&key, RUNNER, &job.to_string())
    }

    /// The token of the shim of an instance that is reached over a network.
    pub async fn of_instance(&self, project: ProjectId, instance: InstanceId) -> Result<Secret, InputsError> {
        let key = self.key_of(project).await?;
        derive(&key, SHIM, &instance.to_string())
    }

    /// The token of a replica of a gateway.
    pub async fn of_gateway(
        &self,
        project: ProjectId,
        replica: GatewayReplicaId,
    ) -> Result<Secret, InputsError> {
        let key = self.key_of(project).await?;
        derive(&key, GATEWAY, &replica.to_string())
    }

    async fn key_of(&self, project: ProjectId) -> Result<Secret, InputsError> {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = known().get(&project) {
            return Ok(key.clone());
        }
        let row = self.database.projects().by_id(project).await?;
        let row =
            row.ok_or_else(|| InputsError::Refused(format!("the project {project} is not in the database")))?;
        let pair = self.keys.of_project(&row).await;
        let key = pair.map_err(InputsError::transient)?.private;
        let mut known = known();
        if known.len() >= KEPT {
            known.clear();
        }
        known.insert(project, key.clone());
        Ok(key)
    }
}

fn derive(key: &Secret, purpose: &str, id: &str) -> Result<Secret, InputsError> {
    let mac = Hmac::<Sha256>::new_from_slice(key.expose().as_bytes());
    let mut mac = mac.map_err(InputsError::transient)?;
    mac.update(format!("{purpose}\0{id}").as_bytes());
    Ok(Secret::new(hex::encode(mac.finalize().into_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_differ_by_use_thing_and_project_and_stay_the_same() {
        let token_for = |key: &str, purpose, n: u128| {
            let id = uuid::Uuid::from_u128(n).to_string();
            derive(&key.into(), purpose, &id).unwrap().expose().to_owned()
        };
        let token = |key: &str, n| token_for(key, RUNNER, n);
        // printf 'dstack runner token 1\0%s' 00000000-0000-0000-0000-000000000001 | openssl dgst -sha256 -hmac key
        assert_eq!(
            token("key", 1),
            "3dd1495feb757e18c293b2da3304d4e387b7ad0735474850ee7091428e9ead80"
        );
        assert_ne!(token("key", 1), token("key", 2));
        assert_ne!(token("key", 1), token("other", 1));
        // printf 'dstack shim token 1\0%s' 00000000-0000-0000-0000-000000000001 | openssl dgst -sha256 -hmac key
        assert_eq!(
            token_for("key", SHIM, 1),
            "38910a1cbdb50c6acf26006f27ebf9b69da57c41f2e5f942c56845894e810b91"
        );
    }
}
