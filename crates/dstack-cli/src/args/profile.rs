//! Flags that replace profile parameters.

use clap::Args;
use dstack_model::backends::BackendType;
use dstack_model::common::EntityReference;
use dstack_model::profiles::{CreationPolicy, ProfileParams, ProfileRetry, RetrySetting, SpotPolicy};
use dstack_units::{IdleDuration, OffDuration, Seconds};

use super::reference;

/// Flags that override the profile of a run.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Profile")]
pub struct ProfileArgs {
    /// The name of the profile. Defaults to `$DSTACK_PROFILE`
    #[arg(long, value_name = "NAME", conflicts_with = "no_profile")]
    pub profile: Option<String>,
    /// Don't load any profile. The default when `$DSTACK_NO_PROFILE` is set
    #[arg(long)]
    pub no_profile: bool,
    /// The maximum price per hour, in dollars
    #[arg(long, value_name = "PRICE")]
    pub max_price: Option<f64>,
    /// The maximum duration of the run
    #[arg(long, value_name = "DURATION")]
    pub max_duration: Option<OffDuration>,
    /// The backends that will be tried for provisioning
    #[arg(short, long = "backend", value_name = "NAME", value_parser = backend)]
    pub backends: Vec<BackendType>,
    /// The regions that will be tried for provisioning
    #[arg(short, long = "region", value_name = "NAME")]
    pub regions: Vec<String>,
    /// The instance types that will be tried for provisioning
    #[arg(long = "instance-type", value_name = "NAME")]
    pub instance_types: Vec<String>,
    /// Consider only these fleets
    #[arg(long = "fleet", value_name = "NAME", value_parser = reference, help_heading = "Fleets")]
    pub fleets: Vec<EntityReference>,
    /// Reuse an existing instance of a fleet (do not provision a new one)
    #[arg(short = 'R', long, help_heading = "Fleets", group = "fleet_policy")]
    pub reuse: bool,
    /// Do not destroy the instance after the run is finished (if the run provisions a new instance)
    #[arg(long, help_heading = "Fleets", group = "fleet_policy")]
    pub dont_destroy: bool,
    /// Time to wait before destroying the idle instance (if the run provisions a new instance)
    #[arg(
        long,
        value_name = "DURATION",
        help_heading = "Fleets",
        group = "fleet_policy",
        allow_hyphen_values = true
    )]
    pub idle_duration: Option<IdleDuration>,
    /// Consider only spot instances
    #[arg(long, help_heading = "Spot policy", group = "spot_choice")]
    pub spot: bool,
    /// Consider only on-demand instances
    #[arg(long, help_heading = "Spot policy", group = "spot_choice")]
    pub on_demand: bool,
    /// Consider both spot and on-demand instances
    #[arg(long, help_heading = "Spot policy", group = "spot_choice")]
    pub spot_auto: bool,
    /// One of `spot`, `on-demand`, `auto`
    #[arg(
        long,
        value_name = "POLICY",
        help_heading = "Spot policy",
        group = "spot_choice"
    )]
    pub spot_policy: Option<SpotPolicy>,
    /// Retry the run when it fails or finds no capacity
    #[arg(long, help_heading = "Retry policy", group = "retry_choice")]
    pub retry: bool,
    /// Do not retry the run
    #[arg(long, help_heading = "Retry policy", group = "retry_choice")]
    pub no_retry: bool,
    /// Retry the run for this long
    #[arg(
        long,
        value_name = "DURATION",
        help_heading = "Retry policy",
        group = "retry_choice"
    )]
    pub retry_duration: Option<Seconds>,
}

impl ProfileArgs {
    /// Writes the flags into a configuration.
    pub fn apply(&self, params: &mut ProfileParams) {
        replace(&mut params.backends, &self.backends);
        replace(&mut params.regions, &self.regions);
        replace(&mut params.instance_types, &self.instance_types);
        replace(&mut params.fleets, &self.fleets);
        params.max_price = self.max_price.or(params.max_price);
        params.max_duration = self.max_duration.or(params.max_duration);
        let dont_destroy = self.dont_destroy.then_some(IdleDuration::OFF);
        params.idle_duration = self.idle_duration.or(dont_destroy).or(params.idle_duration);
        params.creation_policy = self
            .reuse
            .then_some(CreationPolicy::Reuse)
            .or(params.creation_policy);
        params.spot_policy = self.spot_choice().or(params.spot_policy);
        if let Some(retry) = self.retry_choice() {
            params.retry = Some(retry);
        }
    }

    fn spot_choice(&self) -> Option<SpotPolicy> {
        let flags = [
            (self.spot, SpotPolicy::Spot),
            (self.on_demand, SpotPolicy::OnDemand),
            (self.spot_auto, SpotPolicy::Auto),
        ];
        self.spot_policy
            .or_else(|| flags.into_iter().find(|(set, _)| *set).map(|(_, policy)| policy))
    }

    fn retry_choice(&self) -> Option<RetrySetting> {
        if self.retry || self.no_retry {
            return Some(RetrySetting::Flag(self.retry));
        }
        let duration = self.retry_duration?;
        Some(RetrySetting::Policy(ProfileRetry {
            on_events: None,
            duration: Some(duration),
        }))
    }
}

fn replace<T: Clone>(slot: &mut Option<Vec<T>>, values: &[T]) {
    if !values.is_empty() {
        *slot = Some(values.to_vec());
    }
}

/// A type of backends: of this version, or one that the server knows by a file of its own.
pub(crate) fn backend(text: &str) -> Result<BackendType, String> {
    let known = text.parse::<BackendType>().map_err(|error| error.to_string());
    known.or_else(|error| BackendType::of_any_name(text).ok_or(error))
}
