use std::collections::HashSet;

use dstack_backend::{compute_error, offers_of_provider, vendor_offers};
use dstack_catalog::{CpuArch, Item as Row, Provider, ProviderData, Vendor, accelerators};
use dstack_catalog_offers::VendorRows;
use dstack_compute::ComputeError;
use dstack_model::instances::{InstanceAvailability, InstanceRuntime};
use dstack_model::offers::{InstanceOffer, InstanceOfferWithAvailability};
use dstack_model::runs::Requirements;
use serde_json::{Value as Json, json};

use crate::backend::Machines;
use crate::manifest::{Free, Gpus, PriceUnit, SizeUnit, Sold};
use crate::template::{Item, Reader, Scope, text_of};

/// Types and regions of which some are free.
pub(crate) type FreePlaces = HashSet<(String, String)>;

impl Machines {
    pub(crate) async fn find_offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        let offers = &self.manifest().offers;
        match (&offers.list, &offers.catalog) {
            (Some(sold), _) => self.find_sold(sold, requirements).await,
            (None, Some(provider)) => {
                self.find_in_catalog(provider, offers.free.as_ref(), requirements)
                    .await
            }
            (None, None) => Ok(Vec::new()),
        }
    }

    /// What the vendor sells: what is not free now is left out.
    async fn find_sold(
        &self,
        sold: &Sold,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        let rows = self.sold.get(async || self.fetch_sold(sold).await).await?;
        let offers = vendor_offers(&rows, self.kind.kind, self.regions.as_deref(), requirements)?;
        let available = |offer: InstanceOffer| {
            offer.with_availability(InstanceAvailability::Available, InstanceRuntime::Shim)
        };
        Ok(offers.into_iter().map(available).collect())
    }

    async fn fetch_sold(&self, sold: &Sold) -> Result<VendorRows, ComputeError> {
        let entries = self.client.list(&sold.list, &self.scope).await?;
        let mut rows = Vec::new();
        let mut unread: Option<String> = None;
        for entry in &entries {
            match rows_of(sold, entry, &self.scope) {
                Ok(of_entry) => rows.extend(of_entry),
                // One that is not understood does not take the others away.
                Err(why) => unread = Some(why),
            }
        }
        match unread {
            Some(why) if rows.is_empty() => Err(self.odd(format!("of what it sells, {why}"))),
            Some(why) => {
                tracing::debug!(backend.r#type = %self.kind.kind, %why, "something that the vendor sells is not understood");
                Ok(VendorRows::new(rows))
            }
            None => Ok(VendorRows::new(rows)),
        }
    }

    /// What the catalogue has, with what is free now.
    async fn find_in_catalog(
        &self,
        provider: &str,
        free: Option<&Free>,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        let (catalog, kind) = (&self.kind.env.catalog, self.kind.kind);
        let offers = offers_of_provider(catalog, provider, kind, self.regions.as_deref(), requirements)?;
        let Some(free) = free.filter(|_| !offers.is_empty()) else {
            let unknown = |offer: InstanceOffer| {
                offer.with_availability(InstanceAvailability::Unknown, InstanceRuntime::Shim)
            };
            return Ok(offers.into_iter().map(unknown).collect());
        };
        let places = self.free.get(async || self.fetch_free(free).await).await?;
        let with_availability = |offer: InstanceOffer| {
            let place = (offer.instance.name.clone(), offer.region.to_string());
            let availability = match places.contains(&place) {
                true => InstanceAvailability::Available,
                false => InstanceAvailability::NotAvailable,
            };
            offer.with_availability(availability, InstanceRuntime::Shim)
        };
        Ok(offers.into_iter().map(with_availability).collect())
    }

    async fn fetch_free(&self, free: &Free) -> Result<FreePlaces, ComputeError> {
        let entries = self.client.list(&free.list, &self.scope).await?;
        let mut places = FreePlaces::new();
        for entry in &entries {
            let item = Item::new(entry, &self.scope);
            let Some(kind) = free.kind.text(&item) else {
                return Err(self.unread("what is free", "offers.free.type", &free.kind));
            };
            let is_free = |item: &Item<'_>| {
                free.count
                    .as_ref()
                    .is_none_or(|count| count.number(item) > Some(0.0))
            };
            let of_entry = regions_of(free.regions.as_ref(), free.region.as_ref(), &item);
            let named = of_entry.into_iter().filter(|(_, item)| is_free(item));
            places.extend(named.map(|(region, _)| (kind.clone(), region)));
        }
        Ok(places)
    }

    /// That a value is not where the manifest says.
    pub(crate) fn unread(&self, of: &str, field: &str, reader: &Reader) -> ComputeError {
        self.odd(format!(
            "of {of}, {reader} ({field} in the manifest) finds nothing"
        ))
    }

    /// That an answer is not as the manifest says.
    pub(crate) fn odd(&self, details: String) -> ComputeError {
        compute_error(&self.client.malformed(details))
    }
}

