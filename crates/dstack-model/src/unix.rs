//! Users of containers.

use dstack_units::path::parse_user;
use serde::Serialize;

use crate::Decode;

/// A user and group, each by id or by name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Decode)]
pub struct UnixUser {
    /// User id.
    #[decode(ge = 0)]
    pub uid: Option<i64>,
    /// Group id.
    #[decode(ge = 0)]
    pub gid: Option<i64>,
    /// User name.
    #[decode(min_len = 1)]
    pub username: Option<String>,
    /// Group name.
    #[decode(min_len = 1)]
    pub groupname: Option<String>,
}

impl UnixUser {
    /// Parses Docker's `user[:group]`.
    ///
    /// # Errors
    /// Too many parts, empty parts, negative ids.
    pub fn parse(text: &str) -> Result<Self, String> {
        let user = parse_user(text).map_err(dstack_units::ParseError::into_message)?;
        Ok(Self {
            uid: user.uid,
            gid: user.gid,
            username: user.username,
            groupname: user.groupname,
        })
    }
}

/// Checks a `user` field.
pub(crate) fn check_user(user: Option<String>) -> Result<Option<String>, String> {
    if let Some(user) = &user {
        UnixUser::parse(user)?;
    }
    Ok(user)
}
