//! Users.

use axum::body::{Body, Bytes};
use axum::http::{Response, StatusCode};
use dstack_api::responses::UsersAnswer;
use dstack_api::{Nothing, routes};
use dstack_model::requests::{CreateUserRequest, DeleteUsersRequest, ListUsersRequest, UserNameRequest};
use dstack_model::users::{GlobalRole, User, UserWithCreds, UsersInfoList};
use dstack_store::NewEvent;
use dstack_store::directory::Page;
use dstack_store::directory::users::{self, UserFilter, UserRow};
use dstack_system::Secret;
use dstack_units::name::is_user_name;

use crate::access::{is_admin, token_hash};
use crate::api::{Api, Call};
use crate::audit;
use crate::error::{ApiError, Result, json_bytes};
use crate::render;
use crate::state::AppState;

/// The user that every server has and that cannot be deleted.
pub(crate) const ADMIN: &str = "admin";

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
    let pool = state.database.pool();
    let mut found = Vec::new();
    for row in users::list(pool, &filter, &page).await? {
        found.push(render::users::user(state, &row).await?);
    }
    if !request.return_total_count {
        return Ok(UsersAnswer::Plain(found));
    }
    let total = users::count(pool, &filter).await?;
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
        None => render::users::with_creds(state, &caller.user).await?,
        Some(token) => render::users::without_creds(state, &caller.user, token).await?,
    };
    let answer = Bytes::from(serde_json::to_vec(&me).map_err(ApiError::internal)?);
    caller.shown.keep(answer.clone());
    Ok(json_bytes(StatusCode::OK, answer))
}

async fn get_user(call: Call, request: UserNameRequest) -> Result<UserWithCreds> {
    let user = users::by_name(call.state.database.pool(), &request.username)
        .await?
        .ok_or_else(ApiError::not_exists)?;
    let caller = call.user()?;
    if !is_admin(caller) && caller.id != user.id {
        return Err(ApiError::not_exists());
    }
    render::users::with_creds(&call.state, &user).await
}

async fn create(call: Call, request: CreateUserRequest) -> Result<User> {
    let new = NewUser {
        name: request.username,
        role: request.global_role,
        email: request.email,
        active: request.active,
        token: None,
    };
    let user = create_user(&call.state, new, Some(call.user()?)).await?;
    render::users::user(&call.state, &user).await
}

/// A user to be created.
#[derive(Debug)]
pub(crate) struct NewUser {
    pub(crate) name: String,
    pub(crate) role: GlobalRole,
    pub(crate) email: Option<String>,
    pub(crate) active: bool,
    /// A random one when unset.
    pub(crate) token: Option<Secret>,
}

/// Creates a user without a key pair, which is made when first needed.
pub(crate) async fn create_user(
    state: &AppState,
    new: NewUser,
    creator: Option<&UserRow>,
) -> Result<UserRow> {
    let draft = draft_user(state, new, creator).await?;
    let user = draft.user.clone();
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                users::insert(tx, &draft.user, &draft.token_hash).await?;
                audit::write(tx, draft.event).await
            })
        })
        .await?;
    state.access.changed();
    Ok(user)
}

/// A user that is not stored yet.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) user: UserRow,
    pub(crate) token_hash: String,
    /// That it was created.
    pub(crate) event: Option<NewEvent>,
}

/// Makes a user that has a name of its own. Without a creator, users create themselves.
pub(crate) async fn draft_user(state: &AppState, new: NewUser, creator: Option<&UserRow>) -> Result<Draft> {
    if !is_user_name(&new.name) {
        return Err(ApiError::client(
            "Username should match regex '^[a-zA-Z0-9-_]{1,60}$'",
        ));
    }
    if users::name_taken(state.database.pool(), &new.name).await? {
        return Err(ApiError::exists());
    }
    let token = new
        .token
        .unwrap_or_else(|| Secret::new(state.random.uuid().to_string()));
    let user = UserRow {
        id: state.random.uuid().into(),
        name: new.name,
        created_at: state.clock.now(),
        global_role: new.role,
        email: new.email,
        active: new.active,
        token: state.encryption.encrypt(token.expose())?,
        ssh_private_key: None,
        ssh_public_key: None,
        projects_quota: state.settings.user_project_quota,
        deleted: false,
        original_name: None,
    };
    let event = audit::event(
        state,
        creator.unwrap_or(&user),
        "User created",
        audit::user(&user),
    );
    Ok(Draft {
        user,
        token_hash: token_hash(token.expose()),
        event,
    })
}

