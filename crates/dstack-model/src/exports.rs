//! Exports and imports: fleets and gateways shared between projects.

use dstack_units::{ExportId, FleetId, GatewayId, ImportId};
use serde::Serialize;

use crate::Decode;

/// A project that imports an export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ExportImport {
    /// Name of the project.
    pub project_name: String,
}

/// A shared fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ExportedFleet {
    /// Id of the fleet.
    pub id: FleetId,
    /// Name of the fleet, unique within the exporting project.
    pub name: String,
}

/// A shared gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ExportedGateway {
    /// Id of the gateway.
    pub id: GatewayId,
    /// Name of the gateway, unique within the exporting project.
    pub name: String,
}

/// What a project shares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct Export {
    /// Id of the export.
    pub id: ExportId,
    /// Name, unique within the exporting project: `^[a-z][a-z0-9-]{1,40}$`.
    pub name: String,
    /// Whether it is shared with all projects.
    #[decode(default)]
    pub is_global: bool,
    /// The projects that it is shared with.
    pub imports: Vec<ExportImport>,
    /// The fleets that are shared.
    pub exported_fleets: Vec<ExportedFleet>,
    /// The gateways that are shared.
    #[decode(default)]
    pub exported_gateways: Vec<ExportedGateway>,
}

/// All exports of a project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ListExportsResponse {
    /// The exports of the project.
    pub exports: Vec<Export>,
    /// What users should know.
    #[decode(default)]
    pub warnings: Vec<String>,
}

/// The export behind an import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ImportExport {
    /// Id of the export.
    pub id: ExportId,
    /// Name, unique within the exporting project.
    pub name: String,
    /// The project that shares.
    pub project_name: String,
    /// The fleets that are shared.
    pub exported_fleets: Vec<ExportedFleet>,
    /// The gateways that are shared.
    #[decode(default)]
    pub exported_gateways: Vec<ExportedGateway>,
}

/// What is shared with a project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct Import {
    /// Id of the import.
    pub id: ImportId,
    /// What is imported, and from which project.
    pub export: ImportExport,
}

/// All imports of a project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ListImportsResponse {
    /// The imports of the project.
    pub imports: Vec<Import>,
    /// What users should know.
    #[decode(default)]
    pub warnings: Vec<String>,
}
