//! Lists: filters, pages, and those of all zones.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::{Answer, Ask, PAGE, REGIONS, Refusal, invalid, is_zone};

/// A part of a filter: `labels.owner = "dstack"`, `labels.dstack_key:*`.
#[derive(Debug)]
struct Term {
    field: Vec<String>,
    /// `None`: any.
    value: Option<String>,
}

impl Term {
    fn read(text: &str) -> Option<Self> {
        let text = text.trim().trim_start_matches('(').trim_end_matches(')').trim();
        let (field, value) = match text.strip_suffix(":*") {
            Some(field) => (field, None),
            None => {
                let (field, value) = text.split_once('=')?;
                let value = value.trim();
                let quoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
                (field, Some(quoted.unwrap_or(value).to_owned()))
            }
        };
        let field: Vec<String> = field.trim().split('.').map(str::to_owned).collect();
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        let is_field = field
            .iter()
            .all(|part| !part.is_empty() && part.chars().all(is_name));
        is_field.then_some(Self { field, value })
    }

    fn fits(&self, item: &Value) -> bool {
        let found = self.field.iter().try_fold(item, |item, part| item.get(part));
        match (found, &self.value) {
            (None | Some(Value::Null), _) => false,
            (Some(_), None) => true,
            (Some(Value::String(text)), Some(value)) => text == value,
            (Some(found), Some(value)) => format!("{found}") == *value,
        }
    }
}

/// What of a list is asked for, and the token of the next page.
pub(crate) fn page<T>(
    ask: &Ask,
    all: Vec<T>,
    item: impl Fn(&T) -> &Value,
) -> Result<(Vec<T>, Option<String>), Refusal> {
    let filter = ask.query.get("filter").map_or("", String::as_str);
    let terms: Option<Vec<Term>> = match filter {
        "" => Some(Vec::new()),
        filter => filter.split(" AND ").map(Term::read).collect(),
    };
    let terms = terms.ok_or_else(|| invalid(format!("Invalid value for field 'filter': '{filter}'")))?;
    let most = match ask.query.get("maxResults") {
        None => 500,
        Some(most) => most
            .parse()
            .ok()
            .filter(|most| (1..=500).contains(most))
            .ok_or_else(|| invalid("maxResults"))?,
    };
    let begin = match ask.query.get("pageToken") {
        None => 0,
        Some(token) => {
            let at = token.strip_prefix("p+/").and_then(|at| at.parse::<usize>().ok());
            at.ok_or_else(|| invalid("Invalid value for field 'pageToken'"))?
        }
    };
    let all: Vec<T> = all
        .into_iter()
        .filter(|one| terms.iter().all(|term| term.fits(item(one))))
        .collect();
    let end = begin + most.min(PAGE);
    let next = (all.len() > end).then(|| format!("p+/{end}"));
    Ok((all.into_iter().skip(begin).take(end - begin).collect(), next))
}

/// One page of a list of Compute Engine, as the query asks for it (`filter`, `maxResults`, `pageToken`).
pub(crate) fn list(ask: &Ask, all: Vec<Value>) -> Answer {
    let (items, next) = page(ask, all, |one| one)?;
    let mut told = json!({"kind": "compute#list", "id": "list", "items": items});
    if let Some(next) = next {
        told["nextPageToken"] = next.into();
    }
    Ok(told)
}

/// A list by zones or regions: `field` is what each has.
pub(crate) fn aggregated(
    ask: &Ask,
    field: &str,
    all: Vec<(String, Value)>,
    unreachable: impl Fn(&str) -> bool,
) -> Answer {
    let all = all.into_iter().filter(|(scope, _)| !unreachable(scope)).collect();
    let (items, next) = page(ask, all, |(_, one)| one)?;
    let mut scopes: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for (region, zones) in REGIONS {
        scopes.insert(format!("regions/{region}"), Vec::new());
        scopes.extend(zones.iter().map(|zone| (format!("zones/{zone}"), Vec::new())));
    }
    for (scope, item) in items {
        scopes.entry(scope).or_default().push(item);
    }
    let mut unreached = Vec::new();
    let scopes: BTreeMap<String, Value> = scopes
        .into_iter()
        .map(|(scope, items)| {
            let warning =
                |code: &str| json!({"code": code, "message": "", "data": [{"key": "scope", "value": scope}]});
            let told = match (unreachable(&scope), items.is_empty()) {
                (true, _) => {
                    unreached.push(scope.clone());
                    json!({"warning": warning("UNREACHABLE")})
                }
                (false, true) => json!({"warning": warning("NO_RESULTS_ON_PAGE")}),
                (false, false) => json!({field: items}),
            };
            (scope, told)
        })
        .collect();
    let mut told = json!({"kind": "compute#aggregatedList", "id": "list", "items": scopes});
    if let Some(next) = next {
        told["nextPageToken"] = next.into();
    }
    if !unreached.is_empty() {
        told["unreachables"] = unreached.into();
    }
    Ok(told)
}

/// The answer to a call for a list of things in zones, which `all` gives with the zone of each: of one zone, or of all but those that
/// are `unreachable`. Also the answer where there is no such zone. `None`: the call is for something else.
pub(crate) fn list_by_zone(
    ask: &Ask,
    field: &str,
    unreachable: &BTreeSet<String>,
    all: impl FnOnce() -> Vec<(String, Value)>,
) -> Option<Answer> {
    let (_, method) = ask.called.name.split_once('.')?;
    if method == "aggregatedList" {
        let in_scopes = all()
            .into_iter()
            .map(|(zone, one)| (format!("zones/{zone}"), one));
        let is_away = |scope: &str| {
            let zone = scope.strip_prefix("zones/");
            zone.is_some_and(|zone| unreachable.contains(zone))
        };
        return Some(aggregated(ask, field, in_scopes.collect(), is_away));
    }
    let zone = ask.at(1);
    if !is_zone(zone) {
        let message = format!("Invalid value for field 'zone': '{zone}'. Unknown zone.");
        return Some(Err(invalid(message)));
    }
    let is_there = |(at, one): (String, Value)| (at == zone).then_some(one);
    (method == "list").then(|| list(ask, all().into_iter().filter_map(is_there).collect()))
}
