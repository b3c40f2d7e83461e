//! Private keys that open hosts: of projects and of fleets.

use std::sync::Arc;

use async_trait::async_trait;
use dstack_control::fleets::hosts::opened;
use dstack_control::keys::Keys;
use dstack_hosts::pool::Keyring;
use dstack_model::fleets::FleetSpec;
use dstack_model::reach::KeyRef;
use dstack_plan::hosts::private_key;
use dstack_store::encryption::Encryption;
use dstack_store::{Database, EngineStore as _, SqlStore};
use dstack_system::{Secret, chain};
use dstack_units::{FleetId, ProjectId};

/// Keys of the database, decrypted when a connection is made.
#[derive(Debug)]
pub struct DatabaseKeyring {
    database: Database,
    encryption: Encryption,
    keys: Arc<Keys>,
}

impl DatabaseKeyring {
    /// On this database.
    pub const fn new(database: Database, encryption: Encryption, keys: Arc<Keys>) -> Self {
        Self {
            database,
            encryption,
            keys,
        }
    }

    async fn of_project(&self, project: ProjectId) -> Result<Option<Secret>, String> {
        let row = self.database.projects().by_id(project).await;
        let Some(row) = row.map_err(|error| chain(&error).to_string())? else {
            return Ok(None);
        };
        let pair = self
            .keys
            .of_project(&row)
            .await
            .map_err(|error| chain(&error).to_string())?;
        Ok(Some(pair.private))
    }

    async fn of_fleet(&self, fleet: FleetId, key: &KeyRef) -> Result<Option<Secret>, String> {
        let store = SqlStore::new(self.database.clone());
        let found = store
            .fleet(fleet)
            .await
            .map_err(|error| chain(&error).to_string())?;
        let Some(found) = found else { return Ok(None) };
        let spec = opened(FleetSpec::clone(&found.fleet.spec), &self.encryption);
        let spec = spec.map_err(|error| chain(&error).to_string())?;
        Ok(private_key(&spec, key).map(Secret::new))
    }
}

#[async_trait]
impl Keyring for DatabaseKeyring {
    async fn private_key(&self, key: &KeyRef) -> Result<Option<Secret>, String> {
        match key {
            KeyRef::Project { project } => self.of_project(*project).await,
            KeyRef::Host { fleet, .. } | KeyRef::JumpHost { fleet, .. } => self.of_fleet(*fleet, key).await,
        }
    }
}
