//! The table of gateways and their replicas.

use dstack_model::gateways::Gateway;
use dstack_model::interpolate::Interpolator;

use super::Dates;
use crate::format;
use crate::ui::{Column, Style, Table, Text};

/// The table of gateways.
pub fn table(gateways: &[Gateway], project: &str, verbose: bool, created: bool, dates: Dates) -> Table {
    let mut columns = vec![
        Column::new("NAME").no_wrap(),
        Column::new("BACKEND"),
        Column::new("HOSTNAME").no_wrap(),
        Column::new("DOMAIN").no_wrap(),
        Column::new("DEFAULT"),
        Column::new("STATUS"),
    ];
    if verbose || created {
        columns.push(Column::new("CREATED"));
    }
    if verbose {
        columns.push(Column::new("ERROR"));
    }
    let mut table = Table::new(columns);
    for gateway in gateways {
        add(&mut table, gateway, project, verbose, dates);
    }
    table
}

fn add(table: &mut Table, gateway: &Gateway, project: &str, verbose: bool, dates: Dates) {
    let optional = |text: Option<&String>| Text::from(text.cloned().unwrap_or_default());
    let mut cells = vec![
        (
            "NAME",
            format::reference(&gateway.name, &gateway.project_name, project).into(),
        ),
        ("DOMAIN", domain(gateway, project).into()),
        ("DEFAULT", if gateway.default { "✓" } else { "" }.into()),
        ("STATUS", gateway.status.to_string().into()),
        ("CREATED", dates.show(gateway.created_at).into()),
        ("ERROR", optional(gateway.status_message.as_ref())),
        ("HOSTNAME", optional(gateway.hostname.as_ref())),
    ];
    match gateway.replicas.as_slice() {
        [] => {
            let configuration = &gateway.configuration;
            cells.push((
                "BACKEND",
                format::backend(Some(configuration.backend.as_str()), Some(&configuration.region)).into(),
            ));
            cells.push((
                "HOSTNAME",
                optional(gateway.hostname.as_ref().or(gateway.ip_address.as_ref())),
            ));
        }
        [replica] if !(verbose && gateway.hostname.is_some()) => {
            let backend = replica.backend.as_ref().map(|backend| backend.as_str());
            let messages: Vec<&str> = gateway
                .status_message
                .iter()
                .chain(&replica.status_message)
                .map(String::as_str)
                .collect();
            cells.extend([
                (
                    "BACKEND",
                    format::backend(backend, replica.region.as_deref()).into(),
                ),
                (
                    "HOSTNAME",
                    optional(gateway.hostname.as_ref().or(replica.hostname.as_ref())),
                ),
                ("STATUS", replica.status.to_string().into()),
                ("ERROR", messages.join(". ").into()),
            ]);
        }
        replicas => {
            table.row_named(&cells, Style::PLAIN);
            for replica in replicas {
                let backend = replica.backend.as_ref().map(|backend| backend.as_str());
                let cells = [
                    ("NAME", format!("   replica={}", replica.replica_num).into()),
                    (
                        "BACKEND",
                        format::backend(backend, replica.region.as_deref()).into(),
                    ),
                    ("HOSTNAME", optional(replica.hostname.as_ref())),
                    ("STATUS", replica.status.to_string().into()),
                    ("CREATED", dates.show(replica.created_at).into()),
                    ("ERROR", optional(replica.status_message.as_ref())),
                ];
                table.row_named(&cells, Style::SECONDARY);
            }
            return;
        }
    }
    table.row_named(&cells, Style::PLAIN);
}

/// The domain as runs of this project get it.
fn domain(gateway: &Gateway, project: &str) -> String {
    let domain = gateway.wildcard_domain.clone().unwrap_or_default();
    if gateway.project_name == project {
        return domain;
    }
    let known = Interpolator::new().namespace("run", [("project_name", project)]);
    known.interpolate(&domain).unwrap_or(domain)
}
