//! Plays Nebius by its protocol buffers, for tests: gRPC over HTTP, in this process or served.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    clippy::panic,
    clippy::cast_possible_truncation
)] // tests

mod auth;
mod codec;
mod http;
mod instances;
mod sold;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use dstack_backend_kit::{CANARY, Emulator, Ledger};
use serde_json::{Value, json};
use tokio::time::Instant;

use codec::encode;

/// Id of the service account, which is in one tenant.
pub const ACCOUNT: &str = "serviceaccount-e00dstack";
/// Id of the service account's only key.
pub const KEY_ID: &str = "publickey-e00dstack";
/// The private half of that key, in PEM.
pub const KEY: &str = include_str!("../key.pem");

const TENANT: &str = "tenant-e00a";

/// The project of the region that has all.
pub const NORTH: &str = "project-e00north";
/// Another one in the same region.
pub const RESEARCH: &str = "project-e00research";
/// The only project of eu-west1, which has fewer platforms.
pub const WEST: &str = "project-e01west";
/// One that is being removed.
pub const OLD: &str = "project-u00old";

/// Id, name, region, and whether it is there and not going.
const PROJECTS: &[(&str, &str, &str, bool)] = &[
    (NORTH, "default-project-eu-north1", "eu-north1", true),
    (OLD, "default-project-us-central1", "us-central1", false),
    (RESEARCH, "research", "eu-north1", true),
    (WEST, "west", "eu-west1", true),
];

/// What a page has at most.
const PAGE: usize = 2;

/// How long an access token is good for.
const TOKEN_LIFETIME: Duration = Duration::from_secs(12 * 60 * 60);

/// How long things take.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Until a disk, policy or cluster is made.
    pub piece: Duration,
    /// Until a machine runs.
    pub machine: Duration,
    /// Until what is ended is gone.
    pub ends: Duration,
}

const USUAL: Times = Times {
    piece: Duration::from_secs(5),
    machine: Duration::from_secs(40),
    ends: Duration::from_secs(12),
};

/// The vendor's cloud, with one tenant.
#[derive(Debug, Clone)]
pub struct Nebius(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    times: Times,
    page: usize,
    ledger: Ledger,
    state: Mutex<Cloud>,
}

#[derive(Debug, Default)]
struct Cloud {
    tokens: HashMap<String, Instant>,
    things: Vec<Thing>,
    operations: Vec<Operation>,
    /// Answers to changes, by their keys.
    answers: HashMap<String, Value>,
    made: usize,
    sold_out: bool,
    refuses: Option<Refusal>,
    forbidden: Option<&'static str>,
    lag: Duration,
    is_odd: bool,
    misses_one: bool,
    is_endless: bool,
    /// What the next calls for machines are answered, and whether they are carried out all the same.
    next: VecDeque<(Refusal, bool)>,
    hidden: Option<&'static str>,
    deleted: Option<&'static str>,
    is_restored: bool,
    removes_failed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Instance,
    Disk,
    Cluster,
    Policy,
}

impl Kind {
    fn of(service: &str) -> Option<Self> {
        Some(match service {
            "nebius.compute.v1.InstanceService" => Self::Instance,
            "nebius.compute.v1.DiskService" => Self::Disk,
            "nebius.compute.v1.GpuClusterService" => Self::Cluster,
            "nebius.billing.v1.PricingPolicyService" => Self::Policy,
            _ => return None,
        })
    }

    const fn message(self) -> &'static str {
        match self {
            Self::Instance => "Instance",
            Self::Disk => "Disk",
            Self::Cluster => "GpuCluster",
            Self::Policy => "PricingPolicy",
        }
    }

    const fn messages(self) -> &'static str {
        match self {
            Self::Instance => "Instances",
            Self::Disk => "Disks",
            Self::Cluster => "GpuClusters",
            Self::Policy => "PricingPolicies",
        }
    }

    const fn ledger(self) -> &'static str {
        match self {
            Self::Instance => "machine",
            Self::Disk => "disk",
            Self::Cluster => "GPU cluster",
            Self::Policy => "pricing policy",
        }
    }

    const fn id(self) -> &'static str {
        match self {
            Self::Instance => "computeinstance",
            Self::Disk => "computedisk",
            Self::Cluster => "computegpucluster",
            Self::Policy => "pricingpolicy",
        }
    }
}

