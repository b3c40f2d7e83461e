//! Further tokens of users: named, and good for less than the user's own one. dstack 0.22.5 has none.

use dstack_api::{ErrorCode, routes};
use dstack_model::requests::{CreateTokenRequest, DeleteTokensRequest, ListTokensRequest};
use dstack_model::users::{NewUserToken, UserToken};
use dstack_store::directory::tokens::{self, TokenRow};
use dstack_store::directory::users::{self, UserRow};
use std::time::Duration;

use crate::access::{Sure, is_admin, token_hash};
use crate::api::{Api, Call};
use crate::audit;
use crate::error::{ApiError, Result};

/// More than anyone needs: what a user can fill the database with is bounded.
const MOST: usize = 100;

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
        Some(name) if is_admin(caller) => users::by_name(call.state.database.pool(), name)
            .await?
            .ok_or_else(ApiError::not_exists),
        Some(_) => Err(ApiError::Denied),
    }
}

async fn list(call: Call, request: ListTokensRequest) -> Result<Vec<UserToken>> {
    let owner = owner(&call, request.username.as_deref()).await?;
    let found = tokens::list(call.state.database.pool(), owner.id).await?;
    Ok(found
        .into_iter()
        .map(|(row, project)| shown(row, project))
        .collect())
}

fn is_token_name(name: &str) -> bool {
    (1..=60).contains(&name.len())
        && name
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter))
}

async fn create(call: Call, request: CreateTokenRequest) -> Result<NewUserToken> {
    let (state, user) = (&call.state, call.user()?);
    if !is_token_name(&request.name) {
        return Err(ApiError::client(
            "Token name should match regex '^[a-zA-Z0-9-_.]{1,60}$'",
        ));
    }
    let project = match &request.project_name {
        None => None,
        Some(name) => {
            let project = state.access.project(name, Sure::Now).await?;
            let project = project.filter(|project| project.is_member(user) || project.row.is_public);
            let missing = || {
                let msg = format!("Project {name} not found");
                ApiError::with_code(ErrorCode::ResourceNotExists, msg)
            };
            Some(project.ok_or_else(missing)?)
        }
    };
    if tokens::list(state.database.pool(), user.id).await?.len() >= MOST {
        return Err(ApiError::client(format!(
            "A user can have {MOST} tokens. Delete those that are not needed any more"
        )));
    }
    let now = state.clock.now();
    // The start says to whoever finds it in a log or repo what it is.
    let token = format!("dstack_{}", hex::encode(state.random.bytes::<32>()));
    let lifetime = request.expires_in.and_then(|seconds| u64::try_from(seconds).ok());
    let row = TokenRow {
        id: state.random.uuid().into(),
        user_id: user.id,
        name: request.name,
        token_hash: token_hash(&token),
        created_at: now,
        expires_at: lifetime.map(|seconds| now + Duration::from_secs(seconds)),
        read_only: request.read_only,
        project_id: project.as_ref().map(|project| project.row.id),
    };
    let message = format!("User token created. Name: {}", row.name);
    let event = audit::event(state, user, message, audit::user(user));
    let stored = row.clone();
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                tokens::insert(tx, &stored).await?;
                audit::write(tx, event).await
            })
        })
        .await?;
    Ok(NewUserToken {
        info: shown(row, project.map(|project| project.row.name.clone())),
        token,
    })
}

async fn delete(call: Call, request: DeleteTokensRequest) -> Result<()> {
    let state = &call.state;
    let owner = owner(&call, request.username.as_deref()).await?;
    let existing = tokens::list(state.database.pool(), owner.id).await?;
    let mut doomed = Vec::new();
    for name in request.names {
        let Some((row, _)) = existing.iter().find(|(row, _)| row.name == name) else {
            let msg = format!("Token {name} not found");
            return Err(ApiError::with_code(ErrorCode::ResourceNotExists, msg));
        };
        let message = format!("User token deleted. Name: {name}");
        doomed.push((
            row.id,
            audit::event(state, call.user()?, message, audit::user(&owner)),
        ));
    }
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                for (id, event) in doomed {
                    tokens::delete(tx, id).await?;
                    audit::write(tx, event).await?;
                }
                Ok(())
            })
        })
        .await?;
    state.access.changed();
    Ok(())
}
