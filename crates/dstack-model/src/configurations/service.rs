//! `type: service`.

mod balancing;
mod groups;
mod models;
mod probes;
mod rate_limits;
mod rollout;
mod scaling;
mod signals;

use dstack_units::{PortMapping, Range, port};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::DEFAULT_GROUP_NAME;
use super::base::BaseRunConfiguration;
use crate::common::EntityReference;
use crate::decode::Refusal;
use crate::decode::{Cx, constraint, enums};
use crate::profiles::ProfileParams;
use crate::schema::{Schema, Schemas, any_of};
use crate::{Decode, limits, tag};

pub use balancing::Balancing;
pub use groups::{ReplicaGroup, ReplicaGroupRouterConfig, RouterType};
pub use models::{AnyModel, OpenAiChatModel, TgiChatModel};
pub use probes::{HttpHeaderSpec, HttpMethod, HttpTag, ProbeConfig};
pub use rate_limits::{HeaderPartitioningKey, IpAddressPartitioningKey, PartitioningKey, RateLimit};
pub use rollout::{Latency, Percent, RolloutHeader, RolloutSpec, RolloutStrategy, RolloutSwitch};
pub use scaling::{NO_RPS_TARGET, RpsTag, ScalingSpec};
pub use signals::{ScalingSignal, SignalMetric};

tag!(
    /// The value of `type` for [`ServiceConfiguration`].
    pub ServiceTag = "service"
);

/// The configuration of a service: replicas that answer requests.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
#[decode(before = legacy_groups, after = check)]
pub struct ServiceConfiguration {
    /// The port the application listens on. Only the container port matters.
    #[decode(with = decode_port, schema = port_schema)]
    pub port: PortMapping,
    /// The name of the gateway. `false` to run without a gateway, `true` to run with the default gateway.
    pub gateway: Option<GatewayChoice>,
    /// Strip the `/proxy/services/<project name>/<run name>/` path prefix when forwarding requests to the service.
    #[decode(default = true)]
    pub strip_prefix: bool,
    /// Mapping of the model for the OpenAI-compatible endpoint provided by `dstack`.
    #[decode(before = models::from_name, schema = models::schema)]
    pub model: Option<AnyModel>,
    /// Enable HTTPS if running with a gateway. Defaults to `true`.
    pub https: Option<HttpsSetting>,
    /// Enable the authorization.
    #[decode(default = true)]
    pub auth: bool,
    /// The auto-scaling rules. Required if `replicas` is set to a range.
    pub scaling: Option<ScalingSpec>,
    /// Rate limiting rules.
    #[decode(default, check = rate_limits::check_unique)]
    pub rate_limits: Vec<RateLimit>,
    /// How requests are spread over the replicas: `least_requests` (the default), or `prefix`, by which requests whose prompts begin alike
    /// go to the same replica, so that it finds them in its cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balancing: Option<Balancing>,
    /// The list of probes to determine service health. Unset: a default probe if there is an OpenAI model.
    #[decode(check = probes::check_unique)]
    pub probes: Option<Vec<ProbeConfig>>,
    /// The number of replicas for a homogeneous service. Mutually exclusive with `groups`.
    #[decode(check = groups::check_optional_replicas, limit = limits::optional_replica_range)]
    pub replicas: Option<Range<i64>>,
    /// A list of replica groups for heterogeneous services. Mutually exclusive with `replicas`.
    #[decode(check = super::group_names::check_groups, limit = limits::replica_groups)]
    pub groups: Option<Vec<ReplicaGroup>>,
    /// The shell commands to run.
    #[decode(default)]
    pub commands: Vec<String>,
    /// How replicas are replaced by those of a new deployment. Not part of dstack 0.22.5's configurations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutSpec>,
    /// The configuration type.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: ServiceTag,
    /// What all run configurations have.
    #[serde(flatten)]
    #[decode(flatten)]
    pub base: BaseRunConfiguration,
    /// Where and how it may be placed.
    #[serde(flatten)]
    #[decode(flatten)]
    pub params: ProfileParams,
}

impl ServiceConfiguration {
    /// The groups; one made of the top level when there are none.
    pub fn replica_groups(&self) -> Vec<ReplicaGroup> {
        if let Some(groups) = &self.groups {
            return groups.clone();
        }
        vec![ReplicaGroup {
            name: Some(DEFAULT_GROUP_NAME.to_owned()),
            replicas: self.replicas.unwrap_or(Range::exactly(1)),
            scaling: self.scaling.clone(),
            resources: self.base.resources.clone(),
            spot_policy: None,
            reservation: None,
            commands: self.commands.clone(),
            image: None,
            python: None,
            nvcc: None,
            docker: None,
            privileged: None,
            router: None,
        }]
    }
}

/// A port of this machine cannot be left open.
fn port_schema(schemas: &mut Schemas) -> Value {
    crate::decode::units::port::port_schema(schemas, "^[0-9]+:[0-9]+$")
}

