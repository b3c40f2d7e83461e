use dstack_backend::{compute_error, vendor_offers};
use dstack_catalog::accelerators::{Accelerator, find_of};
use dstack_catalog::{Item, Provider, ProviderData, Vendor, tell_not_offered};
use dstack_catalog_offers::VendorRows;
use dstack_compute::ComputeError;
use dstack_http::ApiError;
use dstack_model::backends::BackendType;
use dstack_model::instances::{InstanceAvailability, InstanceRuntime};
use dstack_model::offers::{InstanceOffer, InstanceOfferWithAvailability};
use dstack_model::runs::Requirements;
use serde_json::{Value, json};

use crate::HotAisle;
use crate::client::{Available, Kind};

/// The only region; the API names none.
pub(crate) const REGION: &str = "us-michigan-1";

const GIB: f64 = (1_u64 << 30) as f64;

impl HotAisle {
    /// What the team could have now.
    pub(crate) async fn find_offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        let rows = self.rows.get(async || self.fetch_rows().await).await?;
        let regions = self.regions.as_deref();
        let offers = vendor_offers(&rows, BackendType::HotAisle, regions, requirements)?;
        let available = |offer: InstanceOffer| {
            offer.with_availability(InstanceAvailability::Available, InstanceRuntime::Shim)
        };
        Ok(offers.into_iter().map(available).collect())
    }

    /// Where only one of the two lists can be had, the other one is left out.
    async fn fetch_rows(&self) -> Result<VendorRows, ComputeError> {
        let machines = self.client.available(Kind::Virtual).await;
        let servers = match self.sells_bare_metal {
            true => self.client.available(Kind::BareMetal).await,
            false => Ok(Vec::new()),
        };
        if let Err(error) = &machines
            && (servers.is_err() || !self.sells_bare_metal)
        {
            return Err(compute_error(error));
        }
        let mut items = rows_of(Kind::Virtual, machines);
        items.extend(rows_of(Kind::BareMetal, servers));
        Ok(VendorRows::new(items))
    }
}

fn rows_of(kind: Kind, listed: Result<Vec<Available>, ApiError>) -> Vec<Item> {
    let listed = listed.unwrap_or_else(|error| {
        tracing::warn!(?kind, %error, "Hot Aisle does not tell what it has");
        Vec::new()
    });
    let mut rows = Vec::new();
    for one in listed.iter().filter(|one| one.quantity > 0) {
        match row(kind, one) {
            Ok(row) => rows.push(row),
            Err(why) => {
                let model = one.specs.pointer("/gpus/0/model").and_then(Value::as_str);
                tell_not_offered("Hot Aisle", model.unwrap_or("a machine"), why);
            }
        }
    }
    rows
}

/// An error tells why it is not offered.
fn row(kind: Kind, available: &Available) -> Result<Item, &'static str> {
    let model = available.specs.pointer("/gpus/0/model").and_then(Value::as_str);
    let model = model.ok_or("Hot Aisle does not tell its GPU")?;
    // As dstack 0.22.5: Hot Aisle tells no memory of GPUs.
    let known = find_of(model, &[Vendor::Amd]).ok_or(
        "Hot Aisle does not tell the memory of GPUs, and the table of GPUs does not have this one of AMD",
    )?;
    let price = available
        .on_demand_price
        .ok_or("Hot Aisle tells no price of it")?;
    item(kind, available, model, known, price / 100.0).ok_or("Hot Aisle tells not all of what it has")
}

fn item(kind: Kind, available: &Available, model: &str, known: &Accelerator, price: f64) -> Option<Item> {
    let specs = &available.specs;
    let gpu_count = specs.pointer("/gpus/0/count")?.as_i64()?;
    let gib = |field: &str| Some(specs.get(field)?.as_f64()? / GIB);
    let (short, flags) = match kind {
        Kind::Virtual => ("vm", Vec::new()),
        Kind::BareMetal => ("bm", vec!["hotaisle-bm".to_owned()]),
    };
    let name = format!("{short}-{}-{gpu_count}", model.to_lowercase());
    Some(Item {
        price,
        cpu: specs.get("cpu_cores")?.as_i64()?,
        memory: gib("ram_capacity")?,
        disk_size: Some(gib("disk_capacity")?),
        gpu_count,
        gpu_name: Some(known.name.to_owned()),
        gpu_memory: Some(f64::from(known.memory_gib)),
        gpu_vendor: Some(Vendor::Amd),
        flags,
        provider_data: ProviderData::from_value(&json!({specs_field(kind): specs})),
        ..Item::new(Provider::Private, name, REGION)
    })
}

const fn specs_field(kind: Kind) -> &'static str {
    match kind {
        Kind::Virtual => "vm_specs",
        Kind::BareMetal => "bare_metal_specs",
    }
}

/// What an offer is of, with the specifications that are sent back for it.
pub(crate) fn specs_of(offer: &InstanceOfferWithAvailability) -> Result<(Kind, &Value), ComputeError> {
    let specs = [Kind::Virtual, Kind::BareMetal].into_iter().find_map(|kind| {
        let specs = offer.backend_data.get(specs_field(kind));
        Some((kind, specs.filter(|specs| specs.is_object())?))
    });
    specs.ok_or_else(|| ComputeError::Refused("the offer is not one of Hot Aisle".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_something_is_not_offered_is_told() {
        let available = |model: &str, price: Value| -> Available {
            let specs = json!({"gpus": [{"count": 1, "model": model}], "cpu_cores": 13, "ram_capacity": 1_u64 << 38,
                "disk_capacity": 1_u64 << 43});
            serde_json::from_value(json!({"Quantity": 1, "OnDemandPrice": price, "Specs": specs})).unwrap()
        };
        let told =
            |model: &str, price: Value| row(Kind::Virtual, &available(model, price)).map(|row| row.price);
        assert_eq!(told("MI300X", json!(199)), Ok(1.99));
        assert!(told("MI9999X", json!(199)).is_err_and(|why| why.contains("memory")));
        assert!(told("MI300X", Value::Null).is_err_and(|why| why.contains("price")));
    }
}
