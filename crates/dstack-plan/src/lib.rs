//! Pure decisions of the control plane: no I/O, no async, no clock.
//!
//! * [`validate`] — what the server checks and fills in of a run that was asked for.
//! * [`jobs`] — from a run to the jobs it consists of.
//! * [`matching`] — whether an instance satisfies requirements.
//! * [`combine`] — what a fleet and a run ask for together.
//! * [`compute_groups`] — which nodes of a run are made as one.
//! * [`placement`] — which instance a job gets.
//! * [`nodes`] — what the jobs of a run must know of one another before they start.
//! * [`queue`] — where many waiting jobs go.
//! * [`fleets`] — which fleet a run gets, and what could be made anew in it.
//! * [`hosts`] — the way to hosts of SSH fleets, and what they offer.
//! * [`bootstrap`] — the first script of a container of a cloud.
//! * [`offers`] — which offers of backends count, and in which order.
//! * [`orphans`] — what clouds have of ours that belongs to nobody.
//! * [`placement_groups`] — in which placement group an instance of a cluster is made.
//! * [`volumes`] — where network volumes let a job be.
//! * [`explain`] — why a job is placed where it is, and what to change when it cannot be placed.
//! * [`plans`] — what a plan says.
//! * [`diff`], [`fleet_diff`] — what may change of a run or a fleet in place.
//! * [`schedule`] — when a run with a schedule starts.
//! * [`services`] — how many replicas a service has, and how they are replaced.
//! * [`lifecycle`] — what happens next to runs, jobs and instances.

#![warn(missing_docs)]

pub mod bootstrap;
pub mod combine;
pub mod compute_groups;
pub mod diff;
pub mod explain;
pub mod fleet_diff;
pub mod fleets;
pub mod hosts;
pub mod jobs;
pub mod lifecycle;
pub mod matching;
pub mod names;
pub mod nodes;
pub mod offers;
pub mod orphans;
pub mod placement;
pub mod placement_groups;
pub mod plans;
pub mod probes;
pub mod queue;
pub mod schedule;
pub mod services;
pub mod validate;
pub mod volumes;

/// A request that cannot be planned. The texts are those of dstack 0.22.5, which clients show verbatim.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PlanError(pub String);

impl PlanError {
    /// With this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// What the server adds to what users leave out.
#[derive(Debug, Clone)]
pub struct ServerDefaults {
    /// `DSTACK_DOCKER_BASE_IMAGE`.
    pub base_image: String,
    /// `DSTACK_DOCKER_BASE_IMAGE_VERSION`.
    pub base_image_version: String,
    /// `DSTACK_DOCKER_BASE_IMAGE_UBUNTU_VERSION`.
    pub base_image_ubuntu: String,
    /// `DSTACK_DIND_IMAGE`.
    pub dind_image: String,
    /// Python of the default image when none is asked for.
    pub python: String,
    /// `DSTACK_SERVER_METRICS_RUNNING_TTL_SECONDS`.
    pub metrics_running_ttl: i64,
    /// `DSTACK_SERVER_MAX_PROBES_PER_JOB`.
    pub max_probes: usize,
    /// `DSTACK_SERVER_MAX_PROBE_TIMEOUT`, seconds.
    pub max_probe_timeout: i64,
    /// `DSTACK_FORBID_DSTACK_IN_RUNS`.
    pub forbid_dstack_in_runs: bool,
}

impl Default for ServerDefaults {
    fn default() -> Self {
        Self {
            base_image: "dstackai/base".to_owned(),
            base_image_version: "0.16".to_owned(),
            base_image_ubuntu: "24.04".to_owned(),
            dind_image: "dstackai/dind".to_owned(),
            python: "3.11".to_owned(),
            metrics_running_ttl: 3600,
            max_probes: 10,
            max_probe_timeout: 300,
            forbid_dstack_in_runs: false,
        }
    }
}

impl ServerDefaults {
    /// The image of runs that name none.
    pub fn default_image(&self, nvcc: bool) -> String {
        let kind = if nvcc { "devel" } else { "base" };
        format!(
            "{}:{}-{kind}-ubuntu{}",
            self.base_image, self.base_image_version, self.base_image_ubuntu
        )
    }

    /// The image for machines with an Elastic Fabric Adapter that stands in for one of [`ServerDefaults::default_image`], of any
    /// version; `None`: the image is another one.
    pub fn efa_image(&self, image: &str) -> Option<String> {
        let ubuntu = format!("-ubuntu{}", self.base_image_ubuntu);
        let tag = image.strip_prefix(&self.base_image)?.strip_prefix(':')?;
        let tag = tag.strip_suffix(&ubuntu)?;
        let version = tag.strip_suffix("-base").or_else(|| tag.strip_suffix("-devel"))?;
        Some(format!("{}:{version}-devel-efa{ubuntu}", self.base_image))
    }
}

/// Asks for the offers only: an image of this name is never looked up.
pub const DUMMY_IMAGE: &str = "scratch";

/// What a registry says of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageConfig {
    /// `USER`.
    pub user: Option<String>,
    /// `ENTRYPOINT`.
    pub entrypoint: Vec<String>,
    /// `CMD`.
    pub cmd: Vec<String>,
    /// Linux architectures it exists for; empty = not known.
    pub architectures: Vec<dstack_units::CpuArchitecture>,
}
