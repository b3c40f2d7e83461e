//! Tables of offers.

use dstack_model::instances::InstanceAvailability;
use dstack_model::offers::{GpuGroup, InstanceOfferWithAvailability, SpotKind};

use dstack_model::resources::ResourcesSpec;
use dstack_units::Memory;
use dstack_units::human::mib_as_gb;

use crate::format::{self, resources};
use crate::ui::{Column, Style, Table, Text, Ui};

/// Prints offers; when there are more, how many.
pub fn print(ui: &Ui, offers: &[InstanceOfferWithAvailability], total: u64, max_price: f64, mute_tail: bool) {
    let more = total > u64::try_from(offers.len()).unwrap_or(u64::MAX);
    ui.table(&table(offers, more, mute_tail, ui.expands()));
    if more {
        ui.say(Text::new().secondary(format!(
            " Shown {} of {total} offers, {}max",
            offers.len(),
            format::limit(max_price)
        )));
    }
}

/// What an offer has less of than was asked for, and why it is taken all the same: defaults of the configuration language do not
/// count on the server's own machine. `None` when it has everything.
pub fn shortfall(wanted: &ResourcesSpec, offer: &InstanceOfferWithAvailability) -> Option<String> {
    let has = &offer.instance.resources;
    let mib = |mib: i64| Memory::from_mib(f64::from(i32::try_from(mib).unwrap_or(i32::MAX)));
    let disk = wanted.disk.as_ref().map(|disk| disk.size);
    let short = [
        (!wanted.cpu.count.contains(has.cpus), format!("cpu={}", has.cpus)),
        (
            !wanted.memory.contains(mib(has.memory_mib)),
            format!("mem={}", mib_as_gb(has.memory_mib)),
        ),
        (
            has.disk.size_mib > 0 && disk.is_some_and(|disk| !disk.contains(mib(has.disk.size_mib))),
            format!("disk={}", mib_as_gb(has.disk.size_mib)),
        ),
    ];
    let short: Vec<String> = short
        .into_iter()
        .filter(|(is_short, _)| *is_short)
        .map(|(_, text)| text)
        .collect();
    if short.is_empty() {
        return None;
    }
    let standard = resources::requirements(&ResourcesSpec {
        gpu: None,
        ..ResourcesSpec::default()
    });
    Some(format!(
        " {} is outside of the resources above: the defaults ({standard}) do not count on the server's own machine, which is taken as \
         it is",
        short.join(" ")
    ))
}

fn table(offers: &[InstanceOfferWithAvailability], more: bool, mute_tail: bool, expand: bool) -> Table {
    let grey = |title: &str| Column::new(title).style(Style::SECONDARY);
    let mut table = Table::new(vec![
        Column::new("#"),
        grey("BACKEND").minor().ratio(2),
        Column::new("RESOURCES").ratio(4),
        grey("INSTANCE TYPE").minor().no_wrap().ratio(2),
        grey("PRICE").ratio(1),
        Column::new(""),
    ])
    .expand(expand);
    for (index, offer) in offers.iter().enumerate() {
        let mut name = offer.instance.name.clone();
        if offer.total_blocks > 1 {
            name.push_str(&format!(" ({}/{})", offer.blocks, offer.total_blocks));
        }
        let cells = [
            (index + 1).to_string(),
            format::backend(Some(offer.backend.as_str()), Some(&offer.region)),
            resources::instance_with_spot(&offer.instance.resources),
            name,
            format::price(offer.price),
            format::availability(offer.availability.as_str()),
        ];
        let style = if index > 0 && mute_tail {
            Style::SECONDARY
        } else {
            Style::PLAIN
        };
        table.row_styled(cells.map(Text::from).to_vec(), style);
    }
    if more {
        table.row_styled(vec![Text::new(), "...".into()], Style::SECONDARY);
    }
    table
}

/// The table of a fleet's plan.
pub fn fleet_table(offers: &[InstanceOfferWithAvailability], more: bool) -> Table {
    let titles = [
        "#",
        "BACKEND",
        "REGION",
        "INSTANCE",
        "RESOURCES",
        "SPOT",
        "PRICE",
        "",
    ];
    let mut table = Table::new(titles.map(Column::new).to_vec());
    for (index, offer) in offers.iter().enumerate() {
        let cells = [
            (index + 1).to_string(),
            format::backend_name(offer.backend.as_str()).to_owned(),
            offer.region.to_string(),
            offer.instance.name.clone(),
            resources::instance(&offer.instance.resources),
            if offer.instance.resources.spot {
                "yes"
            } else {
                "no"
            }
            .to_owned(),
            format::limit(offer.price),
            format::availability(offer.availability.as_str()),
        ];
        let style = if index == 0 {
            Style::PLAIN
        } else {
            Style::SECONDARY
        };
        table.row_styled(cells.map(Text::from).to_vec(), style);
    }
    if more {
        table.row_styled(vec![Text::new(), "...".into()], Style::SECONDARY);
    }
    table
}

