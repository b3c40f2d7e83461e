use std::collections::BTreeSet;

use dstack_catalog::{Catalog, Filter, Offer, tell_not_offered};
use dstack_catalog_offers::{CatalogQuery, DiskSize, VendorRows, catalog_offers, provider_offers};
use dstack_compute::ComputeError;
use dstack_model::backends::BackendType;
use dstack_model::offers::InstanceOffer;
use dstack_model::runs::Requirements;

/// Offers of the catalogue for requirements, in these regions (`None` or empty: in all), with the catalogue's disks.
///
/// # Errors
/// The requirements contradict themselves.
pub fn offers_in(
    catalog: &Catalog,
    backend: BackendType,
    regions: Option<&[String]>,
    requirements: &Requirements,
) -> Result<Vec<InstanceOffer>, ComputeError> {
    find_offers(catalog, backend, regions, requirements, &|_| true, &|_| {
        DiskSize::Fixed
    })
}

/// As [`offers_in`], of the rows that the catalogue has of this provider.
///
/// # Errors
/// The requirements contradict themselves.
pub fn offers_of_provider(
    catalog: &Catalog,
    provider: &str,
    backend: BackendType,
    regions: Option<&[String]>,
    requirements: &Requirements,
) -> Result<Vec<InstanceOffer>, ComputeError> {
    let query = CatalogQuery {
        backend,
        locations: regions.filter(|regions| !regions.is_empty()),
        requirements,
        accept: &|_| true,
        disk: &|_| DiskSize::Fixed,
    };
    let found = provider_offers(catalog, provider, &query);
    found.map_err(|error| ComputeError::Configuration(error.to_string()))
}

/// As [`offers_in`], of rows that are accepted, with disks of the given sizes.
///
/// # Errors
/// The requirements contradict themselves.
pub fn find_offers(
    catalog: &Catalog,
    backend: BackendType,
    regions: Option<&[String]>,
    requirements: &Requirements,
    accept: &(dyn Fn(&Offer<'_>) -> bool + Sync),
    disk: &(dyn Fn(&Offer<'_>) -> DiskSize + Sync),
) -> Result<Vec<InstanceOffer>, ComputeError> {
    let query = CatalogQuery {
        backend,
        locations: regions.filter(|regions| !regions.is_empty()),
        requirements,
        accept,
        disk,
    };
    catalog_offers(catalog, &query).map_err(|error| ComputeError::Configuration(error.to_string()))
}

/// Tells, once each, which types a vendor has of which the catalogue has nothing, neither a price: they are not offered.
pub fn tell_uncatalogued<'a>(
    catalog: &Catalog,
    provider: &str,
    vendor: &str,
    types: impl IntoIterator<Item = &'a str>,
) {
    let filter = Filter {
        provider: Some(vec![provider.to_owned()]),
        ..Filter::default()
    };
    let named = |rows: dstack_catalog::Offers<'_>| -> BTreeSet<String> {
        rows.map(|row| row.instance_name().to_owned()).collect()
    };
    let Ok(known) = catalog.query(&filter, named) else {
        return;
    };
    for one in types {
        if !known.is_empty() && !known.contains(one) {
            let why = "the catalogue does not have it yet, which has the prices";
            tell_not_offered(vendor, one, why);
        }
    }
}

/// Offers of what a vendor that no catalogue has said it sells, the cheapest first, in these regions (`None` or empty: in all), with
/// the disks of the rows.
///
/// # Errors
/// The requirements contradict themselves.
pub fn vendor_offers(
    rows: &VendorRows,
    backend: BackendType,
    regions: Option<&[String]>,
    requirements: &Requirements,
) -> Result<Vec<InstanceOffer>, ComputeError> {
    let query = CatalogQuery {
        backend,
        locations: regions.filter(|regions| !regions.is_empty()),
        requirements,
        accept: &|_| true,
        disk: &|_| DiskSize::Fixed,
    };
    rows.offers(&query)
        .map_err(|error| ComputeError::Configuration(error.to_string()))
}
