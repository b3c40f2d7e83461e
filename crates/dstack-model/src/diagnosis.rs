//! What is wrong with an installation, and what it has in clouds. Not part of dstack 0.22.5's API.

use dstack_units::Time;
use serde::Serialize;

use crate::Decode;
use crate::backends::BackendType;
use crate::string_enum;

string_enum! {
    /// What is looked at.
    pub enum DiagnosisCheck {
        /// The database answers, and can be written to.
        Database = "database",
        /// The store of the output of jobs answers.
        LogStore = "log-store",
        /// The bucket of uploads answers.
        Bucket = "bucket",
        /// The clocks of client, server and database agree.
        Clocks = "clocks",
        /// Files that describe backends can be used.
        BackendFiles = "backend-files",
        /// Clouds take the credentials that are configured, and say what they offer.
        Backends = "backends",
        /// All that clouds have of ours belongs to somebody.
        Orphans = "orphans",
        /// What is to be ended is ended soon.
        Terminations = "terminations",
        /// Waits end in time, and calls come to something.
        Stuck = "stuck",
        /// Hosts are reached.
        Hosts = "hosts",
    }
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct Finding {
    /// What found it.
    pub check: DiagnosisCheck,
    /// What it is about, such as `instance train-0` or `backend aws`.
    pub subject: String,
    /// Names of the projects that it concerns; none: all of them.
    pub projects: Vec<String>,
    /// Since when, as far as it is known.
    pub since: Option<Time>,
    /// What is wrong.
    pub problem: String,
    /// What to do.
    pub remedy: String,
    /// Dollars an hour that it costs, as far as it is known.
    pub price_per_hour: Option<f64>,
}

/// What a check has looked at.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct CheckDone {
    /// The check that found it.
    pub check: DiagnosisCheck,
    /// What it looked at, for people, such as `2 accounts`.
    pub looked_at: String,
}

/// Everything that is wrong with an installation.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct Diagnosis {
    /// The server's time when it was asked.
    pub asked_at: Time,
    /// The server's time when it had looked at everything.
    pub answered_at: Time,
    /// What was looked at.
    pub checks: Vec<CheckDone>,
    /// What is wrong.
    pub findings: Vec<Finding>,
}

string_enum! {
    /// Whether something in a cloud is known.
    pub enum OwnedState {
        /// Its row is not over.
        Known = "known",
        /// Its row is not over, and has another one: this one is one too many.
        Duplicate = "duplicate",
        /// Its row is over: it should be gone.
        Over = "over",
        /// Nothing is known of it here.
        Unknown = "unknown",
    }
}

/// Something in a cloud that was made by this installation.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct OwnedThing {
    /// What it is, such as `machine`.
    pub kind: String,
    /// By what the cloud knows it.
    pub id: String,
    /// Its name there; empty: it has none.
    pub name: String,
    /// Where it is; empty: the cloud has no regions.
    pub region: String,
    /// When it was made, if the cloud says so.
    pub made_at: Option<Time>,
    /// Dollars an hour, if the cloud says so.
    pub price_per_hour: Option<f64>,
    /// Whether it is known.
    pub state: OwnedState,
    /// For what it was made, such as `instance train-0`, if that is known.
    pub made_for: Option<String>,
}

/// What an account of a cloud has of this installation.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct AccountInventory {
    /// Type of the backend.
    pub backend: String,
    /// Names of the projects that have the account configured.
    pub projects: Vec<String>,
    /// Why the cloud does not tell, and there are no things; or which regions do not, and why.
    pub error: Option<String>,
    /// All that it has, as far as it tells.
    pub things: Vec<OwnedThing>,
    /// Dollars an hour of all things whose price is known.
    pub price_per_hour: f64,
}

/// Request of `server/list_account`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ListAccountRequest {
    /// Type of the backend.
    pub backend: BackendType,
    /// Only the account of this project.
    pub project_name: Option<String>,
}

/// Answer of `server/list_account`.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct ListAccountResponse {
    /// Accounts of that type: projects with the same configuration share one.
    pub accounts: Vec<AccountInventory>,
}
