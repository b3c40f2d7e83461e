//! Plays Verda by what its SDKs for Python (1.25.0) and Go say of its API, for tests: the vendor publishes no description.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::missing_panics_doc)] // tests

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use dstack_backend_kit::{Emulator, Ledger};
use serde_json::{Value, json};
use tokio::time::Instant;

/// The id of the account's credentials; their secret is chosen.
pub const CLIENT_ID: &str = "c1ient1d";

/// A type at a location, as spot machine or otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Size {
    /// The type.
    pub name: String,
    /// The location.
    pub place: String,
    /// Whether it may be taken away.
    pub is_spot: bool,
    /// Name of its GPUs, if it has any.
    pub gpu: String,
}

/// How long things take.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Until a machine runs.
    pub starts: Duration,
    /// Until a machine that is deleted is gone.
    pub ends: Duration,
    /// How long a token is good for.
    pub token_lives: Duration,
}

/// How long a machine is still told of after its end.
const REMEMBERED: Duration = Duration::from_secs(3600);

const USUAL: Pace = Pace {
    starts: Duration::from_secs(60),
    ends: Duration::from_secs(15),
    token_lives: Duration::from_secs(3600),
};

/// The vendor's cloud, with one account.
#[derive(Debug, Clone)]
pub struct Verda(Arc<Shared>);

struct Shared {
    secret: String,
    sizes: Vec<Size>,
    pace: Pace,
    ledger: Ledger,
    state: Mutex<Cloud>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Cloud {
    machines: Vec<Machine>,
    /// What was asked for, of each machine that there ever was.
    asked: Vec<Value>,
    keys: Vec<Record>,
    scripts: Vec<Record>,
    /// Disks that are left and billed.
    left_disks: Vec<String>,
    tokens: BTreeMap<String, Instant>,
    fetched_tokens: usize,
    made: usize,
    sold_out: bool,
    is_broke: bool,
    answers_json: bool,
    /// No instance is found by its id, nor is there a token: a gateway answers.
    mislaid: bool,
    lag: Duration,
}

#[derive(Debug)]
struct Machine {
    id: String,
    asked: Value,
    listed_at: Instant,
    runs_at: Instant,
    ended_at: Option<Instant>,
    /// The ledger has its end.
    is_settled: bool,
    /// Instead of what time brings.
    status: Option<&'static str>,
}

#[derive(Debug)]
struct Record {
    id: String,
    name: String,
    text: String,
    listed_at: Instant,
}

impl Machine {
    fn status(&self, pace: Pace) -> &'static str {
        let now = Instant::now();
        match (self.status, self.ended_at) {
            (_, Some(at)) if at + pace.ends <= now => "discontinued",
            (_, Some(_)) => "deleting",
            (Some(status), None) => status,
            (None, None) if self.runs_at <= now => "running",
            (None, None) if self.runs_at <= now + pace.starts / 2 => "provisioning",
            (None, None) => "ordered",
        }
    }

    fn disk(&self) -> String {
        format!("46fc0247{}", &self.id[8..])
    }

    fn to_json(&self, pace: Pace) -> Value {
        let status = self.status(pace);
        let runs = status == "running";
        let number = self.id[34..].to_owned();
        json!({
            "id": self.id,
            "instance_type": self.asked["instance_type"],
            "price_per_hour": 3.95,
            "hostname": self.asked["hostname"],
            "description": self.asked["description"],
            "status": status,
            "created_at": if runs { Some("2026-10-01T12:00:00.000Z") } else { None },
            "ssh_key_ids": self.asked["ssh_key_ids"],
            "cpu": {"description": "30 CPU", "number_of_cores": 30},
            "gpu": {"description": "1x H100 SXM5 80GB", "number_of_gpus": 1},
            "memory": {"description": "120GB RAM", "size_in_gigabytes": 120},
            "storage": {"description": "100GB NVME", "size_in_gigabytes": 100},
            "gpu_memory": {"description": "80GB GPU RAM", "size_in_gigabytes": 80},
            "ip": if runs { Some(format!("203.0.113.{}", u8::from_str_radix(&number, 16).unwrap())) } else { None },
            "os_volume_id": if runs { Some(self.disk()) } else { None },
            "location": if status == "ordered" { &Value::Null } else { &self.asked["location_code"] },
            "image": "ubuntu-24.04-cuda-13.0-open-docker",
            "startup_script_id": self.asked["startup_script_id"],
            "is_spot": self.asked["is_spot"].as_bool().unwrap_or_default(),
        })
    }
}

