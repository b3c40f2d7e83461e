//! Backends of projects: configuring, changing, deleting.

pub mod stored;

use dstack_compute::config::BackendConfig;
use dstack_compute::{BackendKind, ConfigureError, Registry};
use dstack_model::ErrorCode;
use dstack_model::backends::BackendType;
use dstack_store::queries::backends::BackendRow;
use dstack_store::queries::projects::ProjectRow;
use dstack_store::writes::Change;
use dstack_store::{StoreError, events};
use dstack_units::Time;

use crate::core::Actor;
use crate::directory::{Directory, Work};
use crate::error::{ControlError, Result};

/// A configuration that its cloud has accepted, and that is not stored yet.
#[derive(Debug)]
pub struct Accepted {
    row: BackendRow,
    kind: BackendType,
    /// The project has a backend of this type.
    replaces: bool,
}

/// The verbs of backends.
#[derive(Debug, Clone)]
pub struct ProjectBackends {
    directory: Directory,
    registry: Registry,
    default_creds_disabled: bool,
}

impl ProjectBackends {
    /// On this database, with the kinds of this build. `default_creds_disabled` refuses configurations that use what the
    /// server's own machine may do.
    pub fn new(directory: Directory, registry: Registry, default_creds_disabled: bool) -> Self {
        Self {
            directory,
            registry,
            default_creds_disabled,
        }
    }

    /// The project's backend of this type.
    ///
    /// # Errors
    /// This build does not have the type, or the store.
    pub async fn find(&self, project: &ProjectRow, of: BackendType) -> Result<Option<BackendRow>> {
        self.kind(of)?;
        let rows = self.directory.database.backends().list(project.id).await?;
        Ok(rows.into_iter().find(|row| row.kind == of.as_str()))
    }

    /// Configures a backend that the project does not have yet.
    ///
    /// # Errors
    /// This build does not have the type, the project has it, or its cloud refuses the configuration.
    pub async fn add(&self, actor: Actor, project: &ProjectRow, config: &BackendConfig) -> Result<()> {
        if self.find(project, config.kind()).await?.is_some() {
            return Err(ControlError::exists());
        }
        let accepted = self.ask(project, config, None, self.directory.now()).await?;
        self.store(actor, project, accepted).await
    }

    /// Changes the configuration of a backend that the project has.
    ///
    /// # Errors
    /// As [`ProjectBackends::add`]; the project does not have it.
    pub async fn replace(&self, actor: Actor, project: &ProjectRow, config: &BackendConfig) -> Result<()> {
        let old = self.find(project, config.kind()).await?;
        let old = old.ok_or_else(ControlError::not_found)?;
        let accepted = self.ask(project, config, Some(old), self.directory.now()).await?;
        self.store(actor, project, accepted).await
    }

    /// Asks the cloud whether it accepts the configuration. Nothing is stored yet. `old`: what it takes the place of; `created_at`: the
    /// place of a new one among the others.
    ///
    /// # Errors
    /// This build does not have the type, or its cloud refuses the configuration.
    pub async fn ask(
        &self,
        project: &ProjectRow,
        config: &BackendConfig,
        old: Option<BackendRow>,
        created_at: Time,
    ) -> Result<Accepted> {
        let replaces = old.is_some();
        let id = old.map_or_else(|| self.directory.random.uuid().to_string(), |old| old.id);
        Ok(Accepted {
            row: self.configured(project, config, id, created_at).await?,
            kind: config.kind(),
            replaces,
        })
    }

    /// Stores what the cloud has accepted.
    ///
    /// # Errors
    /// The project has a backend of the type by now, where it had none; or the store.
    pub async fn store(&self, actor: Actor, project: &ProjectRow, accepted: Accepted) -> Result<()> {
        let (what, change) = match accepted.replaces {
            true => ("updated", Change::UpdateBackend(accepted.row)),
            false => ("created", Change::InsertBackend(accepted.row)),
        };
        let mut work = self.begin(actor, project, what, accepted.kind);
        work.change(change);
        match self.directory.finish(work).await {
            Err(error) if error.is_conflict() && !accepted.replaces => Err(ControlError::exists()),
            done => done,
        }
    }

