//! Types of backends.

mod names;

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use dstack_units::ParseError;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::Decode;
use crate::decode::schema::{Schema, Schemas, texts};
use crate::decode::{Cx, Mode, deserialize, enums};

pub use names::{MAX_NAMES, NameError};

/// Constants for the types of a build, and the lists of them.
macro_rules! built_in {
    (impl $name:ident { $($(#[$meta:meta])* $constant:ident = $text:literal,)* }) => {
        #[allow(non_upper_case_globals)] // they stand in patterns as variants do
        impl $name {
            $($(#[$meta])* pub const $constant: Self = Self($text);)*

            /// The types of this build, in the reference's order.
            pub const ALL: &'static [Self] = &[$(Self::$constant),*];
            /// Their wire values, in the same order.
            pub const TEXTS: &'static [&'static str] = &[$($text),*];
        }
    };
}

/// A kind of place where instances come from: one of this build, one that a manifest describes ([`BackendType::register`]), or one that
/// stands in a database and that nobody knows any more.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BackendType(&'static str);

built_in! {
    impl BackendType {
        /// AMD Developer Cloud.
        AmdDevCloud = "amddevcloud",
        /// Amazon Web Services.
        Aws = "aws",
        /// Microsoft Azure.
        Azure = "azure",
        /// CloudRift.
        CloudRift = "cloudrift",
        /// Crusoe.
        Crusoe = "crusoe",
        /// Cudo (dropped; the name is kept).
        Cudo = "cudo",
        /// DataCrunch, the old name of Verda.
        DataCrunch = "datacrunch",
        /// Daytona.
        Daytona = "daytona",
        /// DigitalOcean.
        DigitalOcean = "digitalocean",
        /// dstack Sky.
        Dstack = "dstack",
        /// Google Cloud Platform.
        Gcp = "gcp",
        /// Hot Aisle.
        HotAisle = "hotaisle",
        /// JarvisLabs.
        JarvisLabs = "jarvislabs",
        /// Kubernetes.
        Kubernetes = "kubernetes",
        /// Lambda Cloud.
        Lambda = "lambda",
        /// Lium.
        Lium = "lium",
        /// Hosts of SSH fleets.
        Remote = "remote",
        /// Nebius AI Cloud.
        Nebius = "nebius",
        /// Oracle Cloud Infrastructure.
        Oci = "oci",
        /// Runpod.
        Runpod = "runpod",
        /// Seeweb.
        Seeweb = "seeweb",
        /// TensorDock (dropped; the name is kept).
        TensorDock = "tensordock",
        /// Vast.ai.
        VastAi = "vastai",
        /// Verda.
        Verda = "verda",
        /// Vultr.
        Vultr = "vultr",
        /// Slurm.
        Slurm = "slurm",
    }
}

impl BackendType {
    /// Takes a name for a type that this build does not have. The same name again is the same type.
    ///
    /// # Errors
    /// It is no name, that of a type of this build, or there are too many.
    pub fn register(name: &str) -> Result<Self, NameError> {
        match Self::built_in(name) {
            Some(_) => Err(NameError::BuiltIn(name.to_owned())),
            None => names::register(name).map(Self),
        }
    }

    /// Whether [`BackendType::register`] would take a name, if there are not too many.
    ///
    /// # Errors
    /// Why not.
    pub fn check_name(name: &str) -> Result<(), NameError> {
        match Self::built_in(name) {
            Some(_) => Err(NameError::BuiltIn(name.to_owned())),
            None => names::check(name),
        }
    }

    /// The types that were registered, in that order.
    pub fn registered() -> Vec<Self> {
        names::registered().into_iter().map(Self).collect()
    }

    /// The types that are known and not of this build, with those that nobody knows and that were seen.
    pub fn foreign() -> Vec<Self> {
        names::all().into_iter().map(Self).collect()
    }

    /// The type of any name that one could have, registered or not: of what is stored, and of what peers tell. `None`: it is no name, or
    /// there are too many that nobody registered.
    pub fn of_any_name(name: &str) -> Option<Self> {
        Self::built_in(name).or_else(|| names::any(name).map(Self))
    }

    /// The wire value.
    pub const fn as_str(self) -> &'static str {
        self.0
    }

    /// Whether this build has it.
    pub fn is_built_in(self) -> bool {
        Self::TEXTS.contains(&self.0)
    }

    /// Whether this build has it, or it was registered.
    pub fn is_known(self) -> bool {
        self.is_built_in() || names::find(self.0).is_some()
    }

    fn built_in(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|known| known.0 == name).copied()
    }

    /// Place in [`BackendType::ALL`]; of others, behind all of them.
    fn position(self) -> usize {
        let known = Self::ALL.iter().position(|known| *known == self);
        known.unwrap_or(Self::ALL.len())
    }
}

impl Ord for BackendType {
    /// As [`BackendType::ALL`]; others come after them, by name.
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |kind: &Self| (kind.position(), kind.0);
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for BackendType {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for BackendType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl fmt::Display for BackendType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl FromStr for BackendType {
    type Err = ParseError;

    /// A type of this build, or one that was registered.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let known = Self::built_in(text).or_else(|| names::find(text).map(Self));
        known.ok_or_else(|| {
            let quoted = dstack_units::number::quote(text);
            ParseError::new(format!("{quoted} is not a valid BackendType"))
        })
    }
}

impl Serialize for BackendType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0)
    }
}

