//! Options of `dstack export` and `dstack import`.

use clap::{Args, Subcommand};

use super::ProjectChoice;

/// Options of `export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    #[command(flatten)]
    pub project: ProjectChoice,
    #[command(subcommand)]
    pub action: Option<ExportAction>,
}

/// Actions of `export`.
#[derive(Debug, Subcommand)]
pub enum ExportAction {
    /// List exports
    List,
    /// Create an export
    Create {
        /// The name of the export
        name: String,
        /// A project that may import it (repeatable)
        #[arg(long = "importer", value_name = "PROJECT")]
        importers: Vec<String>,
        /// A fleet to share (repeatable)
        #[arg(long = "fleet", value_name = "NAME")]
        fleets: Vec<String>,
        /// A gateway to share (repeatable)
        #[arg(long = "gateway", value_name = "NAME")]
        gateways: Vec<String>,
        /// Share with all projects
        #[arg(long = "global")]
        is_global: bool,
    },
    /// Update an export
    Update(Box<ExportUpdateArgs>),
    /// Delete an export
    Delete {
        /// The name of the export
        name: String,
        /// Don't ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

/// Options of `export update`.
#[derive(Debug, Args)]
pub struct ExportUpdateArgs {
    /// The name of the export
    pub name: String,
    /// A project that may import it from now on (repeatable)
    #[arg(long = "add-importer", value_name = "PROJECT")]
    pub add_importers: Vec<String>,
    /// A project that may no longer import it (repeatable)
    #[arg(long = "remove-importer", value_name = "PROJECT")]
    pub remove_importers: Vec<String>,
    /// A fleet to share from now on (repeatable)
    #[arg(long = "add-fleet", value_name = "NAME")]
    pub add_fleets: Vec<String>,
    /// A fleet to share no longer (repeatable)
    #[arg(long = "remove-fleet", value_name = "NAME")]
    pub remove_fleets: Vec<String>,
    /// A gateway to share from now on (repeatable)
    #[arg(long = "add-gateway", value_name = "NAME")]
    pub add_gateways: Vec<String>,
    /// A gateway to share no longer (repeatable)
    #[arg(long = "remove-gateway", value_name = "NAME")]
    pub remove_gateways: Vec<String>,
    /// Share with all projects
    #[arg(long, conflicts_with = "unset_global")]
    pub set_global: bool,
    /// Share with the named projects only
    #[arg(long)]
    pub unset_global: bool,
}

/// Options of `import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    #[command(flatten)]
    pub project: ProjectChoice,
    #[command(subcommand)]
    pub action: Option<ImportAction>,
}

/// Actions of `import`.
#[derive(Debug, Subcommand)]
pub enum ImportAction {
    /// List imports
    List,
    /// Delete an import
    Delete {
        /// What to delete: `PROJECT/EXPORT`
        #[arg(value_name = "PROJECT/EXPORT", value_parser = import_name)]
        name: ImportName,
        /// Don't ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

/// The name of an import: another project's export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportName {
    /// The project that shares.
    pub project: String,
    /// The name of the export in that project.
    pub export: String,
}

fn import_name(text: &str) -> Result<ImportName, String> {
    match text.split_once('/') {
        Some((project, export)) if !project.is_empty() && !export.is_empty() && !export.contains('/') => {
            Ok(ImportName {
                project: project.to_owned(),
                export: export.to_owned(),
            })
        }
        _ => Err("expected PROJECT/EXPORT".to_owned()),
    }
}
