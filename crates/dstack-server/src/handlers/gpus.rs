//! GPUs that could be had, grouped.

use std::collections::{BTreeSet, HashMap, HashSet};

use dstack_api::routes;
use dstack_model::backends::BackendType;
use dstack_model::instances::InstanceAvailability;
use dstack_model::offers::{CpuGroup, GpuGroup, InstanceOfferWithAvailability, SpotKind};
use dstack_model::requests::{ListGpusRequest, ListGpusResponse, OfferGrouping};
use dstack_plan::jobs::{JobContext, Target, job_specs};
use dstack_units::{AcceleratorVendor, Range};
use indexmap::IndexMap;
use indexmap::map::Entry;

use super::runs::Planner;
use crate::api::{Api, Call};
use crate::error::{ApiError, Result};

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::GpusList, _, _>(list)
}

async fn list(call: Call, request: ListGpusRequest) -> Result<ListGpusResponse> {
    let (state, spec) = (&call.state, request.run_spec);
    let defaults = state.edge.settings.defaults();
    let context = JobContext {
        server: &defaults,
        images: &std::collections::BTreeMap::new(),
        target: Target::Container,
    };
    let (offers, notices) = match job_specs(&spec, 0, None, &context)?.first() {
        Some(job) => {
            let mut planner =
                Planner::new(&state.data, &state.control, call.project()?, &spec, Vec::new()).await?;
            let mut found = planner.offers(job, true).await?;
            found.instances.append(&mut found.new);
            (found.instances, planner.missing())
        }
        None => Default::default(),
    };
    let by = Grouping::new(request.group_by.as_deref().unwrap_or_default())?;
    let gpu = spec.configuration.base().resources.gpu.as_ref();
    if gpu.is_some_and(|gpu| gpu.count.max == Some(0)) {
        return Ok(ListGpusResponse {
            gpus: Vec::new(),
            cpus: Some(cpu_groups(&offers, by, request.reverse)),
            notices,
        });
    }
    Ok(ListGpusResponse {
        gpus: gpu_groups(&offers, by, request.reverse),
        cpus: None,
        notices,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Gpus<'a> {
    backend: BackendType,
    name: &'a str,
    memory_mib: i64,
    vendor: AcceleratorVendor,
    count: i64,
    spot: SpotKind,
    region: &'a str,
}

/// GPUs as they are offered.
#[derive(Debug, Clone, Copy)]
struct Offered<'a> {
    gpus: Gpus<'a>,
    price: f64,
    availability: InstanceAvailability,
}

/// Offers as GPUs by backend; of those that are alike only the first counts.
fn gpus_of(offers: &[InstanceOfferWithAvailability]) -> Vec<Offered<'_>> {
    let mut backends: Vec<BackendType> = Vec::new();
    let mut seen: HashSet<Gpus<'_>> = HashSet::new();
    let mut found: Vec<Offered<'_>> = Vec::new();
    for offer in offers {
        if !backends.contains(&offer.backend) {
            backends.push(offer.backend);
        }
        for gpus in kinds_of(offer) {
            if seen.insert(gpus) {
                found.push(Offered {
                    gpus,
                    price: offer.price,
                    availability: offer.availability,
                });
            }
        }
    }
    found.sort_by(|a, b| {
        let place = |offered: &Offered<'_>| backends.iter().position(|other| *other == offered.gpus.backend);
        place(a)
            .cmp(&place(b))
            .then(
                a.availability
                    .is_available()
                    .cmp(&b.availability.is_available())
                    .reverse(),
            )
            .then_with(|| a.gpus.vendor.as_str().cmp(b.gpus.vendor.as_str()))
            .then_with(|| a.gpus.name.cmp(b.gpus.name))
            .then(a.gpus.memory_mib.cmp(&b.gpus.memory_mib))
    });
    found
}

/// The GPUs of one offer, by kind.
fn kinds_of(offer: &InstanceOfferWithAvailability) -> Vec<Gpus<'_>> {
    let resources = &offer.instance.resources;
    let mut kinds: Vec<Gpus<'_>> = Vec::new();
    for gpu in &resources.gpus {
        let Some(vendor) = gpu.vendor else { continue };
        let same = |kind: &&mut Gpus<'_>| {
            (kind.name, kind.memory_mib, kind.vendor) == (gpu.name.as_str(), gpu.memory_mib, vendor)
        };
        match kinds.iter_mut().find(same) {
            Some(kind) => kind.count += 1,
            None => kinds.push(Gpus {
                backend: offer.backend,
                name: &gpu.name,
                memory_mib: gpu.memory_mib,
                vendor,
                count: 1,
                spot: spot(resources.spot),
                region: &offer.region,
            }),
        }
    }
    kinds
}

