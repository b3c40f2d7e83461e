//! Slices of TPUs on several hosts ("pods"): which there are, what their hosts have, and what they cost.
//!
//! Catalogues have only those on one host (dstack 0.22.5 offers no others). A slice is priced by its chips, so the price of the one with 8
//! in its name tells that of all in the zone; v2, v3 and v4 have prices of their own for pods, which are in lists.

use dstack_backend::vendor_offers;
use dstack_catalog::collectors::gcp::tpu_list_price;
use dstack_catalog::{Filter, Item, Offer, Provider, Vendor};
use dstack_catalog_offers::VendorRows;
use dstack_compute::ComputeError;
use dstack_model::backends::BackendType;
use dstack_model::offers::InstanceOffer;
use dstack_model::runs::Requirements;

use crate::Gcp;
use crate::offers::{TPU_DISK_GB, region_of};
use crate::tpu::{chips_of, hosts_of};

/// What the slices of a version have ("TPU v2" to "TPU v6e", "VM types").
struct Version {
    name: &'static str,
    /// The numbers in the names of slices on several hosts.
    sizes: &'static [u32],
    /// Of one host.
    cpus: i64,
    /// Of one host.
    memory_gib: f64,
    /// Of the chips of one host together.
    hbm_gib: f64,
    /// Pods have prices of their own.
    is_listed: bool,
}

const VERSIONS: &[Version] = &[
    Version {
        name: "v2",
        sizes: &[32, 128, 256, 512],
        cpus: 96,
        memory_gib: 334.0,
        hbm_gib: 64.0,
        is_listed: true,
    },
    Version {
        name: "v3",
        sizes: &[32, 64, 128, 256, 512, 1024, 2048],
        cpus: 96,
        memory_gib: 334.0,
        hbm_gib: 128.0,
        is_listed: true,
    },
    Version {
        name: "v4",
        sizes: &[16, 32, 64, 128, 256, 512, 1024, 2048, 4096],
        cpus: 240,
        memory_gib: 400.0,
        hbm_gib: 128.0,
        is_listed: true,
    },
    Version {
        name: "v5p",
        sizes: &[16, 32, 64, 128, 256, 512, 1024, 2048, 4096],
        cpus: 208,
        memory_gib: 448.0,
        hbm_gib: 380.0,
        is_listed: false,
    },
    Version {
        name: "v5litepod",
        sizes: &[16, 32, 64, 128, 256],
        cpus: 112,
        memory_gib: 192.0,
        hbm_gib: 64.0,
        is_listed: false,
    },
    Version {
        name: "v6e",
        sizes: &[16, 32, 64, 128, 256],
        cpus: 180,
        memory_gib: 720.0,
        hbm_gib: 128.0,
        is_listed: false,
    },
];

/// Where v4 is ("TPU regions and zones"): catalogues have none of it.
const ZONE_OF_V4: &str = "us-central2-b";

/// The slice of each version that tells in which zones it is.
const SMALL: &str = "-8";

/// A version in a zone.
#[derive(Debug, Clone, PartialEq)]
struct Sold {
    version: &'static str,
    zone: String,
    spot: bool,
    /// Dollars an hour of the slice with 8 in its name; `None`: it is not sold.
    price_of_small: Option<f64>,
}

