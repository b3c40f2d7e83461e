//! `type: dev-environment`.

use dstack_units::{OffDuration, PortMapping};
use serde::Serialize;
use serde_json::Value;

use super::base::BaseRunConfiguration;
use crate::Decode;
use crate::decode::units::inactivity_duration;
use crate::decode::{Cx, Refusal, enums};
use crate::profiles::ProfileParams;
use crate::schema::{Schema as _, Schemas};
use crate::{string_enum, tag};

tag!(
    /// The value of `type` for [`DevEnvironmentConfiguration`].
    pub DevEnvironmentTag = "dev-environment"
);

string_enum! {
    /// An editor to install.
    literal pub enum Ide {
        /// Visual Studio Code.
        VsCode = "vscode",
        /// Cursor.
        Cursor = "cursor",
        /// Windsurf.
        Windsurf = "windsurf",
        /// Zed.
        Zed = "zed",
    }
}

fn inactivity_schema(schemas: &mut Schemas) -> Value {
    Option::<OffDuration>::schema(schemas)
}

/// A development environment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Decode)]
#[decode(after = check)]
pub struct DevEnvironmentConfiguration {
    /// The IDE to pre-install: `vscode`, `cursor`, `windsurf`, or `zed`. Defaults to no IDE (SSH only).
    #[decode(with = decode_ide)]
    pub ide: Option<Ide>,
    /// The version of the IDE. For `windsurf`, the version is in the format `version@commit`.
    pub version: Option<String>,
    /// The shell commands to run on startup.
    #[decode(default)]
    pub init: Vec<String>,
    /// The maximum amount of time the dev environment can be inactive (e.g., `2h`, `1d`, etc). Defaults to `off`.
    #[decode(with = inactivity_duration, schema = inactivity_schema)]
    pub inactivity_duration: Option<i64>,
    /// Port numbers/mapping to expose.
    #[decode(default)]
    pub ports: Vec<PortMapping>,
    /// The configuration type.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: DevEnvironmentTag,
    /// What all run configurations have.
    #[serde(flatten)]
    #[decode(flatten)]
    pub base: BaseRunConfiguration,
    /// Where and how it may be placed.
    #[serde(flatten)]
    #[decode(flatten)]
    pub params: ProfileParams,
}

/// In the reference each editor is a union member of its own.
fn decode_ide(value: &Value, cx: &mut Cx) -> Option<Option<Ide>> {
    if value.is_null() {
        return Some(None);
    }
    if let Some(ide) = value.as_str().and_then(|text| text.parse().ok()) {
        return Some(Some(ide));
    }
    for (member, text) in [
        ("literal['vscode']", "vscode"),
        ("literal['cursor']", "cursor"),
        ("literal['windsurf']", "windsurf"),
        ("literal['zed']", "zed"),
    ] {
        cx.member(member, |cx| {
            enums::refuse::<()>("literal_error", &[text], value, cx)
        });
    }
    None
}

fn check(environment: DevEnvironmentConfiguration) -> Result<DevEnvironmentConfiguration, Refusal> {
    if environment.base.entrypoint.is_some() {
        return Err(Refusal {
            text: "entrypoint is not supported for dev-environment".to_owned(),
            at: Some("entrypoint"),
        });
    }
    if let Some(version) = environment.version.as_ref().filter(|version| !version.is_empty()) {
        match environment.ide {
            None => return Err("`version` requires `ide` to be set".into()),
            Some(Ide::Windsurf) if !is_windsurf_version(version) => {
                return Err(Refusal::from(format!(
                    "Invalid Windsurf version format: `{version}`. Expected format: `version@commit` \
                     (e.g., `1.106.0@8951cd3ad688e789573d7f51750d67ae4a0bea7d`)"
                )));
            }
            Some(_) => {}
        }
    }
    if environment.base.dstack && environment.inactivity_duration.is_some() {
        return Err("`dstack` is not supported together with `inactivity_duration`".into());
    }
    Ok(environment)
}

fn is_windsurf_version(version: &str) -> bool {
    version.rsplit_once('@').is_some_and(|(number, commit)| {
        !number.is_empty()
            && !commit.is_empty()
            && commit
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}
