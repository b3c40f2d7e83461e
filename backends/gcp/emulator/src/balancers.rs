//! What application load balancers consist of: groups of instances, health checks, backend services, URL maps, proxies, forwarding rules.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::lists::{aggregated, list};
use crate::networks::{API, has_proxies, is_name, is_network};
use crate::{Answer, Ask, Cloud, Gcp, PROJECT, REGIONS, Refusal, Times, invalid, is_zone, missing, refuse};

/// How Google calls the field of a certificate that Certificate Manager has.
const MANAGED: &str = "//certificatemanager.googleapis.com/projects/";

/// A piece of a load balancer.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    /// `zones/us-central1-a`, or a region.
    scope: String,
    collection: &'static str,
    asked: Value,
    ready_at: Instant,
    listed_at: Instant,
    gone_at: Option<Instant>,
    is_settled: bool,
    /// Of a group.
    members: Vec<Member>,
}

/// An instance of a group.
#[derive(Debug, Clone)]
struct Member {
    name: String,
    gone_at: Option<Instant>,
}

impl Member {
    fn is_gone(&self) -> bool {
        self.gone_at.is_some_and(|at| at <= Instant::now())
    }
}

impl Piece {
    fn id(&self) -> String {
        let name = self.asked["name"].as_str().unwrap();
        format!("{}/{}/{name}", self.scope, self.collection)
    }

    fn is_gone(&self) -> bool {
        self.gone_at.is_some_and(|at| at <= Instant::now())
    }

    fn is_ready(&self) -> bool {
        self.ready_at <= Instant::now()
    }

    fn is_listed(&self) -> bool {
        self.listed_at <= Instant::now() && !self.is_gone()
    }

    fn uses(&self, link: &str) -> bool {
        has_link(&self.asked, link)
    }

    fn to_json(&self) -> Value {
        let mut told = self.asked.clone();
        told["id"] = "4".into();
        told["selfLink"] = format!("{API}projects/{PROJECT}/{}", self.id()).into();
        told["creationTimestamp"] = "2026-10-01T05:00:00.000-07:00".into();
        if self.collection == "forwardingRules" && self.is_ready() {
            let is_public = self.asked["loadBalancingScheme"] == "EXTERNAL_MANAGED";
            told["IPAddress"] = if is_public { "203.0.113.90" } else { "10.128.0.90" }.into();
        }
        if self.collection == "instanceGroups" {
            told["size"] = self.members.iter().filter(|one| !one.is_gone()).count().into();
        }
        told
    }
}

/// Whether something names it anywhere.
fn has_link(value: &Value, link: &str) -> bool {
    match value {
        Value::String(text) => path_of(text) == Some(link),
        Value::Array(items) => items.iter().any(|item| has_link(item, link)),
        Value::Object(fields) => fields.values().any(|field| has_link(field, link)),
        _ => false,
    }
}

/// The path of a link in the project.
fn path_of(link: &str) -> Option<&str> {
    let relative = link.strip_prefix(API).unwrap_or(link);
    relative.strip_prefix(&format!("projects/{PROJECT}/"))
}

/// The collection of a method, and what it is called in books.
fn collection_of(kind: &str) -> Option<(&'static str, &'static str)> {
    Some(match kind {
        "instanceGroups" => ("instanceGroups", "instance group"),
        "healthChecks" | "regionHealthChecks" => ("healthChecks", "health check"),
        "backendServices" | "regionBackendServices" => ("backendServices", "backend service"),
        "urlMaps" | "regionUrlMaps" => ("urlMaps", "URL map"),
        "targetHttpProxies" | "regionTargetHttpProxies" => ("targetHttpProxies", "HTTP proxy"),
        "targetHttpsProxies" | "regionTargetHttpsProxies" => ("targetHttpsProxies", "HTTPS proxy"),
        "forwardingRules" => ("forwardingRules", "load balancer"),
        _ => return None,
    })
}

impl Gcp {
    /// What was asked for of all that load balancers consist of now, in the order in which it was made.
    pub fn pieces(&self) -> Vec<(&'static str, Value)> {
        let state = self.lock();
        let there = state.pieces.iter().filter(|piece| !piece.is_gone());
        there
            .map(|piece| (piece.collection, piece.asked.clone()))
            .collect()
    }

