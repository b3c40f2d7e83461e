//! Profiles, and the parameters that profiles and run configurations have in common.

use dstack_units::{IdleDuration, OffDuration, Seconds};
use serde::Serialize;
use serde_json::{Value, json};

use crate::Decode;
use crate::backends::BackendType;
use crate::common::{EntityReference, Tags, check_tags};
use crate::decode::Cx;
use crate::decode::units::{check_cron, idle_duration, off_duration};
use crate::schema::{Schema, Schemas, any_of};
use crate::{string_enum, tag};

/// How long runs are retried unless they say otherwise.
pub const DEFAULT_RETRY_DURATION: Seconds = Seconds(3600);
/// How long an instance made for a run stays idle unless said otherwise.
pub const DEFAULT_RUN_IDLE_DURATION: Seconds = Seconds(5 * 60);
/// How long a fleet's instance stays idle unless said otherwise.
pub const DEFAULT_FLEET_IDLE_DURATION: Seconds = Seconds(72 * 3600);
/// How long a run may take to stop unless said otherwise.
pub const DEFAULT_STOP_DURATION: Seconds = Seconds(300);

string_enum! {
    /// Spot or on-demand instances.
    pub enum SpotPolicy {
        /// Spot instances only.
        Spot = "spot",
        /// On-demand instances only.
        OnDemand = "on-demand",
        /// Spot and on-demand instances.
        Auto = "auto",
    }
}

impl SpotPolicy {
    /// As a requirement: `Some(true)` spot, `Some(false)` on-demand, `None` both.
    pub const fn requirement(self) -> Option<bool> {
        match self {
            Self::Spot => Some(true),
            Self::OnDemand => Some(false),
            Self::Auto => None,
        }
    }
}

string_enum! {
    /// Whether instances may be made for a run.
    pub enum CreationPolicy {
        /// Only existing instances.
        Reuse = "reuse",
        /// Existing instances first.
        ReuseOrCreate = "reuse-or-create",
    }
}

string_enum! {
    /// What happens to idle instances (stored only).
    pub enum TerminationPolicy {
        /// They stay until they are deleted.
        DontDestroy = "dont-destroy",
        /// They go after a while.
        DestroyAfterIdle = "destroy-after-idle",
    }
}

string_enum! {
    /// In which order the nodes of a task start.
    pub enum StartupOrder {
        /// All at once.
        Any = "any",
        /// The master, then the workers.
        MasterFirst = "master-first",
        /// The workers, then the master.
        WorkersFirst = "workers-first",
    }
}

string_enum! {
    /// When a multi-node run is finished.
    pub enum StopCriteria {
        /// When all nodes are.
        AllDone = "all-done",
        /// When the master is.
        MasterDone = "master-done",
    }
}

string_enum! {
    /// What makes a run be retried.
    pub enum RetryEvent {
        /// No instance could be had.
        NoCapacity = "no-capacity",
        /// A spot instance was taken away.
        Interruption = "interruption",
        /// The run failed.
        Error = "error",
    }
}

/// When to retry, and how long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
#[decode(after = check_retry)]
pub struct ProfileRetry {
    /// The list of events that should be handled with retry. Omit to retry on all events.
    pub on_events: Option<Vec<RetryEvent>>,
    /// The maximum period of retrying the run, e.g., `4h` or `1d`.
    pub duration: Option<Seconds>,
}

fn check_retry(retry: ProfileRetry) -> Result<ProfileRetry, String> {
    if retry.on_events.as_ref().is_some_and(Vec::is_empty) {
        return Err("`on_events` cannot be empty".to_owned());
    }
    Ok(retry)
}

/// `retry`: on, off, or in detail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum RetrySetting {
    /// On some events, or for some time.
    Policy(ProfileRetry),
    /// On all events for the default duration, or not at all.
    Flag(bool),
}

