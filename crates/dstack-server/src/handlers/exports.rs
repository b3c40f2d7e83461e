//! Exports and imports: projects share SSH fleets and gateways. Switched off unless
//! `DSTACK_SERVER_EXPORTS_ENABLED` is set, as in the open-source server of dstack 0.22.5.

use dstack_api::responses::{ExportsAnswer, ImportsAnswer};
use dstack_api::{Nothing, routes};
use dstack_control::exports::Exporter;
use dstack_model::exports::{
    Export, ExportImport, ExportedFleet, ExportedGateway, Import, ImportExport, ListExportsResponse,
    ListImportsResponse,
};
use dstack_model::requests::{CreateExportRequest, DeleteImportRequest, NameRequest, UpdateExportRequest};
use dstack_store::queries::exports::FullExport;

use dstack_units::{FleetId, GatewayId};

use crate::access::is_admin;
use crate::api::{Api, Call};
use crate::error::{ApiError, Result};

const NOT_SUPPORTED: &str = "This dstack server does not support exports. Export support is available in dstack Sky and dstack Factory.";
const PHASE_OUT: &str = "Exports are switched off in this dstack server (DSTACK_SERVER_EXPORTS_ENABLED). No new exports \
     can be created, and existing exports can no longer be extended.";

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::ExportsCreate, _, _>(create)
        .on::<routes::ExportsUpdate, _, _>(update)
        .on::<routes::ExportsDelete, _, _>(delete)
        .on::<routes::ExportsList, _, _>(list)
        .on::<routes::ImportsList, _, _>(list_imports)
        .on::<routes::ImportsDelete, _, _>(delete_import)
}

async fn of_project(call: &Call) -> Result<Vec<FullExport>> {
    let database = &call.state.data.database;
    Ok(database.exports().of_project(call.project()?.row.id).await?)
}

/// The caller, in the project of the path.
fn exporter(call: &Call) -> Result<Exporter<'_>> {
    Ok(Exporter {
        user: call.user()?,
        project: &call.project()?.row,
        only_project: call.only_project(),
    })
}

async fn create(call: Call, request: CreateExportRequest) -> Result<Export> {
    let state = &call.state;
    if !state.edge.settings.exports_enabled {
        return Err(ApiError::client(NOT_SUPPORTED));
    }
    let verbs = &state.control.verbs.exports;
    Ok(shown(&verbs.create(exporter(&call)?, &request).await?))
}

async fn update(call: Call, request: UpdateExportRequest) -> Result<Export> {
    let (state, by) = (&call.state, exporter(&call)?);
    let verbs = &state.control.verbs.exports;
    // Whether it is there comes first, as in the reference.
    verbs.by_name(by.project, &request.name).await?;
    let extends = request.set_global
        || !request.add_importer_projects.is_empty()
        || !request.add_exported_fleets.is_empty()
        || !request.add_exported_gateways.is_empty();
    if extends && !state.edge.settings.exports_enabled {
        return Err(ApiError::client(PHASE_OUT));
    }
    Ok(shown(&verbs.update(by, &request).await?))
}

async fn delete(call: Call, request: NameRequest) -> Result<()> {
    let verbs = &call.state.control.verbs.exports;
    Ok(verbs.delete(exporter(&call)?, &request.name).await?)
}

/// Nothing is an error where exports are switched off; what is left is shown with a warning.
fn warnings(call: &Call, none: bool) -> Result<Vec<String>> {
    match (call.state.edge.settings.exports_enabled, none) {
        (true, _) => Ok(Vec::new()),
        (false, true) => Err(ApiError::client(NOT_SUPPORTED)),
        (false, false) => Ok(vec![PHASE_OUT.to_owned()]),
    }
}

async fn list(call: Call, _: Nothing) -> Result<ExportsAnswer> {
    let exports: Vec<Export> = of_project(&call).await?.iter().map(shown).collect();
    let warnings = warnings(&call, exports.is_empty())?;
    Ok(match call.version.is_before([0, 22, 0]) {
        true => ExportsAnswer::Plain(exports),
        false => ExportsAnswer::Full(ListExportsResponse { exports, warnings }),
    })
}

async fn list_imports(call: Call, _: Nothing) -> Result<ImportsAnswer> {
    let project = call.project()?.row.id;
    let found = call.state.data.database.exports().imported_by(project).await?;
    let imports: Vec<Import> = found
        .iter()
        .filter_map(|export| {
            let own = export
                .imports
                .iter()
                .find(|import| import.project_id == project)?;
            Some(Import {
                id: own.id,
                export: ImportExport {
                    id: export.row.id,
                    name: export.row.name.clone(),
                    project_name: export.project_name.clone(),
                    exported_fleets: fleets(export),
                    exported_gateways: gateways(export),
                },
            })
        })
        .collect();
    let warnings = warnings(&call, imports.is_empty())?;
    Ok(match call.version.is_before([0, 22, 0]) {
        true => ImportsAnswer::Plain(imports),
        false => ImportsAnswer::Full(ListImportsResponse { imports, warnings }),
    })
}

async fn delete_import(call: Call, request: DeleteImportRequest) -> Result<()> {
    let (verbs, by) = (&call.state.control.verbs.exports, exporter(&call)?);
    let (project, name) = (&request.export_project_name, &request.export_name);
    Ok(verbs.delete_import(by, project, name).await?)
}

fn shown(export: &FullExport) -> Export {
    Export {
        id: export.row.id,
        name: export.row.name.clone(),
        is_global: export.row.is_global,
        imports: export
            .imports
            .iter()
            .map(|import| ExportImport {
                project_name: import.project_name.clone(),
            })
            .collect(),
        exported_fleets: fleets(export),
        exported_gateways: gateways(export),
    }
}

fn fleets(export: &FullExport) -> Vec<ExportedFleet> {
    let fleets = export.fleets.iter().cloned();
    fleets.map(|(id, name)| ExportedFleet { id, name }).collect()
}

fn gateways(export: &FullExport) -> Vec<ExportedGateway> {
    let gateways = export.gateways.iter().cloned();
    gateways.map(|(id, name)| ExportedGateway { id, name }).collect()
}

/// Whether a project of the caller imports something that fits from the call's project.
async fn imports(call: &Call, fits: impl Fn(&FullExport) -> bool) -> Result<bool> {
    let user = call.user()?;
    if is_admin(user) {
        return Ok(true);
    }
    let own = call.state.data.database.projects().of_member(user.id).await?;
    Ok(of_project(call)
        .await?
        .iter()
        .filter(|export| fits(export))
        .flat_map(|export| &export.imports)
        .any(|import| own.iter().any(|project| project.id == import.project_id)))
}

/// Whether the caller sees the gateway through an import.
pub(super) async fn imports_gateway(call: &Call, gateway: Option<GatewayId>) -> Result<bool> {
    let Some(gateway) = gateway else { return Ok(false) };
    imports(call, |export| {
        export.gateways.iter().any(|(id, _)| *id == gateway)
    })
    .await
}

/// Whether the caller sees the fleet through an import.
pub(super) async fn imports_fleet(call: &Call, fleet: Option<FleetId>) -> Result<bool> {
    let Some(fleet) = fleet else { return Ok(false) };
    imports(call, |export| export.fleets.iter().any(|(id, _)| *id == fleet)).await
}