    /// A piece that was made long ago, at this place (`regions/us-central1`), unchecked.
    pub fn add_piece(&self, place: &str, collection: &'static str, asked: Value) {
        let now = Instant::now();
        let piece = Piece {
            scope: place.to_owned(),
            collection,
            asked,
            ready_at: now,
            listed_at: now,
            gone_at: None,
            is_settled: false,
            members: Vec::new(),
        };
        let (_, what) = collection_of(collection).unwrap();
        let name = piece.asked["name"].as_str().unwrap();
        self.0.ledger.made(what, piece.id(), name);
        self.lock().pieces.push(piece);
    }

    /// Operations that make something in this collection fail, with this status and code.
    pub fn fail_piece(&self, collection: &'static str, status: u16, code: &'static str) {
        self.lock().failing_pieces.insert(collection, (status, code));
    }

    /// Instances in all groups, also those that are being removed.
    pub fn members(&self) -> Vec<String> {
        let state = self.lock();
        let all = state.pieces.iter().flat_map(|piece| &piece.members);
        all.filter(|member| !member.is_gone())
            .map(|member| member.name.clone())
            .collect()
    }

    /// How often groups were asked to change.
    pub fn changes_of_groups(&self) -> usize {
        self.lock().changes_of_groups
    }

    pub(crate) fn settle_pieces(&self, state: &mut Cloud) {
        for piece in &mut state.pieces {
            if piece.is_gone() && !piece.is_settled {
                piece.is_settled = true;
                self.0.ledger.removed(&piece.id());
            }
            piece.members.retain(|member| !member.is_gone());
        }
        // An instance that is gone is in no group.
        let machines = &state.machines;
        for piece in &mut state.pieces {
            let zone = piece.scope.strip_prefix("zones/").unwrap_or_default();
            let is_there = |name: &str| {
                let mut all = machines.iter();
                all.any(|one| !one.is_gone() && one.zone == zone && one.name() == name)
            };
            piece.members.retain(|member| is_there(&member.name));
        }
    }

    pub(crate) fn lose_pieces(state: &mut Cloud) {
        let now = Instant::now();
        for piece in &mut state.pieces {
            piece.gone_at.get_or_insert(now);
        }
    }

    /// `None`: the method is another's.
    pub(crate) fn balancers(&self, state: &mut Cloud, ask: &Ask) -> Option<Answer> {
        let (kind, verb) = ask.called.name.split_once('.').unwrap();
        let (collection, what) = collection_of(kind)?;
        Some(match verb {
            "aggregatedList" => {
                let all = state.pieces.iter();
                let all = all.filter(|one| one.is_listed() && one.collection == collection);
                let all = all.map(|one| (one.scope.clone(), one.to_json())).collect();
                aggregated(ask, collection, all, |_| false)
            }
            "insert" => self.make_piece(state, ask, collection, what),
            verb => self.on_piece(state, ask, collection, verb),
        })
    }

    fn make_piece(
        &self,
        state: &mut Cloud,
        ask: &Ask,
        collection: &'static str,
        what: &'static str,
    ) -> Answer {
        let scope = scope_of(ask, collection)?;
        let name = ask.body["name"].as_str().unwrap_or_default();
        if !is_name(name) {
            return Err(invalid("Invalid value for field 'resource.name'"));
        }
        let id = format!("{scope}/{collection}/{name}");
        if state.pieces.iter().any(|one| !one.is_gone() && one.id() == id) {
            let message = format!("The resource 'projects/{PROJECT}/{id}' already exists");
            return Err(refuse(409, "alreadyExists", message));
        }
        if state.sold_out {
            let message = format!("Quota '{collection}' exceeded.  Limit: 0.0");
            return Err(refuse(403, "quotaExceeded", message));
        }
        check(state, &scope, collection, &ask.body)?;
        let failure = state.failing_pieces.get(collection);
        let failure = failure.map(|(status, code)| refuse(*status, code, format!("{what} {name}: {code}")));
        let now = Instant::now();
        let takes = self.0.times.others;
        let is_doomed = failure.is_some();
        state.pieces.push(Piece {
            scope: scope.clone(),
            collection,
            asked: ask.body.clone(),
            ready_at: now + takes,
            listed_at: now + state.lag,
            gone_at: is_doomed.then_some(now + takes),
            is_settled: is_doomed,
            members: Vec::new(),
        });
        if !is_doomed {
            self.0.ledger.made(what, &id, name);
        }
        Ok(self.begin(state, ask, &scope, id, takes, failure))
    }

