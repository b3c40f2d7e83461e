//! Handlers that list, show, set and delete a project's secrets.

use dstack_api::{Nothing, routes};
use dstack_model::requests::{CreateOrUpdateSecretRequest, DeleteSecretsRequest, NameRequest};
use dstack_model::secrets::Secret;
use dstack_store::queries::secrets::SecretRow;

use crate::access::Project;
use crate::api::{Api, Call};
use crate::error::{ApiError, Result};

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::SecretsList, _, _>(list)
        .on::<routes::SecretsGet, _, _>(get)
        .on::<routes::SecretsCreateOrUpdate, _, _>(create_or_update)
        .on::<routes::SecretsDelete, _, _>(delete)
}

/// The project, if the caller may manage its secrets: the guard also lets managers pass.
fn project(call: &Call) -> Result<&Project> {
    let project = call.project()?;
    match project.is_admin(call.user()?) || call.state.auth.permissions.get().allow_managers_manage_secrets {
        true => Ok(project),
        false => Err(ApiError::Forbidden("Access denied".to_owned())),
    }
}

async fn list(call: Call, _: Nothing) -> Result<Vec<Secret>> {
    let rows = call
        .state
        .data
        .database
        .secrets()
        .list(project(&call)?.row.id)
        .await?;
    Ok(rows
        .into_iter()
        .map(|row| Secret {
            id: row.id,
            name: row.name,
            value: None,
        })
        .collect())
}

async fn get(call: Call, request: NameRequest) -> Result<Secret> {
    let row = call
        .state
        .data
        .database
        .secrets()
        .by_name(project(&call)?.row.id, &request.name)
        .await?;
    shown(&call, row.ok_or_else(ApiError::not_exists)?)
}

fn shown(call: &Call, row: SecretRow) -> Result<Secret> {
    let value = call.state.data.encryption.decrypt(&row.value)?;
    Ok(Secret {
        id: row.id,
        name: row.name,
        value: Some(value.expose().to_owned()),
    })
}

async fn create_or_update(call: Call, request: CreateOrUpdateSecretRequest) -> Result<Secret> {
    let project = project(&call)?.row.id;
    let verbs = &call.state.control.verbs.secrets;
    let row = verbs
        .put(call.user()?.into(), project, &request.name, &request.value)
        .await?;
    shown(&call, row)
}

async fn delete(call: Call, request: DeleteSecretsRequest) -> Result<()> {
    let project = project(&call)?.row.id;
    let verbs = &call.state.control.verbs.secrets;
    Ok(verbs
        .delete(call.user()?.into(), project, &request.secrets_names)
        .await?)
}