/// The regions of an entry by name, each with what is read together with it.
fn regions_of<'a>(
    regions: Option<&Reader>,
    region: Option<&Reader>,
    item: &Item<'a>,
) -> Vec<(String, Item<'a>)> {
    let named = |item: Item<'a>| {
        let entry = region.map(|region| region.text(&item));
        entry.flatten().map(|name| (name, item))
    };
    let Some(regions) = regions else {
        return named(item.clone()).into_iter().collect();
    };
    let entries: Vec<Json> = match regions.find(item) {
        Some(Json::Array(entries)) => entries,
        Some(Json::Object(fields)) => fields
            .into_iter()
            .map(|(key, value)| json!({"key": key, "value": value}))
            .collect(),
        _ => Vec::new(),
    };
    let of_entry = |entry: Json| {
        let item = item.with("region", &entry);
        match region {
            Some(_) => named(item),
            None => Some((text_of(&entry)?, item)),
        }
    };
    entries.into_iter().filter_map(of_entry).collect()
}

/// A row for each region that has it now.
///
/// # Errors
/// What is not there that every row has.
fn rows_of(sold: &Sold, entry: &Json, scope: &Scope) -> Result<Vec<Row>, String> {
    let item = Item::new(entry, scope);
    if sold.filter.as_ref().is_some_and(|filter| !filter.is_true(&item)) {
        return Ok(Vec::new());
    }
    let mut rows = Vec::new();
    for (region, item) in regions_of(sold.regions.as_ref(), sold.region.as_ref(), &item) {
        if sold
            .available
            .as_ref()
            .is_none_or(|available| available.is_true(&item))
        {
            rows.extend(row(sold, region, &item)?);
        }
    }
    Ok(rows)
}

/// `None`: its GPUs are unknown.
fn row(sold: &Sold, region: String, item: &Item<'_>) -> Result<Option<Row>, String> {
    let number = |reader: &Reader, field: &str| {
        let found = reader.number(item);
        found.ok_or_else(|| format!("{reader} (offers.list.{field} in the manifest) finds no number"))
    };
    let kind = sold.kind.text(item);
    let kind =
        kind.ok_or_else(|| format!("{} (offers.list.type in the manifest) finds nothing", sold.kind))?;
    let price = number(&sold.price, "price")?;
    let row = Row {
        price: match sold.price_unit {
            PriceUnit::Dollars => price,
            PriceUnit::Cents => price / 100.0,
        },
        cpu: whole(number(&sold.cpus, "cpus")?),
        memory: gib(number(&sold.memory, "memory")?, sold.memory_unit),
        disk_size: sold
            .disk
            .as_ref()
            .and_then(|disk| disk.number(item))
            .map(|disk| gib(disk, sold.disk_unit)),
        spot: sold.spot.as_ref().is_some_and(|spot| spot.is_true(item)),
        cpu_arch: arch(sold.cpu_arch.as_ref(), item)?,
        provider_data: ProviderData::from_value(&data(sold.data.as_ref(), item)),
        ..Row::new(Provider::Private, kind, region)
    };
    match &sold.gpu {
        None => Ok(Some(row)),
        Some(gpus) => Ok(with_gpus(row, gpus, item)),
    }
}

