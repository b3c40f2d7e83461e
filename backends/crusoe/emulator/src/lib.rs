//! Plays Crusoe by its API description (v1alpha5), for tests.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::missing_panics_doc)] // tests

mod auth;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use bytes::Bytes;
use dstack_backend_kit::{Emulator, Ledger};
use serde_json::{Value, json};
use tokio::time::Instant;

/// Where everything is below.
const BASE: &str = "/v1alpha5";

/// What a page has when nothing else is asked for, and at most.
const PAGE: usize = 2;

/// The location that has all.
pub const LOCATION: &str = "us-east1-a";

/// One that has some.
pub const OTHER_LOCATION: &str = "eu-iceland1-a";

const IMAGES: &[&str] = &[
    "ubuntu22.04-nvidia-sxm-docker:latest",
    "ubuntu22.04-nvidia-pcie-docker:latest",
    "ubuntu-rocm:latest",
];

/// Sizes: name, CPUs, GB of memory, GB of NVMe, GPU, number of GPUs.
const SIZES: &[(&str, i64, i64, i64, &str, i64)] = &[
    ("c1a.8x", 8, 32, 0, "", 0),
    ("s1a.20x", 20, 80, 4320, "", 0),
    ("l40s-48gb.1x", 8, 147, 0, "L40S-48GB", 1),
    ("h100-80gb-sxm-ib.8x", 176, 1928, 30_720, "H100-SXM-80GB", 8),
    ("mi300x-192gb-ib.8x", 256, 2048, 30_720, "MI300X-192GB", 8),
    ("gb200-186gb-nvl.4x", 144, 868, 30_720, "GB200-NVL-186GB", 4),
    ("new-1000gb.1x", 8, 64, 0, "NEW-1000GB", 1),
];

/// How long things take.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Until a disk is made.
    pub disk: Duration,
    /// Until a machine runs.
    pub machine: Duration,
    /// Until a machine that is ended is gone.
    pub ends: Duration,
}

const USUAL: Times = Times {
    disk: Duration::from_secs(8),
    machine: Duration::from_secs(50),
    ends: Duration::from_secs(12),
};

/// The vendor's cloud, with one project of one account.
#[derive(Debug, Clone)]
pub struct Crusoe(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    access_key: String,
    secret_key: String,
    project: String,
    times: Times,
    ledger: Ledger,
    state: Mutex<Cloud>,
}

#[derive(Debug, Default)]
struct Cloud {
    things: Vec<Thing>,
    operations: Vec<Operation>,
    made: usize,
    sold_out: bool,
    over_quota: bool,
    lag: Duration,
    is_odd: bool,
    misses_one: bool,
    is_endless: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Disk,
    Machine,
    Partition,
}

#[derive(Debug, Clone)]
struct Thing {
    kind: Kind,
    id: String,
    /// As it was asked for.
    asked: Value,
    ready_at: Instant,
    listed_at: Instant,
    /// When it is gone.
    gone_at: Option<Instant>,
    is_broken: bool,
}

#[derive(Debug, Clone)]
struct Operation {
    kind: Kind,
    id: String,
    resource: String,
    listed_at: Instant,
    done_at: Instant,
    failure: Option<Value>,
}

impl Operation {
    fn to_json(&self) -> Value {
        let is_done = self.done_at <= Instant::now();
        let mut told = json!({
            "operation_id": self.id,
            "metadata": {"id": self.resource},
            "started_at": "2026-10-01T12:00:00Z",
            "completed_at": if is_done { "2026-10-01T12:00:20Z" } else { "" },
            "state": match (&self.failure, is_done) {
                (_, false) => "IN_PROGRESS",
                (None, true) => "SUCCEEDED",
                (Some(_), true) => "FAILED",
            },
        });
        if is_done {
            told["result"] = self
                .failure
                .clone()
                .unwrap_or_else(|| json!({"id": self.resource}));
        }
        told
    }
}

