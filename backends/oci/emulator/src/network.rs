//! Networks and their parts.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::{Answer, Ask, MISSING, Oci, Part, bad, is_compartment};

/// Paths, with the fields that are taken and those that have to be there.
const KINDS: &[(&str, &[&str], &[&str])] = &[
    (
        "vcns",
        &["cidrBlock", "cidrBlocks", "dnsLabel", "isIpv6Enabled"],
        &[],
    ),
    (
        "subnets",
        &[
            "availabilityDomain",
            "cidrBlock",
            "dnsLabel",
            "prohibitPublicIpOnVnic",
            "routeTableId",
            "securityListIds",
            "vcnId",
        ],
        &["vcnId"],
    ),
    (
        "internetGateways",
        &["isEnabled", "routeTableId", "vcnId"],
        &["vcnId"],
    ),
    ("networkSecurityGroups", &["vcnId"], &["vcnId"]),
];

const COMMON: &[&str] = &["compartmentId", "displayName", "definedTags", "freeformTags"];

impl Oci {
    pub(crate) fn network(&self, ask: &Ask<'_>) -> Answer {
        let mut state = self.lock();
        let at = |id: &str| {
            let is_it = |part: &Part| part.region == ask.region && part.told["id"] == *id;
            state.parts.iter().position(is_it).ok_or(MISSING)
        };
        match (ask.method, ask.path) {
            ("PUT", ["routeTables", id]) => {
                let at = at(id.strip_prefix("rt.").ok_or(MISSING)?)?;
                ask.fields(&["routeRules", "displayName"], &[])?;
                let rules = ask.body["routeRules"].as_array().ok_or(bad("routeRules"))?;
                let is_rule =
                    |rule: &Value| rule["networkEntityId"].is_string() && rule["destination"] == "0.0.0.0/0";
                if !rules.iter().all(is_rule) {
                    return Err(bad("routeRules"));
                }
                state.parts[at].told["rules"] = ask.body["routeRules"].clone();
                let told = &state.parts[at].told;
                Ok((
                    json!({"id": id, "routeRules": rules, "lifecycleState": "AVAILABLE", "vcnId": told["id"],
                    "compartmentId": told["compartmentId"]}),
                    None,
                ))
            }
            ("GET", ["networkSecurityGroups", id, "securityRules"]) => {
                let rules = state.parts[at(id)?].told["rules"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default();
                ask.page(rules)
            }
            ("POST", ["networkSecurityGroups", id, "actions", "addSecurityRules"]) => {
                let at = at(id)?;
                ask.fields(&["securityRules"], &[])?;
                let mut rules = state.parts[at].told["rules"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default();
                for rule in ask.body["securityRules"].as_array().ok_or(bad("securityRules"))? {
                    if !rule["direction"].is_string() || !rule["protocol"].is_string() {
                        return Err(bad("securityRules"));
                    }
                    let mut rule = rule.clone();
                    rule["id"] = format!("{:06}", state.made).into();
                    state.made += 1;
                    rules.push(rule);
                }
                state.parts[at].told["rules"] = rules.clone().into();
                Ok((json!({"securityRules": rules}), None))
            }
            ("POST", ["networkSecurityGroups", id, "actions", "removeSecurityRules"]) => {
                let at = at(id)?;
                let ids = ask.body["securityRuleIds"]
                    .as_array()
                    .ok_or(bad("securityRuleIds"))?;
                let rules = state.parts[at].told["rules"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default();
                let left: Vec<Value> = rules
                    .into_iter()
                    .filter(|rule| !ids.contains(&rule["id"]))
                    .collect();
                state.parts[at].told["rules"] = left.into();
                Ok((Value::Null, None))
            }
            ("GET", [path, id]) => {
                let part = &state.parts[at(id)?];
                (part.path == *path)
                    .then(|| (part.told.clone(), None))
                    .ok_or(MISSING)
            }
            ("GET", [path]) => {
                let compartment = ask.query("compartmentId")?;
                is_compartment(&state, compartment)?;
                let all = state.parts.iter().filter(|part| {
                    let has = |query: &str| {
                        ask.query
                            .get(query)
                            .is_none_or(|value| part.told[query] == **value)
                    };
                    part.region == ask.region
                        && part.path == *path
                        && has("displayName")
                        && has("vcnId")
                        && part.told["compartmentId"] == *compartment
                });
                ask.page(all.map(|part| part.told.clone()).collect())
            }
            ("POST", [path]) => {
                let kind = KINDS.iter().find(|(known, ..)| known == path).ok_or(MISSING)?;
                ask.fields(&[kind.1, COMMON].concat(), &[kind.2, &["compartmentId"]].concat())?;
                is_compartment(&state, ask.body["compartmentId"].as_str().unwrap())?;
                let vcn = &ask.body["vcnId"];
                let taken = |of: &str| {
                    state
                        .parts
                        .iter()
                        .any(|part| part.path == of && part.told["vcnId"] == *vcn)
                };
                if *path == "subnets" && taken("subnets") {
                    return Err(bad("the subnet overlaps another"));
                }
                if *path == "internetGateways" && taken("internetGateways") {
                    return Err((
                        StatusCode::BAD_REQUEST,
                        "LimitExceeded",
                        "a VCN has one internet gateway",
                    ));
                }
                state.made += 1;
                let id = format!("ocid1.{path}.{:06}", state.made);
                let mut told = ask.body.clone();
                told["lifecycleState"] = "AVAILABLE".into();
                told["timeCreated"] = "2026-10-01T12:00:00.000Z".into();
                if *path == "subnets" {
                    told["routeTableId"] = format!("rt.{}", vcn.as_str().unwrap_or_default()).into();
                    told["virtualRouterMac"] = "00:00:17:B6:4D:DD".into();
                }
                if *path == "vcns" {
                    told["cidrBlock"] = told["cidrBlocks"][0].clone();
                    told["defaultRouteTableId"] = format!("rt.{id}").into();
                }
                told["id"] = id.into();
                state.parts.push(Part {
                    region: ask.region.to_owned(),
                    path: kind.0,
                    told: told.clone(),
                });
                Ok((told, None))
            }
            _ => Err(MISSING),
        }
    }
}
