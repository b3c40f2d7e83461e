//! Vast.ai: a public search over its marketplace, ranked by the marketplace itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value, json};

use super::json::Json;
use crate::accelerators::correct_memory_gib;
use crate::collect::round_to;
use crate::http::Http;
use crate::{CollectError, Filter, Item, OnlineProvider, Provider, ProviderData, Vendor};

/// Where the search is.
pub const BUNDLES_URL: &str = "https://console.vast.ai/api/v0/bundles/";

/// Field → operator (`lt`, `lte`, `eq`, `gte`, `gt`) → value.
pub type Constraints = BTreeMap<String, BTreeMap<String, Value>>;

/// What is searched for, besides what a filter says.
#[derive(Debug)]
pub struct Search {
    /// Constraints of the caller, merged with those of the filter: the stricter counts.
    pub extra: Constraints,
    /// Also hosts outside data centres.
    pub community_cloud: bool,
    /// Ranking: field and direction.
    pub order: Vec<(String, String)>,
}

/// Asks Vast.ai for offers.
#[derive(Debug)]
pub struct VastaiCollector {
    /// Where the search is.
    pub url: String,
    /// What is searched for.
    pub search: Search,
    /// For the request.
    pub http: Arc<Http>,
}

impl VastaiCollector {
    /// The whole marketplace, best score first.
    pub fn new(http: Arc<Http>) -> Self {
        Self {
            url: BUNDLES_URL.to_owned(),
            search: Search::default(),
            http,
        }
    }
}

impl Default for Search {
    /// The whole marketplace, best score first.
    fn default() -> Self {
        Self {
            extra: Constraints::new(),
            community_cloud: true,
            order: vec![("score".to_owned(), "desc".to_owned())],
        }
    }
}

impl Search {
    /// The body of the request.
    pub fn body(&self, filter: &Filter) -> Value {
        let (constraints, unmapped) = self.constraints(filter);
        let mut body: Map<String, Value> = constraints
            .iter()
            .map(|(field, ops)| (field.clone(), json!(ops)))
            .collect();
        if unmapped {
            // Of a model, no name of the marketplace is known: take many and filter here.
            body.insert("limit".to_owned(), json!(3000));
        }
        body.insert("order".to_owned(), json!(self.order));
        Value::Object(body)
    }

    /// The offers of the answer, in its order.
    ///
    /// # Errors
    /// It is not what the marketplace is known to send.
    pub fn items(&self, filter: &Filter, answer: &Value) -> Result<Vec<Item>, CollectError> {
        let (constraints, _) = self.constraints(filter);
        let Some(offers) = answer.at("offers").as_array() else {
            return Err(CollectError::unexpected(Provider::Vastai, "no list `offers`"));
        };
        let accepted = offers.iter().filter(|offer| satisfies(offer, &constraints));
        Ok(accepted
            .filter_map(|offer| variants(offer, filter))
            .flatten()
            .collect())
    }

    fn constraints(&self, filter: &Filter) -> (Constraints, bool) {
        let mut all = Constraints::new();
        let mut set = |field: &str, op: &str, value: Value| {
            all.entry(field.to_owned())
                .or_default()
                .insert(op.to_owned(), value);
        };
        let bounds = [
            (
                "cpu_cores",
                filter.min_cpu.map(Value::from),
                filter.max_cpu.map(Value::from),
            ),
            (
                "cpu_ram",
                filter.min_memory.map(|gb| json!(gb * 1000.0)),
                filter.max_memory.map(|gb| json!(gb * 1000.0)),
            ),
            (
                "num_gpus",
                filter.min_gpu_count.map(Value::from),
                filter.max_gpu_count.map(Value::from),
            ),
            // As wide as memory sizes are corrected.
            (
                "gpu_ram",
                filter.min_gpu_memory.map(|gib| json!(gib * 1024.0 * 0.93)),
                filter.max_gpu_memory.map(|gib| json!(gib * 1024.0 * 1.07)),
            ),
            (
                "disk_space",
                filter.min_disk_size.map(Value::from),
                filter.max_disk_size.map(Value::from),
            ),
            (
                "dph_total",
                filter.min_price.map(Value::from),
                filter.max_price.map(Value::from),
            ),
            (
                "compute_cap",
                filter.min_compute_capability.map(compute_cap),
                filter.max_compute_capability.map(compute_cap),
            ),
        ];
        for (field, min, max) in bounds {
            if let Some(min) = min {
                set(field, "gte", min);
            }
            if let Some(max) = max {
                set(field, "lte", max);
            }
        }
        let mut unmapped = false;
        if let Some(names) = filter.gpu_name.as_ref().filter(|names| !names.is_empty()) {
            let names: Vec<Vec<String>> = names.iter().map(|name| vast_names(name)).collect();
            unmapped = names.iter().any(Vec::is_empty);
            if !unmapped {
                set("gpu_name", "in", json!(names.concat()));
            }
        }
        if !self.community_cloud {
            set("datacenter", "eq", json!(true));
        }
        set("rentable", "eq", json!(true));
        set("rented", "eq", json!(false));
        for (field, ops) in &self.extra {
            for (op, value) in ops {
                let slot = all.entry(field.clone()).or_default().entry(op.clone());
                slot.and_modify(|known| *known = stricter(op, known, value))
                    .or_insert_with(|| value.clone());
            }
        }
        (all, unmapped)
    }
}

