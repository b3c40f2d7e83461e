//! Gateways: creating, changing, deleting, and the default of a project.

mod validate;

use dstack_compute::Registry;
use dstack_model::ErrorCode;
use dstack_model::gateways::{GatewayConfiguration, GatewayStatus};
use dstack_plan::names;
use dstack_store::queries::gateways::ListedGateway;
use dstack_store::queries::projects::ProjectRow;
use dstack_store::queries::users::UserRow;
use dstack_store::rows::{GatewayRow, NewGateway};
use dstack_store::writes::Change;
use dstack_store::{Changes, Json, events};
use dstack_units::{GatewayId, ProjectId};
use serde_json::Value;

use crate::core::{Actor, Core, retry_on_conflict};
use crate::directory::Directory;
use crate::error::{ControlError, Result};

pub use validate::can_change;

const BUSY: &str = "The gateway is being processed at the moment. Try again later.";

/// The verbs of gateways.
#[derive(Debug, Clone)]
pub struct Gateways {
    core: Core,
    directory: Directory,
    registry: Registry,
    max_replicas: i64,
}

/// A gateway as a client saw it.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenGateway {
    /// Id of the gateway that the client saw.
    pub id: GatewayId,
    /// What it was like, with `default` as it was.
    pub configuration: GatewayConfiguration,
}

impl Gateways {
    /// On this database, with the kinds of backends of this build.
    pub const fn new(core: Core, directory: Directory, registry: Registry, max_replicas: i64) -> Self {
        Self {
            core,
            directory,
            registry,
            max_replicas,
        }
    }

    /// Refuses what no gateway can be like.
    ///
    /// # Errors
    /// With the reason.
    pub fn check(&self, configuration: &GatewayConfiguration) -> Result<()> {
        validate::check(&self.registry, self.max_replicas, configuration)
    }

    /// The project's gateway of that name, if it can be changed at all.
    ///
    /// # Errors
    /// It is being deleted, or has failed.
    pub async fn changeable(&self, project: ProjectId, name: &str) -> Result<Option<ListedGateway>> {
        let Some(found) = self.by_name(project, name).await? else {
            return Ok(None);
        };
        if found.row.to_be_deleted {
            return Err(ControlError::refused(format!(
                "Gateway '{name}' is being deleted. Try again later."
            )));
        }
        if found.row.status() == GatewayStatus::Failed {
            return Err(ControlError::refused(format!(
                "Gateway '{name}' is in FAILED status and cannot be updated in-place. Delete it and re-apply."
            )));
        }
        Ok(Some(found))
    }

    /// Creates a gateway, or changes the one of its name in place.
    ///
    /// # Errors
    /// It cannot be had, cannot be changed so, or is not what the client saw.
    pub async fn apply(
        &self,
        user: &UserRow,
        project: &ProjectRow,
        configuration: &GatewayConfiguration,
        seen: Option<&SeenGateway>,
        force: bool,
    ) -> Result<GatewayRow> {
        self.check(configuration)?;
        retry_on_conflict(BUSY, || async {
            let found = match &configuration.name {
                Some(name) => self.changeable(project.id, name).await?,
                None => None,
            };
            let Some(found) = found else {
                return self.try_create(user, project, configuration.clone()).await;
            };
            let current = self.as_seen(project.id, &found.row).await?;
            if !force && seen != Some(&current) {
                return Err(ControlError::stale());
            }
            let fields = changed(&current.configuration, configuration);
            if !can_change(&fields) {
                return Err(ControlError::refused(format!(
                    "Gateway '{}' cannot be updated in-place. Delete it and re-apply.",
                    found.row.name
                )));
            }
            self.change(user, project, found.row, configuration.clone(), &fields)
                .await
        })
        .await
    }

    /// Creates a gateway; without a name it gets one.
    ///
    /// # Errors
    /// It cannot be had, or the name is taken.
    pub async fn create(
        &self,
        user: &UserRow,
        project: &ProjectRow,
        configuration: &GatewayConfiguration,
    ) -> Result<GatewayRow> {
        self.check(configuration)?;
        let is_named = configuration.name.is_some();
        retry_on_conflict(BUSY, || async {
            match self.try_create(user, project, configuration.clone()).await {
                Err(error) if is_named && error.is_taken() => Err(ControlError::exists()),
                done => done,
            }
        })
        .await
    }

