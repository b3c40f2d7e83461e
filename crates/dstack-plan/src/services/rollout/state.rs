//! A roll-out under way that is not merely rolling, as it is stored with its run.

use dstack_model::configurations::service::{RolloutSpec, RolloutStrategy, ServiceConfiguration};
use dstack_model::runs::{RunSpec, ServiceSpec};
use dstack_units::Time;
use serde::{Deserialize, Serialize};

/// A roll-out, under way or rolled back. What the run asked for before is stored apart: it may have secrets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rollout {
    /// Number of the new deployment.
    pub deployment: i64,
    /// Number of the deployment before.
    pub from_deployment: i64,
    /// When the last job was submitted that was there as it began: jobs of the new deployment that are no later are as they were.
    pub after: Time,
    /// How far it is.
    pub phase: Phase,
    /// Since when it is so far.
    pub since: Time,
    /// What somebody has asked for, and was not done yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<Ask>,
    /// URL and model of the service before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_spec: Option<ServiceSpec>,
}

/// How far a roll-out is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// New replicas get ready beside the old ones, and get those requests only that have the header.
    Preparing,
    /// Canary: new replicas get their share, and are watched.
    Watching,
    /// Blue/green: all new replicas are ready, and the switch waits to be asked for.
    Ready,
    /// Blue/green: all requests go to the new replicas; the old ones are kept.
    Kept,
    /// Canary: what was watched was well; the others are replaced one after another.
    Following,
    /// The run is as it was before, for this reason.
    RolledBack(String),
}

impl Phase {
    /// Whether the new deployment has yet to show that it can replace the old one.
    pub const fn is_unproven(&self) -> bool {
        matches!(self, Self::Preparing | Self::Watching | Self::Ready)
    }

    /// Whether it is over.
    pub const fn is_over(&self) -> bool {
        matches!(self, Self::RolledBack(_))
    }
}

/// What may be asked for by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// The new deployment goes on.
    Promote,
    /// The old deployment is back.
    Abort,
}

/// The rules by which a run is rolled out; `None`: its replicas are replaced one after another.
pub fn gradual(run: &RunSpec) -> Option<&RolloutSpec> {
    rules(run.configuration.service()?)
}

/// As [`gradual`].
pub fn rules(service: &ServiceConfiguration) -> Option<&RolloutSpec> {
    let rollout = service.rollout.as_ref()?;
    (rollout.effective_strategy() != RolloutStrategy::Rolling).then_some(rollout)
}

impl Rollout {
    /// A roll-out that begins now; the last job that there is was submitted then.
    pub const fn begin((deployment, from_deployment): (i64, i64), after: Time, now: Time) -> Self {
        Self {
            deployment,
            from_deployment,
            after,
            phase: Phase::Preparing,
            since: now,
            asked: None,
            service_spec: None,
        }
    }

    /// From now on it is so far.
    pub fn enter(&mut self, phase: Phase, now: Time) {
        self.phase = phase;
        self.since = now;
        self.asked = None;
    }

    /// Whether a job belongs to the new deployment, and was not there before.
    pub fn is_new(&self, deployment: i64, submitted_at: Time) -> bool {
        deployment == self.deployment && submitted_at > self.after
    }

    /// Jobs of earlier deployments than this do not matter any more once they have ended.
    pub const fn oldest_deployment(&self) -> i64 {
        match self.phase.is_unproven() {
            true => self.from_deployment,
            false => self.deployment,
        }
    }
}
