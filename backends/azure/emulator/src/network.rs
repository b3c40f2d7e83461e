//! Networks and security groups.

use axum::http::StatusCode;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    Answer, Ask, Azure, Cloud, Done, PAGE, Refusal, SUBSCRIPTION, bad, check_tags, fields, missing, ok,
};

/// A network or a security group.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) group: String,
    /// As in paths, in lower case.
    pub(crate) collection: &'static str,
    pub(crate) name: String,
    pub(crate) asked: Value,
    ready_at: Instant,
    /// Azure could not make or change it.
    failed: bool,
}

impl Part {
    fn id(&self) -> String {
        let collection = if self.collection == "virtualnetworks" {
            "virtualNetworks"
        } else {
            "networkSecurityGroups"
        };
        format!(
            "/subscriptions/{SUBSCRIPTION}/resourceGroups/{}/providers/Microsoft.Network/{collection}/{}",
            self.group, self.name
        )
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.ready_at <= Instant::now()
    }

    fn state(&self) -> &'static str {
        match self.is_ready() {
            _ if self.failed => "Failed",
            true => "Succeeded",
            false => "Updating",
        }
    }

    fn subnets(&self) -> Vec<Value> {
        let asked = self.asked["properties"]["subnets"]
            .as_array()
            .into_iter()
            .flatten();
        let told = asked.map(|subnet| {
            let mut told = subnet.clone();
            told["id"] = format!("{}/subnets/{}", self.id(), subnet["name"].as_str().unwrap()).into();
            told["properties"]["provisioningState"] = self.state().into();
            told
        });
        told.collect()
    }

    fn to_json(&self) -> Value {
        let mut told = self.asked.clone();
        told["id"] = self.id().into();
        told["name"] = self.name.as_str().into();
        told["properties"]["provisioningState"] = self.state().into();
        if self.collection == "virtualnetworks" {
            told["properties"]["subnets"] = self.subnets().into();
        }
        told
    }
}

/// Whether there is something of this id in a region: a subnet, or a security group.
pub(crate) fn has(state: &Cloud, id: &Value, region: &Value) -> bool {
    let Some(id) = id.as_str() else { return false };
    state.shared.iter().any(|part| {
        let is_it = |one: &str| one.eq_ignore_ascii_case(id);
        let has_subnet = || {
            part.subnets()
                .iter()
                .any(|subnet| is_it(subnet["id"].as_str().unwrap()))
        };
        part.asked["location"] == *region && part.is_ready() && (is_it(&part.id()) || has_subnet())
    })
}

impl Azure {
    /// A network that somebody has made: with these subnets, of which those in `nat` have a NAT gateway.
    pub fn add_network(&self, group: &str, name: &str, region: &str, subnets: &[&str], nat: &[&str]) {
        let subnets: Vec<Value> = subnets
            .iter()
            .map(|subnet| {
                let mut told = json!({"name": subnet, "properties": {"addressPrefix": "10.9.0.0/24"}});
                if nat.contains(subnet) {
                    told["properties"]["natGateway"] = json!({"id": "/nat"});
                }
                told
            })
            .collect();
        let mut state = self.lock();
        if !state.groups.iter().any(|known| known["name"] == group) {
            state
                .groups
                .push(json!({"name": group, "location": region, "properties": {}}));
        }
        state.shared.push(Part {
            group: group.to_owned(),
            collection: "virtualnetworks",
            name: name.to_owned(),
            asked: json!({"location": region, "properties": {"subnets": subnets}}),
            ready_at: Instant::now(),
            failed: false,
        });
    }

    pub(crate) fn add_security_group(&self, name: &str, region: &str) {
        self.lock().shared.push(Part {
            group: crate::GROUP.to_owned(),
            collection: "networksecuritygroups",
            name: name.to_owned(),
            asked: json!({"location": region, "properties": {"securityRules": []}}),
            ready_at: Instant::now(),
            failed: false,
        });
    }

