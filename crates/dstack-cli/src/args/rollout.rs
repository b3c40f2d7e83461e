//! Options of `dstack rollout`.

use clap::Args;

use super::{FormatArgs, ProjectChoice};

/// Options of `rollout`.
#[derive(Debug, Args)]
pub struct RolloutArgs {
    #[command(flatten)]
    pub project: ProjectChoice,
    /// Go on with the new deployment: a canary's other replicas follow, and the requests of blue/green are switched
    #[arg(long, conflicts_with = "abort")]
    pub promote: bool,
    /// Go back to the old deployment
    #[arg(long)]
    pub abort: bool,
    #[command(flatten)]
    pub format: FormatArgs,
    /// The name of the run
    pub run_name: String,
}
