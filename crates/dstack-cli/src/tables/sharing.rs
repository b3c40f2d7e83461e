//! Tables of exports and imports.

use dstack_model::exports::{Export, ExportedFleet, ExportedGateway, Import};

use crate::ui::{Column, Role, Style, Table, Text, Ui};

/// What the server wants users to know, before the table.
pub(crate) fn warn(ui: &Ui, warnings: &[String]) {
    for warning in warnings {
        ui.complain(Text::styled(warning, Style::bold(Role::Warning)));
        ui.complain("");
    }
}

/// What a project shares.
pub(crate) fn exports(exports: &[Export]) -> Table {
    let mut table = Table::new(vec![
        Column::new("NAME").no_wrap(),
        Column::new("FLEETS"),
        Column::new("GATEWAYS"),
        Column::new("IMPORTERS"),
    ]);
    for export in exports {
        let importers = if export.is_global {
            "*".to_owned()
        } else {
            names(export.imports.iter().map(|import| import.project_name.as_str()))
        };
        table.row(vec![
            export.name.clone().into(),
            fleets(&export.exported_fleets).into(),
            gateways(&export.exported_gateways).into(),
            importers.into(),
        ]);
    }
    table
}

/// What is shared with a project.
pub(crate) fn imports(imports: &[Import]) -> Table {
    let mut table = Table::new(vec![
        Column::new("NAME").no_wrap(),
        Column::new("FLEETS"),
        Column::new("GATEWAYS"),
    ]);
    for import in imports {
        let export = &import.export;
        table.row(vec![
            format!("{}/{}", export.project_name, export.name).into(),
            fleets(&export.exported_fleets).into(),
            gateways(&export.exported_gateways).into(),
        ]);
    }
    table
}

fn fleets(fleets: &[ExportedFleet]) -> String {
    names(fleets.iter().map(|fleet| fleet.name.as_str()))
}

fn gateways(gateways: &[ExportedGateway]) -> String {
    names(gateways.iter().map(|gateway| gateway.name.as_str()))
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() {
        "-".to_owned()
    } else {
        names.join(", ")
    }
}