async fn update(call: Call, request: CreateUserRequest) -> Result<User> {
    let state = &call.state;
    let mut user = users::by_name(state.database.pool(), &request.username)
        .await?
        .ok_or_else(ApiError::not_exists)?;
    let mut fields = Vec::new();
    if request.global_role != user.global_role {
        // The reference prints the enum's Python name here.
        fields.push(format!(
            "global_role=GlobalRole.{}",
            request.global_role.as_str().to_uppercase()
        ));
    }
    if request.email != user.email {
        fields.push("email".to_owned());
    }
    if request.active != user.active {
        fields.push(format!("active={}", python_bool(request.active)));
    }
    (user.global_role, user.email, user.active) = (request.global_role, request.email, request.active);
    let message = format!("User updated. Updated fields: {}", list_or_none(&fields));
    let event = audit::event(state, call.user()?, message, audit::user(&user));
    let row = user.clone();
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                users::update(tx, row.id, row.global_role, row.email.as_deref(), row.active).await?;
                audit::write(tx, event).await
            })
        })
        .await?;
    state.access.changed();
    render::users::user(state, &user).await
}

/// `True` or `False`.
pub(super) fn python_bool(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

/// The fields with commas, or `<none>`.
pub(super) fn list_or_none(fields: &[String]) -> String {
    if fields.is_empty() {
        "<none>".to_owned()
    } else {
        fields.join(", ")
    }
}

async fn refresh_token(call: Call, request: UserNameRequest) -> Result<UserWithCreds> {
    let state = &call.state;
    let mut user = self_or_any(&call, &request.username).await?;
    let token = state.random.uuid().to_string();
    user.token = state.encryption.encrypt(&token)?;
    let event = audit::event(state, call.user()?, "User token refreshed", audit::user(&user));
    let (id, sealed, hash) = (user.id, user.token.clone(), token_hash(&token));
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                users::set_token(tx, id, &sealed, &hash).await?;
                audit::write(tx, event).await
            })
        })
        .await?;
    state.access.changed();
    render::users::with_creds(state, &user).await
}

async fn refresh_ssh_key(call: Call, request: UserNameRequest) -> Result<UserWithCreds> {
    let state = &call.state;
    let mut user = self_or_any(&call, &request.username).await?;
    let pair = state.keys.generate(&user.name).await?;
    let sealed = state.keys.seal(&pair)?;
    let event = audit::event(state, call.user()?, "User SSH key refreshed", audit::user(&user));
    (user.ssh_private_key, user.ssh_public_key) = (Some(sealed.clone()), Some(pair.public.clone()));
    let id = user.id;
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                users::set_ssh_keys(tx, id, &sealed, &pair.public, false).await?;
                audit::write(tx, event).await
            })
        })
        .await?;
    state.access.changed();
    render::users::with_creds(state, &user).await
}

/// The user of that name, if the caller may change their credentials.
async fn self_or_any(call: &Call, name: &str) -> Result<UserRow> {
    let caller = call.user()?;
    if !is_admin(caller) && caller.name != name {
        return Err(ApiError::Denied);
    }
    users::by_name(call.state.database.pool(), name)
        .await?
        .ok_or_else(ApiError::not_exists)
}

async fn delete(call: Call, request: DeleteUsersRequest) -> Result<()> {
    let state = &call.state;
    if request.users.iter().any(|name| name == ADMIN) {
        return Err(ApiError::client("User 'admin' cannot be deleted"));
    }
    let mut found = Vec::new();
    for name in &request.users {
        let user = users::by_name(state.database.pool(), name).await?;
        let user = user.ok_or_else(|| ApiError::client("Failed to delete non-existent users"))?;
        if found
            .iter()
            .any(|(other, ..): &(UserRow, _, _)| other.id == user.id)
        {
            return Err(ApiError::client("Failed to delete non-existent users"));
        }
        let event = audit::event(state, call.user()?, "User deleted", audit::user(&user));
        found.push((user, audit::deleted_name(state, state.clock.now()), event));
    }
    state
        .database
        .write(move |tx| {
            Box::pin(async move {
                for (user, renamed, event) in found {
                    users::delete(tx, &user, &renamed).await?;
                    audit::write(tx, event).await?;
                }
                Ok(())
            })
        })
        .await?;
    state.access.changed();
    state.runs.clear();
    Ok(())
}
