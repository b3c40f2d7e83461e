//! Roll-outs of services. Not part of dstack 0.22.5's API.

use dstack_units::Time;
use serde::Serialize;

use crate::configurations::RolloutStrategy;
use crate::{Decode, string_enum};

string_enum! {
    /// How far a roll-out is.
    literal pub enum RolloutPhase {
        /// The new replicas get ready.
        Preparing = "preparing",
        /// Canary: the new replicas get their share of the requests, and are watched.
        Watching = "watching",
        /// Blue/green: the new replicas are ready, and the switch is to be asked for.
        Ready = "ready",
        /// Blue/green: all requests go to the new replicas, and the old ones are kept for a while.
        Kept = "kept",
        /// Canary: the other replicas are replaced one after another.
        Following = "following",
        /// The run asks again for what it asked for before.
        RolledBack = "rolled_back",
    }
}

string_enum! {
    /// What may be asked of a roll-out.
    literal pub enum RolloutAction {
        /// The new deployment goes on, or is switched to.
        Promote = "promote",
        /// The old deployment is back.
        Abort = "abort",
    }
}

/// The roll-out of a service.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct RolloutState {
    /// Name of the run.
    pub run_name: String,
    /// The strategy of the present configuration.
    pub strategy: RolloutStrategy,
    /// How far it is; `null`: no roll-out by `canary` or `blue_green` is under way.
    pub phase: Option<RolloutPhase>,
    /// Since when it is so far.
    pub since: Option<Time>,
    /// Until when it stays so, if nothing happens.
    pub until: Option<Time>,
    /// What was asked for, and is about to be done.
    pub asked: Option<RolloutAction>,
    /// Why it was rolled back.
    pub reason: Option<String>,
    /// What keeps it from going on, and what can be done about it.
    pub obstacle: Option<String>,
    /// The deployments that have replicas, the newest first.
    pub deployments: Vec<RolloutDeployment>,
}

/// A deployment of a service.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct RolloutDeployment {
    /// Its number.
    pub deployment_num: i64,
    /// Replicas that are neither over nor about to be.
    pub replicas: i64,
    /// Those of them that may get requests.
    pub ready: i64,
    /// Percent of the requests that go there; `null`: requests are not split.
    pub share_percent: Option<f64>,
    /// What was counted of its requests; `null`: requests are not split, or nobody who counts has said.
    pub answers: Option<RolloutAnswers>,
}

/// What replicas have answered since the roll-out began, or whoever counts was started.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Decode)]
pub struct RolloutAnswers {
    /// Requests that are over, attempts without an answer among them.
    pub requests: i64,
    /// Those of status 5xx, those that broke off, and those that never began.
    pub failed: i64,
    /// The percentage of failed ones.
    pub error_percent: f64,
    /// Seconds that 95% of the answers took at most to begin; `null`: none has begun.
    pub p95_seconds: Option<f64>,
    /// A gateway or another server has not said lately what it has counted: there may be more.
    #[decode(default)]
    pub is_partial: bool,
}
