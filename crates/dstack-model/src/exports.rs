//! Exports and imports: fleets and gateways shared between projects.

use dstack_units::{ExportId, FleetId, GatewayId, ImportId};
use serde::Serialize;

use crate::Decode;

/// A project that imports an export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ExportImport {
    /// The project.
    pub project_name: String,
}

/// A shared fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ExportedFleet {
    /// Its id.
    pub id: FleetId,
    /// Its name.
    pub name: String,
}

/// A shared gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ExportedGateway {
    /// Its id.
    pub id: GatewayId,
    /// Its name.
    pub name: String,
}

/// What a project shares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct Export {
    /// Its id.
    pub id: ExportId,
    /// Its name.
    pub name: String,
    /// Whether it is shared with all projects.
    #[decode(default)]
    pub is_global: bool,
    /// With whom.
    pub imports: Vec<ExportImport>,
    /// Fleets.
    pub exported_fleets: Vec<ExportedFleet>,
    /// Gateways.
    #[decode(default)]
    pub exported_gateways: Vec<ExportedGateway>,
}

/// All exports of a project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ListExportsResponse {
    /// The exports.
    pub exports: Vec<Export>,
    /// What users should know.
    #[decode(default)]
    pub warnings: Vec<String>,
}

/// The export behind an import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ImportExport {
    /// Its id.
    pub id: ExportId,
    /// Its name.
    pub name: String,
    /// The project that shares.
    pub project_name: String,
    /// Fleets.
    pub exported_fleets: Vec<ExportedFleet>,
    /// Gateways.
    #[decode(default)]
    pub exported_gateways: Vec<ExportedGateway>,
}

/// What is shared with a project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct Import {
    /// Its id.
    pub id: ImportId,
    /// The export.
    pub export: ImportExport,
}

/// All imports of a project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ListImportsResponse {
    /// The imports.
    pub imports: Vec<Import>,
    /// What users should know.
    #[decode(default)]
    pub warnings: Vec<String>,
}
