//! Options of `dstack offer`.

use clap::Args;

use super::{FormatArgs, ProfileArgs, ProjectChoice, ResourcesArgs};

/// Options of `offer`.
#[derive(Debug, Clone, Args)]
pub struct OfferArgs {
    #[command(flatten)]
    pub project: ProjectChoice,
    #[command(flatten)]
    pub format: FormatArgs,
    /// Group results by `gpu`, `backend`, `region`, `count`. Must include `gpu`; `region` also requires `backend`.
    /// Can be repeated or comma-separated
    #[arg(long)]
    pub group_by: Vec<String>,
    /// Number of offers to show
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=10_000))]
    pub max_offers: i64,
    /// Explain why fleets, instances and offers are left out, and what change would help
    #[arg(long, conflicts_with = "group_by")]
    pub explain: bool,
    /// Show full offers not adjusted by requirements
    #[arg(long)]
    pub full_offers: bool,
    /// Subtract allocated resources to show only unallocated resources
    #[arg(long)]
    pub unallocated: bool,
    #[command(flatten)]
    pub resources: ResourcesArgs,
    #[command(flatten)]
    pub profile: ProfileArgs,
}
