//! The grammar of the command line.

pub mod apply;
pub mod backend;
pub mod doctor;
pub mod login;
pub mod metrics;
pub mod offer;
pub mod profile;
pub mod resources;
mod rollout;
pub mod server;
pub mod sharing;
pub mod token;

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use dstack_catalog::cli::CatalogCommand;
use dstack_model::common::EntityReference;
use dstack_model::events::EventTargetType;
use dstack_units::PortMapping;

pub use apply::ApplyArgs;
pub use backend::{BackendAction, BackendArgs, BackendCheckArgs, BackendDeleteArgs};
pub use doctor::DoctorArgs;
pub use login::LoginArgs;
pub use metrics::MetricsArgs;
pub use offer::OfferArgs;
pub use profile::ProfileArgs;
pub use resources::ResourcesArgs;
pub use rollout::RolloutArgs;
pub use server::{ServerAction, ServerArgs, ServerImportArgs};
pub use sharing::{ExportAction, ExportArgs, ExportUpdateArgs, ImportAction, ImportArgs, ImportName};
pub use token::{TokenAction, TokenArgs};

/// Run AI workloads on any cloud, cluster or machine.
#[derive(Debug, Parser)]
#[command(
    name = "dstack",
    bin_name = "dstack",
    disable_version_flag = true,
    infer_long_args = true
)]
#[command(disable_help_subcommand = true)]
pub struct Cli {
    /// Show the version
    #[arg(short = 'v', long)]
    pub version: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// The commands of the program, in the order of its help.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Apply a configuration
    Apply(Box<ApplyArgs>),
    /// Attach to a run
    Attach(AttachArgs),
    /// Check a file that describes a backend, and delete backends
    Backend(BackendArgs),
    /// Query, check, compare and collect the catalog of offers
    Catalog(Box<CatalogCommand>),
    /// Print a shell completion script
    Completion(CompletionArgs),
    /// Delete what a configuration describes
    #[command(alias = "destroy")]
    Delete(DeleteArgs),
    /// Find what is wrong with the server, and what costs money for nobody. For admins of the server
    Doctor(DoctorArgs),
    /// View events
    Event(Box<EventArgs>),
    /// Manage exports: fleets and gateways shared with other projects
    Export(ExportArgs),
    /// Manage fleets
    Fleet(FleetArgs),
    /// Manage gateways
    Gateway(GatewayArgs),
    /// Manage imports: fleets and gateways that other projects share
    Import(ImportArgs),
    /// Register a Git repository
    Init(InitArgs),
    /// Get a token by single sign-on
    Login(LoginArgs),
    /// Show the logs of a run
    Logs(LogsArgs),
    /// Show what the jobs of a run use
    Metrics(MetricsArgs),
    /// List offers
    Offer(Box<OfferArgs>),
    /// Manage project configurations
    Project(ProjectArgs),
    /// List runs
    Ps(PsArgs),
    /// Show how far the roll-out of a service is, go on with it, or back
    Rollout(RolloutArgs),
    /// Manage runs
    Run(RunArgs),
    /// Manage secrets
    Secret(SecretArgs),
    /// Start a server
    Server(ServerArgs),
    /// Stop a run
    Stop(StopArgs),
    /// Manage API tokens of your user: for programs, read-only, or for one project
    Token(TokenArgs),
    /// Manage volumes
    Volume(VolumeArgs),
    /// Candidates for shell completion
    #[command(hide = true, name = "_complete")]
    Complete(CompleteArgs),
}

/// Which project a command works in.
#[derive(Debug, Clone, Default, Args)]
pub struct ProjectChoice {
    /// The name of the project. Defaults to `$DSTACK_PROJECT`, then to the default project
    #[arg(id = "project", long = "project", value_name = "NAME", global = true)]
    pub name: Option<String>,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// Tables, for people
    #[default]
    Plain,
    /// JSON, for programs
    Json,
}

/// `--format` and `--json`.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct FormatArgs {
    /// Output format
    #[arg(long, value_enum, default_value_t, overrides_with = "json")]
    format: Format,
    /// Output in JSON format (equivalent to --format json)
    #[arg(long, overrides_with = "format")]
    json: bool,
}

impl FormatArgs {
    /// Whether JSON is asked for.
    pub fn is_json(self) -> bool {
        self.json || self.format == Format::Json
    }
}

/// A thing by name or id.
#[derive(Debug, Clone, Args)]
#[group(required = true, multiple = false)]
pub struct NameOrId {
    /// The name, as lists show it
    pub name: Option<String>,
    /// The ID (UUID)
    #[arg(long)]
    pub id: Option<String>,
}

