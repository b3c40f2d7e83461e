//! GPUs that could be had, grouped.

use dstack_api::routes;
use dstack_model::backends::BackendType;
use dstack_model::instances::InstanceAvailability;
use dstack_model::offers::{CpuGroup, GpuGroup, InstanceOfferWithAvailability, SpotKind};
use dstack_model::requests::{ListGpusRequest, ListGpusResponse, OfferGrouping};
use dstack_plan::jobs::{JobContext, job_specs};
use dstack_units::{AcceleratorVendor, Range};

use super::runs::Planner;
use crate::api::{Api, Call};
use crate::error::{ApiError, Result};

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::GpusList, _, _>(list)
}

async fn list(call: Call, request: ListGpusRequest) -> Result<ListGpusResponse> {
    let (state, spec) = (&call.state, request.run_spec);
    let defaults = state.settings.defaults();
    let context = JobContext {
        server: &defaults,
        images: &std::collections::BTreeMap::new(),
        target: state.target,
    };
    let offers = match job_specs(&spec, 0, None, &context)?.first() {
        Some(job) => {
            let mut planner = Planner::new(state, call.project()?, &spec, Vec::new()).await?;
            let found = planner.offers(job, true).await?;
            [found.instances, found.new].concat()
        }
        None => Vec::new(),
    };
    let by = Grouping::new(request.group_by.as_deref().unwrap_or_default())?;
    let gpu = spec.configuration.base().resources.gpu.as_ref();
    if gpu.is_some_and(|gpu| gpu.count.max == Some(0)) {
        return Ok(ListGpusResponse {
            gpus: Vec::new(),
            cpus: Some(cpu_groups(&offers, by, request.reverse)),
        });
    }
    Ok(ListGpusResponse {
        gpus: gpu_groups(&offers, by, request.reverse),
        cpus: None,
    })
}

#[derive(Debug, Clone, Copy)]
struct Grouping {
    backend: bool,
    region: bool,
    count: bool,
}

impl Grouping {
    fn new(by: &[OfferGrouping]) -> Result<Self> {
        let has = |one| by.contains(&one);
        let grouping = Self {
            backend: has(OfferGrouping::Backend),
            region: has(OfferGrouping::Region),
            count: has(OfferGrouping::Count),
        };
        if grouping.region && !grouping.backend {
            return Err(ApiError::client(
                "Cannot group by 'region' without also grouping by 'backend'",
            ));
        }
        Ok(grouping)
    }
}

/// GPUs of one kind in one offer.
#[derive(Debug, Clone, PartialEq)]
struct Gpus {
    backend: BackendType,
    name: String,
    memory_mib: i64,
    vendor: AcceleratorVendor,
    count: i64,
    spot: SpotKind,
    region: String,
    price: f64,
    availability: InstanceAvailability,
}

/// Offers as GPUs by backend; of those that are alike only the first counts.
fn gpus_of(offers: &[InstanceOfferWithAvailability]) -> Vec<Gpus> {
    let mut backends: Vec<BackendType> = Vec::new();
    let mut found: Vec<Gpus> = Vec::new();
    for offer in offers {
        if !backends.contains(&offer.backend) {
            backends.push(offer.backend);
        }
        let resources = &offer.instance.resources;
        let mut kinds: Vec<(&str, i64, AcceleratorVendor, i64)> = Vec::new();
        for gpu in &resources.gpus {
            let Some(vendor) = gpu.vendor else { continue };
            match kinds
                .iter_mut()
                .find(|kind| (kind.0, kind.1, kind.2) == (gpu.name.as_str(), gpu.memory_mib, vendor))
            {
                Some(kind) => kind.3 += 1,
                None => kinds.push((&gpu.name, gpu.memory_mib, vendor, 1)),
            }
        }
        for (name, memory_mib, vendor, count) in kinds {
            let gpus = Gpus {
                backend: offer.backend,
                name: name.to_owned(),
                memory_mib,
                vendor,
                count,
                spot: spot(resources.spot),
                region: offer.region.clone(),
                price: offer.price,
                availability: offer.availability,
            };
            let alike = |other: &&Gpus| {
                Gpus {
                    price: gpus.price,
                    availability: gpus.availability,
                    ..(*other).clone()
                } == gpus
            };
            if !found.iter().any(|other| alike(&other)) {
                found.push(gpus);
            }
        }
    }
    found.sort_by(|a, b| {
        let place = |backend: &BackendType| backends.iter().position(|other| other == backend);
        place(&a.backend)
            .cmp(&place(&b.backend))
            .then(
                a.availability
                    .is_available()
                    .cmp(&b.availability.is_available())
                    .reverse(),
            )
            .then_with(|| a.vendor.as_str().cmp(b.vendor.as_str()))
            .then_with(|| a.name.cmp(&b.name))
            .then(a.memory_mib.cmp(&b.memory_mib))
    });
    found
}