#[derive(Debug, Clone)]
struct Thing {
    kind: Kind,
    id: String,
    /// As it was asked for.
    asked: Value,
    made_at: Instant,
    ready_at: Instant,
    listed_at: Instant,
    /// When it is gone.
    gone_at: Option<Instant>,
    /// When the vendor itself has removed it, as it cannot be made.
    removed_at: Option<Instant>,
    is_stopped: bool,
    /// It is never made, which is known when it should be ready.
    is_failed: bool,
}

impl Thing {
    fn is_there(&self) -> bool {
        let ends = [self.gone_at, self.removed_at];
        ends.into_iter().flatten().all(|at| at > Instant::now())
    }

    fn is_listed(&self) -> bool {
        self.listed_at <= Instant::now() && self.is_there()
    }

    fn name(&self) -> &str {
        self.asked["metadata"]["name"].as_str().unwrap_or_default()
    }

    fn project(&self) -> &str {
        self.asked["metadata"]["parent_id"].as_str().unwrap()
    }

    fn is_ready(&self) -> bool {
        self.ready_at <= Instant::now()
    }

    /// Whether it is a machine that has this.
    fn has(&self, id: &str) -> bool {
        let spec = &self.asked["spec"];
        let of = [
            &spec["boot_disk"]["existing_disk"]["id"],
            &spec["gpu_cluster"]["id"],
            &spec["spot_pricing_policy"]["id"],
        ];
        self.kind == Kind::Instance && of.into_iter().any(|had| had == id)
    }
}

#[derive(Debug, Clone)]
struct Operation {
    id: String,
    resource: String,
    listed_at: Instant,
    done_at: Instant,
    failure: Option<Refusal>,
}

impl Operation {
    fn to_json(&self) -> Value {
        let mut told = json!({
            "id": self.id, "description": "an operation", "created_by": ACCOUNT, "resource_id": self.resource,
            "created_at": {"seconds": 1_790_000_000},
        });
        if self.done_at <= Instant::now() {
            told["finished_at"] = json!({"seconds": 1_790_000_020});
            told["status"] = self
                .failure
                .as_ref()
                .map_or_else(|| json!({}), Refusal::to_status);
        }
        told
    }
}

/// A status that is not OK: its number, text, and what `ServiceError` tells.
#[derive(Debug, Clone)]
pub struct Refusal {
    code: i32,
    message: String,
    service: Value,
    /// It comes after an answer that has begun.
    is_trailing: bool,
}

impl Refusal {
    /// A status with this number and text, and details, as JSON (fields of `ServiceError`).
    pub fn new(code: i32, message: &str, service: Value) -> Self {
        Self {
            code,
            message: message.to_owned(),
            service,
            is_trailing: false,
        }
    }

    /// What is said of a quota that is used up.
    pub fn quota() -> Self {
        let violation = json!({"quota": "compute.instance.non-gpu.vcpu", "message": "limit exceeded", "limit": "8", "requested": "10"});
        let service = json!({"service": "compute", "code": "QuotaFailure", "quota_failure": {"violations": [violation]}});
        Self::new(8, "Quota limit exceeded", service)
    }

    fn sold_out() -> Self {
        let violation = json!({"resource_type": "vm", "message": "not enough resources", "requested": "1"});
        let service = json!({"service": "compute", "code": "NotEnoughResources", "not_enough_resources": {"violations": [violation]}});
        Self::new(8, "there is no room for the machine", service)
    }

    fn to_status(&self) -> Value {
        let mut status = json!({"code": self.code, "message": self.message});
        if self.service != Value::Null {
            let value = hex::encode(encode("ServiceError", &self.service));
            let details =
                json!({"type_url": "type.googleapis.com/nebius.common.v1.ServiceError", "value": value});
            status["details"] = json!([details]);
        }
        status
    }
}

fn bad(message: impl Into<String>) -> Refusal {
    let message = message.into();
    let violation = json!({"field": "spec", "message": message});
    let service =
        json!({"service": "compute", "code": "BadRequest", "bad_request": {"violations": [violation]}});
    Refusal::new(3, &message, service)
}

fn missing(id: &str) -> Refusal {
    let service =
        json!({"service": "compute", "code": "NotFound", "resource_not_found": {"resource_id": id}});
    Refusal::new(5, &format!("{id} is not found"), service)
}

fn in_use(id: &str, message: &str) -> Refusal {
    let service =
        json!({"service": "compute", "code": "BadResourceState", "bad_resource_state": {"resource_id": id}});
    Refusal::new(9, message, service)
}