impl Verda {
    /// A cloud whose account has this secret, with these types.
    pub fn new(secret: &str, sizes: Vec<Size>) -> Self {
        Self::with_pace(secret, sizes, USUAL)
    }

    /// As [`Verda::new`], otherwise fast or slow.
    pub fn with_pace(secret: &str, sizes: Vec<Size>, pace: Pace) -> Self {
        Self(Arc::new(Shared {
            secret: secret.to_owned(),
            sizes,
            pace,
            ledger: Ledger::default(),
            state: Mutex::default(),
        }))
    }

    /// The account has no money left.
    pub fn set_broke(&self) {
        self.lock().is_broke = true;
    }

    /// A machine that is made is told whole, as later versions of the API may do.
    pub fn answer_json(&self) {
        self.lock().answers_json = true;
    }

    /// All machines have this status.
    pub fn set_status(&self, status: &'static str) {
        for machine in &mut self.lock().machines {
            machine.status = Some(status);
        }
    }

    /// A gateway says of each instance, and of tokens, that it is not found; lists are as they are.
    pub fn mislay(&self, mislaid: bool) {
        self.lock().mislaid = mislaid;
    }

    /// No token is good any more.
    pub fn revoke_tokens(&self) {
        self.lock().tokens.clear();
    }

    /// How many tokens were ever fetched.
    pub fn fetched_tokens(&self) -> usize {
        self.lock().fetched_tokens
    }

    /// What was asked for, of each machine.
    pub fn asked(&self) -> Vec<Value> {
        self.lock().asked.clone()
    }

    /// Spot machines are taken away.
    pub fn preempt(&self) {
        let mut state = self.lock();
        let now = Instant::now();
        let mut left = Vec::new();
        for machine in &mut state.machines {
            if machine.asked["is_spot"] == true && machine.ended_at.is_none() {
                machine.ended_at = Some(now);
                if machine.asked["os_volume"]["on_spot_discontinue"] != "delete_permanently" {
                    left.push(machine.disk());
                }
            }
        }
        state.left_disks.extend(left);
    }

    /// Disks of machines that are not there any more, which are billed or in the trash.
    pub fn left_disks(&self) -> Vec<String> {
        self.lock().left_disks.clone()
    }

    /// The account gets a startup script, as those of dstack 0.22.5; its id.
    pub fn add_script(&self, name: &str) -> String {
        let asked = json!({"name": name, "script": "true"});
        let mut state = self.lock();
        let id = self.next_id(&mut state);
        self.0.ledger.made("startup script", &id, name);
        let record = self.record(&state, &id, &asked, "script");
        state.scripts.push(record);
        id
    }

    fn lock(&self) -> MutexGuard<'_, Cloud> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is over costs nothing any more, and is forgotten after a while.
    fn settle(&self) {
        let (pace, now) = (self.0.pace, Instant::now());
        let mut state = self.lock();
        for machine in &mut state.machines {
            if !machine.is_settled && machine.status(pace) == "discontinued" {
                machine.is_settled = true;
                self.0.ledger.removed(&machine.id);
            }
        }
        let is_remembered = |at: Instant| now < at + pace.ends + REMEMBERED;
        state
            .machines
            .retain(|machine| machine.ended_at.is_none_or(is_remembered));
        state.tokens.retain(|_, ends| *ends > now);
    }

    fn next_id(&self, state: &mut Cloud) -> String {
        state.made += 1;
        format!("deadc0de-a5d2-4972-ae4e-{:012x}", state.made)
    }

    fn record(&self, state: &Cloud, id: &str, asked: &Value, text: &str) -> Record {
        Record {
            id: id.to_owned(),
            name: asked["name"].as_str().unwrap().to_owned(),
            text: asked[text].as_str().unwrap().to_owned(),
            listed_at: Instant::now() + state.lag,
        }
    }
}

/// An answer in JSON or plain text, or a refusal: the status, the code and the message.
enum Answer {
    Json(StatusCode, Value),
    Text(StatusCode, String),
    Refused(StatusCode, &'static str, String),
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        match self {
            Self::Json(status, body) => (status, Json(body)).into_response(),
            Self::Text(status, text) => (status, text).into_response(),
            Self::Refused(status, code, message) => {
                (status, Json(json!({"code": code, "message": message}))).into_response()
            }
        }
    }
}