    async fn as_seen(&self, project: ProjectId, row: &GatewayRow) -> Result<SeenGateway> {
        let default = self.directory.database.gateways().default_id(project).await?;
        let mut configuration = (*row.configuration).clone();
        configuration.default = Some(default == Some(row.id));
        Ok(SeenGateway {
            id: row.id,
            configuration,
        })
    }

    async fn change(
        &self,
        user: &UserRow,
        project: &ProjectRow,
        row: GatewayRow,
        configuration: GatewayConfiguration,
        fields: &[String],
    ) -> Result<GatewayRow> {
        let mut changes = self.core.changes(user.into());
        let text = format!("Gateway updated. Changed fields: {}", fields.join(", "));
        changes.note(text, vec![events::gateway(&row)]);
        if let Some(default) = configuration.default {
            self.change_default(&mut changes, project, &row, default).await?;
        }
        let mut new = row.clone();
        new.wildcard_domain = configuration.domain.clone();
        new.configuration = Json::new(configuration);
        new.last_processed_at = self.core.now();
        changes.update(&row, new.clone());
        self.core.commit(changes).await?;
        Ok(new)
    }

    /// Makes the gateway the project's default, or another than the default.
    async fn change_default(
        &self,
        changes: &mut Changes,
        project: &ProjectRow,
        row: &GatewayRow,
        make_default: bool,
    ) -> Result<()> {
        let old = self.directory.database.gateways().default_of(project.id).await?;
        let is_default = old.as_ref().is_some_and(|old| old.row.id == row.id);
        if is_default == make_default {
            return Ok(());
        }
        let targets = |row: &GatewayRow| vec![events::gateway(row), events::project(project)];
        if let Some(old) = old {
            changes.note("Gateway unset as project default", targets(&old.row));
        }
        if make_default {
            changes.note("Gateway set as project default", targets(row));
        }
        changes.directory(Change::SetDefaultGateway {
            project: project.id,
            gateway: make_default.then_some(row.id),
        });
        Ok(())
    }

    /// Id of the project's backend in which the gateway is to be made.
    async fn backend_of(&self, project: ProjectId, configuration: &GatewayConfiguration) -> Result<String> {
        let backends = self.directory.database.backends().list(project).await?;
        let found = backends
            .into_iter()
            .find(|backend| backend.kind == configuration.backend.as_str());
        found.map(|backend| backend.id).ok_or_else(|| {
            let code = ErrorCode::BackendNotAvailable;
            ControlError::with_code(code, code.default_message())
        })
    }

    async fn try_create(
        &self,
        user: &UserRow,
        project: &ProjectRow,
        mut configuration: GatewayConfiguration,
    ) -> Result<GatewayRow> {
        let database = &self.directory.database;
        let backend = match configuration.fleet() {
            Some(_) => None,
            None => Some(self.backend_of(project.id, &configuration).await?),
        };
        let existing = database.gateways().list(project.id, false).await?;
        let name = configuration.name.clone().unwrap_or_else(|| {
            names::numbered(&names::stem(&self.directory.random), |name| {
                existing.iter().any(|listed| listed.row.name == name)
            })
        });
        configuration.name = Some(name.clone());
        let has_default = database.gateways().default_of(project.id).await?.is_some();
        let becomes_default = configuration.default.unwrap_or(!has_default);
        let new = NewGateway {
            id: self.core.random.uuid().into(),
            project: project.id,
            name,
            configuration,
            backend,
        };
        let row = GatewayRow::submitted(new, self.core.now());
        let mut changes = self.core.changes(user.into());
        changes.insert(row.clone(), "Gateway created. Status: SUBMITTED");
        if becomes_default {
            self.change_default(&mut changes, project, &row, true).await?;
        }
        self.core.commit(changes).await?;
        // What this call has stored, not what has become of it meanwhile.
        Ok(row)
    }

    /// Marks gateways for deletion; unknown names are ignored.
    ///
    /// # Errors
    /// The store refuses, or cannot be reached.
    pub async fn delete(&self, actor: Actor, project: ProjectId, names: &[String]) -> Result<()> {
        retry_on_conflict(BUSY, || self.try_delete(actor, project, names)).await
    }