type Answer = Result<Value, Refusal>;

impl Default for Nebius {
    fn default() -> Self {
        Self::with_times(USUAL, PAGE)
    }
}

impl Nebius {
    /// With another pace, and pages of another length.
    pub fn with_times(times: Times, page: usize) -> Self {
        Self(Arc::new(Shared {
            times,
            page,
            ledger: Ledger::default(),
            state: Mutex::default(),
        }))
    }

    /// Machines that are asked for are refused so from now on.
    pub fn refuse(&self, refusal: Refusal) {
        self.lock().refuses = Some(refusal);
    }

    /// The next calls for machines are refused so, one after the other: with `true` they are carried out all the same.
    pub fn refuse_next(&self, refusals: impl IntoIterator<Item = (Refusal, bool)>) {
        self.lock().next.extend(refusals);
    }

    /// The service account sees this project no more.
    pub fn hide(&self, project: &'static str) {
        self.lock().hidden = Some(project);
    }

    /// The project is gone, with all that was in it.
    pub fn delete_project(&self, project: &'static str) {
        self.hide(project);
        self.lock().deleted = Some(project);
    }

    /// The project that was being removed stays.
    pub fn restore(&self) {
        self.lock().is_restored = true;
    }

    /// Machines that cannot be made are removed, and not kept as failed ones.
    pub fn remove_failed(&self) {
        self.lock().removes_failed = true;
    }

    /// The service account may not look into this project any more.
    pub fn forbid(&self, project: &'static str) {
        self.lock().forbidden = Some(project);
    }

    /// Access tokens are good for nothing any more.
    pub fn revoke_tokens(&self) {
        self.lock().tokens.clear();
    }

    /// All lists begin with an entry that cannot be read.
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

