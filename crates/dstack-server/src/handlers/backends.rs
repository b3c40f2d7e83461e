//! Handlers that list backend types and configure a project's backends.

use dstack_api::responses::{BackendConfigBody, BackendConfigYaml};
use dstack_api::{Nothing, routes};
use dstack_compute::config::BackendConfig;
use dstack_control::backends::stored::stored;
use dstack_model::backends::{BackendName, BackendType};
use dstack_model::decode::problem::validation_body;
use dstack_model::decode::{Loc, MAX_PROBLEMS, Problem, decode_strict};
use dstack_model::requests::{BackendYamlRequest, DeleteBackendsRequest};
use dstack_model::yaml;
use serde_json::Value;

use crate::api::{Api, Call};
use crate::error::{ApiError, Result};

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
    Ok(call.state.control.verbs.registry.types())
}

async fn create(call: Call, body: BackendConfigBody) -> Result<BackendConfigBody> {
    let config = from_body(&body)?;
    let verbs = &call.state.control.verbs.backends;
    verbs
        .add(call.user()?.into(), &call.project()?.row, &config)
        .await?;
    shown(&config)
}

async fn update(call: Call, body: BackendConfigBody) -> Result<BackendConfigBody> {
    let config = from_body(&body)?;
    let verbs = &call.state.control.verbs.backends;
    verbs
        .replace(call.user()?.into(), &call.project()?.row, &config)
        .await?;
    shown(&config)
}

async fn create_yaml(call: Call, request: BackendYamlRequest) -> Result<()> {
    let config = from_yaml(&request.config_yaml)?;
    let verbs = &call.state.control.verbs.backends;
    Ok(verbs
        .add(call.user()?.into(), &call.project()?.row, &config)
        .await?)
}

async fn update_yaml(call: Call, request: BackendYamlRequest) -> Result<()> {
    let config = from_yaml(&request.config_yaml)?;
    let verbs = &call.state.control.verbs.backends;
    Ok(verbs
        .replace(call.user()?.into(), &call.project()?.row, &config)
        .await?)
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

/// Also of types that nobody knows any more: their files are gone, and the backends are still there.
async fn delete(call: Call, request: DeleteBackendsRequest) -> Result<()> {
    let (verbs, project) = (&call.state.control.verbs.backends, &call.project()?.row);
    let names = &request.backends_names;
    if names.iter().any(|name| !name.is_known()) {
        let problems = unknown(names, &verbs.names(project).await?);
        if !problems.is_empty() {
            return Err(ApiError::Validation(validation_body("body", &problems)));
        }
    }
    let names: Vec<&str> = names.iter().map(BackendName::as_str).collect();
    Ok(verbs.delete(call.user()?.into(), project, &names).await?)
}

/// What is wrong with names that neither this server knows nor the project has.
fn unknown(names: &[BackendName], configured: &[String]) -> Vec<Problem> {
    let is_configured = |name: &BackendName| configured.iter().any(|kind| kind == name.as_str());
    let mut found = Vec::new();
    for (index, name) in names.iter().enumerate() {
        if found.len() >= MAX_PROBLEMS {
            break;
        }
        if name.is_known() || is_configured(name) {
            continue;
        }
        let refused = decode_strict::<BackendType>(&Value::from(name.as_str()));
        found.extend(refused.err().into_iter().flatten().map(|problem| Problem {
            loc: vec![Loc::Key("backends_names".into()), Loc::Index(index)],
            ..problem
        }));
    }
    found
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

async fn in_force(call: &Call) -> Result<BackendConfig> {
    let (state, of) = (&call.state, named(call)?);
    let found = state
        .control
        .verbs
        .backends
        .find(&call.project()?.row, of)
        .await?;
    let row = found.ok_or_else(ApiError::not_exists)?;
    let split = stored(&state.data.encryption, &row).map_err(|_| ApiError::not_exists())?;
    BackendConfig::join(&split).map_err(|reason| {
        ApiError::client(format!(
            "The stored configuration of backend {of} cannot be read: {reason}. Update the backend."
        ))
    })
}