impl Thing {
    fn is_listed(&self) -> bool {
        let now = Instant::now();
        self.listed_at <= now && self.gone_at.is_none_or(|at| at > now)
    }

    fn name(&self) -> &str {
        self.asked["name"].as_str().unwrap()
    }

    /// Ids of disks that it uses.
    fn uses(&self, id: &str) -> bool {
        let of = |list: &str, field: &str| {
            let all = self.asked[list].as_array().into_iter().flatten();
            all.into_iter().any(|one| one[field] == *id)
        };
        of("disks", "disk_id") || of("host_channel_adapters", "ib_partition_id")
    }
}

type Answer = Result<Value, (StatusCode, &'static str, &'static str)>;

const fn bad(message: &'static str) -> (StatusCode, &'static str, &'static str) {
    (StatusCode::BAD_REQUEST, "400", message)
}

const MISSING: (StatusCode, &str, &str) = (StatusCode::NOT_FOUND, "not_found", "not_found");

/// What is said of ids that are not there, of most kinds.
const UNAUTHORIZED: (StatusCode, &str, &str) = (StatusCode::FORBIDDEN, "403", "unauthorized");

const fn missing(kind: Kind) -> (StatusCode, &'static str, &'static str) {
    match kind {
        Kind::Machine => MISSING,
        Kind::Disk | Kind::Partition => UNAUTHORIZED,
    }
}

impl Crusoe {
    /// A cloud whose project has this key.
    pub fn new(access_key: &str, secret_key: &str, project: &str) -> Self {
        Self::with_times(access_key, secret_key, project, USUAL)
    }

    /// As [`Crusoe::new`], with another pace.
    pub fn with_times(access_key: &str, secret_key: &str, project: &str, times: Times) -> Self {
        Self(Arc::new(Shared {
            access_key: access_key.to_owned(),
            secret_key: secret_key.to_owned(),
            project: project.to_owned(),
            times,
            ledger: Ledger::default(),
            state: Mutex::default(),
        }))
    }

    /// The quota for machines is used up.
    pub fn use_up_quota(&self) {
        self.lock().over_quota = true;
    }

    /// All lists begin with an entry of a form that nobody knows.
    pub fn list_oddities(&self) {
        self.lock().is_odd = true;
    }

    /// Lists of machines leave out the first, as it may happen between pages.
    pub fn miss_one(&self) {
        self.lock().misses_one = true;
    }

    /// No page says that it is the last.
    pub fn page_on_and_on(&self) {
        self.lock().is_endless = true;
    }