fn spot(spot: bool) -> SpotKind {
    if spot { SpotKind::Spot } else { SpotKind::OnDemand }
}

fn gpu_groups(offers: &[InstanceOfferWithAvailability], by: Grouping, reverse: bool) -> Vec<GpuGroup> {
    let mut groups: Vec<GpuGroup> = Vec::new();
    for gpus in gpus_of(offers) {
        let belongs = |group: &GpuGroup| {
            (group.name.as_str(), group.memory_mib, group.vendor)
                == (gpus.name.as_str(), gpus.memory_mib, gpus.vendor)
                && (!by.backend || group.backend == Some(gpus.backend))
                && (!by.region || group.region.as_deref() == Some(gpus.region.as_str()))
                && (!by.count || group.count.min == Some(gpus.count))
        };
        match groups.iter_mut().find(|group| belongs(group)) {
            Some(group) => extend(group, &gpus),
            None => groups.push(group_of(&gpus, offers, by)),
        }
    }
    let available = |group: &GpuGroup| group.availability.iter().any(|one| one.is_available());
    let cmp = |a: Option<f64>, b: Option<f64>| a.unwrap_or(0.0).total_cmp(&b.unwrap_or(0.0));
    groups.sort_by(|a, b| {
        available(b)
            .cmp(&available(a))
            .then(cmp(a.price.min, b.price.min))
            .then(cmp(a.price.max, b.price.max))
            .then_with(|| {
                a.backend
                    .map(BackendType::as_str)
                    .cmp(&b.backend.map(BackendType::as_str))
            })
            .then_with(|| a.region.cmp(&b.region))
            .then_with(|| a.name.cmp(&b.name))
            .then(a.memory_mib.cmp(&b.memory_mib))
    });
    if reverse {
        let whole = |group: &GpuGroup| group.offer_price.unwrap_or(group.price);
        groups.sort_by(|a, b| {
            let (x, y) = (whole(a), whole(b));
            available(b)
                .cmp(&available(a))
                .then(cmp(y.min, x.min))
                .then(cmp(y.max, x.max))
        });
    }
    groups
}

fn both<T: Clone>(value: T) -> Range<T> {
    Range {
        min: Some(value.clone()),
        max: Some(value),
    }
}

#[allow(clippy::cast_precision_loss)] // GPUs of one machine
fn each(gpus: &Gpus) -> f64 {
    gpus.price / gpus.count.max(1) as f64
}

fn group_of(gpus: &Gpus, offers: &[InstanceOfferWithAvailability], by: Grouping) -> GpuGroup {
    let regions = || {
        let mut regions: Vec<String> = offers
            .iter()
            .filter(|offer| offer.backend == gpus.backend)
            .map(|offer| offer.region.clone())
            .collect();
        regions.sort();
        regions.dedup();
        regions
    };
    GpuGroup {
        name: gpus.name.clone(),
        memory_mib: gpus.memory_mib,
        vendor: gpus.vendor,
        availability: vec![gpus.availability],
        spot: vec![gpus.spot],
        count: both(gpus.count),
        price: both(each(gpus)),
        offer_price: Some(both(gpus.price)),
        backends: (!by.backend).then(|| vec![gpus.backend]),
        backend: by.backend.then_some(gpus.backend),
        regions: (by.backend && !by.region).then(regions),
        region: by.region.then(|| gpus.region.clone()),
    }
}

