//! Options of `dstack login`.

use clap::Args;

/// Options of `login`.
#[derive(Debug, Args)]
pub struct LoginArgs {
    /// The server's URL. Asked for when it is missing
    #[arg(long)]
    pub url: Option<String>,
    /// The single sign-on provider. Needed only where the server has several
    #[arg(short, long)]
    pub provider: Option<String>,
    /// Make the first project the default one without asking
    #[arg(short, long, conflicts_with = "no")]
    pub yes: bool,
    /// Leave the default project as it is
    #[arg(short, long)]
    pub no: bool,
}
