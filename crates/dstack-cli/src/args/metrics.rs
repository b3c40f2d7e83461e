//! Options of `dstack metrics`.

use clap::Args;

use super::ProjectChoice;

/// Options of `metrics`.
#[derive(Debug, Args)]
pub struct MetricsArgs {
    #[command(flatten)]
    pub project: ProjectChoice,
    /// Update the metrics in realtime
    #[arg(short, long)]
    pub watch: bool,
    /// Show only this replica. By default all
    #[arg(long)]
    pub replica: Option<u32>,
    /// Show only the jobs of this number. By default all
    #[arg(long)]
    pub job: Option<u32>,
    /// The name of the run
    pub run_name: String,
}
