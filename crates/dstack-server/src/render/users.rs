//! Renders users as the API shows them, with or without credentials.

use dstack_model::users::{User, UserPermissions, UserTokenCreds, UserWithCreds};
use dstack_store::queries::users::UserRow;
use dstack_system::Secret;

use crate::access::is_admin;
use crate::error::Result;
use crate::state::{Auth, Data};

/// A user; their key pair is made if they have none yet.
pub(crate) async fn user(data: &Data, auth: &Auth, row: &UserRow) -> Result<User> {
    let public = match &row.ssh_public_key {
        Some(public) => public.clone(),
        None => auth.key_pair(data, row).await?.public,
    };
    Ok(with_key(auth, row, public))
}

fn with_key(auth: &Auth, row: &UserRow, public: String) -> User {
    User {
        id: row.id,
        username: row.name.clone(),
        created_at: Some(row.created_at),
        global_role: row.global_role,
        email: row.email.clone(),
        active: row.active,
        permissions: UserPermissions {
            can_create_projects: is_admin(row) || auth.permissions.get().allow_non_admins_create_projects,
        },
        ssh_public_key: Some(public),
    }
}

/// A user with token and private key: for themselves and admins only.
pub(crate) async fn with_creds(data: &Data, auth: &Auth, row: &UserRow) -> Result<UserWithCreds> {
    let pair = auth.key_pair(data, row).await?;
    let token = data.encryption.decrypt(&row.token)?;
    Ok(UserWithCreds {
        user: with_key(auth, row, pair.public),
        creds: UserTokenCreds {
            token: token.expose().to_owned(),
        },
        ssh_private_key: Some(pair.private.expose().to_owned()),
    })
}

/// A user who called with an API token: that is the only credential they see.
pub(crate) async fn without_creds(
    data: &Data,
    auth: &Auth,
    row: &UserRow,
    token: &Secret,
) -> Result<UserWithCreds> {
    Ok(UserWithCreds {
        user: user(data, auth, row).await?,
        creds: UserTokenCreds {
            token: token.expose().to_owned(),
        },
        ssh_private_key: None,
    })
}
