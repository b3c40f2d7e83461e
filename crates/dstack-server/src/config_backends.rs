//! Backends of config.yml: what the file says is what a project has.
//!
//! A backend that cannot be configured is reported and the others go on: a cloud that does not answer must not keep the
//! server from starting. It is tried again beside the server ([`rounds`]).

mod configure;
pub(crate) mod rounds;

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

use dstack_compute::config::resolve_files;
use dstack_control::{Actor, ControlError};
use dstack_store::queries::projects::ProjectRow;
use serde_json::Value;

use self::configure::Listed;
use self::rounds::Round;
use crate::error::ApiError;
use crate::state::{Data, Verbs};

/// Begins to configure the listed backends of a project, and removes the others.
pub(crate) async fn apply(
    data: &Data,
    verbs: &Verbs,
    round: &mut Round,
    project: &ProjectRow,
    listed: &[Value],
) -> Result<(), ApiError> {
    let mut kept = Vec::new();
    let mut created_at = data.clock.now();
    for (index, value) in listed.iter().enumerate() {
        // Whatever is wrong with a backend, it is not to be removed: also where the file is gone that describes its type.
        kept.push(type_of(value));
        let kind = type_of(value);
        if listed.iter().skip(index + 1).any(|later| type_of(later) == kind) {
            tracing::warn!(
                project.name = project.name,
                backend.r#type = kind,
                "config.yml lists this backend several times: the last counts"
            );
            continue;
        }
        round.configure(Listed::new(data, verbs, project, value, created_at));
        created_at = created_at + Duration::from_micros(1);
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
    use serde_json::json;

    use super::*;

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