#[async_trait]
impl OnlineProvider for VastaiCollector {
    fn provider(&self) -> Provider {
        Provider::Vastai
    }

    async fn offers(&self, filter: &Filter, _: bool) -> Result<Vec<Item>, CollectError> {
        let answer: Value = self
            .http
            .post_json(&self.url, &self.search.body(filter))
            .await
            .map_err(CollectError::http(Provider::Vastai))?;
        self.search.items(filter, &answer)
    }
}

fn compute_cap((major, minor): (i64, i64)) -> Value {
    json!(major * 100 + minor * 10)
}

fn stricter(op: &str, known: &Value, new: &Value) -> Value {
    let (Some(a), Some(b)) = (known.as_f64(), new.as_f64()) else {
        return new.clone();
    };
    let keep = match op {
        "gte" | "gt" => a >= b,
        "lte" | "lt" => a <= b,
        _ => false,
    };
    if keep { known.clone() } else { new.clone() }
}

/// The marketplace answers loosely: judge again what it says about each offer.
fn satisfies(offer: &Value, constraints: &Constraints) -> bool {
    constraints.iter().all(|(field, ops)| {
        let Some(is) = offer.get(field) else { return true };
        if field == "datacenter" || field == "external" {
            return true;
        }
        ops.iter()
            .all(|(op, value)| match (op.as_str(), is.as_f64(), value.as_f64()) {
                ("eq", Some(is), Some(value)) => is == value,
                ("eq", ..) => is == value,
                ("lt", Some(is), Some(value)) => is < value,
                ("lte", Some(is), Some(value)) => is <= value,
                ("gte", Some(is), Some(value)) => is >= value,
                ("gt", Some(is), Some(value)) => is > value,
                _ => true,
            })
    })
}

/// An offer becomes an on-demand one and, if it can be bid for, a spot one; the cheaper first.
fn variants(offer: &Value, filter: &Filter) -> Option<Vec<Item>> {
    let cores = offer.number("cpu_cores").filter(|cores| *cores != 0.0)?;
    let effective = offer.number("cpu_cores_effective")?;
    let cpu = effective as i64;
    let memory = round_to(offer.number("cpu_ram")? * effective / cores / 1000.0, 2);
    if cpu < 1 || memory <= 0.0 {
        return None;
    }
    let disk = filter
        .min_disk_size
        .filter(|disk| *disk != 0.0)
        .or_else(|| offer.number("disk_space"))?;
    // USD per GB and month
    let disk_cost = disk * offer.number("storage_cost")? / 30.0 / 24.0;
    let gpu_name = our_name(offer.text("gpu_name")?);
    let gpu_count = offer.int("num_gpus")?;
    let id = match offer.at("id") {
        Value::String(id) => id.clone(),
        id => id.to_string(),
    };
    let on_demand = Item {
        price: round_to(offer.number("dph_base")? + disk_cost, 5),
        cpu,
        memory,
        gpu_count,
        gpu_memory: Some(correct_memory_gib(&gpu_name, offer.number("gpu_ram")?)),
        gpu_name: Some(gpu_name),
        gpu_vendor: (gpu_count != 0).then_some(Vendor::Nvidia),
        disk_size: Some(disk),
        ..Item::new(Provider::Vastai, id, location(offer.text("geolocation")))
    };
    let mut variants = vec![on_demand.clone()];
    if let Some(bid) = offer.number("min_bid").filter(|bid| *bid != 0.0) {
        let spot = Item {
            price: round_to(bid + disk_cost, 5),
            spot: true,
            provider_data: ProviderData::from_value(&json!({"min_bid": offer.at("min_bid")})),
            ..on_demand
        };
        variants.push(spot);
    }
    crate::collect::sort_by_price(&mut variants);
    Some(variants)
}

/// `California, US` → `us-california`.
fn location(place: Option<&str>) -> String {
    let place = place.unwrap_or_default();
    let parts = place.replace(", ", ",");
    let mut parts = parts.split(',');
    let named = match (parts.next(), parts.next(), parts.next()) {
        (Some(city), Some(country), None) => format!("{country}-{city}"),
        _ => place.to_owned(),
    };
    named.to_lowercase().replace(' ', "")
}

