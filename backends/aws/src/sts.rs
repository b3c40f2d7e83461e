//! Calls of the Security Token Service (API version 2011-06-15): who asks, and the roles that they assume.

use dstack_system::Secret;
use dstack_units::{InstallationId, Time};
use serde::Deserialize;

use crate::client::Form;
use crate::keys::Session;
use crate::signing::AccessKey;

/// Who the keys are of.
#[derive(Debug, Deserialize)]
pub(crate) struct Caller {
    #[serde(rename = "GetCallerIdentityResult")]
    result: Identity,
}

#[derive(Debug, Deserialize)]
struct Identity {
    #[serde(rename = "Arn")]
    arn: String,
}

impl Caller {
    /// As policies name who has the keys: of a session, that is its role. Roles with a path are named without it.
    pub(crate) fn principal(&self) -> String {
        let arn = &self.result.arn;
        let session = arn.split_once(":sts::").and_then(|(partition, rest)| {
            let (account, name) = rest.split_once(":assumed-role/")?;
            let (role, _session) = name.split_once('/')?;
            Some(format!("{partition}:iam::{account}:role/{role}"))
        });
        session.unwrap_or_else(|| arn.clone())
    }
}

/// A session of a role.
#[derive(Debug, Deserialize)]
pub(crate) struct AssumedRole {
    #[serde(rename = "AssumeRoleResult")]
    result: AssumeRoleResult,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AssumeRoleResult {
    credentials: Credentials,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Credentials {
    access_key_id: String,
    secret_access_key: Secret,
    session_token: Secret,
    expiration: Time,
}

impl AssumedRole {
    pub(crate) fn into_session(self) -> Session {
        let given = self.result.credentials;
        Session {
            key: AccessKey {
                id: given.access_key_id,
                secret: given.secret_access_key,
                session_token: Some(given.session_token),
            },
            ends_at: given.expiration,
        }
    }
}

pub(crate) fn caller_identity() -> Form {
    Form::new("GetCallerIdentity")
}

/// A session for as long as STS gives them without being asked: an hour, the most that one who is in a role already may have.
pub(crate) fn assume_role(
    arn: &str,
    external_id: Option<&str>,
    installation: Option<&InstallationId>,
) -> Form {
    Form::new("AssumeRole")
        .with("RoleArn", arn)
        .with("RoleSessionName", session_name(installation))
        .with_some("ExternalId", external_id)
}

/// What CloudTrail shows: the value of the tag `dstack_installation`, in at most 64 of the characters that names may have.
fn session_name(installation: Option<&InstallationId>) -> String {
    match installation {
        Some(installation) => format!("dstack-{installation}"),
        None => "dstack".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_name_roles_and_not_their_sessions() {
        for (arn, principal) in [
            (
                "arn:aws:iam::123456789012:user/team/dstack",
                "arn:aws:iam::123456789012:user/team/dstack",
            ),
            (
                "arn:aws-cn:sts::123456789012:assumed-role/server/i-0123",
                "arn:aws-cn:iam::123456789012:role/server",
            ),
            ("arn:aws:iam::123456789012:root", "arn:aws:iam::123456789012:root"),
        ] {
            let result = Identity { arn: arn.to_owned() };
            assert_eq!(Caller { result }.principal(), principal);
        }
    }

    #[test]
    fn names_of_sessions_are_such_as_sts_takes() {
        let installation = "0f8fad5b-d9cb-469f-a165-70867728950e".parse().unwrap();
        let name = session_name(Some(&installation));
        assert_eq!(name, "dstack-0f8fad5b-d9cb-469f-a165-70867728950e");
        for name in [name, session_name(None)] {
            let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_+=,.@-".contains(c);
            assert!(
                (2..=64).contains(&name.len()) && name.chars().all(is_allowed),
                "{name}"
            );
        }
    }
}
