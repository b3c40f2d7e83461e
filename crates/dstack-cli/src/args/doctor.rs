//! Arguments of `dstack doctor`.

use clap::Args;
use dstack_model::backends::BackendType;

use super::{FormatArgs, ProjectChoice};

/// Options of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    #[command(flatten)]
    pub project: ProjectChoice,
    /// List everything that was made in accounts of this backend, with what it costs and whether anything needs it; with
    /// --project in that project's account only
    #[arg(long, value_name = "BACKEND", value_parser = super::profile::backend)]
    pub account: Option<BackendType>,
    #[command(flatten)]
    pub format: FormatArgs,
}
