//! Small types that several areas share.

use dstack_units::tag;
use indexmap::IndexMap;
use serde::Serialize;
use serde_json::Value;

use crate::Decode;
use crate::decode::Cx;
use crate::string_enum;

string_enum! {
    /// What applying a plan will do.
    pub enum ApplyAction {
        /// Create, or override.
        Create = "create",
        /// Change in place.
        Update = "update",
    }
}

string_enum! {
    /// How a container is connected.
    pub enum NetworkMode {
        /// The host's network.
        Host = "host",
        /// A network of its own.
        Bridge = "bridge",
    }
}

/// Credentials for pulling an image. May contain `${{ secrets.NAME }}`.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Decode)]
pub struct RegistryAuth {
    /// The user name.
    pub username: String,
    /// The password or access token.
    pub password: String,
}

impl std::fmt::Debug for RegistryAuth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegistryAuth")
            .field("username", &self.username)
            .field("password", &"…")
            .finish()
    }
}

/// Names a fleet or gateway, perhaps of another project.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Decode)]
pub struct EntityReference {
    /// The project name; the current project when unset.
    pub project: Option<String>,
    /// The entity's name.
    pub name: String,
}

impl EntityReference {
    /// Parses `name` or `project/name`.
    ///
    /// # Errors
    /// More slashes, or empty parts.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split('/').collect();
        match parts.as_slice() {
            [name] if !name.is_empty() => Ok(Self {
                project: None,
                name: (*name).to_owned(),
            }),
            [project, name] if !project.is_empty() && !name.is_empty() => Ok(Self {
                project: Some((*project).to_owned()),
                name: (*name).to_owned(),
            }),
            _ => Err(
                "Invalid entity reference. Only `<name>` or `<project>/<name>` formats are allowed"
                    .to_owned(),
            ),
        }
    }

    /// Decodes an object or a text.
    pub fn decode_or_parse(value: &Value, cx: &mut Cx) -> Option<Self> {
        if let Value::Object(_) = value {
            return Self::decode(value, cx);
        }
        let text = cx.union(&[
            ("EntityReference", &|cx: &mut Cx| {
                Self::decode(value, cx).map(|reference| reference.name)
            }),
            ("str", &|cx: &mut Cx| String::decode(value, cx)),
        ])?;
        match Self::parse(&text) {
            Ok(reference) => Some(reference),
            Err(refusal) => cx.value_error(refusal, value),
        }
    }
}

impl std::fmt::Display for EntityReference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.project {
            Some(project) => write!(f, "{project}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// Tags of cloud resources.
pub type Tags = IndexMap<String, String>;

/// Checks keys and values of tags: `^[_\-a-zA-Z0-9]{1,60}$` and `^[a-zA-Z0-9 .:/=_\-+@]{0,256}$`.
pub(crate) fn check_tags(tags: Option<Tags>) -> Result<Option<Tags>, String> {
    for (key, value) in tags.iter().flatten() {
        tag::check(key, value).map_err(dstack_units::ParseError::into_message)?;
    }
    Ok(tags)
}