fn bad(message: impl Into<String>) -> Answer {
    Answer::Refused(StatusCode::BAD_REQUEST, "invalid_request", message.into())
}

/// What a call needs.
struct Asked {
    path: BTreeMap<String, String>,
    query: BTreeMap<String, String>,
    body: Value,
}

impl Asked {
    /// What is wrong with the fields of the body: each has a name, a type, and whether it has to be there.
    fn problem(&self, known: &[(&str, Type, bool)]) -> Option<Answer> {
        problem(&self.body, known).map(bad)
    }
}

#[derive(Clone, Copy)]
enum Type {
    Text,
    MaybeText,
    Texts,
    MaybeTexts,
    Bool,
    Object,
    Objects,
    Number,
    OneOf(&'static [&'static str]),
}

impl Type {
    fn is_of(self, value: &Value) -> bool {
        let all = |is: fn(&Value) -> bool| value.as_array().is_some_and(|all| all.iter().all(is));
        match self {
            Self::Text => value.is_string(),
            Self::MaybeText => value.is_string() || value.is_null(),
            Self::Texts => all(Value::is_string),
            Self::MaybeTexts => value.is_null() || all(Value::is_string),
            Self::Bool => value.is_boolean(),
            Self::Object => value.is_object(),
            Self::Objects => all(Value::is_object),
            Self::Number => value.is_i64(),
            Self::OneOf(texts) => value.as_str().is_some_and(|text| texts.contains(&text)),
        }
    }
}

fn problem(body: &Value, known: &[(&str, Type, bool)]) -> Option<String> {
    let Some(fields) = body.as_object() else {
        return Some("the body is not an object".to_owned());
    };
    for (name, value) in fields {
        match known.iter().find(|(known, ..)| known == name) {
            None => return Some(format!("{name} should not exist")),
            Some((_, kind, _)) if !kind.is_of(value) => return Some(format!("{name} is not valid")),
            Some(_) => {}
        }
    }
    let missing = known
        .iter()
        .find(|(name, _, required)| *required && !fields.contains_key(*name));
    missing.map(|(name, ..)| format!("{name} should not be empty"))
}

const REFRESH_TOKEN: &str = "eyJhbGciOi.refresh";

const KEEP: &[&str] = &["keep_detached", "move_to_trash", "delete_permanently"];

/// As in the SDKs.
const ACTIONS: &[&str] = &[
    "boot",
    "start",
    "shutdown",
    "delete",
    "discontinue",
    "hibernate",
    "restore",
    "configure_spot",
    "force_shutdown",
    "delete_stuck",
    "deploy",
    "transfer",
];

const IMAGES: [&str; 2] = [
    "2404f580-1300-1111-82b3-f199fb9b701b",
    "2088da25-bb0d-41cc-a191-dccae45d96fd",
];

impl Verda {
    fn token(&self, asked: &Asked) -> Answer {
        let known = [
            (
                "grant_type",
                Type::OneOf(&["client_credentials", "refresh_token"]),
                true,
            ),
            ("client_id", Type::Text, false),
            ("client_secret", Type::Text, false),
            ("refresh_token", Type::Text, false),
        ];
        if let Some(problem) = asked.problem(&known) {
            return problem;
        }
        let body = &asked.body;
        if body["grant_type"] == "refresh_token" {
            return match body["refresh_token"] == REFRESH_TOKEN {
                true => self.new_token(),
                false => bad("Invalid refresh token"),
            };
        }
        if body["client_id"].as_str().unwrap_or_default().is_empty() {
            return bad("client_id should not be empty");
        }
        if body["client_id"] != CLIENT_ID || body["client_secret"] != self.0.secret.as_str() {
            let text = "Invalid client id or client secret".to_owned();
            return Answer::Refused(StatusCode::UNAUTHORIZED, "unauthorized_request", text);
        }
        self.new_token()
    }