/// The table of offers grouped by GPU.
pub fn gpu_table(gpus: &[GpuGroup], expand: bool) -> Table {
    let one_backend = gpus.iter().any(|gpu| gpu.backend.is_some());
    let region_title = match (
        gpus.iter().any(|gpu| gpu.region.is_some()),
        gpus.iter().any(|gpu| gpu.regions.is_some()),
    ) {
        (true, _) if one_backend => Some("REGION"),
        (_, true) if one_backend => Some("REGIONS"),
        _ => None,
    };
    let grey = |title: &str| Column::new(title).style(Style::SECONDARY);
    let mut columns = vec![
        Column::new("#"),
        Column::new("GPU").no_wrap().ratio(2),
        grey("SPOT").ratio(1),
        grey("$/GPU").ratio(1),
        grey(if region_title.is_some() {
            "BACKEND"
        } else {
            "BACKENDS"
        })
        .ratio(2),
    ];
    columns.extend(region_title.map(|title| grey(title).ratio(2)));
    columns.push(Column::new(""));
    let mut table = Table::new(columns).expand(expand);
    for (index, gpu) in gpus.iter().enumerate() {
        let (backends, regions) = (backends(gpu), regions(gpu));
        let mut cells = vec![
            Text::new().secondary((index + 1).to_string()),
            format!("{}:{}GB:{}", gpu.name, gpu.memory_mib / 1024, gpu.count).into(),
            Text::new().secondary(spot(gpu)),
            Text::new().secondary(prices(gpu)),
        ];
        if region_title.is_some() {
            cells.extend([Text::new().secondary(backends), Text::new().secondary(regions)]);
        } else {
            let joined = if regions.is_empty() {
                backends
            } else {
                format!("{backends} ({regions})")
            };
            cells.push(Text::new().secondary(joined));
        }
        cells.push(Text::new().secondary(availability(gpu)));
        table.row(cells);
    }
    table
}

fn backends(gpu: &GpuGroup) -> String {
    let names = gpu
        .backend
        .iter()
        .chain(gpu.backends.iter().flatten())
        .map(|backend| backend.as_str());
    names.collect::<Vec<_>>().join(", ")
}

fn regions(gpu: &GpuGroup) -> String {
    match (&gpu.region, &gpu.regions) {
        (Some(region), _) => region.clone(),
        (None, Some(regions)) if regions.len() > 3 => format!("{} regions", regions.len()),
        (None, Some(regions)) => regions.join(", "),
        (None, None) => String::new(),
    }
}

fn spot(gpu: &GpuGroup) -> String {
    let kinds = [SpotKind::Spot, SpotKind::OnDemand]
        .into_iter()
        .filter(|kind| gpu.spot.contains(kind));
    kinds.map(SpotKind::as_str).collect::<Vec<_>>().join(", ")
}

fn prices(gpu: &GpuGroup) -> String {
    let ends = [gpu.price.min, gpu.price.max].map(|end| format::amount(end.unwrap_or_default()));
    if gpu.price.min == gpu.price.max {
        ends.into_iter().next().unwrap_or_default()
    } else {
        ends.join("..")
    }
}

/// Blank when something is available, otherwise all reasons why not.
fn availability(gpu: &GpuGroup) -> String {
    let can_be_had = [InstanceAvailability::Unknown, InstanceAvailability::Available];
    if gpu
        .availability
        .iter()
        .any(|availability| can_be_had.contains(availability))
    {
        return String::new();
    }
    let mut words: Vec<String> = gpu
        .availability
        .iter()
        .map(|availability| format::availability(availability.as_str()))
        .collect();
    words.sort();
    words.dedup();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_offer_that_falls_short_says_why_it_is_taken() {
        let offer = |cpus: i64, disk_mib: i64| {
            let resources = json!({"cpus": cpus, "memory_mib": 24_105, "gpus": [], "spot": false, "disk": {"size_mib": disk_mib}});
            let offer = json!({"backend": "remote", "instance": {"name": "local", "resources": resources}, "region": "remote",
                               "price": 0.0, "availability": "idle"});
            serde_json::from_value(offer).unwrap()
        };
        let wanted = ResourcesSpec::default();
        assert_eq!(shortfall(&wanted, &offer(4, 200_000)), None);
        let short = shortfall(&wanted, &offer(1, 71_762)).unwrap();
        assert!(
            short.starts_with(" cpu=1 disk=70.1GB is outside of the resources above: the defaults (cpu=2.. mem=8GB.. disk=100GB..)"),
            "{short}"
        );
    }
}
