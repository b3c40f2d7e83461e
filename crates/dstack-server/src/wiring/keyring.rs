//! Private keys that open hosts: of projects and of fleets.

use std::sync::Arc;

use async_trait::async_trait;
use dstack_control::fleets::hosts::opened;
use dstack_control::keys::Keys;
use dstack_hosts::pool::Keyring;
use dstack_model::fleets::FleetSpec;
use dstack_model::instances::InstanceStatus;
use dstack_model::reach::KeyRef;
use dstack_plan::hosts::{may_be_named, names_key, private_key};
use dstack_store::encryption::Encryption;
use dstack_store::rows::{InstanceRow, LeavingHost};
use dstack_store::{Database, EngineStore as _, SqlStore, StoreError};
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
        let found = store.fleet_row(fleet).await.map_err(|error| told(&error))?;
        let Some(found) = found else { return Ok(None) };
        let mut spec = FleetSpec::clone(&found.spec);
        if !names_key(&spec, key)
            && let Some(leaving) = leaving_host(&store, fleet, key)
                .await
                .map_err(|error| told(&error))?
        {
            spec = leaving.fleet;
        }
        let spec = opened(spec, &self.encryption).map_err(|error| told(&error))?;
        Ok(private_key(&spec, key).map(Secret::new))
    }
}

fn told(error: &StoreError) -> String {
    chain(error).to_string()
}

/// A host that its fleet does not name any more, and that is not released yet.
async fn leaving_host(
    store: &SqlStore,
    fleet: FleetId,
    key: &KeyRef,
) -> Result<Option<LeavingHost>, StoreError> {
    let Some(found) = store.fleet(fleet).await? else {
        return Ok(None);
    };
    // Many may leave at once: only what is kept for this one is read.
    let is_named = |row: &InstanceRow| {
        let place = row.job_provisioning_data.as_deref();
        place.is_some_and(|place| may_be_named(place, key))
    };
    let is_leaving = |row: &&InstanceRow| row.status() == InstanceStatus::Terminating && is_named(row);
    for row in found.instances.iter().filter(is_leaving) {
        let operations = store.instance(row.id).await?.map(|found| found.operations);
        let leaving = operations.and_then(|operations| LeavingHost::of(&operations));
        if let Some(leaving) = leaving.filter(|leaving| names_key(&leaving.fleet, key)) {
            return Ok(Some(leaving));
        }
    }
    Ok(None)
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