    /// What machine or disk was asked for under this name last.
    pub fn asked(&self, name: &str) -> Option<Value> {
        let state = self.lock();
        let thing = state.things.iter().rev().find(|thing| thing.name() == name)?;
        Some(thing.asked.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Cloud> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is gone costs nothing any more.
    fn settle(&self) {
        let now = Instant::now();
        for thing in &self.lock().things {
            if thing.gone_at.is_some_and(|at| at <= now) {
                self.0.ledger.removed(&thing.id);
            }
        }
    }

    fn answer(&self, method: &Method, path: &[&str], query: &Query, body: &[u8]) -> Answer {
        let asked = || serde_json::from_slice(body).map_err(|_| bad("the body is no JSON"));
        match (method.as_str(), path) {
            ("GET", ["locations"]) => Ok(json!({"items": [LOCATION, "us-southcentral1-a", OTHER_LOCATION]})),
            ("GET", ["capacities"]) => Ok(capacities()),
            (_, ["projects", project, ..]) if *project != self.0.project => Err(UNAUTHORIZED),
            ("GET", ["projects", _, "quotas"]) => Ok(self.quotas()),
            ("GET", ["projects", _, "compute", "vms", "types"]) => Ok(sizes()),
            ("GET", ["projects", _, "networking", "ib-networks"]) => Ok(networks()),
            (_, ["projects", _, "storage", "disks", rest @ ..]) => {
                self.things(Kind::Disk, method, rest, query, asked)
            }
            (_, ["projects", _, "compute", "vms", "instances", rest @ ..]) => {
                self.things(Kind::Machine, method, rest, query, asked)
            }
            (_, ["projects", _, "networking", "ib-partitions", rest @ ..]) => {
                self.things(Kind::Partition, method, rest, query, asked)
            }
            _ => Err(MISSING),
        }
    }

    fn things(
        &self,
        kind: Kind,
        method: &Method,
        rest: &[&str],
        query: &Query,
        asked: impl Fn() -> Result<Value, (StatusCode, &'static str, &'static str)>,
    ) -> Answer {
        match (method.as_str(), rest, kind) {
            ("GET", ["operations"], Kind::Disk | Kind::Machine) => {
                let state = self.lock();
                let of = query.get("resource_id");
                let found = state.operations.iter().filter(|operation| {
                    operation.kind == kind
                        && operation.listed_at <= Instant::now()
                        && of.is_none_or(|id| operation.resource == id)
                });
                Ok(json!({"items": found.map(Operation::to_json).collect::<Vec<_>>()}))
            }
            ("GET", ["operations", id], Kind::Disk | Kind::Machine) => {
                let state = self.lock();
                let found = state
                    .operations
                    .iter()
                    .find(|one| one.kind == kind && one.id == *id);
                Ok(found.ok_or(UNAUTHORIZED)?.to_json())
            }
            ("GET", [], _) => self.list(kind, query),
            ("GET", [id], _) => {
                let state = self.lock();
                let thing = state
                    .things
                    .iter()
                    .find(|thing| thing.kind == kind && thing.id == *id);
                let thing = thing.filter(|thing| thing.is_listed()).ok_or(missing(kind))?;
                Ok(self.to_json(&state, thing))
            }
            ("POST", [], Kind::Disk) => self.make_disk(asked()?),
            ("POST", [], Kind::Machine) => self.make_machine(asked()?),
            ("POST", [], Kind::Partition) => self.make_partition(asked()?),
            ("DELETE", [id], _) => self.delete(kind, id),
            _ => Err(MISSING),
        }
    }

    fn list(&self, kind: Kind, query: &Query) -> Answer {
        let state = self.lock();
        let found = state
            .things
            .iter()
            .filter(|thing| thing.kind == kind && thing.is_listed());
        let mut all: Vec<Value> = found.map(|thing| self.to_json(&state, thing)).collect();
        match kind {
            Kind::Partition => query.allows(&[])?,
            Kind::Disk => {
                query.allows(&["disk_ids", "location", "disk_names", "exclude_os"])?;
                if query.get("exclude_os") != Some("true") {
                    let machines = state.things.iter().filter(|thing| thing.kind == Kind::Machine);
                    all.extend(machines.filter(|thing| thing.is_listed()).map(system_disk));
                }
                if let Some(id) = query.get("disk_ids") {
                    all.retain(|disk| disk["id"] == *id);
                }
            }
            Kind::Machine => {
                query.allows(&[
                    "ids",
                    "names",
                    "types",
                    "locations",
                    "states",
                    "limit",
                    "next_token",
                ])?;
                let limit = query
                    .get("limit")
                    .map(|limit| limit.parse().map_err(|_| bad("limit")));
                let limit: usize = limit.transpose()?.unwrap_or(PAGE).min(PAGE);
                let token = query.get("next_token").unwrap_or("at=+/0");
                let at = token
                    .strip_prefix("at=+/")
                    .and_then(|at| at.parse::<usize>().ok());
                let at = at.ok_or(bad("next_token"))?;
                let all: Vec<Value> = all.into_iter().skip(usize::from(state.misses_one)).collect();
                let left = all.len().saturating_sub(at + limit);
                let page: Vec<Value> = all.into_iter().skip(at).take(limit).collect();
                let next = if left > 0 || state.is_endless {
                    format!("at=+/{}", at + limit)
                } else {
                    String::new()
                };
                return Ok(json!({"items": page, "next_page_token": next, "prev_page_token": ""}));
            }
        }
        Ok(json!({"items": all}))
    }

    fn to_json(&self, state: &Cloud, thing: &Thing) -> Value {
        let asked = &thing.asked;
        match thing.kind {
            Kind::Partition => {
                json!({"id": thing.id, "name": asked["name"], "ib_network_id": asked["ib_network_id"]})
            }
            Kind::Disk => {
                let users = state.things.iter().filter(|other| {
                    other.kind == Kind::Machine
                        && other.gone_at.is_none_or(|at| at > Instant::now())
                        && other.uses(&thing.id)
                });
                let users: Vec<Value> = users
                    .map(|user| json!({"vm_id": user.id, "attachment_type": "data", "mode": "read-write"}))
                    .collect();
                json!({"id": thing.id, "name": asked["name"], "type": "persistent-ssd", "size": asked["size"],
                    "location": asked["location"], "block_size": 4096, "created_at": "2026-10-01T12:00:00Z",
                    "updated_at": "2026-10-01T12:00:00Z", "serial_number": "96FD14FDBCF7E21E8EC", "attached_to": users})
            }
            Kind::Machine => {
                let is_ready = thing.ready_at <= Instant::now();
                let addresses = json!([{"public_ipv4": {"id": "a", "address": "203.0.113.55", "type": "dynamic"},
                    "private_ipv4": {"address": "172.27.16.5"}}]);
                json!({"id": thing.id, "name": asked["name"], "project_id": self.0.project, "type": asked["type"],
                    "location": asked["location"], "created_at": "2026-10-01T12:00:00Z",
                    "updated_at": "2026-10-01T12:00:00Z", "maintenance_policy": "manual", "disks": [],
                    "host_channel_adapters": [],
                    "state": match () {
                        () if thing.gone_at.is_some() => "STATE_DELETING",
                        () if thing.is_broken => "STATE_SHUTOFF",
                        () if is_ready => "STATE_RUNNING",
                        () => "STATE_CREATING",
                    },
                    "network_interfaces": [{"id": "n", "name": "nic0", "network": "n1", "subnet": "s1",
                        "interface_type": "ethernet", "mac_address": "00:00:5e:00:53:af", "external_dns_name": "",
                        "ips": if is_ready { addresses } else { json!([]) }}]})
            }
        }
    }

    fn quotas(&self) -> Value {
        let used_up = self.lock().over_quota;
        let quota = |name: &str, category: &str, available: i64| {
            json!({"programmatic_name": name, "category": category, "description": name, "type": "PROJECT_QUOTA_TYPE",
                "max": "20", "used": "4", "available": if used_up { 0 } else { available }.to_string()})
        };
        json!({"quotas": [
            quota("", "GPU Instance", 1),
            quota("c1a", "CPU Instance", 16),
            quota("l40s-48gb", "GPU Instance", 6),
            quota("h100-80gb-sxm-ib", "GPU Instance", 8),
            quota("mi300x-192gb-ib", "GPU Instance", 0),
            quota("persistent-ssd", "Storage", 20_000),
        ]})
    }

    fn make_disk(&self, asked: Value) -> Answer {
        known_fields(
            &asked,
            &["name", "size", "location", "type", "block_size", "snapshot_id"],
            &["name"],
        )?;
        let gib = asked["size"]
            .as_str()
            .and_then(|size| size.strip_suffix("GiB")?.parse::<u32>().ok());
        let is_whole = gib.is_some_and(|gib| gib > 0)
            && is_location(&asked)
            && ["persistent-ssd", "shared-volume"]
                .iter()
                .any(|kind| asked["type"] == **kind)
            && [512, 4096].iter().any(|size| asked["block_size"] == *size);
        match is_whole {
            true => self.begin(Kind::Disk, asked, self.0.times.disk),
            false => Err(bad("invalid disk")),
        }
    }

    fn make_machine(&self, asked: Value) -> Answer {
        let known = [
            "name",
            "type",
            "location",
            "image",
            "custom_image",
            "ssh_public_key",
            "startup_script",
            "shutdown_script",
            "disks",
            "host_channel_adapters",
            "network_interfaces",
            "maintenance_policy",
            "reservation_specification",
            "nvlink_domain_id",
            "virtualization_features",
        ];
        known_fields(&asked, &known, &["name", "type", "location", "ssh_public_key"])?;
        let is_key = asked["ssh_public_key"]
            .as_str()
            .is_some_and(|key| key.starts_with("ssh-"));
        let is_image = IMAGES.iter().any(|image| asked["image"] == **image);
        let is_size = SIZES.iter().any(|(name, ..)| asked["type"] == **name);
        if !is_key || !is_image || !is_size || !is_location(&asked) {
            return Err(bad("invalid type, location, image or ssh_public_key"));
        }
        let mut state = self.lock();
        for disk in asked["disks"].as_array().into_iter().flatten() {
            known_fields(
                disk,
                &["disk_id", "mode", "attachment_type"],
                &["disk_id", "mode", "attachment_type"],
            )?;
            let is_mode = ["read-only", "read-write"]
                .iter()
                .any(|mode| disk["mode"] == **mode);
            let is_type = ["os", "data"].iter().any(|of| disk["attachment_type"] == **of);
            let is_it = |thing: &&Thing| disk["disk_id"] == *thing.id && thing.gone_at.is_none();
            let found = state.things.iter().find(is_it);
            let is_ready = found.is_some_and(|disk| {
                disk.ready_at <= Instant::now() && disk.asked["location"] == asked["location"]
            });
            if !is_mode || !is_type || !is_ready {
                return Err(bad("disk not found or not ready"));
            }
        }
        for adapter in asked["host_channel_adapters"].as_array().into_iter().flatten() {
            known_fields(adapter, &["ib_partition_id", "transport_partition_id"], &[])?;
            let is_it = |thing: &Thing| adapter["ib_partition_id"] == *thing.id && thing.gone_at.is_none();
            if !state.things.iter().any(is_it) {
                return Err(bad("ib partition not found"));
            }
        }
        if state.over_quota {
            return Err(bad("quota exceeded for instances of this type"));
        }
        if state.sold_out {
            state.made += 1;
            let id = format!("1a2b3c4d-1111-4222-8333-{:012x}", state.made);
            let failure = json!({"code": "out_of_stock", "message": "There is not enough stock of this VM type in this location."});
            let takes = Duration::from_secs(4);
            return Ok(self.operation(&mut state, Kind::Machine, &id, takes, Some(failure)));
        }
        drop(state);
        self.begin(Kind::Machine, asked, self.0.times.machine)
    }

    fn make_partition(&self, asked: Value) -> Answer {
        known_fields(&asked, &["name", "ib_network_id"], &["name", "ib_network_id"])?;
        let networks = networks();
        let is_network = |network: &Value| network["id"] == asked["ib_network_id"];
        if !networks["items"].as_array().unwrap().iter().any(is_network) {
            return Err(bad("ib network not found"));
        }
        let (name, network) = (asked["name"].clone(), asked["ib_network_id"].clone());
        let begun = self.begin(Kind::Partition, asked, Duration::ZERO)?;
        Ok(json!({"id": begun["operation"]["metadata"]["id"], "name": name, "ib_network_id": network}))
    }

    fn begin(&self, kind: Kind, asked: Value, takes: Duration) -> Answer {
        let mut state = self.lock();
        let is_named = |thing: &Thing| {
            thing.kind == kind
                && thing.gone_at.is_none_or(|at| at > Instant::now())
                && thing.asked["name"] == asked["name"]
        };
        if state.things.iter().any(is_named) {
            return Err(bad("the name is taken"));
        }
        state.made += 1;
        let (word, head) = match kind {
            Kind::Disk => ("disk", "0f1e2d3c"),
            Kind::Machine => ("machine", "1a2b3c4d"),
            Kind::Partition => ("partition", "44701f9e"),
        };
        let id = format!("{head}-1111-4222-8333-{:012x}", state.made);
        let now = Instant::now();
        self.0.ledger.made(word, &id, asked["name"].as_str().unwrap());
        let listed_at = now + state.lag;
        state.things.push(Thing {
            kind,
            id: id.clone(),
            asked,
            ready_at: now + takes,
            listed_at,
            gone_at: None,
            is_broken: false,
        });
        Ok(self.operation(&mut state, kind, &id, takes, None))
    }

    fn delete(&self, kind: Kind, id: &str) -> Answer {
        let mut state = self.lock();
        let is_there = |thing: &&Thing| thing.kind == kind && thing.id == id && thing.is_listed();
        let thing = state.things.iter().find(is_there).ok_or(missing(kind))?;
        if thing.gone_at.is_some() {
            return Err(bad("it is being deleted"));
        }
        if thing.ready_at > Instant::now() {
            return Err((StatusCode::FORBIDDEN, "403", "it is being created"));
        }
        let is_user = |user: &Thing| user.gone_at.is_none_or(|at| at > Instant::now()) && user.uses(id);
        if state.things.iter().any(is_user) {
            return Err(bad("it is in use"));
        }
        let takes = match kind {
            Kind::Disk => self.0.times.disk / 4,
            Kind::Machine => self.0.times.ends,
            Kind::Partition => Duration::ZERO,
        };
        let is_it = |thing: &&mut Thing| thing.id == id;
        let thing = state.things.iter_mut().find(is_it).ok_or(missing(kind))?;
        thing.gone_at = Some(Instant::now() + takes);
        Ok(match kind {
            Kind::Partition => Value::Null,
            _ => self.operation(&mut state, kind, id, takes, None),
        })
    }

    /// Lists of operations have it later.
    fn operation(
        &self,
        state: &mut Cloud,
        kind: Kind,
        id: &str,
        takes: Duration,
        failure: Option<Value>,
    ) -> Value {
        let now = Instant::now();
        let operation = Operation {
            kind,
            id: format!("op-{}", state.operations.len()),
            resource: id.to_owned(),
            listed_at: now + state.lag + self.0.times.disk / 4,
            done_at: now + takes,
            failure,
        };
        let told = json!({"operation": operation.to_json()});
        state.operations.push(operation);
        told
    }
}

fn system_disk(machine: &Thing) -> Value {
    json!({"id": format!("{}-os", machine.id), "name": machine.asked["name"], "type": "persistent-ssd", "size": "128GiB",
        "location": machine.asked["location"], "block_size": 512, "created_at": "2026-10-01T12:00:00Z",
        "updated_at": "2026-10-01T12:00:00Z", "serial_number": "06FD14FDBCF7E21E8EC", "attached_to": []})
}

fn is_location(asked: &Value) -> bool {
    [LOCATION, OTHER_LOCATION]
        .iter()
        .any(|one| asked["location"] == **one)
}

fn known_fields(
    asked: &Value,
    known: &[&str],
    required: &[&str],
) -> Result<(), (StatusCode, &'static str, &'static str)> {
    let fields = asked.as_object().ok_or(bad("not an object"))?;
    let is_known = fields.keys().all(|field| known.contains(&field.as_str()));
    let is_whole = required
        .iter()
        .all(|field| asked[*field].as_str().is_some_and(|text| !text.is_empty()));
    match is_known && is_whole {
        true => Ok(()),
        false => Err(bad("unknown or missing fields")),
    }
}

fn sizes() -> Value {
    let size = |(name, cpus, memory, disk, gpu, gpus): &(&str, i64, i64, i64, &str, i64)| {
        json!({"product_name": name, "description": name, "cpu_cores": cpus, "memory_gb": memory, "memory_type": "RAM",
            "cpu_type": if name.starts_with("gb200") { "arm64" } else { "amd64" },
            "disk_gb": disk, "disk_type": if *disk > 0 { "NVMe" } else { "" }, "gpu_type": gpu, "num_gpu": gpus})
    };
    json!({"items": SIZES.iter().map(size).collect::<Vec<_>>()})
}

/// All in one location, some in another; those that are sold out stand here with 0.
fn capacities() -> Value {
    let of = |name: &str, location: &str, quantity: i64| json!({"type": name, "location": location, "quantity": quantity});
    let mut items: Vec<Value> = SIZES.iter().map(|(name, ..)| of(name, LOCATION, 3)).collect();
    items.insert(0, of("c1a.8x", LOCATION, 0));
    items.extend([
        of("c1a.8x", OTHER_LOCATION, 5),
        of("l40s-48gb.1x", OTHER_LOCATION, 0),
        of("unknown.1x", LOCATION, 1),
    ]);
    json!({"items": items})
}

fn networks() -> Value {
    let network = |id: &str, location: &str, size: &str, quantity: i64| json!({"id": id, "name": id, "location": location, "capacities": [{"slice_type": size, "quantity": quantity}]});
    json!({"items": [
        network("1ce839b7-3fab-46f9-8e54-7a6bb4ac1ff0", OTHER_LOCATION, "h100-80gb-sxm-ib.8x", 9),
        network("1ce839b7-3fab-46f9-8e54-7a6bb4ac1ffc", LOCATION, "h100-80gb-sxm-ib.8x", 1),
        network("1ce839b7-3fab-46f9-8e54-7a6bb4ac1ffd", LOCATION, "h100-80gb-sxm-ib.8x", 4),
    ]})
}

/// The parameters of a request.
#[derive(Debug)]
struct Query(Vec<(String, String)>);

impl Query {
    fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    fn allows(&self, known: &[&str]) -> Result<(), (StatusCode, &'static str, &'static str)> {
        match self.0.iter().all(|(name, _)| known.contains(&name.as_str())) {
            true => Ok(()),
            false => Err(bad("unknown parameter")),
        }
    }
}

async fn serve(
    State(cloud): State<Crusoe>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let query = url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).into_owned();
    let query = Query(query.collect());
    let refused = |(status, code, message): (StatusCode, &str, &str)| {
        (status, Json(json!({"code": code, "message": message}))).into_response()
    };
    let shared = &cloud.0;
    if !auth::is_signed(
        &shared.access_key,
        &shared.secret_key,
        &method,
        uri.path(),
        &query.0,
        &headers,
    ) {
        return refused((StatusCode::UNAUTHORIZED, "401", "bad_credential"));
    }
    let Some(path) = uri.path().strip_prefix(BASE) else {
        return refused(MISSING);
    };
    let path: Vec<&str> = path.split('/').skip(1).collect();
    cloud.settle();
    let mut answer = cloud.answer(&method, &path, &query, &body);
    cloud.settle();
    if let (true, Ok(told)) = (cloud.lock().is_odd, &mut answer) {
        let odd = json!({"programmatic_name": "new", "category": "Instance", "available": null, "new": [1]});
        for list in ["items", "quotas"] {
            if let Some(Value::Array(entries)) = told.get_mut(list) {
                entries.insert(0, odd.clone());
            }
        }
    }
    match answer {
        Ok(Value::Null) => StatusCode::OK.into_response(),
        Ok(told) => Json(told).into_response(),
        Err(error) => refused(error),
    }
}

impl Emulator for Crusoe {
    fn router(&self) -> Router {
        Router::new().fallback(serve).with_state(self.clone())
    }

    fn ledger(&self) -> &Ledger {
        self.settle();
        &self.0.ledger
    }

    fn sell_out(&self, sold_out: bool) {
        self.lock().sold_out = sold_out;
    }

    fn lag(&self, lag: Duration) {
        self.lock().lag = lag;
    }

    fn lose_all(&self) {
        for thing in &mut self.lock().things {
            thing.is_broken |= thing.kind == Kind::Machine;
        }
    }
}
