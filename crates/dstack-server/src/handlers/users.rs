//! Handlers that list, show and change users, their tokens and their SSH keys.

use axum::body::{Body, Bytes};
use axum::http::{Response, StatusCode};
use dstack_api::responses::UsersAnswer;
use dstack_api::{Nothing, routes};
use dstack_control::users::{NewUser, UserUpdate};
use dstack_model::requests::{CreateUserRequest, DeleteUsersRequest, ListUsersRequest, UserNameRequest};
use dstack_model::users::{User, UserWithCreds, UsersInfoList};
use dstack_store::queries::Page;
use dstack_store::queries::users::UserFilter;

use crate::access::is_admin;
use crate::api::{Api, Call};
use crate::error::{ApiError, Result, json_bytes};
use crate::render;

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::UsersList, _, _>(list)
        .on_raw::<routes::UsersGetMyUser, _, _>(get_my_user)
        .on::<routes::UsersGetUser, _, _>(get_user)
        .on::<routes::UsersCreate, _, _>(create)
        .on::<routes::UsersUpdate, _, _>(update)
        .on::<routes::UsersRefreshToken, _, _>(refresh_token)
        .on::<routes::UsersRefreshSshKey, _, _>(refresh_ssh_key)
        .on::<routes::UsersDelete, _, _>(delete)
}

async fn list(call: Call, request: ListUsersRequest) -> Result<UsersAnswer> {
    let state = &call.state;
    let caller = call.user()?;
    let filter = UserFilter {
        name_part: request.name_pattern.filter(|part| !part.is_empty()),
        only: (!is_admin(caller) || call.only_project().is_some()).then_some(caller.id),
    };
    let mut page = Page {
        prev_at: request.prev_created_at,
        prev_id: request.prev_id.map(|id| id.to_string()),
        limit: request.limit,
        ascending: request.ascending,
    };
    if filter.only.is_some() {
        page = Page::newest(1);
    }
    let database = &state.data.database;
    let mut found = Vec::new();
    for row in database.users().list(&filter, &page).await? {
        found.push(render::users::user(&state.data, &state.auth, &row).await?);
    }
    if !request.return_total_count {
        return Ok(UsersAnswer::Plain(found));
    }
    let total = database.users().count(&filter).await?;
    Ok(UsersAnswer::Counted(UsersInfoList {
        total_count: Some(u64::try_from(total).unwrap_or(0)),
        users: found,
    }))
}

async fn get_my_user(call: Call, _: Nothing) -> Result<Response<Body>> {
    let (state, caller) = (&call.state, call.caller()?);
    if let Some(known) = caller.shown.get() {
        return Ok(json_bytes(StatusCode::OK, known));
    }
    let me = match call.further_token() {
        None => render::users::with_creds(&state.data, &state.auth, &caller.user).await?,
        Some(token) => render::users::without_creds(&state.data, &state.auth, &caller.user, token).await?,
    };
    let answer = Bytes::from(serde_json::to_vec(&me).map_err(ApiError::internal)?);
    caller.shown.keep(answer.clone());
    Ok(json_bytes(StatusCode::OK, answer))
}

async fn get_user(call: Call, request: UserNameRequest) -> Result<UserWithCreds> {
    let user = call
        .state
        .data
        .database
        .users()
        .by_name(&request.username)
        .await?
        .ok_or_else(ApiError::not_exists)?;
    let caller = call.user()?;
    if !is_admin(caller) && caller.id != user.id {
        return Err(ApiError::not_exists());
    }
    render::users::with_creds(&call.state.data, &call.state.auth, &user).await
}

async fn create(call: Call, request: CreateUserRequest) -> Result<User> {
    let new = NewUser {
        name: request.username,
        role: request.global_role,
        email: request.email,
        active: request.active,
        token: None,
    };
    let user = call
        .state
        .control
        .verbs
        .users
        .create(Some(call.user()?), new)
        .await?;
    render::users::user(&call.state.data, &call.state.auth, &user).await
}

async fn update(call: Call, request: CreateUserRequest) -> Result<User> {
    let update = UserUpdate {
        role: request.global_role,
        email: request.email,
        active: request.active,
    };
    let verbs = &call.state.control.verbs.users;
    let user = verbs
        .update(call.user()?.into(), &request.username, update)
        .await?;
    render::users::user(&call.state.data, &call.state.auth, &user).await
}

async fn refresh_token(call: Call, request: UserNameRequest) -> Result<UserWithCreds> {
    check_self_or_admin(&call, &request.username)?;
    let verbs = &call.state.control.verbs.users;
    let user = verbs
        .refresh_token(call.user()?.into(), &request.username)
        .await?;
    render::users::with_creds(&call.state.data, &call.state.auth, &user).await
}

async fn refresh_ssh_key(call: Call, request: UserNameRequest) -> Result<UserWithCreds> {
    check_self_or_admin(&call, &request.username)?;
    let verbs = &call.state.control.verbs.users;
    let user = verbs
        .refresh_ssh_key(call.user()?.into(), &request.username)
        .await?;
    render::users::with_creds(&call.state.data, &call.state.auth, &user).await
}

/// Users change their own credentials, admins those of all.
fn check_self_or_admin(call: &Call, name: &str) -> Result<()> {
    let caller = call.user()?;
    match is_admin(caller) || caller.name == name {
        true => Ok(()),
        false => Err(ApiError::Denied),
    }
}

async fn delete(call: Call, request: DeleteUsersRequest) -> Result<()> {
    let verbs = &call.state.control.verbs.users;
    Ok(verbs.delete(call.user()?.into(), &request.users).await?)
}