    /// The network is connected to another one.
    pub fn peer(&self, network: &str) {
        self.lock().peered.insert(network.to_owned());
    }

    /// Somebody's change of the rules and tags of a security group has failed.
    pub fn fail_change(&self, name: &str, rules: &Value, tags: &Value) {
        let mut state = self.lock();
        let part = state.shared.iter_mut().find(|part| part.name == name).unwrap();
        part.asked["properties"]["securityRules"] = rules.clone();
        part.asked["tags"] = tags.clone();
        part.failed = true;
    }

    /// Somebody removes a network or a security group.
    pub fn remove_shared(&self, name: &str) {
        self.lock().shared.retain(|part| part.name != name);
    }

    /// What was asked for with networks and security groups, by name.
    pub fn shared(&self) -> Vec<(String, Value)> {
        let state = self.lock();
        state
            .shared
            .iter()
            .map(|part| (part.name.clone(), part.asked.clone()))
            .collect()
    }

    pub(crate) fn network(&self, ask: &Ask<'_>, group: &str, rest: &[&str]) -> Answer {
        ask.version(&["2024-03-01"])?;
        let mut state = self.lock();
        let find = |state: &Cloud, collection: &str, name: &str| {
            state.shared.iter().position(|part| {
                part.collection == collection
                    && part.group.eq_ignore_ascii_case(group)
                    && part.name.eq_ignore_ascii_case(name)
            })
        };
        match (ask.method, rest) {
            ("GET", [collection, name]) => {
                let at = find(&state, collection, name).ok_or_else(|| missing(ask.path))?;
                Ok(ok(state.shared[at].to_json()))
            }
            ("GET", ["virtualnetworks", name, "subnets"]) => {
                let at = find(&state, "virtualnetworks", name).ok_or_else(|| missing(ask.path))?;
                ask.page(state.shared[at].subnets(), PAGE, false)
            }
            ("GET", ["virtualnetworks", name, "subnets", subnet]) => {
                let at = find(&state, "virtualnetworks", name).ok_or_else(|| missing(ask.path))?;
                let mut subnets = state.shared[at].subnets().into_iter();
                let found =
                    subnets.find(|found| found["name"].as_str().unwrap().eq_ignore_ascii_case(subnet));
                // Of parts of something, Azure has another code.
                let none = || {
                    (
                        StatusCode::NOT_FOUND,
                        "NotFound".to_owned(),
                        "Resource not found.".to_owned(),
                    )
                };
                Ok(ok(found.ok_or_else(none)?))
            }
            ("GET", ["virtualnetworks", name, "virtualnetworkpeerings"]) => {
                find(&state, "virtualnetworks", name).ok_or_else(|| missing(ask.path))?;
                let peering = json!({"name": "peering", "properties": {"peeringState": "Connected"}});
                let peered = state.peered.contains(*name);
                ask.page(peered.then_some(peering).into_iter().collect(), PAGE, false)
            }
            ("PUT", [collection @ ("virtualnetworks" | "networksecuritygroups"), name]) => {
                check_name(collection, name)?;
                check(collection, &ask.body)?;
                let known = find(&state, collection, name);
                if known.is_some_and(|at| state.shared[at].asked["location"] != ask.body["location"]) {
                    return Err(crate::conflict("InvalidResourceLocation", "it is elsewhere"));
                }
                let part = Part {
                    group: group.to_owned(),
                    collection: if *collection == "virtualnetworks" {
                        "virtualnetworks"
                    } else {
                        "networksecuritygroups"
                    },
                    name: (*name).to_owned(),
                    asked: ask.body.clone(),
                    ready_at: Instant::now() + self.0.times.else_takes,
                    failed: false,
                };
                let body = part.to_json();
                let status = match known {
                    Some(at) => {
                        state.shared[at] = part;
                        StatusCode::OK
                    }
                    None => {
                        state.shared.push(part);
                        StatusCode::CREATED
                    }
                };
                let location = ask.body["location"].as_str().unwrap();
                let operation = format!(
                    "/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Network/locations/{location}/operations/network-{name}?api-version=2024-03-01"
                );
                Ok(Done {
                    status,
                    body,
                    operation: Some(operation),
                })
            }
            _ => Err(missing(ask.path)),
        }
    }
}