    /// What was asked for under this name last, of a kind: `machine`, `disk`, `GPU cluster`, `pricing policy`.
    pub fn asked(&self, kind: &str, name: &str) -> Option<Value> {
        let state = self.lock();
        let mut things = state.things.iter().rev();
        let thing = things.find(|thing| thing.kind.ledger() == kind && thing.name() == name)?;
        Some(thing.asked.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Cloud> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is gone costs nothing any more.
    fn settle(&self) {
        for thing in &self.lock().things {
            if !thing.is_there() {
                self.0.ledger.removed(&thing.id);
            }
        }
    }

    fn exchange(&self, asked: &Value) -> Answer {
        let of = |name: &str| asked[name].as_str().unwrap_or_default();
        let is_whole = of("grant_type") == "urn:ietf:params:oauth:grant-type:token-exchange"
            && of("requested_token_type") == "urn:ietf:params:oauth:token-type:access_token"
            && of("subject_token_type") == "urn:ietf:params:oauth:token-type:jwt";
        if !is_whole {
            return Err(bad("grant_type"));
        }
        if !auth::is_signed(of("subject_token"), ACCOUNT, KEY_ID) {
            return Err(Refusal::new(16, "the subject token is not valid", Value::Null));
        }
        let mut state = self.lock();
        state.made += 1;
        let token = format!("{CANARY}-{}", state.made);
        state
            .tokens
            .insert(token.clone(), Instant::now() + TOKEN_LIFETIME);
        Ok(json!({
            "access_token": token, "token_type": "Bearer", "expires_in": TOKEN_LIFETIME.as_secs(),
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
        }))
    }

    fn is_authorized(&self, bearer: Option<&str>) -> bool {
        let token = bearer.and_then(|text| text.strip_prefix("Bearer "));
        let state = self.lock();
        token.is_some_and(|token| {
            state
                .tokens
                .get(token)
                .is_some_and(|until| *until > Instant::now())
        })
    }

    /// The name of the message that a call takes and the one that it gives, and what does it.
    fn method(service: &str, method: &str) -> Option<(String, String)> {
        let of = |ask: &str, answer: &str| Some((ask.to_owned(), answer.to_owned()));
        if let Some(kind) = Kind::of(service) {
            let (one, many) = (kind.message(), kind.messages());
            return match method {
                "Get" => of(&format!("Get{one}Request"), one),
                "GetByName" => of("GetByNameRequest", one),
                "List" => of(&format!("List{many}Request"), &format!("List{many}Response")),
                "Create" => of(&format!("Create{one}Request"), "Operation"),
                "Delete" => of(&format!("Delete{one}Request"), "Operation"),
                _ => None,
            };
        }
        match (service, method) {
            ("nebius.iam.v1.TokenExchangeService", "Exchange") => {
                of("ExchangeTokenRequest", "CreateTokenResponse")
            }
            ("nebius.iam.v1.TenantService", "List") => of("ListTenantsRequest", "ListTenantsResponse"),
            ("nebius.iam.v2.TenantService", "List") => of("ListTenantsRequest", "v2.ListTenantsResponse"),
            ("nebius.iam.v1.ProjectService", "List") => of("ListProjectsRequest", "ListProjectsResponse"),
            ("nebius.iam.v2.ProjectService", "List") => of("ListProjectsRequest", "v2.ListProjectsResponse"),
            ("nebius.vpc.v1.SubnetService", "List") => of("ListSubnetsRequest", "ListSubnetsResponse"),
            ("nebius.common.v1.OperationService", "Get") => of("GetOperationRequest", "Operation"),
            ("nebius.compute.v1.PlatformService", "List") => {
                of("ListPlatformsRequest", "ListPlatformsResponse")
            }
            ("nebius.billing.v1alpha1.CalculatorService", "Estimate") => {
                of("EstimateRequest", "EstimateResponse")
            }
            _ => None,
        }
    }

    /// `key`: of idempotency.
    fn answer(&self, service: &str, method: &str, asked: &Value, key: Option<&str>) -> Answer {
        let is_for_machine = Kind::of(service) == Some(Kind::Instance) && method == "Create";
        let next = is_for_machine.then(|| self.lock().next.pop_front()).flatten();
        if let Some((mut refusal, is_done)) = next {
            if is_done {
                self.carry_out(service, method, asked, key)?;
                refusal.is_trailing = true;
            }
            return Err(refusal);
        }
        self.carry_out(service, method, asked, key)
    }

    fn carry_out(&self, service: &str, method: &str, asked: &Value, key: Option<&str>) -> Answer {
        if let Some(key) = key {
            let before = self.lock().answers.get(key).cloned();
            if let Some(before) = before {
                return Ok(before);
            }
        }
        let answer = match (Kind::of(service), service, method) {
            (Some(kind), _, "Create") => self.create(kind, asked),
            (Some(kind), _, "Delete") => self.delete(kind, text(asked, "id")),
            (Some(kind), _, "List") => self.list_things(kind, asked),
            (Some(kind), _, _) => self.get(kind, asked),
            (None, "nebius.iam.v1.TokenExchangeService", _) => self.exchange(asked),
            (None, "nebius.common.v1.OperationService", _) => self.operation(text(asked, "id")),
            (None, "nebius.iam.v1.TenantService" | "nebius.iam.v2.TenantService", _) => {
                let tenant = json!({"metadata": {"id": TENANT, "name": "a tenant"}, "spec": {}});
                self.page(asked, vec![tenant])
            }
            (None, "nebius.iam.v1.ProjectService" | "nebius.iam.v2.ProjectService", _) => {
                let project = if service.contains(".v2.") {
                    project
                } else {
                    old_project
                };
                let (hidden, is_restored) = {
                    let state = self.lock();
                    (state.hidden, state.is_restored)
                };
                let seen = PROJECTS.iter().filter(|(id, ..)| hidden != Some(*id));
                let seen = seen.map(|&(id, name, region, is_there)| {
                    project(&(id, name, region, is_there || is_restored))
                });
                match text(asked, "parent_id") {
                    TENANT => self.page(asked, seen.collect()),
                    other => Err(missing(other)),
                }
            }
            (None, "nebius.compute.v1.PlatformService", _) => {
                self.may_look_into(text(asked, "parent_id"))?;
                self.page(asked, sold::platforms(region_of(text(asked, "parent_id"))))
            }
            (None, "nebius.billing.v1alpha1.CalculatorService", _) => {
                let asked = &asked["resource_spec"]["compute_instance_spec"];
                let project = text(&asked["metadata"], "parent_id");
                self.may_look_into(project)?;
                sold::estimate(region_of(project), &asked["spec"])
            }
            _ => {
                self.may_look_into(text(asked, "parent_id"))?;
                self.page(asked, subnets(text(asked, "parent_id")))
            }
        };
        if let (Some(key), Ok(told)) = (key, &answer) {
            self.lock().answers.insert(key.to_owned(), told.clone());
        }
        answer
    }

    fn may_look_into(&self, project: &str) -> Result<(), Refusal> {
        let is_known = PROJECTS.iter().any(|(id, ..)| *id == project);
        if self.lock().deleted == Some(project) {
            return Err(missing(project));
        }
        match is_known && self.lock().forbidden != Some(project) {
            true => Ok(()),
            false => Err(Refusal::new(
                7,
                "Permission denied",
                json!({"permission_denied": {"resource_id": project}}),
            )),
        }
    }

    fn page(&self, asked: &Value, all: Vec<Value>) -> Answer {
        let size = usize::try_from(asked["page_size"].as_i64().unwrap_or(0)).map_err(|_| bad("page_size"))?;
        let size = if size == 0 {
            self.0.page
        } else {
            size.min(self.0.page)
        };
        let at: usize = match text(asked, "page_token") {
            "" => 0,
            token => token
                .strip_prefix("at-")
                .and_then(|at| at.parse().ok())
                .ok_or(bad("page_token"))?,
        };
        let left = all.len().saturating_sub(at + size);
        let page: Vec<Value> = all.into_iter().skip(at).take(size).collect();
        let next = match left > 0 || self.lock().is_endless {
            true => format!("at-{}", at + size),
            false => String::new(),
        };
        Ok(json!({"items": page, "next_page_token": next}))
    }

    fn list_things(&self, kind: Kind, asked: &Value) -> Answer {
        let project = text(asked, "parent_id");
        self.may_look_into(project)?;
        let state = self.lock();
        let found = state
            .things
            .iter()
            .filter(|thing| thing.kind == kind && thing.project() == project && thing.is_listed());
        let skipped = usize::from(state.misses_one && kind == Kind::Instance);
        let all = found.skip(skipped).map(|thing| to_json(&state, thing)).collect();
        drop(state);
        self.page(asked, all)
    }

    fn get(&self, kind: Kind, asked: &Value) -> Answer {
        let state = self.lock();
        let (id, name) = (text(asked, "id"), text(asked, "name"));
        let is_it = |thing: &&Thing| match id {
            "" => thing.name() == name && thing.project() == text(asked, "parent_id"),
            id => thing.id == id,
        };
        let mut things = state
            .things
            .iter()
            .filter(|thing| thing.kind == kind && thing.is_listed());
        match things.find(is_it) {
            Some(thing) if state.forbidden == Some(thing.project()) => {
                Err(Refusal::new(7, "Permission denied", Value::Null))
            }
            Some(thing) => Ok(to_json(&state, thing)),
            None => Err(missing(if id.is_empty() { name } else { id })),
        }
    }

    fn operation(&self, id: &str) -> Answer {
        let state = self.lock();
        let mut operations = state.operations.iter();
        let found = operations.find(|one| one.id == id && one.listed_at <= Instant::now());
        found.map(Operation::to_json).ok_or_else(|| missing(id))
    }

    fn create(&self, kind: Kind, asked: &Value) -> Answer {
        let project = text(&asked["metadata"], "parent_id");
        self.may_look_into(project)?;
        let mut state = self.lock();
        let name = text(&asked["metadata"], "name");
        let is_same = |thing: &&Thing| {
            thing.kind == kind && thing.project() == project && thing.name() == name && thing.is_there()
        };
        if let Some(same) = state.things.iter().find(is_same) {
            let service = json!({"resource_already_exists": {"resource_id": same.id}});
            return Err(Refusal::new(6, "there is one of that name", service));
        }
        instances::check(&state, kind, project, &asked["spec"])?;
        let mut failure = None;
        if kind == Kind::Instance {
            if let Some(refusal) = &state.refuses {
                return Err(refusal.clone());
            }
            failure = state.sold_out.then(Refusal::sold_out);
        }
        let now = Instant::now();
        let takes = match kind {
            Kind::Instance => self.0.times.machine,
            _ => self.0.times.piece,
        };
        state.made += 1;
        let number = state.made;
        let done_at = match failure {
            Some(_) => now + takes / 4,
            None => now + takes,
        };
        let thing = Thing {
            kind,
            id: format!("{}-e00{number}", kind.id()),
            asked: asked.clone(),
            made_at: now,
            ready_at: now + takes,
            listed_at: now + state.lag,
            gone_at: None,
            removed_at: (failure.is_some() && state.removes_failed).then_some(done_at),
            is_stopped: false,
            is_failed: failure.is_some(),
        };
        let operation = Operation {
            id: format!("operation-e00{number}"),
            resource: thing.id.clone(),
            listed_at: thing.listed_at,
            done_at,
            failure,
        };
        self.0.ledger.made(kind.ledger(), &thing.id, name);
        let told = operation.to_json();
        state.things.push(thing);
        state.operations.push(operation);
        Ok(told)
    }

    fn delete(&self, kind: Kind, id: &str) -> Answer {
        let mut state = self.lock();
        let now = Instant::now();
        let is_had = state.things.iter().any(|thing| thing.is_there() && thing.has(id));
        state.made += 1;
        let (number, lag) = (state.made, state.lag);
        let mut things = state.things.iter_mut();
        let thing = things.find(|thing| thing.kind == kind && thing.id == id && thing.is_listed());
        let thing = thing.ok_or_else(|| missing(id))?;
        if is_had {
            return Err(in_use(id, "it is in use"));
        }
        if thing.gone_at.is_some() {
            let service = json!({"operation_conflict": {"resource_id": id, "conflicting_operation_id": "operation-e0"}});
            return Err(Refusal::new(10, "it is being deleted", service));
        }
        thing.gone_at = Some(now + self.0.times.ends);
        let operation = Operation {
            id: format!("operation-e00{number}"),
            resource: id.to_owned(),
            listed_at: now + lag,
            done_at: now + self.0.times.ends,
            failure: None,
        };
        let told = operation.to_json();
        state.operations.push(operation);
        Ok(told)
    }
}

fn text<'a>(asked: &'a Value, name: &str) -> &'a str {
    asked[name].as_str().unwrap_or_default()
}

