//! What the marketplace has. Each request has a search of its own: the marketplace answers with its best 64 offers, unless it is asked
//! for more.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError};

use dstack_backend::{Cached, vendor_offers};
use dstack_catalog::collectors::vastai::{Constraints, Search};
use dstack_catalog::{Filter, Item};
use dstack_catalog_offers::{VendorRows, filter};
use dstack_compute::ComputeError;
use dstack_model::backends::BackendType;
use dstack_model::instances::{InstanceAvailability, InstanceRuntime};
use dstack_model::offers::{InstanceOffer, InstanceOfferWithAvailability};
use dstack_model::profiles::{VastAiOfferOrder, VastAiProfileOptions};
use dstack_model::runs::Requirements;
use dstack_units::Memory;
use serde_json::{Value, json};

use crate::{OFFERS_LIFETIME, STALE_LIFETIME, VastAi};

/// Least reliability of hosts, unless the profile has another.
const MIN_RELIABILITY: f64 = 0.9;

/// Smallest disk of a container in GB: what the marketplace gives when none is named.
const MIN_DISK_GB: f64 = 8.0;

/// Offers that are asked for when some of them will not do: places cannot be searched for by the names that we have, for one.
const MANY: i64 = 3000;

/// GB of memory that nearly each offer has.
const COMMON_MEMORY_GB: f64 = 8.0;

/// Searches whose answers are kept.
const MOST_SEARCHES: usize = 10;

/// Answers to searches, the latest last.
pub(crate) type Searches = Vec<(String, Arc<Cached<Vec<Item>>>)>;

impl VastAi {
    pub(crate) async fn find_offers(
        &self,
        requirements: &Requirements,
    ) -> Result<Vec<InstanceOfferWithAvailability>, ComputeError> {
        let options = options(requirements);
        let by_price = options.and_then(|options| options.offer_order) == Some(VastAiOfferOrder::Price);
        let filter = search_filter(requirements);
        let search = Search {
            extra: constraints(requirements, options),
            community_cloud: self.may_use_community,
            order: vec![match by_price {
                true => ("dph_base".to_owned(), "asc".to_owned()),
                false => ("score".to_owned(), "desc".to_owned()),
            }],
        };
        let mut body = search.body(&filter);
        if let Some(body) = body
            .as_object_mut()
            .filter(|_| self.regions.is_some() || is_judged_here(requirements))
        {
            body.insert("limit".to_owned(), json!(MANY));
        }
        let fetch = async || {
            let answer = self.client.search(&body).await?;
            let items = search.items(&filter, &answer);
            let mut items = items.map_err(|error| ComputeError::Unclear(error.to_string()))?;
            items.retain(|item| !item.location.is_empty());
            Ok(items)
        };
        let items = self.answers_to(&body).get(fetch).await?;
        let rows = VendorRows::new(items.to_vec());
        let mut offers = vendor_offers(&rows, BackendType::VastAi, self.regions.as_deref(), requirements)?;
        if !by_price {
            let ranks: HashMap<&str, usize> = items
                .iter()
                .enumerate()
                .map(|(rank, item)| (item.instance_name.as_str(), rank))
                .collect();
            offers.sort_by_key(|offer| ranks.get(offer.instance.name.as_str()).copied());
        }
        let is_free = |offer: &InstanceOffer| self.taken.why(&offer.instance.name).is_none();
        let available = offers.into_iter().filter(is_free);
        Ok(available
            .map(|offer| offer.with_availability(InstanceAvailability::Available, InstanceRuntime::Runner))
            .collect())
    }

    /// Where the answer to a search is kept.
    fn answers_to(&self, body: &Value) -> Arc<Cached<Vec<Item>>> {
        let body = body.to_string();
        let mut searches = self.searches.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = searches.iter().find(|(known, _)| *known == body) {
            return Arc::clone(known);
        }
        if searches.len() >= MOST_SEARCHES {
            searches.remove(0);
        }
        let clock = Arc::clone(&self.kind.env.clock);
        let new = Arc::new(Cached::new(clock, OFFERS_LIFETIME, STALE_LIFETIME));
        searches.push((body, Arc::clone(&new)));
        new
    }
}

fn options(requirements: &Requirements) -> Option<&VastAiProfileOptions> {
    requirements.backend_options.as_deref()?.first()
}

/// What the search says of a request. Lower bounds of a host are its parts' too; upper ones are judged by the parts.
fn search_filter(requirements: &Requirements) -> Filter {
    let wanted = requirements.resources.disk.unwrap_or_default().size.min;
    let spot_only = requirements.spot == Some(true);
    let bounds = filter(requirements);
    Filter {
        max_cpu: None,
        max_memory: None,
        // The price that is searched by is that on demand; a bid may be lower.
        max_price: bounds.max_price.filter(|_| requirements.spot == Some(false)),
        spot: spot_only.then_some(true),
        // The disk is made in the size that is asked for.
        min_disk_size: Some(wanted.map_or(0.0, Memory::gb).max(MIN_DISK_GB)),
        ..bounds
    }
}

/// Whether an offer may be found that will not do. The memory of a part, and the price with the disk, cannot be searched for; sizes of
/// GPUs are told a little too large or small.
fn is_judged_here(requirements: &Requirements) -> bool {
    let filter = filter(requirements);
    let bounds = [
        filter.max_memory,
        filter.max_price,
        filter.min_gpu_memory,
        filter.max_gpu_memory,
        filter.min_total_gpu_memory,
        filter.max_total_gpu_memory,
    ];
    bounds.iter().any(Option::is_some) || filter.min_memory.is_some_and(|least| least > COMMON_MEMORY_GB)
}

/// What the containers need: a port of their own, CUDA 12.8 and Pascal or later for the default image, a connection that pulls images
/// in time, a host that was verified.
fn constraints(requirements: &Requirements, options: Option<&VastAiProfileOptions>) -> Constraints {
    let reliability = options.and_then(|options| options.min_reliability);
    let mut all = Constraints::new();
    let mut set = |field: &str, operator: &str, value: Value| {
        let field: &mut BTreeMap<String, Value> = all.entry(field.to_owned()).or_default();
        field.insert(operator.to_owned(), value);
    };
    set("direct_port_count", "gte", json!(1));
    set(
        "reliability2",
        "gte",
        json!(reliability.unwrap_or(MIN_RELIABILITY)),
    );
    set("inet_down", "gt", json!(128));
    set("verified", "eq", json!(true));
    set("cuda_max_good", "gte", json!(12.8));
    set("compute_cap", "gte", json!(600));
    if let Some(score) = options.and_then(|options| options.min_score) {
        set("score", "gte", json!(score));
    }
    let bounds = filter(requirements);
    // As wide as sizes of GPUs are corrected.
    if let Some(least) = bounds.min_total_gpu_memory {
        set("gpu_total_ram", "gte", json!(least * 1024.0 * 0.93));
    }
    if let Some(most) = bounds.max_total_gpu_memory {
        set("gpu_total_ram", "lte", json!(most * 1024.0 * 1.07));
    }
    if requirements.spot == Some(true) {
        set("min_bid", "gt", json!(0));
        if let Some(most) = bounds.max_price {
            set("min_bid", "lte", json!(most));
        }
    }
    // An offer has the whole part of these.
    let cpus = requirements.resources.cpu.count;
    if let Some(least) = cpus.min {
        set("cpu_cores_effective", "gte", json!(least));
    }
    if let Some(most) = cpus.max {
        set("cpu_cores_effective", "lt", json!(most.saturating_add(1)));
    }
    all
}