    fn on_piece(&self, state: &mut Cloud, ask: &Ask, collection: &'static str, verb: &str) -> Answer {
        let scope = scope_of(ask, collection)?;
        let id = format!("{scope}/{collection}/{}", ask.at(2));
        let mut all = state.pieces.iter();
        let at = all.position(|one| one.is_listed() && one.id() == id);
        let at = at.ok_or_else(|| missing(&format!("projects/{PROJECT}/{id}")))?;
        let times = self.0.times;
        match verb {
            "get" => Ok(state.pieces[at].to_json()),
            "delete" => {
                if let Some(user) = state.pieces.iter().find(|one| !one.is_gone() && one.uses(&id)) {
                    let message = format!(
                        "The resource 'projects/{PROJECT}/{id}' is already being used by 'projects/{PROJECT}/{}'",
                        user.id()
                    );
                    return Err(refuse(400, "resourceInUseByAnotherResource", message));
                }
                let gone = Instant::now() + times.others;
                state.pieces[at].gone_at.get_or_insert(gone);
                Ok(self.begin(state, ask, &scope, id, times.others, None))
            }
            "listInstances" => {
                let members = state.pieces[at].members.iter();
                let told = members.map(|member| {
                    let link = format!("{API}projects/{PROJECT}/{scope}/instances/{}", member.name);
                    json!({"instance": link, "status": "RUNNING"})
                });
                list(ask, told.collect())
            }
            "addInstances" => self.add_members(state, ask, at),
            "removeInstances" => self.remove_members(state, ask, at),
            other => Err(missing(other)),
        }
    }

    fn add_members(&self, state: &mut Cloud, ask: &Ask, at: usize) -> Answer {
        let names = named(&state.pieces[at], &ask.body)?;
        let (id, scope) = (state.pieces[at].id(), state.pieces[at].scope.clone());
        let network = |name: &str| {
            let mut all = state.machines.iter();
            let is_it =
                |one: &&crate::Machine| one.is_listed() && one.id() == format!("{scope}/instances/{name}");
            let found = all.find(is_it)?;
            Some(found.asked["networkInterfaces"][0]["network"].clone())
        };
        let members = &state.pieces[at].members;
        let of_group = members.first().and_then(|member| network(&member.name));
        for name in &names {
            let link = format!("projects/{PROJECT}/{scope}/instances/{name}");
            let Some(network) = network(name) else {
                return Err(missing(&link));
            };
            if of_group.as_ref().is_some_and(|of_group| *of_group != network) {
                return Err(invalid(format!(
                    "Resource '{link}' is expected to be in the network of the group"
                )));
            }
            match members.iter().find(|member| member.name == *name) {
                Some(member) if member.gone_at.is_some() => return Err(not_ready(&link)),
                Some(_) => {
                    let message =
                        format!("Resource '{link}' is already a member of 'projects/{PROJECT}/{id}'.");
                    return Err(refuse(400, "memberAlreadyExists", message));
                }
                None => {}
            }
        }
        let added = names.into_iter().map(|name| Member { name, gone_at: None });
        state.pieces[at].members.extend(added);
        state.changes_of_groups += 1;
        Ok(self.begin(state, ask, &scope, id, self.0.times.others, None))
    }

