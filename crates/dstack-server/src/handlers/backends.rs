//! Configuring backends.

use dstack_api::responses::{BackendConfigBody, BackendConfigYaml};
use dstack_api::{ErrorCode, Nothing, routes};
use dstack_compute::config::BackendConfig;
use dstack_compute::{BackendKind, ConfigureError};
use dstack_model::backends::BackendType;
use dstack_model::decode::problem::validation_body;
use dstack_model::decode::{Loc, decode_strict};
use dstack_model::requests::{BackendYamlRequest, DeleteBackendsRequest};
use dstack_model::yaml;
use dstack_store::NewEvent;
use dstack_store::directory::backends::{self, BackendRow};
use dstack_store::directory::projects::ProjectRow;
use dstack_store::directory::users::UserRow;
use dstack_store::directory::volumes;
use serde_json::Value;

use crate::api::{Api, Call};
use crate::audit;
use crate::backends as stored;
use crate::error::{ApiError, Result};
use crate::state::AppState;

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::BackendsListTypes, _, _>(list_types)
        .on::<routes::BackendsCreate, _, _>(create)
        .on::<routes::BackendsUpdate, _, _>(update)
        .on::<routes::BackendsDelete, _, _>(delete)
        .on::<routes::BackendsConfigInfo, _, _>(config_info)
        .on::<routes::BackendsCreateYaml, _, _>(create_yaml)
        .on::<routes::BackendsUpdateYaml, _, _>(update_yaml)
        .on::<routes::BackendsGetYaml, _, _>(get_yaml)
}

async fn list_types(call: Call, _: Nothing) -> Result<Vec<BackendType>> {
    Ok(call.state.registry.types())
}

async fn create(call: Call, body: BackendConfigBody) -> Result<BackendConfigBody> {
    let config = from_body(&body)?;
    add(&call.state, Some(call.user()?), &call.project()?.row, &config).await?;
    shown(&config)
}

async fn update(call: Call, body: BackendConfigBody) -> Result<BackendConfigBody> {
    let config = from_body(&body)?;
    replace(&call.state, Some(call.user()?), &call.project()?.row, &config).await?;
    shown(&config)
}

async fn create_yaml(call: Call, request: BackendYamlRequest) -> Result<()> {
    let config = from_yaml(&request.config_yaml)?;
    add(&call.state, Some(call.user()?), &call.project()?.row, &config).await
}

async fn update_yaml(call: Call, request: BackendYamlRequest) -> Result<()> {
    let config = from_yaml(&request.config_yaml)?;
    replace(&call.state, Some(call.user()?), &call.project()?.row, &config).await
}

async fn config_info(call: Call, _: Nothing) -> Result<BackendConfigBody> {
    shown(&in_force(&call).await?)
}

async fn get_yaml(call: Call, _: Nothing) -> Result<BackendConfigYaml> {
    let config = in_force(&call).await?;
    Ok(BackendConfigYaml {
        name: config.kind().to_string(),
        config_yaml: config.yaml(),
    })
}

async fn delete(call: Call, request: DeleteBackendsRequest) -> Result<()> {
    if request.backends_names.contains(&BackendType::Dstack) {
        return Err(ApiError::client("Cannot delete dstack backend"));
    }
    let project = &call.project()?.row;
    if let Some(user) = user_of(&call.state, project, &request.backends_names).await? {
        return Err(ApiError::client(user.refusal()));
    }
    remove(&call.state, Some(call.user()?), project, &request.backends_names).await
}

fn shown(config: &BackendConfig) -> Result<BackendConfigBody> {
    let value = serde_json::to_value(config).map_err(ApiError::internal)?;
    Ok(BackendConfigBody(value))
}

fn from_body(BackendConfigBody(body): &BackendConfigBody) -> Result<BackendConfig> {
    BackendConfig::read(body).map_err(|problems| ApiError::Validation(validation_body("body", &problems)))
}

fn from_yaml(text: &str) -> Result<BackendConfig> {
    let document = yaml::load(text).map_err(|_| ApiError::client("Error parsing YAML"))?;
    BackendConfig::read(&document.value).map_err(|problems| {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        ApiError::client(lines.join("\n"))
    })
}

/// The type in the path.
fn named(call: &Call) -> Result<BackendType> {
    let name = Value::String(call.param("backend_name").to_owned());
    decode_strict::<BackendType>(&name).map_err(|mut problems| {
        for problem in &mut problems {
            problem.loc = vec![Loc::Key("backend_name".into())];
        }
        ApiError::Validation(validation_body("path", &problems))
    })
}

fn kind(state: &AppState, of: BackendType) -> Result<&dyn BackendKind> {
    let kind = state.registry.get(of).map(AsRef::as_ref);
    kind.ok_or_else(|| {
        ApiError::with_code(
            ErrorCode::BackendNotAvailable,
            ErrorCode::BackendNotAvailable.default_message(),
        )
    })
}

async fn find(state: &AppState, project: &ProjectRow, of: BackendType) -> Result<Option<BackendRow>> {
    let rows = backends::list(state.database.pool(), project.id).await?;
    Ok(rows.into_iter().find(|row| row.kind == of.as_str()))
}

