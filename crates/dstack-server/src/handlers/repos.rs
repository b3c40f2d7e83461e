//! Repos, credentials for them, and uploaded diffs.

use dstack_api::responses::UploadCodeQuery;
use dstack_api::{Nothing, routes};
use dstack_model::repos::{AnyRepoInfo, RemoteRepoCreds, RepoHead, RepoHeadWithCreds};
use dstack_model::requests::{DeleteReposRequest, GetRepoRequest, SaveRepoCredsRequest};
use dstack_store::queries::repos::RepoRow;

use crate::api::{Api, Call};
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
    let rows = call
        .state
        .data
        .database
        .repos()
        .list(call.project()?.row.id)
        .await?;
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
    let database = &call.state.data.database;
    let found = call
        .state
        .data
        .database
        .repo_by_name(call.project()?.row.id, &request.repo_id)
        .await?;
    let row = found.ok_or_else(ApiError::not_exists)?;
    let sealed = match request.include_creds {
        true => database.repos().creds(row.id, call.user()?.id).await?,
        false => None,
    };
    let repo_creds: Option<RemoteRepoCreds> = match sealed {
        None => None,
        Some(sealed) => {
            let text = call.state.data.encryption.decrypt(&sealed)?;
            Some(serde_json::from_str(text.expose()).map_err(ApiError::internal)?)
        }
    };
    Ok(RepoHeadWithCreds {
        repo_id: row.name.clone(),
        repo_info: info(&row)?,
        repo_creds,
    })
}

async fn init(call: Call, request: SaveRepoCredsRequest) -> Result<()> {
    let verbs = &call.state.control.verbs.repos;
    let (user, project) = (call.user()?, &call.project()?.row);
    let credentials = request.repo_creds.as_ref();
    Ok(verbs
        .init(user, project, &request.repo_id, &request.repo_info, credentials)
        .await?)
}

async fn delete(call: Call, request: DeleteReposRequest) -> Result<()> {
    let verbs = &call.state.control.verbs.repos;
    let (user, project) = (call.user()?, &call.project()?.row);
    Ok(verbs.delete(user, project, &request.repos_ids).await?)
}

async fn upload_code(call: Call, query: UploadCodeQuery, upload: Upload) -> Result<()> {
    let state = &call.state;
    super::files::check_size(
        "Repo diff size",
        "Use .gitignore to exclude large files from the repo. ",
        upload.request_size,
        state.edge.settings.code_upload_limit,
    )?;
    let project = &call.project()?.row;
    let repo = state
        .data
        .database
        .repo_by_name(project.id, &query.repo_id)
        .await?;
    let repo = repo.ok_or_else(|| ApiError::no_repo(&query.repo_id))?;
    let blobs = &state.data.blobs;
    if blobs.has_code(repo.id, &upload.name).await? {
        return Ok(());
    }
    let content = blobs
        .store_code(&project.name, &query.repo_id, &upload.name, upload.content)
        .await?;
    let verbs = &state.control.verbs.repos;
    Ok(verbs
        .put_code(call.user()?, project, &repo, upload.name, content)
        .await?)
}