/// Options of `attach`.
#[derive(Debug, Args)]
pub struct AttachArgs {
    #[command(flatten)]
    pub project: ProjectChoice,
    /// The private SSH key path for SSH tunneling
    #[arg(long, value_name = "SSH_PRIVATE_KEY")]
    pub ssh_identity: Option<PathBuf>,
    /// Print run logs as they follow
    #[arg(long)]
    pub logs: bool,
    /// Local address to bind. Defaults to `localhost`
    #[arg(long, value_name = "HOST")]
    pub host: Option<String>,
    /// Port mapping to override: `8080`, `80:8080` or `*:8080`
    #[arg(short, long = "port", value_name = "MAPPING")]
    pub ports: Vec<PortMapping>,
    /// The replica number. Defaults to any running replica
    #[arg(long)]
    pub replica: Option<u32>,
    /// The job number inside the replica
    #[arg(long, default_value_t = 0)]
    pub job: u32,
    /// Show only logs newer than this: a duration (10s, 5m, 1d) or an RFC 3339 time
    #[arg(long)]
    pub since: Option<String>,
    /// The name of the run
    pub run_name: String,
}

/// Options of `completion`.
#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// The shell for which the script is
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Shells with completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// In ~/.bashrc: `source <(dstack completion bash)`
    Bash,
    /// In ~/.zshrc: `source <(dstack completion zsh)`
    Zsh,
    /// Once: `dstack completion fish > ~/.config/fish/completions/dstack.fish`
    Fish,
}

/// Options of the hidden command that completion scripts call.
#[derive(Debug, Args)]
pub struct CompleteArgs {
    /// What is completed
    #[arg(value_enum)]
    pub kind: CompleteKind,
    /// The project of the command line that is completed
    #[arg(long = "project")]
    pub project: Option<String>,
}

/// Names that only the configuration file or the server knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CompleteKind {
    /// Projects of the configuration file.
    Projects,
    /// Names of unfinished runs.
    Runs,
    /// Names of all runs.
    AllRuns,
    /// Names of fleets, imported ones too.
    Fleets,
    /// Names of volumes.
    Volumes,
    /// Names of gateways, imported ones too.
    Gateways,
    /// Names of secrets, without their values.
    Secrets,
}

/// Options of `delete`.
#[derive(Debug, Args)]
pub struct DeleteArgs {
    #[command(flatten)]
    pub project: ProjectChoice,
    /// The path to the configuration file. Defaults to `.dstack.yml`
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
}

/// Options of `event`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = false)]
pub struct EventArgs {
    #[command(flatten)]
    pub project: ProjectChoice,
    #[command(flatten)]
    pub list: EventListArgs,
    #[command(subcommand)]
    pub action: Option<EventAction>,
}

/// Actions of `event`.
#[derive(Debug, Subcommand)]
pub enum EventAction {
    /// List events within the selected project
    List(EventListArgs),
}

/// Filters of events.
#[derive(Debug, Clone, Default, Args)]
pub struct EventListArgs {
    /// Watch events in realtime
    #[arg(short, long)]
    pub watch: bool,
    /// Only show events newer than this: a duration (10s, 5m, 1d) or an RFC 3339 time. By default the last 100
    #[arg(long)]
    pub since: Option<String>,
    /// Only show events that target these fleets
    #[arg(long = "target-fleet", value_name = "NAME", value_parser = reference, group = "event_target")]
    pub target_fleets: Vec<EntityReference>,
    /// Only show events that target these runs
    #[arg(long = "target-run", value_name = "NAME", group = "event_target")]
    pub target_runs: Vec<String>,
    /// Only show events that target these volumes
    #[arg(long = "target-volume", value_name = "NAME", group = "event_target")]
    pub target_volumes: Vec<String>,
    /// Only show events that target these gateways
    #[arg(long = "target-gateway", value_name = "NAME", group = "event_target")]
    pub target_gateways: Vec<String>,
    /// Only show events that target these secrets
    #[arg(long = "target-secret", value_name = "NAME", group = "event_target")]
    pub target_secrets: Vec<String>,
    /// Only show events that target these fleets or instances within them
    #[arg(long = "within-fleet", value_name = "NAME", value_parser = reference, group = "event_within")]
    pub within_fleets: Vec<EntityReference>,
    /// Only show events that target these runs or jobs within them
    #[arg(long = "within-run", value_name = "NAME", group = "event_within")]
    pub within_runs: Vec<String>,
    /// Only show events that target these gateways or replicas within them
    #[arg(long = "within-gateway", value_name = "NAME", value_parser = reference, group = "event_within")]
    pub within_gateways: Vec<EntityReference>,
    /// Only show events that target entities of these types
    #[arg(long = "include-target-type", value_name = "TYPE")]
    pub include_target_types: Vec<EventTargetType>,
}