async fn in_force(call: &Call) -> Result<BackendConfig> {
    let state = &call.state;
    let of = named(call)?;
    kind(state, of)?;
    let row = find(state, &call.project()?.row, of)
        .await?
        .ok_or_else(ApiError::not_exists)?;
    let split = stored::stored(&state.encryption, &row).map_err(|_| ApiError::not_exists())?;
    BackendConfig::join(&split).map_err(|reason| {
        ApiError::client(format!(
            "The stored configuration of backend {of} cannot be read: {reason}. Update the backend."
        ))
    })
}

async fn configured(
    state: &AppState,
    project: &ProjectRow,
    config: &BackendConfig,
    id: String,
) -> Result<BackendRow> {
    if state.settings.default_creds_disabled && config.uses_default_creds() {
        return Err(ApiError::Client {
            code: ErrorCode::InvalidCredentials,
            msg: ErrorCode::InvalidCredentials.default_message().to_owned(),
            fields: vec![vec!["creds".to_owned()]],
        });
    }
    let in_force = kind(state, config.kind())?
        .configure(&project.name, config)
        .await
        .map_err(|error| match error {
            ConfigureError::Credentials { fields, details } => {
                let code = ErrorCode::InvalidCredentials;
                let msg = match details {
                    Some(details) => format!("{}: {details}", code.default_message()),
                    None => code.default_message().to_owned(),
                };
                ApiError::Client { code, msg, fields }
            }
            ConfigureError::Invalid(text) => ApiError::client(text),
        })?;
    Ok(stored::row(
        &state.encryption,
        id,
        project.id,
        state.clock.now(),
        config,
        &in_force,
    )?)
}

/// `Backend created. Type: aws`. What the server does by `config.yml` is in its log: lists of what the system did begin as
/// they do in dstack 0.22.5.
fn event(
    state: &AppState,
    actor: Option<&UserRow>,
    project: &ProjectRow,
    what: &str,
    kind: BackendType,
) -> Option<NewEvent> {
    let message = format!("Backend {what}. Type: {kind}");
    audit::for_managers(state, actor?, message, vec![audit::project(project)])
}

/// Configures a backend that the project does not have yet.
pub(crate) async fn add(
    state: &AppState,
    actor: Option<&UserRow>,
    project: &ProjectRow,
    config: &BackendConfig,
) -> Result<()> {
    kind(state, config.kind())?;
    if find(state, project, config.kind()).await?.is_some() {
        return Err(ApiError::exists());
    }
    let row = configured(state, project, config, state.random.uuid().to_string()).await?;
    let event = event(state, actor, project, "created", config.kind());
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                backends::insert(tx, &row).await?;
                audit::write(tx, event).await
            })
        })
        .await?;
    Ok(())
}

/// Changes the configuration of a backend that the project has.
pub(crate) async fn replace(
    state: &AppState,
    actor: Option<&UserRow>,
    project: &ProjectRow,
    config: &BackendConfig,
) -> Result<()> {
    kind(state, config.kind())?;
    let old = find(state, project, config.kind())
        .await?
        .ok_or_else(ApiError::not_exists)?;
    let row = configured(state, project, config, old.id).await?;
    let event = event(state, actor, project, "updated", config.kind());
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                backends::update(tx, &row).await?;
                audit::write(tx, event).await
            })
        })
        .await?;
    Ok(())
}

/// What needs a backend that is to be removed.
pub(crate) struct UserOf {
    backend: String,
    what: &'static str,
}

impl UserOf {
    fn refusal(&self) -> String {
        let Self { backend, what } = self;
        format!("Backend {backend} has active {what}. Delete {what} before deleting the backend.")
    }

    /// The same, where nobody can be refused.
    pub(crate) fn warning(&self) -> String {
        let Self { backend, what } = self;
        format!("Backend {backend} has active {what}: it is kept, although config.yml does not have it")
    }
}

/// Instances or volumes that need one of these backends.
pub(crate) async fn user_of(
    state: &AppState,
    project: &ProjectRow,
    kinds: &[BackendType],
) -> Result<Option<UserOf>> {
    let pool = state.database.pool();
    let names: Vec<String> = kinds.iter().map(ToString::to_string).collect();
    if let Some(backend) = backends::with_instances(pool, project.id, &names).await?.pop() {
        return Ok(Some(UserOf {
            backend,
            what: "instances",
        }));
    }
    let volumes = volumes::of_project(pool, project.id).await?;
    let needed = volumes.iter().find_map(|volume| {
        let data = volume.row.provisioning_data.as_ref()?;
        let backend = data.backend.unwrap_or(volume.row.configuration.backend());
        kinds.contains(&backend).then(|| backend.to_string())
    });
    Ok(needed.map(|backend| UserOf {
        backend,
        what: "volumes",
    }))
}

/// Removes backends; those that the project does not have are ignored.
pub(crate) async fn remove(
    state: &AppState,
    actor: Option<&UserRow>,
    project: &ProjectRow,
    kinds: &[BackendType],
) -> Result<()> {
    let existing = backends::list(state.database.pool(), project.id).await?;
    let doomed: Vec<_> = kinds
        .iter()
        .filter(|kind| existing.iter().any(|row| row.kind == kind.as_str()))
        .map(|kind| (*kind, event(state, actor, project, "deleted", *kind)))
        .collect();
    let project = project.id;
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                for (kind, event) in doomed {
                    backends::delete(tx, project, kind.as_str()).await?;
                    audit::write(tx, event).await?;
                }
                Ok(())
            })
        })
        .await?;
    Ok(())
}
