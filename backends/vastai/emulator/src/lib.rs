//! Plays Vast.ai by its API description (OpenAPI 1.0.0) and what dstack 0.22.5 relies on besides, for tests.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::missing_panics_doc)] // tests

mod search;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use dstack_backend_kit::{ContainerStart, Containers, Emulator, Ledger};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

/// How long it takes from one stage of an instance's life to the next: a host, an image, a container, a port.
const PACE: Duration = Duration::from_secs(10);

/// Instances of a page. The vendor's pages have up to 25; with fewer, a test needs fewer for several.
const PAGE: usize = 2;

/// Fields that `createInstance` takes, and of which types they are. The vendor's own client sends `client_id`, `extra`, `env` as an object,
/// and nulls; `create_from` is of dstack 0.22.5.
const RENT_FIELDS: &[(&str, &str)] = &[
    ("args", "array"),
    ("args_str", "string"),
    ("cancel_unavail", "boolean"),
    ("client_id", "string"),
    ("create_from", "string or null"),
    ("disk", "number"),
    ("env", "object or string"),
    ("extra", "string or null"),
    ("force", "boolean"),
    ("image", "string"),
    ("image_login", "string or null"),
    ("jupyter_dir", "string or null"),
    ("label", "string or null"),
    ("lang_utf8", "boolean"),
    ("onstart", "string or null"),
    ("price", "number or null"),
    ("python_utf8", "boolean"),
    ("runtype", "string"),
    ("target_state", "string"),
    ("template_hash_id", "string or null"),
    ("use_jupyter_lab", "boolean"),
    ("user", "string or null"),
    ("vm", "boolean"),
    ("volume_info", "object"),
];

/// Values of `runtype`.
const RUNTYPES: &[&str] = &[
    "ssh",
    "jupyter",
    "args",
    "ssh_proxy",
    "ssh_direct",
    "jupyter_proxy",
    "jupyter_direct",
];

/// Seconds from one call of an endpoint to the next, as the description has them (`threshold`).
const THRESHOLDS: &[(&str, &str, f64)] = &[
    ("GET", "v1/instances", 1.0),
    ("GET", "v0/instances", 2.0),
    ("DELETE", "v0/instances", 3.0),
    ("PUT", "v0/asks", 4.5),
];

/// The vendor's cloud, with one account.
#[derive(Debug, Clone)]
pub struct VastAi(Arc<Shared>);

struct Shared {
    api_key: String,
    pace: Duration,
    /// As the search answers them. Of a part of a machine, there are as many as parts.
    offers: Vec<Value>,
    ledger: Ledger,
    state: Mutex<Cloud>,
    /// What runs the containers of instances; `None`: nothing does.
    containers: Option<Box<dyn Containers>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Cloud {
    instances: Vec<Instance>,
    /// Bodies of all searches.
    searches: Vec<Value>,
    sold_out: bool,
    has_credit: bool,
    /// By what all bids have risen since the last search.
    bid_factor: f64,
    lag: Duration,
    /// When each endpoint was called last, and how many calls came too early.
    called: HashMap<&'static str, Instant>,
    early: usize,
    /// Fields that all instances have besides, or instead.
    oddities: Value,
    /// With which status it is not said of one instance whether it is there.
    says_nothing: Option<u16>,
}

#[derive(Debug)]
struct Instance {
    id: i64,
    offer: Value,
    /// Body of the call that made it.
    asked: Value,
    made_at: Instant,
    listed_at: Instant,
    destroyed_at: Option<Instant>,
    /// The container has ended.
    has_exited: bool,
    /// Was never started, as its bid is too low.
    is_stopped: bool,
    /// Where its container runs for real.
    address: Option<String>,
}

impl Instance {
    fn is_gone(&self, pace: Duration) -> bool {
        self.destroyed_at.is_some_and(|at| at.elapsed() >= pace)
    }

    fn is_listed(&self) -> bool {
        self.listed_at <= Instant::now()
    }

    fn stage(&self, pace: Duration) -> u128 {
        self.made_at.elapsed().as_millis() / pace.as_millis().max(1)
    }

