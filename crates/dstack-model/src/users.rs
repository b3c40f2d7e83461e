//! Users, their roles and permissions, and their API tokens.

use dstack_units::{Time, TokenId, UserId};
use serde::Serialize;

use crate::decode::scalars::id4;
use crate::{Decode, string_enum};

string_enum! {
    /// What a user may do everywhere.
    pub enum GlobalRole {
        /// May do everything on the server, and in all projects.
        Admin = "admin",
        /// What the projects allow.
        User = "user",
    }
}

string_enum! {
    /// What a member may do in a project.
    pub enum ProjectRole {
        /// May do everything in the project.
        Admin = "admin",
        /// Also manage members.
        Manager = "manager",
        /// May use what the project has.
        User = "user",
    }
}

/// What a user may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Decode)]
pub struct UserPermissions {
    /// Whether they may create projects.
    pub can_create_projects: bool,
}

/// A user, as the API answers it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct User {
    /// Id of the user.
    #[decode(with = id4)]
    pub id: UserId,
    /// Name, unique without regard to case: `^[a-zA-Z0-9-_]{1,60}$`.
    pub username: String,
    /// When they were created.
    pub created_at: Option<Time>,
    /// Role on the whole server.
    pub global_role: GlobalRole,
    /// E-mail address, by which members of projects can be named.
    pub email: Option<String>,
    /// Whether they may log in.
    pub active: bool,
    /// What they may do.
    pub permissions: UserPermissions,
    /// The key of their runs, with a line end.
    pub ssh_public_key: Option<String>,
}

/// What a user logs in with.
#[derive(Clone, PartialEq, Eq, Serialize, Decode)]
pub struct UserTokenCreds {
    /// The user's token, sent as `Authorization: Bearer`.
    pub token: String,
}

impl std::fmt::Debug for UserTokenCreds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UserTokenCreds(…)")
    }
}

/// A user with their token.
#[derive(Clone, PartialEq, Eq, Serialize, Decode)]
pub struct UserWithCreds {
    /// The user, as others see them.
    #[serde(flatten)]
    #[decode(flatten)]
    pub user: User,
    /// What the user logs in with.
    pub creds: UserTokenCreds,
    /// The private key of their runs.
    pub ssh_private_key: Option<String>,
}

impl std::fmt::Debug for UserWithCreds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UserWithCreds")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// Users, and how many there are in all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct UsersInfoList {
    /// Number of all users that match, when it was asked for.
    pub total_count: Option<u64>,
    /// The users of this page.
    pub users: Vec<User>,
}

/// An API token of a user, without the token itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct UserToken {
    /// Id of the token.
    pub id: TokenId,
    /// Its name, unique among the user's tokens.
    pub name: String,
    /// When it was made.
    pub created_at: Time,
    /// Until when; unset: for good.
    pub expires_at: Option<Time>,
    /// Whether it is good for reading only.
    pub read_only: bool,
    /// The only project that it is good for; unset: all of the user's.
    pub project_name: Option<String>,
}

/// A token just made. The token itself is never shown again.
#[derive(Clone, PartialEq, Eq, Serialize, Decode)]
pub struct NewUserToken {
    /// What is known about it.
    #[serde(flatten)]
    #[decode(flatten)]
    pub info: UserToken,
    /// The token itself, sent as `Authorization: Bearer`.
    pub token: String,
}

impl std::fmt::Debug for NewUserToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewUserToken")
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}