/// Names of the marketplace that are not ours with a blank in it.
const NAMES: [(&str, &[&str]); 20] = [
    ("L40S", &["L40S"]),
    ("L40", &["L40"]),
    ("A10", &["A10"]),
    ("A40", &["A40"]),
    ("L4", &["L4"]),
    ("A100X", &["A100X"]),
    ("H200", &["H200"]),
    ("H200NVL", &["H200 NVL"]),
    ("P100", &["Tesla P100"]),
    ("T4", &["Tesla T4"]),
    ("P4", &["Tesla P4"]),
    ("P40", &["Tesla P40"]),
    ("V100", &["Tesla V100"]),
    ("A100", &["A100 PCIE", "A100 SXM4"]),
    ("A800PCIE", &["A800 PCIE"]),
    ("H100", &["H100 PCIE", "H100 SXM"]),
    ("H100NVL", &["H100 NVL"]),
    ("B200", &["B200"]),
    ("B300", &["B300", "B300 PC"]),
    // For workstations and servers.
    ("RTXPRO6000", &["RTX PRO 6000 WS", "RTX PRO 6000 S"]),
];

/// The marketplace's names of a model. Unlike the reference's, this map knows names in any case.
fn vast_names(name: &str) -> Vec<String> {
    let upper = name.to_uppercase();
    if let Some((_, names)) = NAMES.iter().find(|(known, _)| *known == upper) {
        return names.iter().map(|name| (*name).to_owned()).collect();
    }
    let digits = |text: &str| text.len() >= 4 && text.bytes().take(4).all(|byte| byte.is_ascii_digit());
    let named = |prefix: &str| {
        upper
            .strip_prefix(prefix)
            .filter(|rest| digits(rest))
            .map(|rest| rest.split_at(4))
    };
    let one = match (named("RTX"), named("QRTX"), named("A")) {
        (Some((number, "")), ..) => format!("RTX {number}"),
        (Some((number, "ADA")), ..) => format!("RTX {number}Ada"),
        (Some((number, "TI")), ..) => format!("RTX {number} Ti"),
        (Some((number, suffix)), ..) if suffix.chars().count() == 1 => format!("RTX {number}{suffix}"),
        (Some((number, suffix)), ..) if suffix.chars().count() == 3 && suffix.ends_with("TI") => {
            format!("RTX {number}{} Ti", suffix.trim_end_matches("TI"))
        }
        (_, Some((number, "")), _) => format!("Q RTX {number}"),
        (_, _, Some((number, rest))) => format!("RTX A{number}{rest}"),
        _ => return Vec::new(),
    };
    vec![one]
}

/// Our name of a marketplace's model.
fn our_name(name: &str) -> String {
    let name = name.replace("RTX A", "A").replace("Tesla ", "");
    if name.starts_with("A100 ") {
        "A100".to_owned()
    } else if name.starts_with("H100 ") && !name.contains("NVL") {
        "H100".to_owned()
    } else if name == "B300 PC" {
        "B300".to_owned()
    } else if ["RTX PRO 6000 WS", "RTX PRO 6000 S"].contains(&name.as_str()) {
        "RTXPRO6000".to_owned()
    } else {
        name.replace(' ', "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for (ours, theirs) in [
            ("H100", "H100 SXM"),
            ("A100", "A100 PCIE"),
            ("T4", "Tesla T4"),
            ("RTX4090", "RTX 4090"),
            ("RTX4090S", "RTX 4090S"),
            ("QRTX8000", "Q RTX 8000"),
            ("RTX6000Ada", "RTX 6000Ada"),
            ("RTX3080Ti", "RTX 3080 Ti"),
            ("A5000", "RTX A5000"),
            ("B200", "B200"),
            ("B300", "B300 PC"),
            ("RTXPRO6000", "RTX PRO 6000 WS"),
            ("RTXPRO6000", "RTX PRO 6000 S"),
        ] {
            assert!(
                vast_names(ours).contains(&theirs.to_owned()),
                "{ours}: {:?}",
                vast_names(ours)
            );
            assert!(
                vast_names(&ours.to_lowercase()).contains(&theirs.to_owned()),
                "{ours} in lower case"
            );
            assert_eq!(our_name(theirs), ours);
        }
        assert!(vast_names("MI300X").is_empty());
    }

    #[test]
    fn a_model_without_a_name_there_does_not_hide_in_those_that_have_one() {
        let body = |names: &[&str]| {
            let filter = Filter {
                gpu_name: Some(names.iter().map(|name| (*name).to_owned()).collect()),
                ..Filter::default()
            };
            Search::default().body(&filter)
        };
        let mapped = body(&["B200", "H200"]);
        assert_eq!(mapped.at("gpu_name"), &json!({"in": ["B200", "H200"]}));
        assert_eq!(mapped.at("limit"), &Value::Null);
        let some = body(&["H200", "MI300X"]);
        assert_eq!(some.at("gpu_name"), &Value::Null);
        assert_eq!(some.at("limit"), &json!(3000));
    }

    #[test]
    fn places_are_country_first() {
        assert_eq!(location(Some("California, US")), "us-california");
        assert_eq!(location(Some("Sweden")), "sweden");
        assert_eq!(location(None), "");
    }
}