/// Options of `fleet`.
#[derive(Debug, Args)]
pub struct FleetArgs {
    #[command(flatten)]
    pub project: ProjectChoice,
    #[command(flatten)]
    pub list: ListArgs,
    #[command(subcommand)]
    pub action: Option<FleetAction>,
}

/// How a listing is shown.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct ListArgs {
    /// Update the listing in realtime
    #[arg(short, long)]
    pub watch: bool,
    /// Show more information
    #[arg(short, long)]
    pub verbose: bool,
}

impl ListArgs {
    /// Options before and after the subcommand together.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self {
            watch: self.watch || other.watch,
            verbose: self.verbose || other.verbose,
        }
    }
}

/// Actions of `fleet`.
#[derive(Debug, Subcommand)]
pub enum FleetAction {
    /// List fleets
    List(ListArgs),
    /// Get a fleet
    Get {
        #[command(flatten)]
        which: NameOrId,
        /// Output in JSON format
        #[arg(long, required = true)]
        json: bool,
    },
    /// Delete fleets and instances
    Delete {
        /// The name of the fleet
        #[arg(value_parser = reference)]
        name: EntityReference,
        /// The instances to delete
        #[arg(short, long = "instance", value_name = "INSTANCE_NUM")]
        instances: Vec<i64>,
        /// Don't ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// Accept another host key of a host, after it was set up anew
    Trust {
        /// The name of the fleet
        name: String,
        /// The host's instance
        #[arg(short, long, value_name = "INSTANCE_NUM", required = true)]
        instance: i64,
        /// Fingerprint of the key, as `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` prints it on the host: SHA256:...
        host_key: String,
        /// It is the key of the jump host before it
        #[arg(long)]
        jump_host: bool,
    },
}

/// Options of `gateway`.
#[derive(Debug, Args)]
pub struct GatewayArgs {
    #[command(flatten)]
    pub project: ProjectChoice,
    #[command(flatten)]
    pub list: GatewayListArgs,
    #[command(subcommand)]
    pub action: Option<GatewayAction>,
}

/// How gateways are listed.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct GatewayListArgs {
    #[command(flatten)]
    pub list: ListArgs,
    #[command(flatten)]
    pub format: FormatArgs,
}

/// Actions of `gateway`.
#[derive(Debug, Subcommand)]
pub enum GatewayAction {
    /// List gateways
    List(GatewayListArgs),
    /// Get a gateway
    Get {
        /// The name of the gateway
        #[arg(value_parser = reference)]
        name: EntityReference,
        /// Output in JSON format
        #[arg(long, required = true)]
        json: bool,
    },
    /// Delete a gateway
    Delete {
        /// The name of the gateway
        name: String,
        /// Don't ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// Update a gateway
    Update {
        /// The name of the gateway
        #[arg(value_parser = reference)]
        name: EntityReference,
        /// Make it the default gateway of the project
        #[arg(long)]
        set_default: bool,
        /// Set the wildcard domain (deprecated: use `dstack apply`)
        #[arg(long)]
        domain: Option<String>,
    },
}

/// Options of `init`.
#[derive(Debug, Args)]
pub struct InitArgs {
    #[command(flatten)]
    pub project: ProjectChoice,
    /// The repository: a local path or a Git URL. Defaults to the current directory
    #[arg(short = 'P', long)]
    pub repo: Option<String>,
    #[command(flatten)]
    pub credentials: GitArgs,
}

/// Credentials of a Git repository.
#[derive(Debug, Clone, Default, Args)]
pub struct GitArgs {
    /// An authentication token to access a private Git repository
    #[arg(short = 't', long, value_name = "OAUTH_TOKEN")]
    pub token: Option<String>,
    /// The private SSH key path to access a private Git repository
    #[arg(long, value_name = "SSH_PRIVATE_KEY")]
    pub git_identity: Option<PathBuf>,
}

/// Options of `logs`.
#[derive(Debug, Args)]
pub struct LogsArgs {
    #[command(flatten)]
    pub project: ProjectChoice,
    /// Show the diagnostic logs of the job agent
    #[arg(short, long)]
    pub diagnose: bool,
    /// Keep printing new lines until the run ends
    #[arg(short, long)]
    pub follow: bool,
    /// The replica number. Defaults to any running replica
    #[arg(long)]
    pub replica: Option<u32>,
    /// The job number inside the replica
    #[arg(long, default_value_t = 0)]
    pub job: u32,
    /// Show only logs newer than this: a duration (10s, 5m, 1d) or an RFC 3339 time
    #[arg(long)]
    pub since: Option<String>,
    /// Show only the last N lines of what was printed so far
    #[arg(long, value_name = "N")]
    pub tail: Option<usize>,
    /// The name of the run
    pub run_name: String,
}

/// Options of `project`.
#[derive(Debug, Args)]
pub struct ProjectArgs {
    /// Show more information
    #[arg(short, long)]
    pub verbose: bool,
    #[command(subcommand)]
    pub action: Option<ProjectAction>,
}

/// Actions of `project`.
#[derive(Debug, Subcommand)]
pub enum ProjectAction {
    /// Add or update a project configuration
    Add {
        /// The name of the project
        #[arg(long)]
        name: String,
        /// The server's URL
        #[arg(long)]
        url: String,
        /// The user's token
        #[arg(long)]
        token: String,
        /// Make it the default project without asking
        #[arg(short, long)]
        yes: bool,
        /// Leave the default project as it is, without asking
        #[arg(short, long)]
        no: bool,
    },
    /// Delete a project configuration
    Delete {
        /// The name of the project
        #[arg(long)]
        name: String,
        /// Don't ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// List configured projects
    List {
        /// Show more information
        #[arg(short, long)]
        verbose: bool,
    },
    /// Set the default project
    SetDefault {
        /// The name of the project
        name: String,
    },
}

/// Options of `ps`.
#[derive(Debug, Args)]
pub struct PsArgs {
    #[command(flatten)]
    pub project: ProjectChoice,
    /// Show these runs, whatever their state
    #[arg(value_name = "NAME", conflicts_with_all = ["all", "last"])]
    pub names: Vec<String>,
    /// Show all runs. By default only unfinished runs, or the last finished one
    #[arg(short, long)]
    pub all: bool,
    #[command(flatten)]
    pub list: ListArgs,
    /// Show only the last N runs. Implies --all
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=100))]
    pub last: Option<i64>,
    #[command(flatten)]
    pub format: FormatArgs,
}