    /// Its container, as asked for.
    fn start(&self) -> ContainerStart {
        let args = self.asked["args"].as_array().into_iter().flatten();
        let words =
            std::iter::once("/bin/sh".to_owned()).chain(args.map(|word| word.as_str().unwrap().to_owned()));
        let env = self.asked["env"].as_object().into_iter().flatten();
        let is_variable = |(name, _): &(&String, &Value)| !name.starts_with('-');
        ContainerStart {
            id: self.id.to_string(),
            command: words.collect(),
            env: env
                .filter(is_variable)
                .map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()))
                .collect(),
            files: Vec::new(),
        }
    }

    fn to_json(&self, pace: Duration) -> Value {
        let stage = self.stage(pace);
        let cannot_start = self.asked["image"]
            .as_str()
            .is_some_and(|image| image.contains("broken"));
        let (status, said) = match stage {
            _ if self.is_stopped => (json!("created"), "".to_owned()),
            _ if self.has_exited => (json!("exited"), "".to_owned()),
            0 => (Value::Null, String::new()),
            1 => (json!("loading"), "layer 7 pulling".to_owned()),
            _ if cannot_start => (
                json!("created"),
                "Error response from daemon: failed to create task for container: OCI runtime create failed: runc create failed"
                    .to_owned(),
            ),
            _ => (json!("running"), "success, running the image".to_owned()),
        };
        let state = if self.is_stopped { "stopped" } else { "running" };
        let mut instance = json!({
            "id": self.id,
            "actual_status": status,
            "cur_state": state,
            "intended_status": state,
            "next_state": state,
            "label": self.asked["label"],
            "image_uuid": self.asked["image"],
            "image_runtype": self.asked["runtype"],
            "extra_env": self.asked["env"].as_object().into_iter().flatten().collect::<Vec<_>>(),
            "status_msg": said,
            "public_ipaddr": format!("{}\n", self.address.as_deref().unwrap_or("192.0.2.41")),
            "ssh_host": "ssh2281.vast.ai",
            "ssh_port": 10882,
            "machine_id": self.offer["machine_id"],
            "num_gpus": self.offer["num_gpus"],
            "gpu_name": self.offer["gpu_name"],
            "is_bid": self.asked["price"].is_number(),
            "dph_total": self.offer["dph_total"],
            "start_date": 1_761_008_618.225_083,
            "geolocation": self.offer["geolocation"],
        });
        // The container runs before its ports are told.
        if stage > 2 && status_is(&instance, "running") {
            let opened = self.asked["env"].as_object().into_iter().flatten();
            let ports: Map<String, Value> = opened
                .filter_map(|(option, _)| option.strip_prefix("-p "))
                .filter_map(|port| port.split_once(':'))
                .map(|(_, inner)| {
                    let outer = self.address.as_ref().map_or("20011", |_| inner);
                    let host = |ip: &str| json!({"HostIp": ip, "HostPort": outer});
                    (format!("{inner}/tcp"), json!([host("0.0.0.0"), host("::")]))
                })
                .collect();
            instance["ports"] = Value::Object(ports);
        }
        instance
    }
}

fn status_is(instance: &Value, status: &str) -> bool {
    instance["actual_status"] == status
}

impl VastAi {
    /// A cloud whose account has this key, with these offers.
    pub fn new(api_key: &str, offers: Vec<Value>) -> Self {
        Self::with_pace(api_key, offers, PACE)
    }

    /// As [`VastAi::new`], with instances that take so long from one stage of their lives to the next.
    pub fn with_pace(api_key: &str, offers: Vec<Value>, pace: Duration) -> Self {
        Self::made_of(api_key, offers, pace, None)
    }

    /// As [`VastAi::with_pace`], with instances whose containers run for real.
    pub fn with_containers(
        api_key: &str,
        offers: Vec<Value>,
        pace: Duration,
        containers: Box<dyn Containers>,
    ) -> Self {
        Self::made_of(api_key, offers, pace, Some(containers))
    }

    fn made_of(
        api_key: &str,
        offers: Vec<Value>,
        pace: Duration,
        containers: Option<Box<dyn Containers>>,
    ) -> Self {
        let cloud = Cloud {
            instances: Vec::new(),
            searches: Vec::new(),
            sold_out: false,
            has_credit: true,
            bid_factor: 1.0,
            lag: Duration::ZERO,
            called: HashMap::new(),
            early: 0,
            oddities: json!({}),
            says_nothing: None,
        };
        Self(Arc::new(Shared {
            api_key: api_key.to_owned(),
            pace,
            offers,
            ledger: Ledger::default(),
            state: Mutex::new(cloud),
            containers,
        }))
    }

