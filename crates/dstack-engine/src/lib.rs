//! The engine: keeps every run, job, instance, fleet, volume, attachment and gateway moving.
//!
//! ```text
//! wake(entity) ─► snapshot ─► dstack_plan::lifecycle::decide(facts, now) ─► commit {rows, events, operations}
//!      ▲                                                                      │ after the commit
//!      └───── observation ◄──────────── operation (call to an agent or a cloud) ◄────────┘
//! ```
//!
//! * [`wakes`] — who wants to be looked at, and when; one entity is looked at by one worker at a time.
//! * [`reconcile`] — one module per entity: load, decide, commit.
//! * [`look`] — how clouds say that instances are.
//! * [`lease_set`] and [`term`] — what this server drives, and until when.
//! * [`operations`] — durable calls to agents and clouds, repeated until confirmed or refused.
//! * [`orphans`] — what clouds have of ours that belongs to nobody.
//! * [`offer_cache`] — what clouds offer for the jobs that wait.
//! * [`follow`] — streams of agents: task changes of a shim, output and states of a runner.
//! * [`hosts`] — machines reached over SSH: their agents are set up and taken off.
//! * [`health`] — what agents say of their GPUs, as users see it.
//! * [`services`] — the way of requests to the jobs of services: who gets them, and who is asked whether it can.
//! * [`observations`] — what the streams said last: never needed for correctness, all of it is said again
//!   after a restart.
//!
//! It sees the store, the agents, the clouds, the logs and the clock through traits, so that the simulation runs this very code.

pub mod agents;
pub mod attendance;
pub mod context;
pub mod engine;
pub mod failpoint;
pub mod follow;
pub mod health;
pub mod hosts;
pub mod inputs;
mod job_volumes;
pub mod lease_set;
pub mod look;
pub mod observations;
pub mod offer_cache;
pub mod operations;
pub mod orphans;
pub mod output;
pub mod panics;
pub mod peers;
pub mod reasons;
pub mod reconcile;
pub mod running;
pub mod services;
pub mod task_config;
pub mod term;
pub mod wakes;

pub use agents::{AgentError, Agents, EventSource, Runner, Shim, TaskSource};
pub use context::{Context, EngineDeps, Identity, Settings};
pub use engine::Engine;
pub use failpoint::Failpoints;
pub use hosts::{
    ContainerRef, GatewayRef, GatewaySite, HostError, HostRef, Hosts, NoHosts, Preparation, ReadyGateway,
    ReadyHost,
};
pub use inputs::{Image, Inputs, InputsError, MachineInputs, SshKeys, StartInputs};
pub use output::{Batch, Output, Piece};
pub use peers::RunJobs;
pub use services::{NoServices, RequestObserver, Services};
pub use wakes::Key;

/// Why the engine could not do a step; the step is tried again.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The store refused.
    #[error("the store refused")]
    Store(#[from] dstack_store::StoreError),
    /// The log store refused.
    #[error("job output cannot be stored")]
    Logs(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// What a job needs cannot be fetched.
    #[error("what the job needs cannot be fetched")]
    Inputs(#[from] InputsError),
    /// This server does not drive what it was about to change (any more): its lease ran out, or another server drives it.
    #[error("another server may drive it")]
    LeaseLost,
    /// Another server that lives has the name of this one.
    #[error(
        "another server that is running is called {0}, too. The directory of a server that was copied has the name of the \
         original: delete the files data/*.id of the copy, or set another DSTACK_SERVER_DIR"
    )]
    NameTaken(String),
    /// A simulated crash: the engine stops here, as a killed process would.
    #[error("killed at failpoint {0}")]
    Killed(&'static str),
}

/// Result of the engine.
pub type Result<T, E = EngineError> = std::result::Result<T, E>;

impl From<dstack_store::rows::TransitionError> for EngineError {
    fn from(error: dstack_store::rows::TransitionError) -> Self {
        Self::Store(error.into())
    }
}
