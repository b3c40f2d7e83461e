//! `dstack token`.

use clap::{Args, Subcommand};
use dstack_units::Seconds;

use super::{FormatArgs, ProjectChoice};

/// Options of `token`.
#[derive(Debug, Args)]
pub struct TokenArgs {
    #[command(subcommand)]
    pub action: Option<TokenAction>,
}

/// Actions of `token`.
#[derive(Debug, Subcommand)]
pub enum TokenAction {
    /// List your tokens
    List(TokenListArgs),
    /// Make a token. It is shown once
    Create(TokenCreateArgs),
    /// Delete a token: it stops working at once
    Delete {
        #[command(flatten)]
        project: ProjectChoice,
        /// The name of the token
        name: String,
        /// Don't ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

/// Options of `token list`.
#[derive(Debug, Default, Args)]
pub struct TokenListArgs {
    #[command(flatten)]
    pub project: ProjectChoice,
    #[command(flatten)]
    pub format: FormatArgs,
}

/// Options of `token create`.
#[derive(Debug, Args)]
pub struct TokenCreateArgs {
    /// The name of the token
    pub name: String,
    /// Good for reading only: it changes nothing, and shows no secrets
    #[arg(long)]
    pub read_only: bool,
    /// Good for this project only
    #[arg(long, value_name = "NAME")]
    pub project: Option<String>,
    /// How long it works, e.g. 12h, 30d. Defaults to until it is deleted
    #[arg(long, value_name = "DURATION")]
    pub expires: Option<Seconds>,
    #[command(flatten)]
    pub format: FormatArgs,
}
