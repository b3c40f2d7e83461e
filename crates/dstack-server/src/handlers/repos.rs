//! Repos, credentials for them, and uploaded diffs.

use dstack_api::responses::UploadCodeQuery;
use dstack_api::{Nothing, routes};
use dstack_model::repos::{AnyRepoInfo, RemoteRepoCreds, RepoHead, RepoHeadWithCreds};
use dstack_model::requests::{DeleteReposRequest, GetRepoRequest, SaveRepoCredsRequest};
use dstack_store::NewEvent;
use dstack_store::directory::repos::{self, RepoRow};
use dstack_system::Random;
use dstack_units::ProjectId;

use crate::api::{Api, Call};
use crate::audit;
use crate::blobs::RepoOf;
use crate::error::{ApiError, Result};
use crate::request::Upload;

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::ReposList, _, _>(list)
        .on::<routes::ReposGet, _, _>(get)
        .on::<routes::ReposInit, _, _>(init)
        .on::<routes::ReposDelete, _, _>(delete)
        .on_upload::<routes::ReposUploadCode, _, _>(upload_code)
}

fn info(row: &RepoRow) -> Result<AnyRepoInfo> {
    serde_json::from_str(&row.info).map_err(ApiError::internal)
}

async fn list(call: Call, _: Nothing) -> Result<Vec<RepoHead>> {
    let rows = repos::list(call.state.database.pool(), call.project()?.row.id).await?;
    rows.iter()
        .map(|row| {
            Ok(RepoHead {
                repo_id: row.name.clone(),
                repo_info: info(row)?,
            })
        })
        .collect()
}

async fn get(call: Call, request: GetRepoRequest) -> Result<RepoHeadWithCreds> {
    let pool = call.state.database.pool();
    let found = call
        .state
        .database
        .repo_by_name(call.project()?.row.id, &request.repo_id)
        .await?;
    let row = found.ok_or_else(ApiError::not_exists)?;
    let sealed = match request.include_creds {
        true => repos::creds(pool, row.id, call.user()?.id).await?,
        false => None,
    };
    let repo_creds: Option<RemoteRepoCreds> = match sealed {
        None => None,
        Some(sealed) => {
            let text = call.state.encryption.decrypt(&sealed)?;
            Some(serde_json::from_str(text.expose()).map_err(ApiError::internal)?)
        }
    };
    Ok(RepoHeadWithCreds {
        repo_id: row.name.clone(),
        repo_info: info(&row)?,
        repo_creds,
    })
}

/// A row for a repo that may or may not be there already.
pub(crate) fn row_for(
    random: &Random,
    project: ProjectId,
    name: &str,
    info: &AnyRepoInfo,
) -> Result<RepoRow> {
    Ok(RepoRow {
        id: random.uuid().into(),
        project_id: project,
        name: name.to_owned(),
        r#type: info.repo_type().as_str().to_owned(),
        info: serde_json::to_string(info).map_err(ApiError::internal)?,
    })
}

/// `Repo deleted. Repo: my-app`, and what more there is to say.
fn event(call: &Call, what: &str, repo: &str, more: &str) -> Result<Option<NewEvent>> {
    let targets = vec![audit::project(&call.project()?.row)];
    let message = format!("Repo {what}. Repo: {repo}{more}");
    Ok(audit::for_managers(&call.state, call.user()?, message, targets))
}

async fn init(call: Call, request: SaveRepoCredsRequest) -> Result<()> {
    let state = &call.state;
    let row = row_for(
        &state.random,
        call.project()?.row.id,
        &request.repo_id,
        &request.repo_info,
    )?;
    let remote = matches!(request.repo_info, AnyRepoInfo::Remote(_));
    let creds = match &request.repo_creds {
        Some(creds) if remote => Some(
            state
                .encryption
                .encrypt(&serde_json::to_string(creds).map_err(ApiError::internal)?)?,
        ),
        _ => None,
    };
    let stored = if creds.is_some() { "stored" } else { "none" };
    let event = event(
        &call,
        "initialized",
        &request.repo_id,
        &format!(". Credentials: {stored}"),
    )?;
    let user = call.user()?.id;
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                let id = repos::put(tx, &row).await?;
                if remote {
                    repos::put_creds(tx, id, user, creds.as_deref()).await?;
                }
                audit::write(tx, event).await
            })
        })
        .await?;
    Ok(())
}

async fn delete(call: Call, request: DeleteReposRequest) -> Result<()> {
    let project = call.project()?.row.id;
    let mut events = Vec::new();
    for repo in &request.repos_ids {
        let known = call.state.database.repo_by_name(project, repo).await?;
        if known.is_some() {
            events.extend(event(&call, "deleted", repo, "")?);
        }
    }
    call.state
        .database
        .write(move |tx| {
            Box::pin(async move {
                repos::delete(tx, project, &request.repos_ids).await?;
                audit::write_all(tx, events).await
            })
        })
        .await?;
    Ok(())
}

async fn upload_code(call: Call, query: UploadCodeQuery, upload: Upload) -> Result<()> {
    let state = &call.state;
    super::files::check_size(
        "Repo diff size",
        "Use .gitignore to exclude large files from the repo. ",
        upload.request_size,
        state.settings.code_upload_limit,
    )?;
    let project = &call.project()?.row;
    let repo = state.database.repo_by_name(project.id, &query.repo_id).await?;
    let repo = repo.ok_or_else(|| ApiError::no_repo(&query.repo_id))?;
    let of = RepoOf {
        project: &project.name,
        row: repo.id,
        repo: &query.repo_id,
    };
    let event = event(
        &call,
        "code uploaded",
        &query.repo_id,
        &format!(". Hash: {}", upload.name),
    )?;
    state
        .blobs
        .put_code(of, upload.name, upload.content, event)
        .await?;
    Ok(())
}