/// Of networks, security groups and subnets.
fn check_name(collection: &str, name: &str) -> Result<(), Refusal> {
    let longest = if collection == "virtualnetworks" { 64 } else { 80 };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    let ends = name.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    match name.len() <= longest && begins && ends && name.chars().all(is_plain) {
        true => Ok(()),
        false => Err(bad(
            "InvalidResourceName",
            format!("Resource name {name} is invalid."),
        )),
    }
}

fn check(collection: &str, body: &Value) -> Result<(), Refusal> {
    fields(
        body,
        &["location", "tags", "properties", "extendedLocation", "id"],
        &["location"],
    )?;
    check_tags(&body["tags"])?;
    let properties = &body["properties"];
    if collection == "virtualnetworks" {
        let known = [
            "addressSpace",
            "bgpCommunities",
            "ddosProtectionPlan",
            "dhcpOptions",
            "enableDdosProtection",
            "enableVmProtection",
            "encryption",
            "flowTimeoutInMinutes",
            "ipAllocations",
            "privateEndpointVNetPolicies",
            "provisioningState",
            "subnets",
            "virtualNetworkPeerings",
        ];
        fields(properties, &known, &["addressSpace"])?;
        fields(
            &properties["addressSpace"],
            &["addressPrefixes"],
            &["addressPrefixes"],
        )?;
        for subnet in properties["subnets"].as_array().into_iter().flatten() {
            fields(subnet, &["id", "name", "type", "properties"], &["name"])?;
            check_name("subnets", subnet["name"].as_str().unwrap_or_default())?;
            let known = [
                "addressPrefix",
                "addressPrefixes",
                "applicationGatewayIPConfigurations",
                "defaultOutboundAccess",
                "delegations",
                "ipAllocations",
                "natGateway",
                "networkSecurityGroup",
                "privateEndpointNetworkPolicies",
                "privateLinkServiceNetworkPolicies",
                "provisioningState",
                "routeTable",
                "serviceEndpointPolicies",
                "serviceEndpoints",
                "sharingScope",
            ];
            fields(&subnet["properties"], &known, &["addressPrefix"])?;
        }
        return Ok(());
    }
    let known = ["flushConnection", "securityRules", "provisioningState"];
    fields(properties, &known, &[])?;
    for rule in properties["securityRules"].as_array().into_iter().flatten() {
        fields(rule, &["id", "name", "type", "properties"], &["name"])?;
        let known = [
            "access",
            "description",
            "destinationAddressPrefix",
            "destinationAddressPrefixes",
            "destinationApplicationSecurityGroups",
            "destinationPortRange",
            "destinationPortRanges",
            "direction",
            "priority",
            "protocol",
            "sourceAddressPrefix",
            "sourceAddressPrefixes",
            "sourceApplicationSecurityGroups",
            "sourcePortRange",
            "sourcePortRanges",
        ];
        let rule = &rule["properties"];
        fields(rule, &known, &["access", "direction", "priority", "protocol"])?;
        crate::one_of(&rule["access"], &["Allow", "Deny"])?;
        crate::one_of(&rule["direction"], &["Inbound", "Outbound"])?;
        crate::one_of(&rule["protocol"], &["Tcp", "Udp", "Icmp", "Esp", "Ah", "*"])?;
        if !rule["priority"]
            .as_i64()
            .is_some_and(|priority| (100..=4096).contains(&priority))
        {
            return Err(bad("SecurityRuleInvalidPriority", "priority"));
        }
    }
    Ok(())
}