    /// Members are listed until their connections have drained.
    fn remove_members(&self, state: &mut Cloud, ask: &Ask, at: usize) -> Answer {
        let names = named(&state.pieces[at], &ask.body)?;
        let (id, scope) = (state.pieces[at].id(), state.pieces[at].scope.clone());
        let takes = draining(state, &id, self.0.times);
        let gone = Instant::now() + takes;
        let members = &mut state.pieces[at].members;
        for name in &names {
            let link = format!("projects/{PROJECT}/{scope}/instances/{name}");
            match members.iter().find(|member| member.name == *name) {
                Some(member) if member.gone_at.is_some() => return Err(not_ready(&link)),
                Some(_) => {}
                None => {
                    let message = format!("Resource '{link}' is not a member of 'projects/{PROJECT}/{id}'.");
                    return Err(invalid(message));
                }
            }
        }
        for member in members.iter_mut().filter(|member| names.contains(&member.name)) {
            member.gone_at = Some(gone);
        }
        state.changes_of_groups += 1;
        Ok(self.begin(state, ask, &scope, id, takes, None))
    }
}

fn not_ready(link: &str) -> Refusal {
    refuse(
        400,
        "resourceNotReady",
        format!("The resource '{link}' is not ready"),
    )
}

/// How long it takes until a member is removed from a group.
fn draining(state: &Cloud, group: &str, times: Times) -> Duration {
    let services = state.pieces.iter();
    let services =
        services.filter(|one| one.collection == "backendServices" && !one.is_gone() && one.uses(group));
    let seconds = services.filter_map(|one| one.asked["connectionDraining"]["drainingTimeoutSec"].as_u64());
    times.others + Duration::from_secs(seconds.max().unwrap_or_default())
}

/// Where it is to be.
fn scope_of(ask: &Ask, collection: &str) -> Result<String, Refusal> {
    let place = ask.at(1);
    match collection {
        "instanceGroups" if is_zone(place) => Ok(format!("zones/{place}")),
        "instanceGroups" => Err(invalid(format!(
            "Invalid value for field 'zone': '{place}'. Unknown zone."
        ))),
        _ if REGIONS.iter().any(|(region, _)| *region == place) => Ok(format!("regions/{place}")),
        _ => Err(invalid(format!(
            "Invalid value for field 'region': '{place}'. Unknown region."
        ))),
    }
}

/// Names of instances in the zone of a group.
fn named(group: &Piece, body: &Value) -> Result<Vec<String>, Refusal> {
    let instances = body["instances"].as_array().cloned().unwrap_or_default();
    let links = instances
        .iter()
        .map(|one| one["instance"].as_str().unwrap_or_default());
    let name = |link: &str| {
        let name = path_of(link)?.strip_prefix(&group.scope)?;
        name.strip_prefix("/instances/").map(str::to_owned)
    };
    let names: Option<Vec<String>> = links.map(name).collect();
    let names = names.filter(|names| !names.is_empty());
    names.ok_or_else(|| invalid(format!("Invalid value for field 'instances': {body}")))
}

/// What a piece names has to be there.
fn referred<'a>(state: &'a Cloud, link: &Value, place: &str, collection: &str) -> Result<&'a Piece, Refusal> {
    let link = link.as_str().unwrap_or_default();
    let wrong = || invalid(format!("Invalid value for field '{collection}': '{link}'"));
    let path = path_of(link).ok_or_else(wrong)?;
    let begin = path.rsplit_once('/').ok_or_else(wrong)?.0;
    if !begin.starts_with(place) || !begin.ends_with(&format!("/{collection}")) {
        return Err(wrong());
    }
    let mut all = state.pieces.iter();
    let found = all.find(|one| !one.is_gone() && one.id() == path);
    match found {
        Some(found) if found.is_ready() && found.gone_at.is_none() => Ok(found),
        Some(_) => Err(not_ready(&format!("projects/{PROJECT}/{path}"))),
        None => Err(missing(&format!("projects/{PROJECT}/{path}"))),
    }
}

fn expect(is_right: bool, field: &str, body: &Value) -> Result<(), Refusal> {
    match is_right {
        true => Ok(()),
        false => Err(invalid(format!(
            "Invalid value for field 'resource.{field}': {body}"
        ))),
    }
}