fn arch(reader: Option<&Reader>, item: &Item<'_>) -> Result<CpuArch, String> {
    match reader.and_then(|reader| reader.text(item)) {
        None => Ok(CpuArch::X86),
        Some(text) => text
            .parse()
            .map_err(|_| format!("`{text}` is no architecture of CPUs")),
    }
}

fn data(reader: Option<&Reader>, item: &Item<'_>) -> Json {
    match reader.and_then(|reader| reader.find(item)) {
        Some(data @ Json::Object(_)) => data,
        Some(other) => json!({"value": other}),
        None => json!({}),
    }
}

#[allow(clippy::cast_possible_truncation)] // numbers of CPUs and GPUs
fn whole(number: f64) -> i64 {
    number.round() as i64
}

fn gib(size: f64, unit: SizeUnit) -> f64 {
    // What vendors round is not told from what they do not.
    (size * unit.gib() * 1024.0).round() / 1024.0
}

/// `None`: neither the vendor nor the table of GPUs tells what they are.
fn with_gpus(row: Row, gpus: &Gpus, item: &Item<'_>) -> Option<Row> {
    let count = gpus.count.number(item).map_or(0, whole);
    if count <= 0 {
        return Some(row);
    }
    let name = gpus.name.text(item)?;
    let told = gpus.vendor.as_ref().and_then(|vendor| vendor.text(item));
    let told = told.and_then(|vendor| Vendor::from_name(&vendor).ok());
    let known = match told {
        Some(vendor) => accelerators::find_of(&name, &[vendor]),
        None => accelerators::find(&name).next(),
    };
    let memory = gpus.memory.as_ref().and_then(|memory| memory.number(item));
    let memory = memory.map(|memory| gib(memory, gpus.memory_unit));
    Some(Row {
        gpu_count: count,
        gpu_name: Some(known.map_or(name, |known| known.name.to_owned())),
        gpu_memory: Some(memory.or_else(|| known.map(|known| f64::from(known.memory_gib)))?),
        gpu_vendor: Some(told.or_else(|| known.map(|known| known.vendor))?),
        ..row
    })
}

#[cfg(test)]
mod tests {
    use dstack_decode::decode_strict;

    use super::*;

    fn sold() -> Sold {
        decode_strict(&json!({
            "get": "types", "items": "", "type": "/name", "regions": "/places", "region": "{{ region.key }}",
            "available": "{{ region.value > 0 }}", "cpus": "/cpus", "memory": "/ram", "memory_unit": "MiB",
            "price": "/cents", "price_unit": "cents", "where": "{{ not item.retired }}",
            "gpu": {"count": "/gpus", "name": "/model", "memory": "/vram", "memory_unit": "GB"},
        }))
        .unwrap()
    }

    fn entry(more: &Json) -> Json {
        let mut entry = json!({"name": "big", "places": {"a-1": 2, "b-1": 0}, "cpus": 8, "ram": 65536, "cents": 250,
            "gpus": 2, "model": "rtx4090", "vram": null});
        for (name, field) in more.as_object().unwrap() {
            entry[name] = field.clone();
        }
        entry
    }

    fn rows(more: &Json) -> Result<Vec<Row>, String> {
        rows_of(&sold(), &entry(more), &Scope::default())
    }

    #[test]
    fn a_row_is_made_for_each_region_that_has_some() {
        let found = rows(&json!({})).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        let row = &found[0];
        assert_eq!(
            (&*row.instance_name, &*row.location, row.price),
            ("big", "a-1", 2.5)
        );
        assert_eq!((row.cpu, row.memory, row.gpu_count), (8, 64.0, 2));
        assert_eq!(
            (row.gpu_name.as_deref(), row.gpu_memory),
            (Some("RTX4090"), Some(24.0))
        );
        assert_eq!(row.gpu_vendor, Some(Vendor::Nvidia));
        assert!(rows(&json!({"retired": true})).unwrap().is_empty());
        assert_eq!(rows(&json!({"gpus": 0})).unwrap()[0].gpu_name, None);
        assert!(
            rows(&json!({"model": "X900"})).unwrap().is_empty(),
            "nobody knows its memory"
        );
        let told = rows(&json!({"ram": null})).unwrap_err();
        assert!(told.contains("`/ram` (offers.list.memory"), "{told}");
    }
}
