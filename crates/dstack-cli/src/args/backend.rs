//! Arguments of `dstack backend`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use dstack_model::backends::BackendName;

use super::ProjectChoice;

/// Options of `backend`.
#[derive(Debug, Args)]
pub struct BackendArgs {
    #[command(subcommand)]
    pub action: BackendAction,
}

/// Actions of `backend`.
#[derive(Debug, Subcommand)]
pub enum BackendAction {
    /// Make one machine as a file (manifest) describes it, look at it, remove it, and say what is not as it has to be
    Check(BackendCheckArgs),
    /// Delete a backend of the project, also one whose type the server does not know any more
    Delete(BackendDeleteArgs),
}

/// Options of `backend delete`.
#[derive(Debug, Args)]
pub struct BackendDeleteArgs {
    #[command(flatten)]
    pub project: ProjectChoice,
    /// The type of the backend, such as `aws`
    #[arg(value_name = "TYPE")]
    pub name: BackendName,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
}

/// Options of `backend check`.
#[derive(Debug, Args)]
pub struct BackendCheckArgs {
    /// The file that describes the backend
    pub file: PathBuf,
    /// Look at the file only: make nothing
    #[arg(long, conflicts_with_all = ["url", "creds", "instance_type", "region"])]
    pub offline: bool,
    /// Where the API is instead of at the address in the file: a sandbox of the vendor, or an emulator
    #[arg(long)]
    pub url: Option<url::Url>,
    /// A field of the configuration, as often as there are fields; `NAME=@FILE` reads it from a file, which others on this
    /// machine do not see in the list of processes
    #[arg(long, value_name = "NAME=VALUE", value_parser = field)]
    pub creds: Vec<(String, String)>,
    /// The type of the machine. Defaults to the first that is free
    #[arg(long, value_name = "NAME")]
    pub instance_type: Option<String>,
    /// The region of the machine
    #[arg(long, value_name = "NAME")]
    pub region: Option<String>,
}

fn field(text: &str) -> Result<(String, String), String> {
    let field = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, value) = field.ok_or("it has to be the name of a field, `=` and a value")?;
    Ok((name.to_owned(), value.to_owned()))
}