/// What a piece may not be.
fn check(state: &Cloud, scope: &str, collection: &str, body: &Value) -> Result<(), Refusal> {
    match collection {
        "instanceGroups" => expect(body["namedPorts"].is_array(), "namedPorts", body),
        "healthChecks" => {
            let http = &body["httpHealthCheck"];
            let path = http["requestPath"].as_str().unwrap_or("/");
            expect(body["type"] == "HTTP" && http.is_object(), "type", body)?;
            expect(path.starts_with('/'), "httpHealthCheck.requestPath", body)
        }
        "backendServices" => check_service(state, scope, body),
        "urlMaps" => referred(state, &body["defaultService"], scope, "backendServices").map(drop),
        "targetHttpProxies" => referred(state, &body["urlMap"], scope, "urlMaps").map(drop),
        "targetHttpsProxies" => {
            let region = scope.strip_prefix("regions/").unwrap();
            let all = body["sslCertificates"].as_array().cloned().unwrap_or_default();
            let is_right = |link: &Value| {
                let link = link.as_str().and_then(|link| link.strip_prefix(MANAGED));
                link.is_some_and(|link| link.contains(&format!("/locations/{region}/certificates/")))
            };
            expect(
                !all.is_empty() && all.iter().all(is_right),
                "sslCertificates",
                body,
            )?;
            referred(state, &body["urlMap"], scope, "urlMaps").map(drop)
        }
        _ => check_rule(state, scope, body),
    }
}

fn check_service(state: &Cloud, scope: &str, body: &Value) -> Result<(), Refusal> {
    let scheme = &body["loadBalancingScheme"];
    let is_managed = scheme == "EXTERNAL_MANAGED" || scheme == "INTERNAL_MANAGED";
    expect(
        is_managed && body["protocol"] == "HTTP",
        "loadBalancingScheme",
        body,
    )?;
    let checks = body["healthChecks"].as_array().cloned().unwrap_or_default();
    expect(checks.len() == 1, "healthChecks", body)?;
    referred(state, &checks[0], scope, "healthChecks")?;
    let seconds = body["connectionDraining"]["drainingTimeoutSec"].as_i64();
    expect(
        seconds.is_none_or(|seconds| (0..=3600).contains(&seconds)),
        "connectionDraining",
        body,
    )?;
    let zones = format!("zones/{}-", scope.strip_prefix("regions/").unwrap());
    for backend in body["backends"].as_array().into_iter().flatten() {
        let group = referred(state, &backend["group"], &zones, "instanceGroups")?;
        let ports = group.asked["namedPorts"].as_array().unwrap();
        expect(
            ports.iter().any(|port| port["name"] == body["portName"]),
            "portName",
            body,
        )?;
        let scale = backend["capacityScaler"].as_f64().unwrap_or(1.0);
        let is_right = backend["balancingMode"] == "UTILIZATION" && (0.1..=1.0).contains(&scale);
        expect(is_right, "backends", body)?;
    }
    Ok(())
}

fn check_rule(state: &Cloud, scope: &str, body: &Value) -> Result<(), Refusal> {
    let is_secure = body["target"]
        .as_str()
        .is_some_and(|target| target.contains("/targetHttpsProxies/"));
    let (proxies, port) = match is_secure {
        true => ("targetHttpsProxies", "443"),
        false => ("targetHttpProxies", "80"),
    };
    let proxy = referred(state, &body["target"], scope, proxies)?;
    let map = referred(state, &proxy.asked["urlMap"], scope, "urlMaps")?;
    let service = referred(state, &map.asked["defaultService"], scope, "backendServices")?;
    expect(
        body["loadBalancingScheme"] == service.asked["loadBalancingScheme"],
        "loadBalancingScheme",
        body,
    )?;
    expect(
        body["IPProtocol"] == "TCP" && body["portRange"] == port,
        "portRange",
        body,
    )?;
    let network = body["network"].as_str().unwrap_or_default();
    expect(is_network(state, network), "network", body)?;
    let is_public = body["loadBalancingScheme"] == "EXTERNAL_MANAGED";
    let subnet = body["subnetwork"].as_str();
    let is_right = match subnet {
        Some(subnet) => !is_public && subnet.contains(&format!("/{scope}/subnetworks/")),
        None => true,
    };
    expect(is_right, "subnetwork", body)?;
    let region = scope.strip_prefix("regions/").unwrap();
    match has_proxies(state, network, region) {
        true => Ok(()),
        false => Err(invalid(
            "Invalid value for field 'resource.target': An active proxy-only subnetwork is required in the same region and VPC as \
             the forwarding rule.",
        )),
    }
}
