//! Configured backends: from the database to clouds, and back.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_compute::config::SplitConfig;
use dstack_compute::{Account, AccountProject, Backend, Backends, ComputeError, JobNeeds, Registry};
use dstack_control::backends::stored::stored;
use dstack_model::backends::BackendType;
use dstack_store::Database;
use dstack_store::encryption::Encryption;
use dstack_store::queries::backends::BackendRow;
use dstack_system::Locked;
use dstack_units::ProjectId;

/// The backends of the database, opened with the kinds of this build. What was opened is kept until its stored
/// configuration changes.
#[derive(Debug)]
pub struct StoredBackends {
    database: Database,
    encryption: Encryption,
    registry: Registry,
    open: Locked<HashMap<String, Open>>,
}

/// Opened a moment later it might be.
const NOT_OPEN: ComputeError = ComputeError::Unsupported("this configuration");

#[derive(Debug)]
struct Open {
    config: String,
    auth: String,
    backend: Option<Arc<dyn Backend>>,
}

impl StoredBackends {
    /// On this database.
    pub fn new(database: Database, encryption: Encryption, registry: Registry) -> Self {
        Self {
            database,
            encryption,
            registry,
            open: Locked::default(),
        }
    }

    fn backend(&self, row: &BackendRow) -> Option<Arc<dyn Backend>> {
        let mut open = self.open.lock();
        if let Some(known) = open.get(&row.id)
            && known.config == row.config
            && known.auth == row.auth
        {
            return known.backend.clone();
        }
        let backend = self
            .make(row)
            .inspect_err(|error| {
                tracing::warn!(backend.r#type = row.kind, %error, "A backend is left out until its configuration changes");
            })
            .ok();
        open.insert(
            row.id.clone(),
            Open {
                config: row.config.clone(),
                auth: row.auth.clone(),
                backend: backend.clone(),
            },
        );
        backend
    }

    /// The accounts of these rows, each of which has the name of its project.
    fn by_account(&self, rows: Vec<(BackendRow, String)>) -> Vec<Account> {
        let mut accounts: Vec<(Account, Option<SplitConfig>)> = Vec::new();
        for (row, project) in rows {
            let split = stored(&self.encryption, &row).ok();
            let project = AccountProject {
                id: row.project_id,
                name: project,
            };
            let same = |(account, known): &&mut (Account, Option<SplitConfig>)| {
                account.kind == row.kind && split.is_some() && *known == split
            };
            match accounts.iter_mut().find(same) {
                Some((account, _)) => account.projects.push(project),
                None => {
                    let account = Account {
                        id: row.id.clone(),
                        kind: row.kind.clone(),
                        backend: match self.backend(&row) {
                            Some(backend) => Ok(backend),
                            None => Err(self.make(&row).err().unwrap_or(NOT_OPEN)),
                        },
                        projects: vec![project],
                    };
                    accounts.push((account, split));
                }
            }
        }
        accounts.into_iter().map(|(account, _)| account).collect()
    }

    fn make(&self, row: &BackendRow) -> Result<Arc<dyn Backend>, ComputeError> {
        // Of one that nobody knows, the name is kept: older clients are told another one.
        let kind = BackendType::of_any_name(&row.kind);
        let kind = kind.and_then(|kind| self.registry.get(kind));
        let kind = kind.ok_or_else(|| not_known(&row.kind))?;
        let split = stored(&self.encryption, row)
            .map_err(|_| ComputeError::Configuration("its credentials cannot be decrypted".to_owned()))?;
        kind.open(&split)
    }
}

/// That a row is of a type that nobody has, and what to do.
fn not_known(kind: &str) -> ComputeError {
    match BackendType::TEXTS.contains(&kind) {
        true => ComputeError::Unsupported("this type of backend"),
        false => ComputeError::Configuration(format!(
            "this server does not know the type `{kind}`: no file of its directory of backends (DSTACK_SERVER_BACKENDS_DIR) describes \
             it. Put it there and start the server again; until then, what was made is left as it is"
        )),
    }
}

#[async_trait]
impl Backends for StoredBackends {
    async fn of_project(&self, project: ProjectId) -> Result<Vec<Arc<dyn Backend>>, ComputeError> {
        let rows = self
            .database
            .backends()
            .list(project)
            .await
            .map_err(|error| ComputeError::Unclear(error.to_string()))?;
        Ok(rows.iter().filter_map(|row| self.backend(row)).collect())
    }

    async fn accounts(&self) -> Result<Vec<Account>, ComputeError> {
        let rows = self.database.backends().all().await;
        let rows = rows.map_err(|error| ComputeError::Unclear(error.to_string()))?;
        Ok(self.by_account(rows))
    }

    fn provisioning_timeout(&self, kind: BackendType, instance_type: &str) -> Duration {
        self.registry.provisioning_timeout(kind, instance_type)
    }

    fn job_needs(&self, kind: BackendType, instance_type: &str) -> JobNeeds {
        self.registry.job_needs(kind, instance_type)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_type_that_nobody_knows_it_is_said_what_to_do() {
        let unsupported = ComputeError::Unsupported("this type of backend");
        assert_eq!(not_known("runpod"), unsupported);
        let told = not_known("nimbus").to_string();
        assert!(
            told.contains("`nimbus`") && told.contains("DSTACK_SERVER_BACKENDS_DIR"),
            "{told}"
        );
    }
}
