//! Templates of the web UI.

use dstack_api::{Nothing, routes};
use dstack_model::templates::UiTemplate;

use crate::api::{Api, Call};
use crate::error::{ApiError, Result};

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::TemplatesList, _, _>(list)
}

async fn list(call: Call, _: Nothing) -> Result<Vec<UiTemplate>> {
    let repo = call.project()?.row.templates_repo.as_ref().or(call
        .state
        .edge
        .settings
        .templates_repo
        .as_ref());
    match repo {
        None => Ok(Vec::new()),
        Some(repo) => Err(ApiError::client(format!(
            "This server version cannot read templates from {repo} yet"
        ))),
    }
}