impl crate::decode::Decode for RetrySetting {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        cx.union(&[
            (
                "function-after[_validate_fields(), ProfileRetry]",
                &|cx: &mut Cx| ProfileRetry::decode(value, cx).map(Self::Policy),
            ),
            ("bool", &|cx: &mut Cx| bool::decode(value, cx).map(Self::Flag)),
        ])
    }
}

impl Schema for RetrySetting {
    fn schema(schemas: &mut Schemas) -> Value {
        any_of(vec![ProfileRetry::schema(schemas), bool::schema(schemas)])
    }
}

/// Terminates runs that leave their GPUs idle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct UtilizationPolicy {
    /// Minimum required GPU utilization, percent.
    #[decode(ge = 0, le = 100)]
    pub min_gpu_utilization: i64,
    /// The time window of metric samples (e.g., `30m`, `1h`). Minimum is `5m`.
    #[decode(check = check_time_window)]
    pub time_window: Seconds,
}

fn check_time_window(window: Seconds) -> Result<Seconds, String> {
    if window.0 < 300 {
        Err("Minimum time_window is 5m".to_owned())
    } else {
        Ok(window)
    }
}

/// When a run is to be started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct Schedule {
    /// A cron expression or a list of cron expressions, in UTC.
    #[decode(with = decode_crons, schema = crons_schema)]
    pub cron: Vec<String>,
}

fn decode_crons(value: &Value, cx: &mut Cx) -> Option<Vec<String>> {
    let crons = cx.union(&[
        ("list[str]", &|cx: &mut Cx| Vec::<String>::decode(value, cx)),
        ("str", &|cx: &mut Cx| {
            String::decode(value, cx).map(|cron| vec![cron])
        }),
    ])?;
    cx.after(value, crons, check_crons)
}

fn crons_schema(schemas: &mut Schemas) -> Value {
    any_of(vec![Vec::<String>::schema(schemas), String::schema(schemas)])
}

fn check_crons(crons: Vec<String>) -> Result<Vec<String>, String> {
    if crons.is_empty() {
        return Err("At least one cron expression must be specified".to_owned());
    }
    crons.iter().try_for_each(|cron| check_cron(cron))?;
    Ok(crons)
}

/// An instance by its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct InstanceNameSelector {
    /// The fleet instance name.
    #[decode(min_len = 1)]
    pub name: String,
}

/// An instance by its host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct InstanceHostnameSelector {
    /// The fleet instance hostname or IP address.
    #[decode(min_len = 1)]
    pub hostname: String,
}

/// An instance by its number in a fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct FleetInstanceSelector {
    /// The fleet, perhaps of another project.
    #[decode(before = fleet_from_text)]
    pub fleet: EntityReference,
    /// The fleet instance number.
    #[decode(ge = 0)]
    pub instance: i64,
}

fn fleet_from_text(value: &Value, _: &crate::decode::Map<String, Value>) -> Result<Option<Value>, String> {
    value
        .as_str()
        .map(|text| EntityReference::parse(text).map(|reference| json!(reference)))
        .transpose()
}

/// Names an existing instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum InstanceSelector {
    /// An instance by its name.
    Name(InstanceNameSelector),
    /// An instance by its address.
    Hostname(InstanceHostnameSelector),
    /// By fleet and number.
    Fleet(FleetInstanceSelector),
}

impl crate::decode::Decode for InstanceSelector {
    fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
        let wrapped = value.as_str().map(|name| json!({"name": name}));
        let value = wrapped.as_ref().unwrap_or(value);
        cx.union(&[
            ("InstanceNameSelector", &|cx: &mut Cx| {
                InstanceNameSelector::decode(value, cx).map(Self::Name)
            }),
            ("InstanceHostnameSelector", &|cx: &mut Cx| {
                InstanceHostnameSelector::decode(value, cx).map(Self::Hostname)
            }),
            ("FleetInstanceSelector", &|cx: &mut Cx| {
                FleetInstanceSelector::decode(value, cx).map(Self::Fleet)
            }),
        ])
    }
}