fn extend(group: &mut GpuGroup, gpus: &Gpus) {
    if !group.availability.contains(&gpus.availability) {
        group.availability.push(gpus.availability);
    }
    if !group.spot.contains(&gpus.spot) {
        group.spot.push(gpus.spot);
    }
    if let Some(backends) = &mut group.backends
        && !backends.contains(&gpus.backend)
    {
        backends.push(gpus.backend);
    }
    group.count.min = group.count.min.map(|min| min.min(gpus.count));
    group.count.max = group.count.max.map(|max| max.max(gpus.count));
    widen(&mut group.price, each(gpus));
    if let Some(price) = &mut group.offer_price {
        widen(price, gpus.price);
    }
}

fn widen(range: &mut Range<f64>, value: f64) {
    range.min = range.min.map(|min| min.min(value));
    range.max = range.max.map(|max| max.max(value));
}

fn cpu_groups(offers: &[InstanceOfferWithAvailability], by: Grouping, reverse: bool) -> Vec<CpuGroup> {
    type Key<'a> = (Option<BackendType>, Option<&'a str>, Option<i64>);
    let mut groups: Vec<(Key<'_>, Vec<&InstanceOfferWithAvailability>)> = Vec::new();
    for offer in offers
        .iter()
        .filter(|offer| offer.instance.resources.gpus.is_empty())
    {
        let key = (
            by.backend.then_some(offer.backend),
            by.region.then_some(offer.region.as_str()),
            by.count.then_some(offer.instance.resources.cpus),
        );
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, group)) => group.push(offer),
            None => groups.push((key, vec![offer])),
        }
    }
    let mut rows: Vec<CpuGroup> = groups
        .iter()
        .map(|(key, group)| cpu_group(key.0, key.1, group))
        .collect();
    let sign = if reverse { -1.0 } else { 1.0 };
    let available = |row: &CpuGroup| row.availability.iter().any(|one| one.is_available());
    let price = |end: Option<f64>| sign * end.unwrap_or(0.0);
    rows.sort_by(|a, b| {
        available(b)
            .cmp(&available(a))
            .then(price(a.price.min).total_cmp(&price(b.price.min)))
            .then(price(a.price.max).total_cmp(&price(b.price.max)))
            .then_with(|| {
                a.backend
                    .map(BackendType::as_str)
                    .cmp(&b.backend.map(BackendType::as_str))
            })
            .then_with(|| a.region.cmp(&b.region))
            .then(a.count.min.cmp(&b.count.min))
    });
    rows
}

fn cpu_group(
    backend: Option<BackendType>,
    region: Option<&str>,
    group: &[&InstanceOfferWithAvailability],
) -> CpuGroup {
    let range = |value: &dyn Fn(&InstanceOfferWithAvailability) -> i64| Range {
        min: group.iter().map(|offer| value(offer)).min(),
        max: group.iter().map(|offer| value(offer)).max(),
    };
    let mut cpu_arch: Vec<_> = group
        .iter()
        .filter_map(|offer| offer.instance.resources.cpu_arch)
        .collect();
    cpu_arch.sort_by_key(ToString::to_string);
    cpu_arch.dedup();
    let mut availability = Vec::new();
    for offer in group {
        if !availability.contains(&offer.availability) {
            availability.push(offer.availability);
        }
    }
    let sorted = |mut texts: Vec<BackendType>| {
        texts.sort_by_key(|backend| backend.as_str());
        texts.dedup();
        texts
    };
    let mut spots: Vec<SpotKind> = group
        .iter()
        .map(|offer| spot(offer.instance.resources.spot))
        .collect();
    spots.sort_by_key(|spot| spot.as_str());
    spots.dedup();
    let mut regions: Vec<String> = group.iter().map(|offer| offer.region.clone()).collect();
    regions.sort();
    regions.dedup();
    CpuGroup {
        cpu_arch,
        count: range(&|offer| offer.instance.resources.cpus),
        memory_mib: range(&|offer| offer.instance.resources.memory_mib),
        price: Range {
            min: group.iter().map(|offer| offer.price).reduce(f64::min),
            max: group.iter().map(|offer| offer.price).reduce(f64::max),
        },
        availability,
        spot: spots,
        backends: backend
            .is_none()
            .then(|| sorted(group.iter().map(|offer| offer.backend).collect())),
        backend,
        regions: (backend.is_some() && region.is_none()).then_some(regions),
        region: region.map(str::to_owned),
    }
}
