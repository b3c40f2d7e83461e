use std::collections::BTreeMap;

use dstack_decode::{Cx, Decode, Problem};
use dstack_model::backends::BackendType;
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::Credential;

/// The kind of credentials, as backends with an API key have it.
const CREDS_TYPE: &str = "api_key";

/// The configuration of a backend that a manifest describes. Which fields there are, only the manifest says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestConfig {
    /// The type of the backend.
    pub kind: BackendType,
    /// Regions to use; all when unset.
    pub regions: Option<Vec<String>>,
    /// Fields that are not secret.
    pub options: BTreeMap<String, String>,
    /// Fields that are.
    pub creds: BTreeMap<String, Credential>,
}

impl ManifestConfig {
    /// Whether a configuration names a type that a manifest describes.
    pub(super) fn has_known_type(value: &Value) -> bool {
        let known = name_of(value).and_then(|name| name.parse::<BackendType>().ok());
        known.is_some_and(|kind| !kind.is_built_in())
    }

    /// Whether it names one that a manifest describes, or once did.
    pub(super) fn has_type(value: &Value) -> bool {
        let any = name_of(value).and_then(BackendType::of_any_name);
        any.is_some_and(|kind| !kind.is_built_in())
    }
}

fn name_of(value: &Value) -> Option<&str> {
    value.get("type")?.as_str()
}

impl Decode for ManifestConfig {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        let Value::Object(object) = value else {
            return cx.problem("dict_type", "Input should be a valid dictionary", value);
        };
        let kind = cx.at("type", |cx| match object.get("type") {
            Some(kind) => BackendType::decode(kind, cx),
            None => cx.report(Problem::new("missing", "Field required", value)),
        });
        let regions = cx.at("regions", |cx| {
            Option::decode(object.get("regions").unwrap_or(&Value::Null), cx)
        });
        let creds = cx.at("creds", |cx| match object.get("creds") {
            None | Some(Value::Null) => Some(BTreeMap::new()),
            Some(Value::Object(creds)) => texts(creds, &["type"], cx),
            Some(other) => cx.problem("dict_type", "Input should be a valid dictionary", other),
        });
        let options = texts(object, &["type", "regions", "creds"], cx);
        Some(Self {
            kind: kind?,
            regions: regions?,
            options: options?,
            creds: creds?,
        })
    }
}

/// The fields of an object but these and unset ones.
fn texts<T: Decode>(object: &Map<String, Value>, but: &[&str], cx: &mut Cx) -> Option<BTreeMap<String, T>> {
    let fields = object
        .iter()
        .filter(|(name, value)| !but.contains(&name.as_str()) && !value.is_null());
    let mut read = BTreeMap::new();
    let mut is_right = true;
    for (name, value) in fields {
        match cx.at(name.clone(), |cx| T::decode(value, cx)) {
            Some(text) => {
                read.insert(name.clone(), text);
            }
            None => is_right = false,
        }
    }
    is_right.then_some(read)
}

impl Serialize for ManifestConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", &self.kind)?;
        if let Some(regions) = &self.regions {
            map.serialize_entry("regions", regions)?;
        }
        for (name, option) in &self.options {
            map.serialize_entry(name, option)?;
        }
        let mut creds: BTreeMap<&str, &str> = BTreeMap::from([("type", CREDS_TYPE)]);
        creds.extend(
            self.creds
                .iter()
                .map(|(name, secret)| (name.as_str(), secret.expose())),
        );
        map.serialize_entry("creds", &creds)?;
        map.end()
    }
}