impl Schema for InstanceSelector {
    fn schema(schemas: &mut Schemas) -> Value {
        any_of(vec![
            InstanceNameSelector::schema(schemas),
            InstanceHostnameSelector::schema(schemas),
            FleetInstanceSelector::schema(schemas),
            json!({"type": "string"}),
        ])
    }
}

string_enum! {
    /// How Vast.ai offers are ordered.
    pub enum VastAiOfferOrder {
        /// Best overall score first.
        Score = "score",
        /// Cheapest first.
        Price = "price",
    }
}

tag!(
    /// The value of `type` for [`VastAiProfileOptions`].
    pub VastAiTag = "vastai"
);

/// Options of the Vast.ai backend.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct VastAiProfileOptions {
    /// The backend that the options are for: `vastai`.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: VastAiTag,
    /// Controls the order in which offers are considered for provisioning. Defaults to `score`.
    pub offer_order: Option<VastAiOfferOrder>,
    /// The minimum reliability threshold for offers, on a scale from `0` to `1`. Defaults to `0.9`.
    #[decode(ge = 0, le = 1)]
    pub min_reliability: Option<f64>,
    /// The minimum overall score required for offers to be considered.
    #[decode(ge = 0)]
    pub min_score: Option<i64>,
}

/// Checks that each backend has options at most once.
pub(crate) fn check_backend_options(
    options: Option<Vec<VastAiProfileOptions>>,
) -> Result<Option<Vec<VastAiProfileOptions>>, String> {
    if options.as_ref().is_some_and(|options| options.len() > 1) {
        return Err("backend_options contains duplicate entry for backend 'vastai'".to_owned());
    }
    Ok(options)
}

/// Decodes `fleets`: names, or references.
pub(crate) fn decode_fleets(value: &Value, cx: &mut Cx) -> Option<Option<Vec<EntityReference>>> {
    struct Item(EntityReference);
    impl crate::decode::Decode for Item {
        fn decode(value: &Value, cx: &mut Cx) -> Option<Self> {
            EntityReference::decode_or_parse(value, cx).map(Self)
        }
    }
    let items = Option::<Vec<Item>>::decode(value, cx)?;
    Some(items.map(|items| items.into_iter().map(|item| item.0).collect()))
}

/// Where and how a run may be placed, and when it ends. Mixed into profiles and run configurations.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Decode)]
pub struct ProfileParams {
    /// The backends to consider for provisioning (e.g., `[aws, gcp]`).
    pub backends: Option<Vec<BackendType>>,
    /// The regions to consider for provisioning (e.g., `[eu-west-1, us-west4, westeurope]`).
    pub regions: Option<Vec<String>>,
    /// The availability zones to consider for provisioning (e.g., `[eu-west-1a, us-west4-a]`).
    pub availability_zones: Option<Vec<String>>,
    /// The cloud-specific instance types to consider for provisioning (e.g., `[p3.8xlarge, n1-standard-4]`).
    pub instance_types: Option<Vec<String>>,
    /// The existing reservation to use for instance provisioning (AWS and GCP).
    pub reservation: Option<String>,
    /// The policy for provisioning spot or on-demand instances. Defaults to `on-demand`.
    pub spot_policy: Option<SpotPolicy>,
    /// The policy for resubmitting the run. Defaults to `false`.
    pub retry: Option<RetrySetting>,
    /// The maximum duration of a run in a running state (e.g., `2h`, `1d`, etc). Defaults to `off`.
    #[decode(with = off_duration)]
    pub max_duration: Option<OffDuration>,
    /// The maximum duration of a run graceful stopping. Defaults to `5m`.
    #[decode(with = off_duration)]
    pub stop_duration: Option<OffDuration>,
    /// The maximum instance price per hour, in dollars.
    #[decode(gt = 0.0)]
    pub max_price: Option<f64>,
    /// The policy for using instances from fleets. Defaults to `reuse-or-create`.
    pub creation_policy: Option<CreationPolicy>,
    /// Time to wait before terminating idle instances. Defaults to `5m` for runs and `3d` for fleets.
    #[decode(with = idle_duration)]
    pub idle_duration: Option<IdleDuration>,
    /// Run termination policy based on utilization.
    pub utilization_policy: Option<UtilizationPolicy>,
    /// The order in which master and workers jobs are started. Defaults to `any`.
    pub startup_order: Option<StartupOrder>,
    /// The criteria determining when a multi-node run should be considered finished. Defaults to `all-done`.
    pub stop_criteria: Option<StopCriteria>,
    /// The schedule for starting the run at specified time.
    pub schedule: Option<Schedule>,
    /// The fleets considered for reuse.
    #[decode(with = decode_fleets)]
    pub fleets: Option<Vec<EntityReference>>,
    /// The specific fleet instances to consider for reuse.
    #[decode(min_len = 1)]
    pub instances: Option<Vec<InstanceSelector>>,
    /// The custom tags to associate with the resource.
    #[decode(check = check_tags)]
    pub tags: Option<Tags>,
    /// Backend-specific options, applied only to offers from that backend.
    #[decode(check = check_backend_options)]
    pub backend_options: Option<Vec<VastAiProfileOptions>>,
}