impl<'de> Deserialize<'de> for BackendType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize(deserializer)
    }
}

impl Decode for BackendType {
    /// Requests and files have to name a type that is known; what is stored may name one that was.
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        let found = value.as_str().and_then(|text| match cx.mode() {
            Mode::Strict => text.parse().ok(),
            Mode::Lenient => Self::of_any_name(text),
        });
        found.or_else(|| enums::refuse("enum", &known_texts(), value, cx))
    }
}

/// The wire values of all types that are known.
fn known_texts() -> Vec<&'static str> {
    [BackendType::TEXTS, &names::registered()].concat()
}

impl Schema for BackendType {
    fn schema(_: &mut Schemas) -> Value {
        texts(&known_texts())
    }
}

/// The name of a type as it stands in a database: also of one that nobody knows any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct BackendName(String);

impl BackendName {
    /// The name as it was given, which may be that of a type that nobody knows any more.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this build has the type, or it was registered.
    pub fn is_known(&self) -> bool {
        self.0.parse::<BackendType>().is_ok()
    }
}

impl From<BackendType> for BackendName {
    fn from(kind: BackendType) -> Self {
        Self(kind.as_str().to_owned())
    }
}

impl fmt::Display for BackendName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for BackendName {
    type Err = NameError;

    /// Any name that a type could have.
    fn from_str(text: &str) -> Result<Self, NameError> {
        names::check(text).map(|()| Self(text.to_owned()))
    }
}

impl Decode for BackendName {
    /// It is not kept who was named: whoever may send requests could name ever new ones.
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        let found = value.as_str().and_then(|text| text.parse().ok());
        found.or_else(|| enums::refuse("enum", &known_texts(), value, cx))
    }
}

impl Schema for BackendName {
    fn schema(schemas: &mut Schemas) -> Value {
        BackendType::schema(schemas)
    }
}

/// A project's backend as shown to members: its configuration without credentials.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct BackendInfo {
    /// The backend's type.
    pub name: String,
    /// Its configuration, an object with `type`.
    pub config: Map<String, Value>,
}

/// A backend's configuration as YAML text.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct BackendInfoYaml {
    /// The backend's type.
    pub name: String,
    /// The backend's configuration in YAML, with credentials.
    pub config_yaml: String,
}

#[cfg(test)]
mod tests {
    use dstack_decode::{decode_lenient, decode_strict};
    use serde_json::json;

    use super::*;

    #[test]
    fn constants_stand_in_patterns() {
        let is_amazon = |kind: BackendType| match kind {
            BackendType::Aws => true,
            BackendType::Gcp | BackendType::Azure => false,
            other => other.is_built_in() && other == BackendType::Aws,
        };
        assert!(is_amazon("aws".parse().unwrap()));
        assert!(!is_amazon(BackendType::Gcp) && !is_amazon(BackendType::Slurm));
        assert_eq!(BackendType::ALL.len(), BackendType::TEXTS.len());
    }

    #[test]
    fn a_name_need_not_be_known_and_is_not_kept() {
        let name: BackendName = decode_strict(&json!("cumulus-1")).unwrap();
        assert_eq!((name.as_str(), name.is_known()), ("cumulus-1", false));
        assert!(
            !BackendType::foreign()
                .iter()
                .any(|kind| kind.as_str() == "cumulus-1")
        );
        assert!(BackendName::from(BackendType::Aws).is_known());
        let refused = decode_strict::<BackendName>(&json!("Cumulus")).unwrap_err();
        assert_eq!(
            refused,
            decode_strict::<BackendType>(&json!("Cumulus")).unwrap_err()
        );
    }

    #[test]
    fn requests_name_what_is_known_and_rows_whatever_was() {
        let name = json!("nimbus-1");
        let problems = decode_strict::<BackendType>(&name).unwrap_err();
        assert_eq!(problems[0].expected, BackendType::TEXTS);
        let stored: BackendType = decode_lenient(&name).unwrap();
        assert_eq!((stored.as_str(), stored.is_known()), ("nimbus-1", false));
        assert_eq!(
            serde_json::from_value::<BackendType>(name.clone()).unwrap(),
            stored
        );
        "nimbus-1".parse::<BackendType>().unwrap_err();

        let registered = BackendType::register("nimbus-1").unwrap();
        assert_eq!(registered, stored);
        assert!(registered.is_known() && !registered.is_built_in());
        assert_eq!(decode_strict::<BackendType>(&name).unwrap(), registered);
        assert_eq!(BackendType::registered(), [registered]);
        assert!(
            BackendType::Slurm < registered,
            "it comes after those of the build"
        );
        let problems = decode_strict::<BackendType>(&json!("nimbus-2")).unwrap_err();
        assert_eq!(problems[0].expected.last().unwrap(), "nimbus-1");
        for odd in ["Nimbus", "", "a b", "-a", "a-", "1a", &"a".repeat(99)] {
            decode_lenient::<BackendType>(&json!(odd)).unwrap_err();
        }
    }
}
