//! The table of volumes.

use dstack_model::volumes::Volume;

use super::Dates;
use crate::ui::{Column, Style, Table, Text};

/// The table of volumes.
pub fn table(volumes: &[Volume], verbose: bool, dates: Dates) -> Table {
    let mut columns = vec![
        Column::new("NAME").style(Style::BOLD).no_wrap(),
        Column::new("BACKEND").style(Style::SECONDARY),
    ];
    if verbose {
        columns.push(Column::new("REGION").style(Style::SECONDARY));
    }
    columns.push(Column::new("STATUS"));
    if verbose {
        columns.push(Column::new("ATTACHED"));
    }
    columns.push(Column::new("CREATED").style(Style::SECONDARY));
    if verbose {
        columns.push(Column::new("ERROR"));
    }
    let mut table = Table::new(columns);
    for volume in volumes {
        table.row_named(&cells(volume, verbose, dates), Style::PLAIN);
    }
    table
}

fn cells(volume: &Volume, verbose: bool, dates: Dates) -> Vec<(&'static str, Text)> {
    let backend = volume.configuration.backend().to_string();
    let region = volume.configuration.region().unwrap_or_default().to_owned();
    let zone = volume
        .provisioning_data
        .as_ref()
        .and_then(|data| data.availability_zone.as_deref());
    let mut fleets: Vec<String> = volume
        .attachments
        .iter()
        .flatten()
        .filter_map(|attachment| attachment.instance.fleet_name.clone())
        .collect();
    fleets.sort();
    fleets.dedup();
    vec![
        ("NAME", volume.name.clone().into()),
        (
            "BACKEND",
            if verbose || region.is_empty() {
                backend
            } else {
                format!("{backend} ({region})")
            }
            .into(),
        ),
        (
            "REGION",
            zone.map_or_else(|| region.clone(), |zone| format!("{region} ({zone})"))
                .into(),
        ),
        ("STATUS", volume.status.to_string().into()),
        (
            "ATTACHED",
            if fleets.is_empty() {
                "-".to_owned()
            } else {
                fleets.join(", ")
            }
            .into(),
        ),
        ("CREATED", dates.show(volume.created_at).into()),
        ("ERROR", volume.status_message.clone().unwrap_or_default().into()),
    ]
}
