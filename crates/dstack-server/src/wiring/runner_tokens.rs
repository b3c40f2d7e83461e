//! What calls to the runners of jobs are authorized with.
//!
//! Derived, not stored: from the private key of the job's project, which is in the database and encrypted there. So every
//! server that shares the database has the same token for a job, before and after a restart, and no row has it in clear.
//! The keys that encrypt the database may be rotated meanwhile: the project's key stays (docs/adr/019-runner-tokens.md).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use dstack_control::keys::Keys;
use dstack_engine::InputsError;
use dstack_store::Database;

use dstack_system::Secret;
use dstack_units::{JobId, ProjectId};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Tells this use of a project's key from others. Changing it locks this server out of the jobs that run.
const PURPOSE: &[u8] = b"dstack runner token 1\0";
/// Projects whose keys are kept open; when there are more, all are forgotten.
const KEPT: usize = 1000;

/// Makes the tokens.
#[derive(Debug)]
pub struct RunnerTokens {
    database: Database,
    keys: Arc<Keys>,
    /// Private keys of projects, which never change.
    known: Mutex<HashMap<ProjectId, Secret>>,
}

impl RunnerTokens {
    /// Of the jobs in this database.
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
        derive(&key, job)
    }

    async fn key_of(&self, project: ProjectId) -> Result<Secret, InputsError> {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = known().get(&project) {
            return Ok(key.clone());
        }
        let row = self.database.projects().by_id(project).await?;
        let row = row.ok_or_else(|| {
            InputsError::Refused(format!("the project {project} of the job is not in the database"))
        })?;
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

fn derive(key: &Secret, job: JobId) -> Result<Secret, InputsError> {
    let mac = Hmac::<Sha256>::new_from_slice(key.expose().as_bytes());
    let mut mac = mac.map_err(InputsError::transient)?;
    mac.update(PURPOSE);
    mac.update(job.to_string().as_bytes());
    Ok(Secret::new(hex::encode(mac.finalize().into_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_differ_by_job_and_by_project_and_stay_the_same() {
        let job = |n: u128| JobId::from(uuid::Uuid::from_u128(n));
        let token = |key: &str, n| derive(&key.into(), job(n)).unwrap().expose().to_owned();
        // printf 'dstack runner token 1\0%s' 00000000-0000-0000-0000-000000000001 | openssl dgst -sha256 -hmac key
        assert_eq!(
            token("key", 1),
            "3dd1495feb757e18c293b2da3304d4e387b7ad0735474850ee7091428e9ead80"
        );
        assert_ne!(token("key", 1), token("key", 2));
        assert_ne!(token("key", 1), token("other", 1));
    }
}