fn spot(spot: bool) -> SpotKind {
    if spot { SpotKind::Spot } else { SpotKind::OnDemand }
}

/// What the GPUs of one group have in common.
#[derive(PartialEq, Eq, Hash)]
struct Group<'a> {
    name: &'a str,
    memory_mib: i64,
    vendor: AcceleratorVendor,
    backend: Option<BackendType>,
    region: Option<&'a str>,
    count: Option<i64>,
}

impl<'a> Group<'a> {
    fn new(gpus: &Gpus<'a>, by: Grouping) -> Self {
        Self {
            name: gpus.name,
            memory_mib: gpus.memory_mib,
            vendor: gpus.vendor,
            backend: by.backend.then_some(gpus.backend),
            region: by.region.then_some(gpus.region),
            count: by.count.then_some(gpus.count),
        }
    }
}

fn gpu_groups(offers: &[InstanceOfferWithAvailability], by: Grouping, reverse: bool) -> Vec<GpuGroup> {
    let mut groups: IndexMap<Group<'_>, GpuGroup> = IndexMap::new();
    for offered in gpus_of(offers) {
        match groups.entry(Group::new(&offered.gpus, by)) {
            Entry::Occupied(group) => extend(group.into_mut(), &offered),
            Entry::Vacant(place) => {
                place.insert(group_of(&offered, by));
            }
        }
    }
    let mut groups: Vec<GpuGroup> = groups.into_values().collect();
    if by.backend && !by.region {
        let regions = regions_by_backend(offers);
        for group in &mut groups {
            group.regions = group.backend.and_then(|backend| regions.get(&backend).cloned());
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
fn each(offered: &Offered<'_>) -> f64 {
    offered.price / offered.gpus.count.max(1) as f64
}

/// Where a backend offers anything, in alphabetical order.
fn regions_by_backend(offers: &[InstanceOfferWithAvailability]) -> HashMap<BackendType, Vec<String>> {
    let mut regions: HashMap<BackendType, BTreeSet<&str>> = HashMap::new();
    for offer in offers {
        regions.entry(offer.backend).or_default().insert(&offer.region);
    }
    let texts = |(backend, regions): (BackendType, BTreeSet<&str>)| {
        (backend, regions.into_iter().map(str::to_owned).collect())
    };
    regions.into_iter().map(texts).collect()
}

fn group_of(offered: &Offered<'_>, by: Grouping) -> GpuGroup {
    let gpus = &offered.gpus;
    GpuGroup {
        name: gpus.name.to_owned(),
        memory_mib: gpus.memory_mib,
        vendor: gpus.vendor,
        availability: vec![offered.availability],
        spot: vec![gpus.spot],
        count: both(gpus.count),
        price: both(each(offered)),
        offer_price: Some(both(offered.price)),
        backends: (!by.backend).then(|| vec![gpus.backend]),
        backend: by.backend.then_some(gpus.backend),
        regions: None,
        region: by.region.then(|| gpus.region.to_owned()),
    }
}

fn extend(group: &mut GpuGroup, offered: &Offered<'_>) {
    let gpus = &offered.gpus;
    if !group.availability.contains(&offered.availability) {
        group.availability.push(offered.availability);
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
    widen(&mut group.price, each(offered));
    if let Some(price) = &mut group.offer_price {
        widen(price, offered.price);
    }
}

fn widen(range: &mut Range<f64>, value: f64) {
    range.min = range.min.map(|min| min.min(value));
    range.max = range.max.map(|max| max.max(value));
}

fn cpu_groups(offers: &[InstanceOfferWithAvailability], by: Grouping, reverse: bool) -> Vec<CpuGroup> {
    type Key<'a> = (Option<BackendType>, Option<&'a str>, Option<i64>);
    let mut groups: IndexMap<Key<'_>, Vec<&InstanceOfferWithAvailability>> = IndexMap::new();
    for offer in offers
        .iter()
        .filter(|offer| offer.instance.resources.gpus.is_empty())
    {
        let key = (
            by.backend.then_some(offer.backend),
            by.region.then_some(&*offer.region),
            by.count.then_some(offer.instance.resources.cpus),
        );
        groups.entry(key).or_default().push(offer);
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
    let regions: BTreeSet<&str> = group.iter().map(|offer| &*offer.region).collect();
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
        regions: (backend.is_some() && region.is_none())
            .then(|| regions.into_iter().map(str::to_owned).collect()),
        region: region.map(str::to_owned),
    }
}