    /// Others bid more than was told: what was bid by the last search is too low.
    pub fn raise_bids(&self) {
        self.lock().bid_factor = 2.0;
    }

    /// The account has no money left.
    pub fn use_up_credit(&self) {
        self.lock().has_credit = false;
    }

    /// Bodies of all searches so far.
    pub fn searches(&self) -> Vec<Value> {
        self.lock().searches.clone()
    }

    /// Bodies with which instances were made that there are.
    pub fn asked(&self) -> Vec<Value> {
        let state = self.lock();
        state.instances.iter().map(|one| one.asked.clone()).collect()
    }

    /// How many calls came too early.
    pub fn early_calls(&self) -> usize {
        self.lock().early
    }

    /// From now on, lists have these fields of all instances, instead of those that they have.
    pub fn list_oddly(&self, fields: Value) {
        self.lock().oddities = fields;
    }

    /// From now on, lists are empty, and of one instance it is not said whether it is there: by an answer without it (200), or that of a
    /// proxy (another status).
    pub fn say_nothing(&self, status: u16) {
        self.lock().says_nothing = Some(status);
    }

    /// A call that comes too soon after one of the same endpoint.
    fn check_pace(&self, method: &Method, path: &[&str]) -> Result<(), (u16, Value)> {
        let path = path.iter().skip(1).take(2).copied().collect::<Vec<_>>().join("/");
        let known = THRESHOLDS
            .iter()
            .find(|(of, start, _)| *of == method.as_str() && *start == path);
        let Some((method, endpoint, threshold)) = known else {
            return Ok(());
        };
        let mut state = self.lock();
        let key = if *method == "DELETE" { "destroy" } else { *endpoint };
        let last = state.called.get(key);
        if last.is_some_and(|last| last.elapsed().as_secs_f64() < *threshold) {
            state.early += 1;
            let text = format!("API requests too frequent endpoint threshold={threshold:.1}");
            return Err((429, json!({"detail": text})));
        }
        state.called.insert(key, Instant::now());
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Cloud> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is gone costs nothing any more; containers start and end.
    fn settle(&self) {
        let mut state = self.lock();
        let instances = state.instances.iter_mut();
        for instance in instances.filter(|one| one.stage(self.0.pace) > 1 && !one.is_stopped) {
            let Some(containers) = &self.0.containers else {
                break;
            };
            let id = instance.id.to_string();
            match (&instance.address, instance.destroyed_at) {
                (Some(_), Some(_)) => containers.end(&id),
                (Some(_), None) => instance.has_exited = containers.exit_status(&id).is_some(),
                (None, Some(_)) => {}
                (None, None) => {
                    instance.address = containers.start(&instance.start());
                    instance.has_exited = instance.address.is_none();
                }
            }
        }
        state.instances.retain(|instance| {
            let is_gone = instance.is_gone(self.0.pace);
            if is_gone {
                self.0.ledger.removed(&instance.id.to_string());
            }
            !is_gone
        });
    }

    fn answer(&self, method: &Method, uri: &Uri, headers: &HeaderMap, body: &Bytes) -> Answer {
        let path: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
        // The search is public.
        let key = headers.get(AUTHORIZATION);
        let is_search = path == ["api", "v0", "bundles"];
        let expected = format!("Bearer {}", self.0.api_key);
        let is_known = key.is_some_and(|key| key.as_bytes() == expected.as_bytes());
        let may_ask = is_known || (is_search && key.is_none());
        if !may_ask {
            let status = if is_search { 404 } else { 401 };
            return Err(refusal(status, "auth_error", "Invalid user key"));
        }
        self.check_pace(method, &path)?;
        self.settle();
        let read = || -> Result<Value, (u16, Value)> {
            serde_json::from_slice(body).map_err(|error| refusal(400, "invalid_args", &error.to_string()))
        };
        let answer = match (method.as_str(), path.as_slice()) {
            ("POST", ["api", "v0", "bundles"]) => self.search(&read()?),
            ("PUT", ["api", "v0", "asks", offer]) => self.rent(offer, &read()?),
            ("GET", ["api", "v0", "instances", id]) => self.instance(id),
            ("DELETE", ["api", "v0", "instances", id]) => self.destroy(id),
            ("GET", ["api", "v1", "instances"]) => self.instances(uri),
            _ => Err(refusal(404, "not_found", "no such route")),
        };
        self.settle();
        answer
    }

    fn search(&self, body: &Value) -> Answer {
        let mut state = self.lock();
        state.searches.push(body.clone());
        let rented = |offer: &Value| rented(&state, offer);
        let free = self.0.offers.iter().filter(|offer| rented(offer) < parts(offer));
        let found = search::search(body, free).map_err(|why| refusal(400, "invalid_request", &why))?;
        state.bid_factor = 1.0;
        Ok(json!({"offers": found}))
    }

    fn rent(&self, offer: &str, body: &Value) -> Answer {
        check_rent(body).map_err(|why| refusal(400, "invalid_args", &why))?;
        let mut state = self.lock();
        if !state.has_credit {
            return Err(refusal(
                400,
                "insufficient_credit",
                "Your account lacks credit; see the billing page.",
            ));
        }
        let id: Option<i64> = offer.parse().ok();
        let found = self.0.offers.iter().find(|one| one["id"].as_i64() == id);
        let Some(found) = found else {
            let text = format!("error 404/3603: no_such_ask Instance type by id {offer} is not available.");
            return Err(refusal(404, "invalid_args", &text));
        };
        if state.sold_out || rented(&state, found) >= parts(found) {
            let text = format!("error 410/3907: no_such_ask Instance type {offer} is no longer available.");
            return Err(refusal(410, "no_such_ask", &text));
        }
        let bid = body["price"].as_f64();
        let least = found["min_bid"].as_f64().map(|least| least * state.bid_factor);
        let is_low = bid.is_some_and(|bid| least.is_none_or(|least| bid < least));
        let id = 27_000_001 + i64::try_from(self.0.ledger.count()).unwrap();
        let name = body["label"].as_str().unwrap_or_default();
        self.0.ledger.made("contract", id.to_string(), name);
        let now = Instant::now();
        let instance = Instance {
            id,
            offer: found.clone(),
            asked: body.clone(),
            made_at: now,
            listed_at: now + state.lag,
            destroyed_at: None,
            has_exited: false,
            is_stopped: is_low,
            address: None,
        };
        state.instances.push(instance);
        match is_low {
            true => {
                let (status, mut answer) = refusal(400, "invalid_price", "bid is below the current minimum");
                answer["new_contract"] = json!(id);
                Err((status, answer))
            }
            false => Ok(json!({"success": true, "new_contract": id})),
        }
    }

    fn instance(&self, id: &str) -> Answer {
        let state = self.lock();
        match state.says_nothing {
            None => {}
            Some(200) => return Ok(json!({"success": true})),
            Some(status) => return Err((status, json!("page not found"))),
        }
        let found = state
            .instances
            .iter()
            .find(|instance| instance.id.to_string() == id && instance.is_listed());
        Ok(json!({"instances": found.map(|instance| instance.to_json(self.0.pace))}))
    }

    fn destroy(&self, id: &str) -> Answer {
        let mut state = self.lock();
        let found = state
            .instances
            .iter_mut()
            .find(|instance| instance.id.to_string() == id && instance.is_listed());
        let Some(instance) = found else {
            return Err(refusal(404, "no_such_instance", "no such instance"));
        };
        instance.destroyed_at.get_or_insert_with(Instant::now);
        Ok(json!({"success": true, "msg": "Instance destroyed successfully"}))
    }

    /// In the order of their ids, of which the last of a page is the token of the next one.
    fn instances(&self, uri: &Uri) -> Answer {
        let (mut after, mut limit, mut label) = (0_i64, 25_usize, None);
        let invalid = |why: &str| (400, json!({"error": "invalid_request", "msg": why}));
        let query = Query::<Vec<(String, String)>>::try_from_uri(uri);
        for (name, value) in query.map_err(|error| invalid(&error.to_string()))?.0 {
            match name.as_str() {
                "limit" => {
                    limit = value.parse().map_err(|_| invalid("limit"))?;
                    if limit > 25 {
                        return Err(invalid("limit"));
                    }
                }
                "after_token" => {
                    let id = value.strip_prefix("id-").and_then(|id| id.parse().ok());
                    let invalid = || {
                        (
                            400,
                            json!({"error": "invalid_token", "msg": "invalid after_token"}),
                        )
                    };
                    after = id.ok_or_else(invalid)?;
                }
                "select_filters" => label = read_filter(&value).map_err(|why| invalid(&why))?,
                // What is the default anyway, as the vendor's own client says it.
                "order_by" => {}
                name => return Err(invalid(name)),
            }
        }
        let state = self.lock();
        let is_wanted = |one: &&Instance| {
            state.says_nothing.is_none()
                && one.is_listed()
                && label.as_ref().is_none_or(|label| one.asked["label"] == *label)
        };
        let listed: Vec<&Instance> = state.instances.iter().filter(is_wanted).collect();
        let page: Vec<&Instance> = listed
            .iter()
            .copied()
            .filter(|one| one.id > after)
            .take(limit.min(PAGE))
            .collect();
        let last = page.last().map_or(after, |one| one.id);
        let has_more = listed.iter().any(|one| one.id > last);
        let row = |one: &&Instance| {
            let mut row = one.to_json(self.0.pace);
            let odd = state.oddities.as_object().unwrap();
            row.as_object_mut().unwrap().extend(odd.clone());
            row
        };
        let rows: Vec<Value> = page.iter().map(row).collect();
        Ok(
            json!({"success": true, "instances_found": rows.len(), "total_instances": listed.len(),
            "label_counts": {}, "next_token": has_more.then(|| format!("id-{last}")), "instances": rows}),
        )
    }
}

/// The label that is looked for.
fn read_filter(filters: &str) -> Result<Option<String>, String> {
    let filters: Value = serde_json::from_str(filters).map_err(|error| error.to_string())?;
    let filters = filters.as_object().ok_or("the filters are no object")?;
    match filters.iter().next() {
        None => Ok(None),
        Some((column, filter)) if column == "label" && filters.len() == 1 => {
            let label = filter["eq"]
                .as_str()
                .ok_or("the filter of the label is not played")?;
            Ok(Some(label.to_owned()))
        }
        Some((column, _)) => Err(format!("a filter by {column} is not played")),
    }
}

/// How many parts of the offer's size a machine has.
fn parts(offer: &Value) -> usize {
    let part = offer["gpu_frac"]
        .as_f64()
        .filter(|part| *part > 0.0)
        .unwrap_or(1.0);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a small number
    let parts = (1.0 / part).round() as usize;
    parts.max(1)
}

fn rented(state: &Cloud, offer: &Value) -> usize {
    let of_offer = |instance: &&Instance| instance.offer["id"] == offer["id"];
    state.instances.iter().filter(of_offer).count()
}

/// Refuses what the description does not have.
fn check_rent(body: &Value) -> Result<(), String> {
    let fields = body.as_object().ok_or("the body is no object")?;
    for (name, value) in fields {
        let (_, types) = RENT_FIELDS
            .iter()
            .find(|(known, _)| known == name)
            .ok_or_else(|| format!("{name} is not known"))?;
        let of_value = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        if !types.split(" or ").any(|one| one == of_value) {
            return Err(format!("{name} is {of_value}, and not {types}"));
        }
    }
    if !fields.contains_key("image") && !fields.contains_key("template_hash_id") {
        return Err("image is required".to_owned());
    }
    if let Some(runtype) = fields.get("runtype").and_then(Value::as_str)
        && !RUNTYPES.contains(&runtype)
    {
        return Err(format!("{runtype} is no runtype"));
    }
    let price = fields.get("price").and_then(Value::as_f64);
    if price.is_some_and(|price| !(0.001..=128.0).contains(&price)) {
        return Err("price is out of range".to_owned());
    }
    let texts = fields.get("args").and_then(Value::as_array);
    match texts.is_none_or(|texts| texts.iter().all(Value::is_string)) {
        true => Ok(()),
        false => Err("args are texts".to_owned()),
    }
}

/// Body of an answer, or status and body of a refusal.
type Answer = Result<Value, (u16, Value)>;

fn refusal(status: u16, error: &str, msg: &str) -> (u16, Value) {
    (status, json!({"success": false, "error": error, "msg": msg}))
}

async fn serve(
    State(cloud): State<VastAi>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let (status, answer) = match cloud.answer(&method, &uri, &headers, &body) {
        Ok(answer) => (200, answer),
        Err(refused) => refused,
    };
    (StatusCode::from_u16(status).unwrap(), axum::Json(answer)).into_response()
}

impl Emulator for VastAi {
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
        for instance in &mut self.lock().instances {
            instance.has_exited = true;
        }
    }
}
