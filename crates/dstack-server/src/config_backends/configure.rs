//! One backend of config.yml.

use dstack_compute::Registry;
use dstack_compute::config::{BackendConfig, resolve_files};
use dstack_control::backends::stored::source;
use dstack_control::backends::{Accepted, ProjectBackends};
use dstack_control::{Actor, ControlError};
use dstack_model::decode::Problem;
use dstack_model::errors::ErrorCode;
use dstack_store::encryption::Encryption;
use dstack_store::queries::backends::BackendRow;
use dstack_store::queries::projects::ProjectRow;
use dstack_store::{Database, StoreError};
use dstack_units::Time;
use serde_json::Value;

use super::{read, type_of};
use crate::state::{Data, Verbs};

/// A backend as the file lists it, and what it takes to configure it.
#[derive(Debug)]
pub(crate) struct Listed {
    database: Database,
    encryption: Encryption,
    registry: Registry,
    backends: ProjectBackends,
    project: ProjectRow,
    value: Value,
    /// Its place among the backends of its project: that in the file, whichever cloud answers first.
    created_at: Time,
    /// The backend that the project had when the file was applied, once that was looked at.
    before: Option<Option<BackendRow>>,
}

/// Why a backend is not configured, for the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// It is so until somebody changes the file.
    Lasting(String),
    /// It may be otherwise when the cloud is asked again.
    Passing(String),
}

impl Listed {
    pub(super) fn new(
        data: &Data,
        verbs: &Verbs,
        project: &ProjectRow,
        value: &Value,
        created_at: Time,
    ) -> Self {
        Self {
            database: data.database.clone(),
            encryption: data.encryption.clone(),
            registry: verbs.registry.clone(),
            backends: verbs.backends.clone(),
            project: project.clone(),
            value: value.clone(),
            created_at,
            before: None,
        }
    }

    /// The name of its project.
    pub(super) fn project(&self) -> &str {
        &self.project.name
    }

    /// Its type, for the log.
    pub(super) fn type_name(&self) -> &str {
        type_of(&self.value)
    }

    /// Notes what the project has, before anything is waited for.
    pub(super) async fn note_before(&mut self) -> Result<(), Trouble> {
        if self.before.is_none() {
            self.before = self.stored().await?;
        }
        Ok(())
    }

    /// Asks its cloud. `None`: there is nothing to store, as it is as the file says, or somebody has changed or deleted it, or its
    /// project, since the file was applied.
    pub(super) async fn ask(&mut self) -> Result<Option<Accepted>, Trouble> {
        let config = self.config().map_err(Trouble::Lasting)?;
        let Some(now) = self.stored().await? else {
            return Ok(None);
        };
        if *self.before.get_or_insert_with(|| now.clone()) != now {
            return Ok(None);
        }
        if now
            .as_ref()
            .is_some_and(|row| source(&self.encryption, row).as_ref() == Some(&config))
        {
            return Ok(None);
        }
        let accepted = self
            .backends
            .ask(&self.project, &config, now, self.created_at)
            .await;
        accepted.map(Some).map_err(|error| trouble(&error))
    }

    /// Stores what the cloud has accepted, unless somebody has changed or deleted the backend meanwhile: `false` then.
    pub(super) async fn store(&self, accepted: Accepted) -> Result<bool, Trouble> {
        if self.stored().await? != self.before {
            return Ok(false);
        }
        let stored = self.backends.store(Actor::System, &self.project, accepted).await;
        match stored {
            // Another server, which has the same file, was quicker.
            Err(ControlError::Refused {
                code: ErrorCode::ResourceExists,
                ..
            }) => Ok(false),
            stored => stored.map(|()| true).map_err(|error| trouble(&error)),
        }
    }

    /// The backend that the project has; `None`: the project is deleted.
    async fn stored(&self) -> Result<Option<Option<BackendRow>>, Trouble> {
        let failed = |error: StoreError| Trouble::Passing(error.to_string());
        let project = self.database.projects().by_id(self.project.id).await;
        if project.map_err(failed)?.is_none_or(|project| project.deleted) {
            return Ok(None);
        }
        let rows = self.database.backends().list(self.project.id).await;
        let mut rows = rows.map_err(failed)?.into_iter();
        Ok(Some(rows.find(|row| row.kind == self.type_name())))
    }

    /// The files that it names are read each time.
    fn config(&self) -> Result<BackendConfig, String> {
        let mut value = self.value.clone();
        resolve_files(&mut value, &read).map_err(|problem| format!("This backend is skipped: {problem}"))?;
        let config = BackendConfig::read(&value).map_err(|problems| {
            let problems: Vec<String> = problems.iter().map(explain).collect();
            format!("This backend is skipped: {}", problems.join("; "))
        })?;
        match self.registry.get(config.kind()) {
            Some(_) => Ok(config),
            None => Err("This version does not have this backend: skipped".to_owned()),
        }
    }
}

/// What stands in the way, with the fields at fault. Some clouds that cannot be asked look as if they refused the credentials.
fn trouble(error: &ControlError) -> Trouble {
    let text = |reason: &dyn std::fmt::Display| format!("This backend cannot be configured: {reason}");
    match error {
        ControlError::Refused { message, fields, .. } => {
            let reason = match fields.as_slice() {
                [] => message.clone(),
                fields => {
                    let paths: Vec<String> = fields.iter().map(|path| path.join(".")).collect();
                    format!("{}: {message}", paths.join(", "))
                }
            };
            Trouble::Passing(text(&reason))
        }
        other => Trouble::Passing(text(other)),
    }
}

fn explain(problem: &Problem) -> String {
    match problem.suggestion() {
        Some(meant) => format!("{problem}, did you mean `{meant}`?"),
        None => problem.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_fields_at_fault() {
        let refused = |code, fields: Vec<Vec<String>>| ControlError::Refused {
            code,
            message: "why".to_owned(),
            fields,
        };
        let key_file = vec![vec!["creds".to_owned(), "key_file".to_owned()]];
        assert_eq!(
            trouble(&refused(ErrorCode::InvalidCredentials, key_file)),
            Trouble::Passing("This backend cannot be configured: creds.key_file: why".to_owned())
        );
        assert_eq!(
            trouble(&refused(ErrorCode::Error, Vec::new())),
            Trouble::Passing("This backend cannot be configured: why".to_owned())
        );
    }
}