    fn new_token(&self) -> Answer {
        let mut state = self.lock();
        state.fetched_tokens += 1;
        let token = format!("eyJhbGciOi.access.{}", state.fetched_tokens);
        let lives = self.0.pace.token_lives;
        state.tokens.insert(token.clone(), Instant::now() + lives);
        let answer = json!({"access_token": token, "refresh_token": REFRESH_TOKEN, "scope": "cloud-api-v1",
            "token_type": "Bearer", "expires_in": lives.as_secs()});
        Answer::Json(StatusCode::OK, answer)
    }

    fn availability(&self, asked: &Asked) -> Answer {
        let is_spot = match asked.query.get("isSpot").map(String::as_str) {
            Some("true") => true,
            None | Some("false") => false,
            Some(_) => return bad("isSpot is not valid"),
        };
        let sold_out = self.lock().sold_out;
        let mut by_place: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for size in &self.0.sizes {
            let types = by_place.entry(&size.place).or_default();
            if size.is_spot == is_spot && !sold_out {
                types.push(&size.name);
            }
        }
        let place =
            |(place, types): (&str, Vec<&str>)| json!({"location_code": place, "availabilities": types});
        let all: Vec<Value> = by_place.into_iter().map(place).collect();
        Answer::Json(StatusCode::OK, all.into())
    }