    /// Names of the types of the project's backends, also of such as nobody knows any more.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn names(&self, project: &ProjectRow) -> Result<Vec<String>> {
        let rows = self.directory.database.backends().list(project.id).await?;
        Ok(rows.into_iter().map(|row| row.kind).collect())
    }

    /// Deletes backends by the names of their types, which nobody need know any more; those that the project does not have are ignored.
    ///
    /// # Errors
    /// Instances, volumes or placement groups need one of them: none is deleted.
    pub async fn delete(&self, actor: Actor, project: &ProjectRow, names: &[&str]) -> Result<()> {
        let existing = self.directory.database.backends().list(project.id).await?;
        let mut work = self.directory.work(actor);
        for row in existing {
            if !names.contains(&row.kind.as_str()) {
                continue;
            }
            tell(&mut work, actor, project, "deleted", &row.kind);
            work.change(Change::DeleteBackend {
                project: project.id,
                kind: row.kind,
            });
        }
        match self.directory.finish(work).await {
            Err(ControlError::Store(StoreError::InUse { by, names })) => {
                Err(ControlError::refused(has_active(by, &names)))
            }
            Err(ControlError::Store(StoreError::HasPlacementGroups {
                kind,
                fleets,
                are_there,
            })) => Err(ControlError::refused(has_placement_groups(
                &kind, &fleets, are_there,
            ))),
            done => done,
        }
    }

    fn begin(&self, actor: Actor, project: &ProjectRow, what: &str, kind: BackendType) -> Work {
        let mut work = self.directory.work(actor);
        tell(&mut work, actor, project, what, kind.as_str());
        work
    }

    fn kind(&self, of: BackendType) -> Result<&dyn BackendKind> {
        let kind = self.registry.get(of).map(AsRef::as_ref);
        kind.ok_or_else(|| {
            let code = ErrorCode::BackendNotAvailable;
            ControlError::with_code(code, code.default_message())
        })
    }

    /// Asks the cloud whether it accepts the configuration.
    async fn configured(
        &self,
        project: &ProjectRow,
        config: &BackendConfig,
        id: String,
        created_at: Time,
    ) -> Result<BackendRow> {
        if self.default_creds_disabled && config.uses_default_creds() {
            return Err(invalid_credentials(None, vec![vec!["creds".to_owned()]]));
        }
        let kind = self.kind(config.kind())?;
        let in_force = kind.configure(&project.name, config).await;
        let in_force = in_force.map_err(|error| match error {
            ConfigureError::Credentials { fields, details } => invalid_credentials(details, fields),
            ConfigureError::Invalid(text) => ControlError::refused(text),
        })?;
        let encryption = &self.directory.encryption;
        Ok(stored::row(
            encryption, id, project.id, created_at, config, &in_force,
        )?)
    }
}

/// Why backends are not deleted, and what to do. What was made with a type that nobody knows any more, this server cannot end.
fn has_active(by: &str, kinds: &[String]) -> String {
    let is_gone = |kind: &String| kind.parse::<BackendType>().is_err();
    let first = match kinds.iter().any(is_gone) {
        true => {
            ", and this server does not know its type any more: it cannot end them. Put the file that describes the backend back into \
             the directory of backends (DSTACK_SERVER_BACKENDS_DIR), and start the server again"
        }
        false => "",
    };
    let kinds = kinds.join(", ");
    format!("Backend {kinds} has active {by}{first}. Delete {by} before deleting the backend.")
}

/// Why a backend is not deleted, and what to do: users know nothing of placement groups but their fleets.
fn has_placement_groups(kind: &str, fleets: &[String], are_there: bool) -> String {
    let fleets = fleets.join(", ");
    match are_there {
        true => format!(
            "Backend {kind} has placement groups, which these fleets keep as long as they are there: {fleets}. \
             Delete these fleets before deleting the backend."
        ),
        false => format!(
            "Backend {kind} is still deleting the placement groups of fleets: {fleets}. Delete the backend once its cloud has \
             confirmed that, within minutes as a rule."
        ),
    }
}

fn invalid_credentials(details: Option<String>, fields: Vec<Vec<String>>) -> ControlError {
    let code = ErrorCode::InvalidCredentials;
    let message = match details {
        Some(details) => format!("{}: {details}", code.default_message()),
        None => code.default_message().to_owned(),
    };
    ControlError::Refused {
        code,
        message,
        fields,
    }
}

/// `Backend created. Type: aws`. What the server does by `config.yml` is in its log: lists of what the system did begin as
/// they do in dstack 0.22.5.
fn tell(work: &mut Work, actor: Actor, project: &ProjectRow, what: &str, kind: &str) {
    if matches!(actor, Actor::User(_)) {
        let message = format!("Backend {what}. Type: {kind}");
        work.event_for_managers(message, vec![events::project(project)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_type_that_nobody_knows_the_file_is_asked_for() {
        let known = has_active("instances", &["aws".to_owned()]);
        assert_eq!(
            known,
            "Backend aws has active instances. Delete instances before deleting the backend."
        );
        let gone = has_active("instances", &["cirrus".to_owned()]);
        assert!(
            gone.starts_with("Backend cirrus has active instances, and")
                && gone.contains("Put the file that describes the backend back")
                && gone.ends_with("Delete instances before deleting the backend."),
            "{gone}"
        );
    }

    #[test]
    fn who_cannot_delete_a_backend_is_told_which_fleets_keep_it() {
        let fleets = ["one".to_owned(), "two".to_owned()];
        let kept = has_placement_groups("aws", &fleets, true);
        assert!(
            kept.contains("one, two") && kept.contains("Delete these fleets"),
            "{kept}"
        );
        let left = has_placement_groups("aws", &fleets, false);
        assert!(
            left.contains("one, two") && !left.contains("Delete these fleets"),
            "{left}"
        );
    }
}
