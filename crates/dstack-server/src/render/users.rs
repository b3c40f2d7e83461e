//! Users.

use dstack_model::users::{User, UserPermissions, UserTokenCreds, UserWithCreds};
use dstack_store::queries::users::UserRow;
use dstack_system::Secret;

use crate::access::is_admin;
use crate::error::Result;
use crate::state::AppState;
use dstack_control::keys::KeyPair;

/// A user; their key pair is made if they have none yet.
pub(crate) async fn user(state: &AppState, row: &UserRow) -> Result<User> {
    let public = match &row.ssh_public_key {
        Some(public) => public.clone(),
        None => key_pair(state, row).await?.public,
    };
    Ok(with_key(state, row, public))
}

/// The user's key pair.
pub(crate) async fn key_pair(state: &AppState, row: &UserRow) -> Result<KeyPair> {
    let (pair, made) = state.keys.of_user(row).await?;
    if made {
        state.access.changed();
    }
    Ok(pair)
}

fn with_key(state: &AppState, row: &UserRow, public: String) -> User {
    User {
        id: row.id,
        username: row.name.clone(),
        created_at: Some(row.created_at),
        global_role: row.global_role,
        email: row.email.clone(),
        active: row.active,
        permissions: UserPermissions {
            can_create_projects: is_admin(row) || state.permissions.get().allow_non_admins_create_projects,
        },
        ssh_public_key: Some(public),
    }
}

/// A user with token and private key: for themselves and admins only.
pub(crate) async fn with_creds(state: &AppState, row: &UserRow) -> Result<UserWithCreds> {
    let pair = key_pair(state, row).await?;
    let token = state.encryption.decrypt(&row.token)?;
    Ok(UserWithCreds {
        user: with_key(state, row, pair.public),
        creds: UserTokenCreds {
            token: token.expose().to_owned(),
        },
        ssh_private_key: Some(pair.private.expose().to_owned()),
    })
}

/// A user who called with an API token: that is the only credential they see.
pub(crate) async fn without_creds(state: &AppState, row: &UserRow, token: &Secret) -> Result<UserWithCreds> {
    Ok(UserWithCreds {
        user: user(state, row).await?,
        creds: UserTokenCreds {
            token: token.expose().to_owned(),
        },
        ssh_private_key: None,
    })
}
