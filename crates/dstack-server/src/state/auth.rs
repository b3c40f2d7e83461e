//! Who calls, and what they may do.

use std::sync::Arc;

use dstack_control::keys::KeyPair;
use dstack_store::queries::users::UserRow;

use super::{Data, DefaultPermissions, SharedPermissions};
use crate::access::{Access, FailedLogins};
use crate::error::Result;
use crate::login::Logins;

/// Who may do what, and how they prove who they are.
#[derive(Debug)]
pub struct Auth {
    /// Users by their tokens, and projects with their members; slows down failed logins.
    pub access: Arc<Access>,
    /// Providers outside with which users log in.
    pub logins: Logins,
    /// `default_permissions` of `config.yml`.
    pub permissions: SharedPermissions,
}

impl Auth {
    /// With the users of this database.
    pub fn new(
        data: &Data,
        failed_logins: FailedLogins,
        logins: Logins,
        permissions: DefaultPermissions,
    ) -> Self {
        Self {
            access: Arc::new(Access::new(data.database.clone(), failed_logins)),
            logins,
            permissions: permissions.into(),
        }
    }

    /// The user's key pair, which is made if they have none yet; what is remembered of users is forgotten then.
    pub(crate) async fn key_pair(&self, data: &Data, user: &UserRow) -> Result<KeyPair> {
        let (pair, made) = data.keys.of_user(user).await?;
        if made {
            self.access.changed();
        }
        Ok(pair)
    }
}