impl ProfileParams {
    /// Takes over every parameter that `over` sets.
    #[must_use]
    pub fn overlaid(self, over: &Self) -> Self {
        fn pick<T: Clone>(under: Option<T>, over: &Option<T>) -> Option<T> {
            over.clone().or(under)
        }
        Self {
            backends: pick(self.backends, &over.backends),
            regions: pick(self.regions, &over.regions),
            availability_zones: pick(self.availability_zones, &over.availability_zones),
            instance_types: pick(self.instance_types, &over.instance_types),
            reservation: pick(self.reservation, &over.reservation),
            spot_policy: pick(self.spot_policy, &over.spot_policy),
            retry: pick(self.retry, &over.retry),
            max_duration: pick(self.max_duration, &over.max_duration),
            stop_duration: pick(self.stop_duration, &over.stop_duration),
            max_price: pick(self.max_price, &over.max_price),
            creation_policy: pick(self.creation_policy, &over.creation_policy),
            idle_duration: pick(self.idle_duration, &over.idle_duration),
            utilization_policy: pick(self.utilization_policy, &over.utilization_policy),
            startup_order: pick(self.startup_order, &over.startup_order),
            stop_criteria: pick(self.stop_criteria, &over.stop_criteria),
            schedule: pick(self.schedule, &over.schedule),
            fleets: pick(self.fleets, &over.fleets),
            instances: pick(self.instances, &over.instances),
            tags: pick(self.tags, &over.tags),
            backend_options: pick(self.backend_options, &over.backend_options),
        }
    }
}

/// A named set of parameters.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Decode)]
pub struct Profile {
    /// What the profile sets.
    #[serde(flatten)]
    #[decode(flatten)]
    pub params: ProfileParams,
    /// The name of the profile that can be passed as `--profile` to `dstack apply`.
    #[decode(default)]
    pub name: String,
    /// If set to true, `dstack apply` will use this profile by default.
    #[decode(default)]
    pub default: bool,
}

/// The content of a `profiles.yml`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Decode)]
pub struct ProfilesConfig {
    /// The profiles, in the order of the file.
    pub profiles: Vec<Profile>,
}

impl ProfilesConfig {
    /// The one that is used when none is named.
    pub fn default_profile(&self) -> Option<&Profile> {
        self.profiles.iter().find(|profile| profile.default)
    }

    /// Returns the profile of this name.
    pub fn get(&self, name: &str) -> Option<&Profile> {
        self.profiles.iter().find(|profile| profile.name == name)
    }
}
