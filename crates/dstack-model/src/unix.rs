//! Users of containers.

use dstack_units::path::parse_user;
use dstack_units::{HostName, LoginName};
use serde::Serialize;

use crate::Decode;

/// A user and group, each by id or by name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Decode)]
pub struct UnixUser {
    /// Id of the user; wins over the name.
    #[decode(ge = 0)]
    pub uid: Option<i64>,
    /// Id of the group; wins over the name.
    #[decode(ge = 0)]
    pub gid: Option<i64>,
    /// Name of the user, looked up in the image.
    #[decode(min_len = 1)]
    pub username: Option<String>,
    /// Name of the group, looked up in the image.
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

/// Checks the name or address of a host that is connected to.
pub(crate) fn check_host_name(host: String) -> Result<String, String> {
    let checked = host.parse::<HostName>();
    checked
        .map(|_| host)
        .map_err(dstack_units::ParseError::into_message)
}

/// Checks the name of a user to log in as.
pub(crate) fn check_login_name(user: String) -> Result<String, String> {
    let checked = user.parse::<LoginName>();
    checked
        .map(|_| user)
        .map_err(dstack_units::ParseError::into_message)
}

/// As [`check_login_name`], where there is one.
pub(crate) fn check_optional_login_name(user: Option<String>) -> Result<Option<String>, String> {
    user.map(check_login_name).transpose()
}

/// Checks a `user` field.
pub(crate) fn check_user(user: Option<String>) -> Result<Option<String>, String> {
    if let Some(user) = &user {
        UnixUser::parse(user)?;
    }
    Ok(user)
}