/// Options of `run`.
#[derive(Debug, Args)]
#[command(arg_required_else_help = false)]
pub struct RunArgs {
    #[command(flatten)]
    pub project: ProjectChoice,
    #[command(subcommand)]
    pub action: Option<RunAction>,
}

/// Actions of `run`.
#[derive(Debug, Subcommand)]
pub enum RunAction {
    /// Get a run
    Get {
        #[command(flatten)]
        which: NameOrId,
        /// Output in JSON format
        #[arg(long, required = true)]
        json: bool,
    },
}

/// Options of `secret`.
#[derive(Debug, Args)]
pub struct SecretArgs {
    #[command(flatten)]
    pub project: ProjectChoice,
    #[command(subcommand)]
    pub action: Option<SecretAction>,
}

/// Actions of `secret`.
#[derive(Debug, Subcommand)]
pub enum SecretAction {
    /// List secrets
    List,
    /// Get the value of a secret
    Get {
        /// The name of the secret
        name: String,
    },
    /// Set a secret
    Set {
        /// The name of the secret
        name: String,
        /// The value of the secret
        value: String,
    },
    /// Delete a secret
    Delete {
        /// The name of the secret
        name: String,
        /// Don't ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

/// Options of `stop`.
#[derive(Debug, Args)]
pub struct StopArgs {
    #[command(flatten)]
    pub project: ProjectChoice,
    /// Stop at once, without giving the jobs time to end
    #[arg(short = 'x', long)]
    pub abort: bool,
    /// Don't ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// The name of the run
    pub run_name: String,
}

/// Options of `volume`.
#[derive(Debug, Args)]
pub struct VolumeArgs {
    #[command(flatten)]
    pub project: ProjectChoice,
    #[command(flatten)]
    pub list: ListArgs,
    #[command(subcommand)]
    pub action: Option<VolumeAction>,
}

/// Actions of `volume`.
#[derive(Debug, Subcommand)]
pub enum VolumeAction {
    /// List volumes
    List(ListArgs),
    /// Get a volume
    Get {
        /// The name of the volume
        name: String,
        /// Output in JSON format
        #[arg(long, required = true, action = ArgAction::SetTrue)]
        json: bool,
    },
    /// Delete a volume
    Delete {
        /// The name of the volume
        name: String,
        /// Don't ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

/// `NAME` or `PROJECT/NAME`.
pub(crate) fn reference(text: &str) -> Result<EntityReference, String> {
    EntityReference::parse(text)
}
