//! Further tokens of users: named, and good for less than the user's own one. dstack 0.22.5 has none.

use dstack_api::routes;
use dstack_control::tokens::NewToken;
use dstack_model::requests::{CreateTokenRequest, DeleteTokensRequest, ListTokensRequest};
use dstack_model::users::{NewUserToken, UserToken};
use dstack_store::queries::tokens::TokenRow;
use dstack_store::queries::users::UserRow;
use std::time::Duration;

use crate::access::is_admin;
use crate::api::{Api, Call};
use crate::error::{ApiError, Result};

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::TokensList, _, _>(list)
        .on::<routes::TokensCreate, _, _>(create)
        .on::<routes::TokensDelete, _, _>(delete)
}

fn shown(row: TokenRow, project_name: Option<String>) -> UserToken {
    UserToken {
        id: row.id,
        name: row.name,
        created_at: row.created_at,
        expires_at: row.expires_at,
        read_only: row.read_only,
        project_name,
    }
}

/// The caller, or the user named, whose tokens only admins see.
async fn owner(call: &Call, name: Option<&str>) -> Result<UserRow> {
    let caller = call.user()?;
    match name {
        None => Ok(caller.clone()),
        Some(name) if name == caller.name => Ok(caller.clone()),
        Some(name) if is_admin(caller) => call
            .state
            .data
            .database
            .users()
            .by_name(name)
            .await?
            .ok_or_else(ApiError::not_exists),
        Some(_) => Err(ApiError::Denied),
    }
}

async fn list(call: Call, request: ListTokensRequest) -> Result<Vec<UserToken>> {
    let owner = owner(&call, request.username.as_deref()).await?;
    let found = call.state.data.database.api_tokens().list(owner.id).await?;
    Ok(found
        .into_iter()
        .map(|(row, project)| shown(row, project))
        .collect())
}

async fn create(call: Call, request: CreateTokenRequest) -> Result<NewUserToken> {
    let lifetime = request.expires_in.and_then(|seconds| u64::try_from(seconds).ok());
    let new = NewToken {
        name: request.name,
        project_name: request.project_name,
        read_only: request.read_only,
        lifetime: lifetime.map(Duration::from_secs),
    };
    let created = call.state.control.verbs.tokens.create(call.user()?, new).await?;
    Ok(NewUserToken {
        info: shown(created.row, created.project_name),
        token: created.token.expose().to_owned(),
    })
}

async fn delete(call: Call, request: DeleteTokensRequest) -> Result<()> {
    let owner = owner(&call, request.username.as_deref()).await?;
    let verbs = &call.state.control.verbs.tokens;
    Ok(verbs.delete(call.user()?.into(), &owner, &request.names).await?)
}