    fn create_machine(&self, asked: &Asked) -> Answer {
        let known = [
            ("instance_type", Type::Text, true),
            ("image", Type::Text, true),
            ("hostname", Type::Text, true),
            ("description", Type::Text, true),
            ("ssh_key_ids", Type::Texts, false),
            ("startup_script_id", Type::MaybeText, false),
            ("location_code", Type::Text, false),
            ("os_volume", Type::Object, false),
            ("volumes", Type::Objects, false),
            ("existing_volumes", Type::Texts, false),
            ("is_spot", Type::Bool, false),
            ("coupon", Type::MaybeText, false),
            (
                "contract",
                Type::OneOf(&["LONG_TERM", "PAY_AS_YOU_GO", "SPOT"]),
                false,
            ),
            ("pricing", Type::OneOf(&["DYNAMIC_PRICE", "FIXED_PRICE"]), false),
        ];
        if let Some(problem) = asked.problem(&known) {
            return problem;
        }
        let body = &asked.body;
        let volume = [
            ("name", Type::Text, true),
            ("size", Type::Number, true),
            ("on_spot_discontinue", Type::OneOf(KEEP), false),
        ];
        if let Some(disk) = body.get("os_volume") {
            if let Some(problem) = problem(disk, &volume) {
                return bad(format!("os_volume.{problem}"));
            }
            if disk["size"].as_i64().unwrap() < 50 {
                return bad("os_volume.size must not be less than 50");
            }
        }
        let hostname = body["hostname"].as_str().unwrap();
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if hostname.len() > 60 || !hostname.chars().all(fits) {
            return bad("hostname is not valid");
        }
        let mut state = self.lock();
        let ids = body["ssh_key_ids"].as_array().cloned().unwrap_or_default();
        let now = Instant::now();
        let is_known = |id: &Value| {
            let mut keys = state.keys.iter();
            keys.any(|key| *id == key.id && key.listed_at <= now)
        };
        if !ids.iter().all(is_known) {
            return bad("Invalid ssh key id");
        }
        let script = &body["startup_script_id"];
        if !script.is_null() && !state.scripts.iter().any(|known| *script == known.id) {
            return bad("Invalid startup script id");
        }
        let is_spot = body["is_spot"].as_bool().unwrap_or_default();
        let is_it = |size: &&Size| {
            body["instance_type"] == size.name.as_str()
                && body
                    .get("location_code")
                    .is_none_or(|place| place == size.place.as_str())
                && size.is_spot == is_spot
        };
        let size = self.0.sizes.iter().find(is_it);
        let older = ["V100", "A6000"].contains(&size.map_or("", |size| size.gpu.as_str()));
        match IMAGES.iter().position(|image| body["image"] == *image) {
            None => return bad("Invalid image"),
            Some(0) if older => return bad("Operating system is not valid for this instance type"),
            Some(_) => {}
        }
        if state.is_broke {
            let text = "Not enough balance to deploy the instance".to_owned();
            return Answer::Refused(StatusCode::PAYMENT_REQUIRED, "insufficient_funds", text);
        }
        if state.sold_out || size.is_none() {
            let text = "Not enough resources, please try again later".to_owned();
            return Answer::Refused(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", text);
        }
        let id = self.next_id(&mut state);
        self.0
            .ledger
            .made("machine", &id, body["description"].as_str().unwrap());
        let machine = Machine {
            id: id.clone(),
            asked: body.clone(),
            listed_at: now + state.lag,
            runs_at: now + self.0.pace.starts,
            ended_at: None,
            is_settled: false,
            status: None,
        };
        let whole = machine.to_json(self.0.pace);
        state.machines.push(machine);
        state.asked.push(body.clone());
        match state.answers_json {
            true => Answer::Json(StatusCode::ACCEPTED, whole),
            false => Answer::Text(StatusCode::ACCEPTED, id),
        }
    }

    fn machines(&self, asked: &Asked) -> Answer {
        let state = self.lock();
        let pace = self.0.pace;
        let wanted = asked.query.get("status");
        let listed = state.machines.iter().filter(|machine| {
            machine.listed_at <= Instant::now() && wanted.is_none_or(|status| status == machine.status(pace))
        });
        let all: Vec<Value> = listed.map(|machine| machine.to_json(pace)).collect();
        Answer::Json(StatusCode::OK, all.into())
    }

    fn machine(&self, asked: &Asked) -> Answer {
        let state = self.lock();
        let is_it =
            |machine: &&Machine| machine.id == asked.path["id"] && machine.listed_at <= Instant::now();
        match state.machines.iter().find(is_it) {
            Some(machine) => Answer::Json(StatusCode::OK, machine.to_json(self.0.pace)),
            None => unknown_machine(),
        }
    }

    /// Only `delete` is played. Of one that is being made, the refusal comes with a success.
    fn act(&self, asked: &Asked) -> Answer {
        let known = [
            ("id", Type::Texts, true),
            ("action", Type::OneOf(ACTIONS), true),
            ("volume_ids", Type::MaybeTexts, false),
            ("delete_permanently", Type::Bool, false),
        ];
        if let Some(problem) = asked.problem(&known) {
            return problem;
        }
        let body = &asked.body;
        if body["action"] != "delete" {
            return bad("this action is not played");
        }
        let pace = self.0.pace;
        let (mut results, mut left) = (Vec::new(), Vec::new());
        let mut state = self.lock();
        for id in body["id"].as_array().unwrap() {
            let is_it = |machine: &&mut Machine| *id == machine.id && machine.listed_at <= Instant::now();
            let Some(machine) = state.machines.iter_mut().find(is_it) else {
                return unknown_machine();
            };
            let error = match machine.status(pace) {
                "discontinued" | "deleting" => return bad("Can't discontinue a discontinued instance"),
                "ordered" | "provisioning" => "Can't discontinue a provisioning instance",
                _ => {
                    machine.ended_at = Some(Instant::now());
                    let deleted = body["volume_ids"].as_array();
                    let has_own = deleted.is_some_and(|ids| ids.contains(&machine.disk().into()));
                    if !has_own {
                        left.push(machine.disk());
                    }
                    results.push(json!({"action": "delete", "instanceId": id, "status": "success"}));
                    continue;
                }
            };
            results.push(
                json!({"action": "delete", "instanceId": id, "status": "error", "error": error,
                "statusCode": 400}),
            );
        }
        state.left_disks.extend(left);
        let failed = results.iter().any(|result| result["status"] == "error");
        let status = if failed {
            StatusCode::MULTI_STATUS
        } else {
            StatusCode::ACCEPTED
        };
        Answer::Json(status, results.into())
    }

    fn keys(&self, _: &Asked) -> Answer {
        let state = self.lock();
        let listed = state.keys.iter().filter(|key| key.listed_at <= Instant::now());
        let all: Vec<Value> = listed
            .map(|key| json!({"id": key.id, "name": key.name, "key": key.text}))
            .collect();
        Answer::Json(StatusCode::OK, all.into())
    }

    fn create_key(&self, asked: &Asked) -> Answer {
        if let Some(problem) = asked.problem(&[("name", Type::Text, true), ("key", Type::Text, true)]) {
            return problem;
        }
        let mut state = self.lock();
        let id = self.next_id(&mut state);
        let record = self.record(&state, &id, &asked.body, "key");
        self.0.ledger.made("ssh key", &id, &record.name);
        state.keys.push(record);
        Answer::Text(StatusCode::CREATED, id)
    }

    /// What is not known is passed over.
    fn delete_keys(&self, asked: &Asked) -> Answer {
        if let Some(problem) = asked.problem(&[("keys", Type::Texts, true)]) {
            return problem;
        }
        let ids = asked.body["keys"].as_array().unwrap();
        self.lock().keys.retain(|key| {
            let is_deleted = ids.contains(&key.id.as_str().into()) && key.listed_at <= Instant::now();
            if is_deleted {
                self.0.ledger.removed(&key.id);
            }
            !is_deleted
        });
        Answer::Text(StatusCode::OK, String::new())
    }

    fn create_script(&self, asked: &Asked) -> Answer {
        if let Some(problem) = asked.problem(&[("name", Type::Text, true), ("script", Type::Text, true)]) {
            return problem;
        }
        let id = self.add_script(asked.body["name"].as_str().unwrap());
        Answer::Text(StatusCode::CREATED, id)
    }

    fn delete_script(&self, asked: &Asked) -> Answer {
        let id = &asked.path["id"];
        let mut state = self.lock();
        let Some(at) = state.scripts.iter().position(|script| script.id == *id) else {
            let text = "Invalid script id".to_owned();
            return Answer::Refused(StatusCode::NOT_FOUND, "not_found", text);
        };
        state.scripts.remove(at);
        self.0.ledger.removed(id);
        Answer::Text(StatusCode::OK, String::new())
    }

    fn is_known(&self, headers: &HeaderMap) -> bool {
        let given = headers.get("authorization").map(HeaderValue::as_bytes);
        let state = self.lock();
        let mut good = state.tokens.iter().filter(|(_, ends)| **ends > Instant::now());
        good.any(|(token, _)| given == Some(format!("Bearer {token}").as_bytes()))
    }
}

fn unknown_machine() -> Answer {
    let text = "Invalid instance id".to_owned();
    Answer::Refused(StatusCode::NOT_FOUND, "not_found", text)
}

type Work = fn(&Verda, &Asked) -> Answer;

/// A call, which needs a token unless it is for one.
async fn call(
    State((cloud, work, is_open)): State<(Verda, Work, bool)>,
    method: Method,
    Path(path): Path<BTreeMap<String, String>>,
    Query(query): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
    body: Bytes,
) -> Answer {
    if !is_open && !cloud.is_known(&headers) {
        let text = "Access token is invalid".to_owned();
        return Answer::Refused(StatusCode::UNAUTHORIZED, "unauthorized_request", text);
    }
    let body = match body.as_ref() {
        b"" => Value::Null,
        text => match serde_json::from_slice(text) {
            Ok(body) => body,
            Err(_) => return bad("the body is no JSON"),
        },
    };
    if cloud.lock().mislaid && (is_open || path.contains_key("id") || method == Method::PUT) {
        return Answer::Text(StatusCode::NOT_FOUND, "404 page not found".to_owned());
    }
    cloud.settle();
    let answer = work(&cloud, &Asked { path, query, body });
    cloud.settle();
    answer
}

impl Emulator for Verda {
    fn router(&self) -> Router {
        let with = |work: Work| (self.clone(), work, false);
        let machines = get(call)
            .with_state(with(Verda::machines))
            .merge(post(call).with_state(with(Verda::create_machine)))
            .merge(axum::routing::put(call).with_state(with(Verda::act)));
        let keys = get(call)
            .with_state(with(Verda::keys))
            .merge(post(call).with_state(with(Verda::create_key)))
            .merge(delete(call).with_state(with(Verda::delete_keys)));
        let token: (Verda, Work, bool) = (self.clone(), Verda::token, true);
        Router::new()
            .route("/v1/oauth2/token", post(call).with_state(token))
            .route(
                "/v1/instance-availability",
                get(call).with_state(with(Verda::availability)),
            )
            .route("/v1/instances", machines)
            .route("/v1/instances/{id}", get(call).with_state(with(Verda::machine)))
            .route("/v1/sshkeys", keys)
            .route("/v1/scripts", post(call).with_state(with(Verda::create_script)))
            .route(
                "/v1/scripts/{id}",
                delete(call).with_state(with(Verda::delete_script)),
            )
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
        let now = Instant::now();
        for machine in &mut self.lock().machines {
            machine.ended_at.get_or_insert(now);
        }
    }
}
