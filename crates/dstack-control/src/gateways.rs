//! Gateways: creating, changing, deleting, and the default of a project.

mod validate;

use dstack_compute::Registry;
use dstack_model::ErrorCode;
use dstack_model::gateways::{GatewayConfiguration, GatewayStatus};
use dstack_plan::names;
use dstack_store::queries::gateways::{self, GatewayRow, ListedGateway};
use dstack_store::queries::projects::ProjectRow;
use dstack_store::queries::users::UserRow;
use dstack_store::writes::Change;
use dstack_store::{Json, events};
use dstack_units::{GatewayId, ProjectId};
use serde_json::Value;

use crate::core::{Actor, retry_on_conflict};
use crate::directory::{Directory, Work};
use crate::error::{ControlError, Result};

pub use validate::can_change;

const BUSY: &str = "The gateway is being processed at the moment. Try again later.";

/// The verbs of gateways.
#[derive(Debug, Clone)]
pub struct Gateways {
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
    pub fn new(directory: Directory, registry: Registry, max_replicas: i64) -> Self {
        Self {
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
        if found.row.status == GatewayStatus::Failed {
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
        let default = gateways::default_id(self.directory.database.reads(), project).await?;
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
        let mut work = self.directory.work(user.into());
        let text = format!("Gateway updated. Changed fields: {}", fields.join(", "));
        work.event(text, vec![events::gateway(&row)]);
        if let Some(default) = configuration.default {
            self.change_default(&mut work, project, &row, default).await?;
        }
        let new = GatewayRow {
            wildcard_domain: configuration.domain.clone(),
            configuration: Json::new(configuration),
            last_processed_at: self.directory.now(),
            ..row
        };
        work.change(Change::PutGateway(Box::new(new.clone())));
        self.directory.finish(work).await?;
        Ok(new)
    }

    /// Makes the gateway the project's default, or another than the default.
    async fn change_default(
        &self,
        work: &mut Work,
        project: &ProjectRow,
        row: &GatewayRow,
        make_default: bool,
    ) -> Result<()> {
        let old = gateways::default_of(self.directory.database.reads(), project.id).await?;
        let is_default = old.as_ref().is_some_and(|old| old.row.id == row.id);
        if is_default == make_default {
            return Ok(());
        }
        let targets = |row: &GatewayRow| vec![events::gateway(row), events::project(project)];
        if let Some(old) = old {
            work.event("Gateway unset as project default", targets(&old.row));
        }
        if make_default {
            work.event("Gateway set as project default", targets(row));
        }
        work.change(Change::SetDefaultGateway {
            project: project.id,
            gateway: make_default.then_some(row.id),
        });
        Ok(())
    }

    async fn try_create(
        &self,
        user: &UserRow,
        project: &ProjectRow,
        mut configuration: GatewayConfiguration,
    ) -> Result<GatewayRow> {
        let database = &self.directory.database;
        let backends = database.backends().list(project.id).await?;
        let backend = backends
            .iter()
            .find(|backend| backend.kind == configuration.backend.as_str())
            .ok_or_else(|| {
                let code = ErrorCode::BackendNotAvailable;
                ControlError::with_code(code, code.default_message())
            })?;
        let existing = gateways::list(database.reads(), project.id, false).await?;
        let name = configuration.name.clone().unwrap_or_else(|| {
            names::numbered(&names::stem(&self.directory.random), |name| {
                existing.iter().any(|listed| listed.row.name == name)
            })
        });
        configuration.name = Some(name.clone());
        let has_default = gateways::default_of(database.reads(), project.id)
            .await?
            .is_some();
        let becomes_default = configuration.default.unwrap_or(!has_default);
        let now = self.directory.now();
        let row = GatewayRow {
            id: self.directory.random.uuid().into(),
            project_id: project.id,
            name,
            created_at: now,
            status: GatewayStatus::Submitted,
            status_message: None,
            wildcard_domain: configuration.domain.clone(),
            hostname: None,
            backend_id: Some(backend.id.clone()),
            to_be_deleted: false,
            last_processed_at: now,
            version: 0,
            configuration: Json::new(configuration),
        };
        let mut work = self.directory.work(user.into());
        work.event("Gateway created. Status: SUBMITTED", vec![events::gateway(&row)]);
        work.change(Change::PutGateway(Box::new(row.clone())));
        if becomes_default {
            self.change_default(&mut work, project, &row, true).await?;
        }
        self.directory.finish(work).await?;
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
        let existing = gateways::list(self.directory.database.reads(), project, false).await?;
        let mut work = self.directory.work(actor);
        for mut row in existing.into_iter().map(|listed| listed.row) {
            if names.contains(&row.name) && !row.to_be_deleted {
                row.to_be_deleted = true;
                work.event("Gateway marked for deletion", vec![events::gateway(&row)]);
                work.change(Change::PutGateway(Box::new(row)));
            }
        }
        self.directory.finish(work).await
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
        let database = &self.directory.database;
        let found = match owner {
            Some(owner) if owner != project.name => {
                gateways::imported_by_name(database.reads(), project.id, owner, name).await?
            }
            _ => self.by_name(project.id, name).await?,
        };
        let row = found.ok_or_else(ControlError::not_found)?.row;
        if row.to_be_deleted {
            return Err(ControlError::refused(
                "Cannot set gateway marked for deletion as default",
            ));
        }
        let mut work = self.directory.work(actor);
        self.change_default(&mut work, project, &row, true).await?;
        self.directory.finish(work).await
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
        let mut row = found.ok_or_else(ControlError::not_found)?.row;
        if row.wildcard_domain.as_deref() == Some(domain) {
            return Ok(());
        }
        let mut work = self.directory.work(actor);
        let before = quoted(row.wildcard_domain.as_deref());
        let text = format!(
            "Gateway wildcard domain changed {before} -> {}",
            quoted(Some(domain))
        );
        work.event(text, vec![events::gateway(&row)]);
        let mut configuration = (*row.configuration).clone();
        configuration.domain = Some(domain.to_owned());
        row.wildcard_domain = Some(domain.to_owned());
        row.configuration = Json::new(configuration);
        work.change(Change::PutGateway(Box::new(row)));
        self.directory.finish(work).await
    }

    async fn by_name(&self, project: ProjectId, name: &str) -> Result<Option<ListedGateway>> {
        Ok(gateways::by_name(self.directory.database.reads(), project, name).await?)
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