fn region_of(project: &str) -> &'static str {
    let found = PROJECTS.iter().find(|(id, ..)| *id == project);
    found.map_or("", |(_, _, region, _)| region)
}

fn project((id, name, region, is_there): &(&str, &str, &str, bool)) -> Value {
    json!({
        "metadata": {"id": id, "parent_id": TENANT, "name": name},
        "spec": {"region": region},
        "status": {"project_state": if *is_there { "ACTIVE" } else { "PURGING" }},
    })
}

/// Of version 1.
fn old_project((id, name, region, is_there): &(&str, &str, &str, bool)) -> Value {
    json!({
        "metadata": {"id": id, "parent_id": TENANT, "name": name},
        "spec": {"region": region},
        "status": {"container_state": if *is_there { "ACTIVE" } else { "PURGING" }, "suspension_state": "NONE", "region": region},
    })
}

fn subnet_id(project: &str) -> String {
    format!("vpcsubnet-{project}")
}

fn subnets(project: &str) -> Vec<Value> {
    let subnet = |id: &str, name: &str| {
        json!({"metadata": {"id": id, "parent_id": project, "name": name}, "spec": {"network_id": "vpcnetwork-e00a"},
            "status": {"state": "READY"}})
    };
    vec![
        subnet("vpcsubnet-e00other", "other"),
        subnet("vpcsubnet-e00more", "more"),
        subnet(&subnet_id(project), "default-subnet-abcd"),
    ]
}