    async fn try_delete(&self, actor: Actor, project: ProjectId, names: &[String]) -> Result<()> {
        let existing = self.directory.database.gateways().list(project, false).await?;
        let mut changes = self.core.changes(actor);
        let is_wanted = |row: &GatewayRow| names.contains(&row.name) && !row.to_be_deleted;
        for before in existing.into_iter().map(|listed| listed.row).filter(is_wanted) {
            let mut row = before.clone();
            row.mark_for_deletion(self.core.now());
            changes.note("Gateway marked for deletion", vec![events::gateway(&row)]);
            changes.update(&before, row);
        }
        self.core.commit(changes).await
    }

    /// Makes a gateway the project's default: one of its own, or with `owner` one that it imports from that project.
    ///
    /// # Errors
    /// There is none of that name, or it is being deleted.
    pub async fn set_default(
        &self,
        actor: Actor,
        project: &ProjectRow,
        owner: Option<&str>,
        name: &str,
    ) -> Result<()> {
        retry_on_conflict(BUSY, || self.try_set_default(actor, project, owner, name)).await
    }

    async fn try_set_default(
        &self,
        actor: Actor,
        project: &ProjectRow,
        owner: Option<&str>,
        name: &str,
    ) -> Result<()> {
        let database = &self.directory.database;
        let found = match owner {
            Some(owner) if owner != project.name => {
                database
                    .gateways()
                    .imported_by_name(project.id, owner, name)
                    .await?
            }
            _ => self.by_name(project.id, name).await?,
        };
        let row = found.ok_or_else(ControlError::not_found)?.row;
        if row.to_be_deleted {
            return Err(ControlError::refused(
                "Cannot set gateway marked for deletion as default",
            ));
        }
        let mut changes = self.core.changes(actor);
        self.change_default(&mut changes, project, &row, true).await?;
        if !changes.is_empty() {
            // Refused when the gateway is marked for deletion, or gone, meanwhile.
            changes.touch(row);
        }
        self.core.commit(changes).await
    }

    /// Changes the domain of the services of a gateway.
    ///
    /// # Errors
    /// There is no gateway of that name.
    pub async fn set_wildcard_domain(
        &self,
        actor: Actor,
        project: ProjectId,
        name: &str,
        domain: &str,
    ) -> Result<()> {
        retry_on_conflict(BUSY, || self.try_set_domain(actor, project, name, domain)).await
    }

    async fn try_set_domain(&self, actor: Actor, project: ProjectId, name: &str, domain: &str) -> Result<()> {
        let found = self.by_name(project, name).await?;
        let found = found.ok_or_else(ControlError::not_found)?.row;
        let mut row = found.clone();
        if row.wildcard_domain.as_deref() == Some(domain) {
            return Ok(());
        }
        let mut changes = self.core.changes(actor);
        let before = quoted(row.wildcard_domain.as_deref());
        let text = format!(
            "Gateway wildcard domain changed {before} -> {}",
            quoted(Some(domain))
        );
        changes.note(text, vec![events::gateway(&row)]);
        let mut configuration = (*row.configuration).clone();
        configuration.domain = Some(domain.to_owned());
        row.wildcard_domain = Some(domain.to_owned());
        row.configuration = Json::new(configuration);
        changes.update(&found, row);
        self.core.commit(changes).await
    }

    async fn by_name(&self, project: ProjectId, name: &str) -> Result<Option<ListedGateway>> {
        Ok(self.directory.database.gateways().by_name(project, name).await?)
    }
}

/// Fields in which two configurations differ. An unset `default` leaves it as it is.
pub fn changed(old: &GatewayConfiguration, new: &GatewayConfiguration) -> Vec<String> {
    let json = |configuration: &GatewayConfiguration| match serde_json::to_value(configuration) {
        Ok(Value::Object(map)) => map,
        _ => serde_json::Map::new(),
    };
    let (old, fields) = (json(old), json(new));
    fields
        .into_iter()
        .filter(|(field, value)| old.get(field) != Some(value))
        .map(|(field, _)| field)
        .filter(|field| field != "default" || new.default.is_some())
        .collect()
}

/// As Python shows a text or nothing.
fn quoted(text: Option<&str>) -> String {
    text.map_or_else(|| "None".to_owned(), |text| format!("'{text}'"))
}
