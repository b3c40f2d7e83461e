//! Backends of config.yml: what the file says is what a project has.
//!
//! A backend that cannot be configured is reported and the others go on: a cloud that does not answer must not keep the
//! server from starting.

use std::cell::RefCell;
use std::path::PathBuf;

use dstack_compute::config::{BackendConfig, resolve_files};
use dstack_control::backends::stored::source;
use dstack_control::{Actor, ControlError};
use dstack_model::decode::Problem;
use dstack_store::queries::projects::ProjectRow;
use serde_json::Value;

use crate::error::ApiError;
use crate::state::{Data, Verbs};

/// Configures the listed backends of a project and removes the others.
pub(crate) async fn apply(
    data: &Data,
    verbs: &Verbs,
    project: &ProjectRow,
    listed: &[Value],
) -> Result<(), ApiError> {
    let mut kept = Vec::new();
    for value in listed {
        // Whatever is wrong with a backend, it is not to be removed: also where the file is gone that describes its type.
        kept.push(type_of(value));
        if let Err(reason) = configure(data, verbs, project, value).await {
            tracing::warn!(
                project.name = project.name,
                backend.r#type = type_of(value),
                "{reason}"
            );
        }
    }
    let mut gone = verbs.backends.names(project).await?;
    gone.retain(|name| !kept.contains(&name.as_str()));
    for name in &gone {
        match verbs
            .backends
            .delete(Actor::System, project, &[name.as_str()])
            .await
        {
            Err(ControlError::Refused { message, .. }) => tracing::warn!(
                project.name = project.name,
                "{message} It is kept, although config.yml does not have it"
            ),
            done => done?,
        }
    }
    Ok(())
}

fn type_of(value: &Value) -> &str {
    value.get("type").and_then(Value::as_str).unwrap_or("(no type)")
}

/// Configures one backend, unless it is as the file says already. The error is for the log.
async fn configure(data: &Data, verbs: &Verbs, project: &ProjectRow, value: &Value) -> Result<(), String> {
    let mut value = value.clone();
    resolve_files(&mut value, &read).map_err(|problem| format!("This backend is skipped: {problem}"))?;
    let config = BackendConfig::read(&value).map_err(|problems| {
        let problems: Vec<String> = problems.iter().map(explain).collect();
        format!("This backend is skipped: {}", problems.join("; "))
    })?;
    if verbs.registry.get(config.kind()).is_none() {
        return Err("This version does not have this backend: skipped".to_owned());
    }
    let existing = data
        .database
        .backends()
        .list(project.id)
        .await
        .map_err(|error| error.to_string())?;
    let existing = existing.iter().find(|row| row.kind == config.kind().as_str());
    let verbs = &verbs.backends;
    let done = match existing {
        Some(row) if source(&data.encryption, row).as_ref() == Some(&config) => return Ok(()),
        Some(_) => verbs.replace(Actor::System, project, &config).await,
        None => verbs.add(Actor::System, project, &config).await,
    };
    done.map_err(|error| format!("This backend cannot be configured: {}", with_fields(&error)))
}

/// Why it is refused, with the fields at fault.
fn with_fields(error: &ControlError) -> String {
    match error {
        ControlError::Refused { message, fields, .. } if !fields.is_empty() => {
            let paths: Vec<String> = fields.iter().map(|path| path.join(".")).collect();
            format!("{}: {message}", paths.join(", "))
        }
        other => other.to_string(),
    }
}

fn explain(problem: &Problem) -> String {
    match problem.suggestion() {
        Some(meant) => format!("{problem}, did you mean `{meant}`?"),
        None => problem.to_string(),
    }
}

/// The content of a file that the configuration names.
fn read(name: &str) -> Option<String> {
    fs_err::read_to_string(path_of(name)?).ok()
}

/// The path that is meant: `~` is the home of the server's user.
fn path_of(name: &str) -> Option<PathBuf> {
    match name.strip_prefix("~/") {
        Some(rest) => Some(dstack_system::env::home()?.join(rest)),
        None => Some(name.into()),
    }
}

/// The files that backends name, whether they are there or not.
pub(crate) fn named_files<'a>(backends: impl Iterator<Item = &'a Value>) -> Vec<PathBuf> {
    let names = RefCell::new(Vec::new());
    let record = |name: &str| {
        names.borrow_mut().push(name.to_owned());
        Some(String::new())
    };
    for backend in backends {
        // What is wrong with it is said where it is configured.
        resolve_files(&mut backend.clone(), &record).ok();
    }
    let names = names.into_inner();
    names.iter().filter_map(|name| path_of(name)).collect()
}

#[cfg(test)]
mod tests {
    use dstack_model::errors::ErrorCode;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refusal_names_the_fields_at_fault() {
        let refused = |fields: Vec<Vec<String>>| ControlError::Refused {
            code: ErrorCode::InvalidCredentials,
            message: "Invalid credentials: why".to_owned(),
            fields,
        };
        let key_file = vec![vec!["creds".to_owned(), "key_file".to_owned()]];
        assert_eq!(
            with_fields(&refused(key_file)),
            "creds.key_file: Invalid credentials: why"
        );
        assert_eq!(with_fields(&refused(Vec::new())), "Invalid credentials: why");
    }

    #[test]
    fn the_files_of_all_backends_are_named() {
        let backends = [
            json!({"type": "gcp", "creds": {"type": "service_account", "filename": "/keys/gcp.json"}}),
            json!({"type": "nebius", "creds": {"filename": "/keys/nebius.json"}}),
            json!({"type": "kubernetes", "kubeconfig": {"data": "inline"}}),
            json!({"type": "aws", "creds": {"type": "default"}}),
        ];
        let files = named_files(backends.iter());
        assert_eq!(
            files,
            [PathBuf::from("/keys/gcp.json"), "/keys/nebius.json".into()]
        );
    }
}
