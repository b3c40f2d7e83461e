//! Options of `dstack apply`: those of the command, and those of the types of configuration. Which of the latter fit
//! is known only when the configuration is read, so they are checked in a second step.

use std::path::PathBuf;

use clap::Args;
use dstack_units::PortMapping;

use super::{GitArgs, ProfileArgs, ProjectChoice, ResourcesArgs};

/// Options of `apply`.
#[derive(Debug, Clone, Args)]
#[command(disable_help_flag = true)]
pub struct ApplyArgs {
    #[command(flatten)]
    pub project: ProjectChoice,
    /// Show help. With TYPE (task, service, dev-environment, fleet, ...), also the options of that type
    #[arg(short = 'h', long = "help", value_name = "TYPE", num_args = 0..=1, default_missing_value = "")]
    pub help: Option<String>,
    /// The path to the configuration file. Defaults to `.dstack.yml`. `-` reads standard input and needs `-y`
    #[arg(short = 'f', long, value_name = "FILE")]
    pub file: Option<String>,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// Force apply when no changes are detected
    #[arg(long)]
    pub force: bool,
    /// Exit immediately after submitting the configuration
    #[arg(short, long)]
    pub detach: bool,
    /// Show more information
    #[arg(short, long)]
    pub verbose: bool,
    /// The name of the run, fleet, gateway or volume. Takes the place of the one in the configuration
    #[arg(short, long, help_heading = "Options of all types")]
    pub name: Option<String>,
    #[command(flatten)]
    pub kind: KindArgs,
    #[command(flatten)]
    pub resources: ResourcesArgs,
    #[command(flatten)]
    pub profile: ProfileArgs,
    #[command(flatten)]
    pub repo: RepoArgs,
    /// Flags given on the command line, by id
    #[arg(skip)]
    pub given: Vec<String>,
}

/// Options of runs.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Options of runs")]
pub struct KindArgs {
    /// The private SSH key path for SSH tunneling
    #[arg(long, value_name = "SSH_PRIVATE_KEY")]
    pub ssh_identity: Option<PathBuf>,
    /// Explain the plan: why each fleet, instance and offer is taken or not, and what change would help. Submits nothing
    #[arg(long)]
    pub explain: bool,
    /// Number of offers to show in the run plan
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(i64).range(1..=10_000))]
    pub max_offers: i64,
    /// Show full offers not adjusted by requirements
    #[arg(long)]
    pub full_offers: bool,
    /// Subtract allocated resources to show only unallocated resources
    #[arg(long)]
    pub unallocated: bool,
    /// Environment variable. Without a value it is taken from the current environment
    #[arg(short, long = "env", value_name = "KEY[=VALUE]")]
    pub env: Vec<String>,
    /// Exposed port or mapping: `8080`, `80:8080` or `*:8080`
    #[arg(short, long = "port", value_name = "MAPPING")]
    pub ports: Vec<PortMapping>,
    /// Local address to bind. Defaults to `localhost`
    #[arg(long, value_name = "HOST")]
    pub host: Option<String>,
    /// Run arguments. Available in `commands` as `${{ run.args }}`. Use `--` to separate them from options
    #[arg(value_name = "RUN_ARGS")]
    pub run_args: Vec<String>,
}

/// Options of repositories.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Repository")]
pub struct RepoArgs {
    /// The repository to use for the run: a local path or a Git URL
    #[arg(short = 'P', long)]
    pub repo: Option<String>,
    /// The branch to use for the run
    #[arg(long)]
    pub repo_branch: Option<String>,
    /// The hash of the commit to use for the run
    #[arg(long)]
    pub repo_hash: Option<String>,
    /// Do not use any repository for the run
    #[arg(long, conflicts_with = "repo")]
    pub no_repo: bool,
    #[command(flatten)]
    pub credentials: GitArgs,
}

/// Ids of flags that fit every type.
const COMMON: [&str; 8] = [
    "name", "file", "yes", "force", "detach", "verbose", "help", "project",
];
/// Ids of flags that fit some types of runs only.
const ATTACHED: [&str; 2] = ["ports", "host"];

/// Whether a flag fits a type of configuration.
pub fn fits(flag: &str, kind: &str) -> bool {
    if COMMON.contains(&flag) {
        return true;
    }
    match kind {
        "fleet" => flag == "env",
        "task" => true,
        "dev-environment" => flag != "run_args",
        "service" => !ATTACHED.contains(&flag),
        _ => false,
    }
}

impl ApplyArgs {
    /// Flags on the command line that do not fit this type.
    pub fn misfits(&self, kind: &str) -> Vec<String> {
        self.given
            .iter()
            .filter(|flag| !fits(flag, kind))
            .map(|flag| shown(flag))
            .collect()
    }
}

/// A flag's id as written on the command line.
fn shown(flag: &str) -> String {
    match flag {
        "run_args" => "RUN_ARGS".to_owned(),
        "backends" | "regions" | "instance_types" | "fleets" | "ports" => {
            format!("--{}", flag.trim_end_matches('s').replace('_', "-"))
        }
        other => format!("--{}", other.replace('_', "-")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_has_its_flags() {
        assert!(fits("ports", "task") && fits("ports", "dev-environment") && !fits("ports", "service"));
        assert!(fits("run_args", "service") && !fits("run_args", "dev-environment"));
        assert!(fits("env", "fleet") && !fits("gpu", "fleet") && !fits("env", "volume"));
        assert!(fits("detach", "gateway"));
        assert_eq!(shown("instance_types"), "--instance-type");
    }
}