fn to_json(state: &Cloud, thing: &Thing) -> Value {
    let mut metadata = thing.asked["metadata"].clone();
    metadata["id"] = json!(thing.id);
    metadata["resource_version"] = json!(1);
    metadata["created_at"] = json!({"seconds": 1_790_000_000});
    let is_ending = thing.gone_at.is_some();
    let users = || {
        let users = state
            .things
            .iter()
            .filter(|user| user.is_there() && user.has(&thing.id));
        users.map(|user| user.id.clone()).collect::<Vec<_>>()
    };
    let status = match thing.kind {
        Kind::Instance => instances::status(thing),
        Kind::Disk => json!({
            "state": if is_ending { "DELETING" } else if thing.is_ready() { "READY" } else { "CREATING" },
            "read_write_attachment": users().first(),
        }),
        Kind::Cluster => json!({"instances": users(), "reconciling": !thing.is_ready()}),
        Kind::Policy => json!({
            "state": if is_ending { "STATE_DELETING" } else if thing.is_ready() { "STATE_ACTIVE" } else { "STATE_CREATING" },
            "currency": "USD",
        }),
    };
    json!({"metadata": metadata, "spec": thing.asked["spec"], "status": status})
}

impl Emulator for Nebius {
    fn router(&self) -> Router {
        http::router(self.clone())
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
            thing.is_stopped |= thing.kind == Kind::Instance;
        }
    }
}