/// The older form of groups: a list in `replicas`.
fn legacy_groups(value: &Value) -> Result<Option<Value>, String> {
    let Value::Object(map) = value else {
        return Ok(None);
    };
    let given = |map: &Map<String, Value>, key: &str| map.get(key).is_some_and(|found| !found.is_null());
    if !given(map, "groups") && map.get("replicas").is_some_and(Value::is_array) {
        let mut map = map.clone();
        let groups = map.shift_remove("replicas").unwrap_or_default();
        map.insert("groups".to_owned(), groups);
        return Ok(Some(Value::Object(map)));
    }
    if given(map, "groups") && given(map, "replicas") {
        return Err("`replicas` and `groups` are mutually exclusive".to_owned());
    }
    Ok(None)
}

/// `8000` (80:8000), `"80:8000"`, `{local_port, container_port}`.
fn decode_port(value: &Value, cx: &mut Cx) -> Option<PortMapping> {
    let number = |cx: &mut Cx| {
        let number = i64::decode(value, cx)?;
        constraint::gt(&number, 0, value, cx)?;
        constraint::le(&number, 65_535, value, cx)?;
        Some(Form::Object(json!({"local_port": 80, "container_port": number})))
    };
    let text = |cx: &mut Cx| {
        const PATTERN: &str = "^[0-9]+:[0-9]+$";
        let text = String::decode(value, cx)?;
        match port::tokens(&text) {
            Ok(tokens) if text.contains(':') && tokens.local.is_some() => Some(Form::Object(
                json!({"local_port": tokens.local, "container_port": tokens.container}),
            )),
            _ => {
                let msg = format!("String should match pattern '{PATTERN}'");
                cx.problem_with("string_pattern_mismatch", msg, value, json!({"pattern": PATTERN}))
            }
        }
    };
    let form = cx.union(&[
        ("constrained-int", &number),
        ("constrained-str", &text),
        ("PortMapping", &|cx: &mut Cx| cx.object(value).map(Form::Port)),
    ])?;
    match form {
        Form::Port(port) => Some(port),
        Form::Object(object) => cx.object(&object),
    }
}

enum Form {
    Object(Value),
    Port(PortMapping),
}

/// Through which gateway a service is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum GatewayChoice {
    /// The default one, or none.
    Flag(bool),
    /// The gateway of this name, perhaps of another project.
    Reference(EntityReference),
}

impl crate::decode::Decode for GatewayChoice {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        enum Form {
            Choice(GatewayChoice),
            Text(String),
        }
        let form = cx.union(&[
            ("bool", &|cx: &mut Cx| {
                bool::decode(value, cx).map(|flag| Form::Choice(Self::Flag(flag)))
            }),
            ("EntityReference", &|cx: &mut Cx| {
                EntityReference::decode(value, cx).map(|reference| Form::Choice(Self::Reference(reference)))
            }),
            ("str", &|cx: &mut Cx| String::decode(value, cx).map(Form::Text)),
        ])?;
        match form {
            Form::Choice(choice) => Some(choice),
            Form::Text(text) => match EntityReference::parse(&text) {
                Ok(reference) => Some(Self::Reference(reference)),
                Err(refusal) => cx.value_error(refusal, value),
            },
        }
    }
}

impl Schema for GatewayChoice {
    fn schema(schemas: &mut Schemas) -> Value {
        any_of(vec![
            bool::schema(schemas),
            EntityReference::schema(schemas),
            json!({"type": "string"}),
        ])
    }
}

/// Whether a service's gateway serves HTTPS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpsSetting {
    /// Yes or no.
    Flag(bool),
    /// If the gateway has a certificate.
    Auto,
}

impl Serialize for HttpsSetting {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Flag(flag) => serializer.serialize_bool(*flag),
            Self::Auto => serializer.serialize_str("auto"),
        }
    }
}

impl crate::decode::Decode for HttpsSetting {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        if value.as_str() == Some("auto") {
            return Some(Self::Auto);
        }
        cx.union(&[
            ("bool", &|cx: &mut Cx| bool::decode(value, cx).map(Self::Flag)),
            ("literal['auto']", &|cx: &mut Cx| {
                enums::refuse("literal_error", &["auto"], value, cx)
            }),
        ])
    }
}

impl Schema for HttpsSetting {
    fn schema(schemas: &mut Schemas) -> Value {
        any_of(vec![bool::schema(schemas), crate::schema::texts(&["auto"])])
    }
}

/// In the reference's order, the first broken rule only.
fn check(service: ServiceConfiguration) -> Result<ServiceConfiguration, Refusal> {
    if service.groups.is_none()
        && service.commands.is_empty()
        && service.base.image.as_ref().is_none_or(String::is_empty)
    {
        return Err("Either `commands` or `image` must be set".into());
    }
    if let Some(replicas) = &service.replicas {
        scaling::check(replicas, service.scaling.as_ref())?;
    }
    if let Some(groups) = &service.groups {
        groups::check_with_service(&service, groups)?;
    }
    rollout::check_with_service(&service)?;
    Ok(service)
}
