//! The search (`bundles`): filters of fields, an order, a limit.

use std::cmp::Ordering;

use serde_json::Value;

/// Offers of an answer whose request has no `limit`.
const LIMIT: u64 = 64;

/// Fields that can be filtered by. `reliability2` and `score` are not in the description, and dstack 0.22.5 uses them.
const FIELDS: &[&str] = &[
    "compute_cap",
    "cpu_arch",
    "cpu_cores",
    "cpu_cores_effective",
    "cpu_ram",
    "cuda_max_good",
    "datacenter",
    "direct_port_count",
    "disk_space",
    "dph_total",
    "external",
    "geolocation",
    "gpu_arch",
    "gpu_name",
    "gpu_ram",
    "gpu_total_ram",
    "id",
    "inet_down",
    "inet_up",
    "min_bid",
    "num_gpus",
    "reliability",
    "reliability2",
    "rentable",
    "rented",
    "score",
    "storage_cost",
    "verification",
    "verified",
];

const OPERATORS: &[&str] = &["eq", "neq", "gt", "gte", "lt", "lte", "in", "notin"];

/// What of these offers a request finds.
pub(crate) fn search<'a>(
    body: &Value,
    offers: impl Iterator<Item = &'a Value>,
) -> Result<Vec<Value>, String> {
    let fields = body.as_object().ok_or("the body is no object")?;
    let (mut limit, mut order, mut filters) = (LIMIT, Vec::new(), Vec::new());
    for (name, value) in fields {
        match name.as_str() {
            "limit" => limit = value.as_u64().ok_or("limit is no number")?,
            "order" => order = read_order(value)?,
            // The vendor's own client has a hyphen in it.
            "type"
                if value
                    .as_str()
                    .is_some_and(|kind| ["ondemand", "on-demand", "bid", "reserved"].contains(&kind)) => {}
            "allocated_storage" if value.is_number() => {}
            name if FIELDS.contains(&name) => {
                let operators = value.as_object().ok_or_else(|| format!("{name} is no object"))?;
                for (operator, value) in operators {
                    if !OPERATORS.contains(&operator.as_str()) {
                        return Err(format!("{name}: {operator} is no operator"));
                    }
                    filters.push((name, operator.as_str(), value));
                }
            }
            name => return Err(format!("{name} is not a valid search key")),
        }
    }
    let is_wanted = |offer: &&Value| {
        filters
            .iter()
            .all(|(field, operator, value)| matches_filter(&field_of(offer, field), operator, value))
    };
    let mut found: Vec<Value> = offers.filter(is_wanted).cloned().collect();
    for (field, is_descending) in order.into_iter().rev() {
        found.sort_by(|one, other| {
            let by_field = compare(&one[&field], &other[&field]);
            if is_descending {
                by_field.reverse()
            } else {
                by_field
            }
        });
    }
    found.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    Ok(found)
}

fn read_order(value: &Value) -> Result<Vec<(String, bool)>, String> {
    let pairs = value.as_array().ok_or("order is no list")?;
    let read = |pair: &Value| match (pair[0].as_str(), pair[1].as_str()) {
        (Some(field), Some(direction @ ("asc" | "desc"))) => Ok((field.to_owned(), direction == "desc")),
        _ => Err(format!("{pair} is no order")),
    };
    pairs.iter().map(read).collect()
}

/// What an offer says of a field; of some, in other words.
fn field_of(offer: &Value, field: &str) -> Value {
    match field {
        "verified" => Value::Bool(offer["verification"] == "verified"),
        "datacenter" => Value::Bool(offer["hosting_type"] == 1),
        "external" => Value::Bool(offer["external"] == true),
        "gpu_total_ram" if offer[field].is_null() => {
            let total = number(&offer["gpu_ram"]).zip(number(&offer["num_gpus"]));
            total.map_or(Value::Null, |(one, count)| (one * count).into())
        }
        "reliability" => offer["reliability2"].clone(),
        "cpu_arch" if offer[field].is_null() => "amd64".into(),
        _ => offer[field].clone(),
    }
}

/// The vendor's own client sends numbers as texts.
fn number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.parse().ok())
}

fn compare(one: &Value, other: &Value) -> Ordering {
    match (number(one), number(other)) {
        (Some(one), Some(other)) => one.total_cmp(&other),
        _ => one.to_string().cmp(&other.to_string()),
    }
}

fn is_same(one: &Value, other: &Value) -> bool {
    one == other || matches!((number(one), number(other)), (Some(one), Some(other)) if one == other)
}

fn matches_filter(is: &Value, operator: &str, value: &Value) -> bool {
    let among = || {
        value
            .as_array()
            .is_some_and(|all| all.iter().any(|one| is_same(is, one)))
    };
    match operator {
        "eq" => is_same(is, value),
        "neq" => !is_same(is, value),
        "in" => among(),
        "notin" => !among(),
        _ if !is.is_number() => false,
        "gt" => compare(is, value).is_gt(),
        "gte" => compare(is, value).is_ge(),
        "lt" => compare(is, value).is_lt(),
        _ => compare(is, value).is_le(),
    }
}
