//! Exports and imports: projects share SSH fleets and gateways. Switched off unless
//! `DSTACK_SERVER_EXPORTS_ENABLED` is set, as in the open-source server of dstack 0.22.5.

mod draft;

use dstack_api::responses::{ExportsAnswer, ImportsAnswer};
use dstack_api::{ErrorCode, Nothing, routes};
use dstack_model::exports::{
    Export, ExportImport, ExportedFleet, ExportedGateway, Import, ImportExport, ListExportsResponse,
    ListImportsResponse,
};
use dstack_model::requests::{CreateExportRequest, DeleteImportRequest, NameRequest, UpdateExportRequest};
use dstack_store::NewEvent;
use dstack_store::directory::exports::{self, ExportRow, FullExport};
use dstack_store::directory::projects;
use dstack_units::name::{RESOURCE_NAME_MESSAGE, is_resource_name};
use dstack_units::{FleetId, GatewayId};

use self::draft::Draft;
use crate::access::is_admin;
use crate::api::{Api, Call};
use crate::audit;
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
    let pool = call.state.database.pool();
    Ok(exports::of_project(pool, call.project()?.row.id).await?)
}

async fn by_name(call: &Call, name: &str) -> Result<FullExport> {
    let found = of_project(call)
        .await?
        .into_iter()
        .find(|export| export.row.name == name);
    let project = &call.project()?.row.name;
    found.ok_or_else(|| {
        let text = format!("Export '{name}' not found in project '{project}'");
        ApiError::with_code(ErrorCode::ResourceNotExists, text)
    })
}

async fn create(call: Call, request: CreateExportRequest) -> Result<Export> {
    let (state, project) = (&call.state, &call.project()?.row);
    if !state.settings.exports_enabled {
        return Err(ApiError::client(NOT_SUPPORTED));
    }
    if !is_resource_name(&request.name) {
        return Err(ApiError::client(RESOURCE_NAME_MESSAGE));
    }
    if request.is_global && !request.importer_projects.is_empty() {
        return Err(ApiError::client(
            "Do not specify any importer projects when creating a global export. Global exports are automatically \
             imported in all projects",
        ));
    }
    if of_project(&call)
        .await?
        .iter()
        .any(|export| export.row.name == request.name)
    {
        let text = format!(
            "Export '{}' already exists in project '{}'",
            request.name, project.name
        );
        return Err(ApiError::with_code(ErrorCode::ResourceExists, text));
    }
    let export = FullExport {
        row: ExportRow {
            id: state.random.uuid().into(),
            project_id: project.id,
            name: request.name,
            created_at: state.clock.now(),
            is_global: false,
        },
        project_name: project.name.clone(),
        imports: Vec::new(),
        fleets: Vec::new(),
        gateways: Vec::new(),
    };
    let mut draft = Draft::new(&call, export);
    draft.add_importers(&request.importer_projects).await?;
    draft.add_fleets(&request.exported_fleets).await?;
    draft.add_gateways(&request.exported_gateways).await?;
    if request.is_global {
        draft.make_global().await?;
    }
    stored(&call, draft.finish(), "created").await
}

async fn update(call: Call, request: UpdateExportRequest) -> Result<Export> {
    let state = &call.state;
    let export = by_name(&call, &request.name).await?;
    let extends = request.set_global
        || !request.add_importer_projects.is_empty()
        || !request.add_exported_fleets.is_empty()
        || !request.add_exported_gateways.is_empty();
    if extends && !state.settings.exports_enabled {
        return Err(ApiError::client(PHASE_OUT));
    }
    draft::check_update(&request)?;
    let mut draft = Draft::new(&call, export);
    draft.add_importers(&request.add_importer_projects).await?;
    draft.add_fleets(&request.add_exported_fleets).await?;
    draft.add_gateways(&request.add_exported_gateways).await?;
    draft.remove_importers(&request.remove_importer_projects)?;
    draft.remove_fleets(&request.remove_exported_fleets)?;
    draft.remove_gateways(&request.remove_exported_gateways)?;
    if request.unset_global {
        draft.make_local()?;
    }
    if request.set_global {
        draft.make_global().await?;
    }
    stored(&call, draft.finish(), "updated").await
}

/// `Export created. Name: shared`.
fn event(call: &Call, what: &str, name: &str) -> Result<Option<NewEvent>> {
    let targets = vec![audit::project(&call.project()?.row)];
    let message = format!("{what}. Name: {name}");
    Ok(audit::for_managers(&call.state, call.user()?, message, targets))
}

async fn stored(call: &Call, export: FullExport, what: &str) -> Result<Export> {
    let shown = shown(&export);
    let event = event(call, &format!("Export {what}"), &export.row.name)?;
    put(call, export, event).await?;
    Ok(shown)
}

async fn put(call: &Call, export: FullExport, event: Option<NewEvent>) -> Result<()> {
    call.state
        .database
        .write(move |tx| {
            Box::pin(async move {
                exports::put(tx, &export).await?;
                audit::write(tx, event).await
            })
        })
        .await?;
    Ok(())
}

async fn delete(call: Call, request: NameRequest) -> Result<()> {
    let id = by_name(&call, &request.name).await?.row.id;
    let event = event(&call, "Export deleted", &request.name)?;
    call.state
        .database
        .write(move |tx| {
            Box::pin(async move {
                exports::delete(tx, id).await?;
                audit::write(tx, event).await
            })
        })
        .await?;
    Ok(())
}

/// Nothing is an error where exports are switched off; what is left is shown with a warning.
fn warnings(call: &Call, none: bool) -> Result<Vec<String>> {
    match (call.state.settings.exports_enabled, none) {
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
    let found = exports::imported_by(call.state.database.pool(), project).await?;
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
    let project = &call.project()?.row;
    let name = format!("{}/{}", request.export_project_name, request.export_name);
    let found = exports::imported_by(call.state.database.pool(), project.id).await?;
    let export = found.into_iter().find(|export| {
        export.row.name == request.export_name
            && export
                .project_name
                .eq_ignore_ascii_case(&request.export_project_name)
    });
    let Some(mut export) = export else {
        // The same for exports that are there: whoever does not import them must not know of them.
        let text = format!("Import '{name}' not found in project '{}'", project.name);
        return Err(ApiError::with_code(ErrorCode::ResourceNotExists, text));
    };
    if export.row.is_global {
        return Err(ApiError::client(format!(
            "'{name}' is a global export, cannot stop importing"
        )));
    }
    export.imports.retain(|import| import.project_id != project.id);
    let event = event(&call, "Import deleted", &name)?;
    put(&call, export, event).await
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
    let own = projects::of_member(call.state.database.pool(), user.id).await?;
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
