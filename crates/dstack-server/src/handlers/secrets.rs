//! Secrets.

use dstack_api::{Nothing, routes};
use dstack_model::requests::{CreateOrUpdateSecretRequest, DeleteSecretsRequest, NameRequest};
use dstack_model::secrets::Secret;
use dstack_store::directory::secrets::{self, SecretRow};
use dstack_units::name::is_secret_name;

use crate::access::Project;
use crate::api::{Api, Call};
use crate::audit;
use crate::error::{ApiError, Result};

const LONGEST: usize = 5000;

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::SecretsList, _, _>(list)
        .on::<routes::SecretsGet, _, _>(get)
        .on::<routes::SecretsCreateOrUpdate, _, _>(create_or_update)
        .on::<routes::SecretsDelete, _, _>(delete)
}

/// The project, if the caller may manage its secrets: the guard also lets managers pass.
fn project(call: &Call) -> Result<&Project> {
    let project = call.project()?;
    match project.is_admin(call.user()?) || call.state.permissions.get().allow_managers_manage_secrets {
        true => Ok(project),
        false => Err(ApiError::Forbidden("Access denied".to_owned())),
    }
}

async fn list(call: Call, _: Nothing) -> Result<Vec<Secret>> {
    let rows = secrets::list(call.state.database.pool(), project(&call)?.row.id).await?;
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
    let row = secrets::by_name(call.state.database.pool(), project(&call)?.row.id, &request.name).await?;
    shown(&call, row.ok_or_else(ApiError::not_exists)?)
}

fn shown(call: &Call, row: SecretRow) -> Result<Secret> {
    let value = call.state.encryption.decrypt(&row.value)?;
    Ok(Secret {
        id: row.id,
        name: row.name,
        value: Some(value.expose().to_owned()),
    })
}

async fn create_or_update(call: Call, request: CreateOrUpdateSecretRequest) -> Result<Secret> {
    let project = project(&call)?;
    let state = &call.state;
    if !is_secret_name(&request.name) {
        // The quote is missing in the reference, too.
        return Err(ApiError::client(
            "Secret name should match regex '^[A-Za-z0-9-_]{1,200}$",
        ));
    }
    if request.value.chars().count() > LONGEST {
        return Err(ApiError::client(format!(
            "Secret value length must not exceed {LONGEST}"
        )));
    }
    let now = state.clock.now();
    let old = secrets::by_name(state.database.pool(), project.row.id, &request.name).await?;
    let (row, message) = match old {
        None => {
            let row = SecretRow {
                id: state.random.uuid().into(),
                project_id: project.row.id,
                created_at: now,
                updated_at: now,
                name: request.name,
                value: state.encryption.encrypt(&request.value)?,
            };
            (row, "Secret created")
        }
        Some(old)
            if state
                .encryption
                .decrypt(&old.value)
                .is_ok_and(|value| value.expose() == request.value) =>
        {
            return shown(&call, old);
        }
        Some(old) => {
            let value = state.encryption.encrypt(&request.value)?;
            (
                SecretRow {
                    value,
                    updated_at: now,
                    ..old
                },
                "Secret updated",
            )
        }
    };
    let event = audit::event(state, call.user()?, message, audit::secret(&row));
    let stored = row.clone();
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                secrets::put(tx, &stored).await?;
                audit::write(tx, event).await
            })
        })
        .await?;
    shown(&call, row)
}

async fn delete(call: Call, request: DeleteSecretsRequest) -> Result<()> {
    let project = project(&call)?;
    let state = &call.state;
    let (mut found, mut unknown) = (Vec::new(), Vec::new());
    for name in request.secrets_names {
        match secrets::by_name(state.database.pool(), project.row.id, &name).await? {
            None => unknown.push(name),
            Some(row) => {
                let event = audit::event(state, call.user()?, "Secret deleted", audit::secret(&row));
                found.push((row.id, event));
            }
        }
    }
    if !unknown.is_empty() {
        return Err(ApiError::with_code(
            dstack_api::ErrorCode::ResourceNotExists,
            format!("Secrets not found: {}", unknown.join(", ")),
        ));
    }
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                for (id, event) in found {
                    secrets::delete(tx, id).await?;
                    audit::write(tx, event).await?;
                }
                Ok(())
            })
        })
        .await?;
    Ok(())
}