impl Gcp {
    /// The hosts of slices that have several, as rows of zones: what each is priced at is its share.
    pub(crate) fn find_slices(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOffer>, ComputeError> {
        let may_have_some = self.config.tpu.unwrap_or(false)
            && requirements.multinode == Some(true)
            // Of TPUs none is known here.
            && requirements.reservation.is_none();
        if !may_have_some {
            return Ok(Vec::new());
        }
        let names = VERSIONS.iter().map(|version| format!("{}{SMALL}", version.name));
        let filter = Filter {
            provider: Some(vec![BackendType::Gcp.to_string()]),
            gpu_name: Some(names.collect()),
            ..Filter::default()
        };
        let catalog = &self.kind.env.catalog;
        let sold = catalog.query(&filter, |rows| {
            rows.filter_map(|row| sold(&row)).collect::<Vec<_>>()
        });
        let sold = sold.map_err(|error| ComputeError::Configuration(error.to_string()))?;
        let v4 = [false, true].map(|spot| Sold {
            version: "v4",
            zone: ZONE_OF_V4.to_owned(),
            spot,
            price_of_small: None,
        });
        let is_wanted = |sold: &Sold| self.regions.iter().any(|region| region == region_of(&sold.zone));
        let hosts = sold
            .into_iter()
            .chain(v4)
            .filter(is_wanted)
            .flat_map(|sold| hosts(&sold));
        vendor_offers(
            &VendorRows::new(hosts.collect()),
            BackendType::Gcp,
            None,
            requirements,
        )
    }
}

fn sold(row: &Offer<'_>) -> Option<Sold> {
    let version = row.instance_name().strip_suffix(SMALL)?;
    let version = VERSIONS.iter().find(|known| known.name == version)?;
    Some(Sold {
        version: version.name,
        zone: row.location().to_owned(),
        spot: row.spot(),
        price_of_small: Some(row.price()),
    })
}

/// One host of each slice that has several.
fn hosts(sold: &Sold) -> Vec<Item> {
    let Some(version) = VERSIONS.iter().find(|version| version.name == sold.version) else {
        return Vec::new();
    };
    let host = |size: &u32| {
        let name = format!("{}-{size}", version.name);
        let price = price(version, *size, sold)? / f64::from(hosts_of(&name)?);
        Some(Item {
            price,
            cpu: version.cpus,
            memory: version.memory_gib,
            gpu_count: 1,
            gpu_name: Some(name.clone()),
            gpu_memory: Some(version.hbm_gib),
            gpu_vendor: Some(Vendor::Google),
            spot: sold.spot,
            disk_size: Some(TPU_DISK_GB),
            ..Item::new(Provider::Private, name, sold.zone.as_str())
        })
    };
    version.sizes.iter().filter_map(host).collect()
}

/// Dollars an hour of a whole slice.
fn price(version: &Version, size: u32, sold: &Sold) -> Option<f64> {
    let chips = |size: u32| chips_of(&format!("{}-{size}", version.name)).map(f64::from);
    let of_slice = chips(size)?;
    match version.is_listed {
        true => {
            let region = region_of(&sold.zone);
            tpu_list_price(version.name, size.into(), region, of_slice, sold.spot)
        }
        false => Some(sold.price_of_small? / chips(8)? * of_slice),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn priced(version: &'static str, zone: &str, price_of_small: Option<f64>) -> Vec<(String, f64)> {
        let sold = Sold {
            version,
            zone: zone.to_owned(),
            spot: false,
            price_of_small,
        };
        let hosts = hosts(&sold).into_iter();
        hosts.map(|item| (item.instance_name, item.price)).collect()
    }

    #[test]
    fn a_host_costs_its_share_of_the_slice() {
        // Eight chips at 1.20 each: a host has four.
        let v5e = priced("v5litepod", "us-central1-a", Some(9.6));
        assert_eq!(v5e.len(), 5);
        assert!(v5e.iter().all(|(_, price)| (price - 4.8).abs() < 1e-9), "{v5e:?}");
        // Four chips at 4.20 each.
        let v5p = priced("v5p", "us-east5-a", Some(16.8));
        assert!(
            v5p.iter().all(|(_, price)| (price - 16.8).abs() < 1e-9),
            "{v5p:?}"
        );
        // Lists have 1.50 for a chip of pods of v2, whatever a small one costs, and know no others.
        let v2 = priced("v2", "us-central1-f", Some(4.5));
        assert_eq!(v2.first(), Some(&("v2-32".to_owned(), 6.0)));
        assert_eq!(priced("v2", "asia-east1-c", Some(4.5)), []);
        let v4 = priced("v4", ZONE_OF_V4, None);
        assert_eq!(v4.first(), Some(&("v4-16".to_owned(), 12.88)));
    }
}
