//! Plays the server of another dstack for tests: requests are read as the server reads them, and answers are those that were recorded of
//! dstack 0.22.5 (`data`), filled in.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::missing_panics_doc
)] // tests

mod runs;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use dstack_backend_kit::{Emulator, Ledger};
use serde_json::{Value, json};
use tokio::time::Instant;

use runs::Run;

/// How long it takes from one stage of a run's life to the next.
const PACE: Duration = Duration::from_secs(10);

/// The server of another dstack, with one user and one project.
#[derive(Debug, Clone)]
pub struct Sky(Arc<Shared>);

struct Shared {
    token: String,
    project: String,
    pace: Duration,
    started: Instant,
    ledger: Ledger,
    state: Mutex<Server>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Server {
    /// Version of the server: major, minor.
    version: (u32, u32),
    /// What its backends and instances offer.
    offers: Vec<Value>,
    fleets: Vec<Value>,
    runs: Vec<Run>,
    /// Specs of runs that were asked for, and configurations of plans.
    applied: Vec<Value>,
    planned: Vec<Value>,
    sold_out: bool,
    gives_own_networks: bool,
    /// Plans that are made before its backends have answered.
    early_plans: u32,
    lag: Duration,
    ids: u32,
}

/// Status, and the body.
type Answer = Result<Value, (u16, Value)>;

fn template(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn error(text: &str, code: &str) -> (u16, Value) {
    (400, json!({"detail": [{"msg": text, "code": code}]}))
}

/// Names that a request or a part of one has and the server does not know are refused.
fn only(part: &Value, known: &[&str]) -> Result<(), (u16, Value)> {
    let names = part.as_object().ok_or_else(|| invalid("dict_type", "", part))?;
    let unknown = names.iter().find(|(name, _)| !known.contains(&name.as_str()));
    unknown.map_or(Ok(()), |(name, value)| {
        Err(invalid("extra_forbidden", name, value))
    })
}

/// A field that has to be there, and to be of a kind.
fn needed<'v, T>(
    part: &'v Value,
    name: &str,
    read: impl Fn(&'v Value) -> Option<T>,
) -> Result<T, (u16, Value)> {
    match &part[name] {
        Value::Null => Err(invalid("missing", name, part)),
        value => read(value).ok_or_else(|| invalid("type", name, value)),
    }
}

/// Names of runs.
fn names(body: &Value) -> Result<Vec<String>, (u16, Value)> {
    let list = needed(body, "runs_names", Value::as_array)?;
    let names = list.iter().map(|name| name.as_str().map(str::to_owned));
    names
        .collect::<Option<_>>()
        .ok_or_else(|| invalid("type", "runs_names", body))
}

/// As the server refuses it: with what it was sent.
fn invalid(kind: &str, name: &str, input: &Value) -> (u16, Value) {
    (
        422,
        json!({"detail": [{"type": kind, "loc": ["body", name], "msg": "It is not valid", "input": input}]}),
    )
}

/// What was recorded with what was asked for in its place. What was recorded has all names that there are.
fn filled(recorded: &Value, asked: &Value) -> Result<Value, (u16, Value)> {
    let (Some(known), Some(fields)) = (recorded.as_object(), asked.as_object()) else {
        return Ok(asked.clone());
    };
    // Variables have any names.
    if known.is_empty() {
        return Ok(asked.clone());
    }
    let mut whole = recorded.clone();
    for (name, value) in fields {
        let known = known
            .get(name)
            .ok_or_else(|| invalid("extra_forbidden", name, value))?;
        whole[name] = filled(known, value)?;
    }
    Ok(whole)
}

/// The spec of a run with what is the server's own choice.
fn spec_of(asked: &Value) -> Result<Value, (u16, Value)> {
    let mut recorded = template(include_str!("../data/run.json"))["run_spec"].take();
    recorded["run_name"] = Value::Null;
    recorded["configuration"]["name"] = Value::Null;
    let spec = filled(&recorded, asked)?;
    match text(&asked["configuration"]["type"]) {
        "task" => Ok(spec),
        _ => Err(invalid("union_tag_invalid", "configuration", asked)),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

impl Sky {
    /// A server whose user has this token, in a project with these offers and a fleet for them.
    pub fn new(token: &str, project: &str, offers: Vec<Value>) -> Self {
        Self::with_pace(token, project, offers, PACE)
    }

    /// As [`Sky::new`], with runs that take so long from one stage of their lives to the next.
    pub fn with_pace(token: &str, project: &str, offers: Vec<Value>, pace: Duration) -> Self {
        Self(Arc::new(Shared {
            token: token.to_owned(),
            project: project.to_owned(),
            pace,
            started: Instant::now(),
            ledger: Ledger::default(),
            state: Mutex::new(Server {
                version: (0, 22),
                offers,
                fleets: vec![
                    template(include_str!("../data/fleet.json")),
                    template(include_str!("../data/ssh_fleet.json")),
                ],
                runs: Vec::new(),
                applied: Vec::new(),
                planned: Vec::new(),
                sold_out: false,
                gives_own_networks: false,
                early_plans: 0,
                lag: Duration::ZERO,
                ids: 0,
            }),
        }))
    }

    /// Specs of the runs that were asked for.
    pub fn applied(&self) -> Vec<Value> {
        self.lock().applied.clone()
    }

    /// Configurations for which offers were asked.
    pub fn planned(&self) -> Vec<Value> {
        self.lock().planned.clone()
    }

    /// The project has no fleets.
    pub fn remove_fleets(&self) {
        self.lock().fleets.clear();
    }

    /// The server is of this version.
    pub fn be_of_version(&self, major: u32, minor: u32) {
        self.lock().version = (major, minor);
    }

    /// So many plans are made before its backends have answered, and say so.
    pub fn answer_early(&self, plans: u32) {
        self.lock().early_plans = plans;
    }

    /// Containers have networks of their own.
    pub fn give_own_networks(&self) {
        self.lock().gives_own_networks = true;
    }

    /// How many runs there are that are not deleted.
    pub fn runs(&self) -> usize {
        self.lock().runs.iter().filter(|run| !run.deleted).count()
    }

    /// Somebody else's run is there, which costs us nothing.
    pub fn run_of_somebody(&self, name: &str) {
        self.add_run_of_somebody(name);
    }

    fn lock(&self) -> MutexGuard<'_, Server> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, path: &str, headers: &HeaderMap, body: &[u8]) -> Answer {
        self.check_version(headers)?;
        let key = headers
            .get(AUTHORIZATION)
            .ok_or_else(|| (401, json!({"detail": "Not authenticated"})))?;
        if key.as_bytes() != format!("Bearer {}", self.0.token).as_bytes() {
            return Err((403, json!({"detail": {"msg": "Invalid token", "code": null}})));
        }
        // Some routes need no body.
        let body: Value = match body {
            b"" => json!({}),
            body => serde_json::from_slice(body)
                .map_err(|_| (422, json!({"detail": [{"type": "json_invalid", "loc": ["body"], "msg": "JSON decode error"}]})))?,
        };
        let path = path.strip_prefix("/api/").unwrap_or_default();
        let path: Vec<&str> = path.split('/').collect();
        match path.as_slice() {
            ["users", "get_my_user"] => Ok(template(include_str!("../data/user.json"))),
            ["projects", project, "get"] => {
                self.check_project(project)?;
                Ok(self.project())
            }
            ["runs", "list"] => {
                let known = [
                    "project_name",
                    "repo_id",
                    "username",
                    "only_active",
                    "include_jobs",
                    "job_submissions_limit",
                    "prev_submitted_at",
                    "prev_run_id",
                    "limit",
                    "ascending",
                ];
                only(&body, &known)?;
                // This route tells cases apart, and of a project that it does not find, there are no runs.
                let is_known = body["project_name"]
                    .as_str()
                    .is_none_or(|project| project == self.0.project);
                match body["limit"].as_u64().unwrap_or(100) {
                    0..=100 if !is_known => Ok(json!([])),
                    0..=100 => Ok(self.list_runs(&body)),
                    _ => Err(invalid("less_than_equal", "limit", &body)),
                }
            }
            ["project", project, area, verb] => {
                self.check_project(project)?;
                self.in_project(&format!("{area}/{verb}"), &body)
            }
            _ => Err((405, json!({"detail": "Method Not Allowed"}))),
        }
    }

    fn check_version(&self, headers: &HeaderMap) -> Result<(), (u16, Value)> {
        let Some(version) = headers.get("x-api-version") else {
            return Ok(());
        };
        let version = version.to_str().unwrap_or_default();
        let mut parts = version
            .split('.')
            .map(|part| part.parse::<u32>().unwrap_or_default());
        let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let own = self.lock().version;
        if (major, minor) > own {
            let said = format!(
                "The client/CLI version ({version}) is incompatible with the server version ({}.{}.0).",
                own.0, own.1
            );
            return Err(error(&said, "error"));
        }
        Ok(())
    }

    fn check_project(&self, name: &str) -> Result<(), (u16, Value)> {
        match name.eq_ignore_ascii_case(&self.0.project) {
            true => Ok(()),
            false => Err((404, json!({"detail": {"msg": "Not found", "code": null}}))),
        }
    }

    fn in_project(&self, route: &str, body: &Value) -> Answer {
        match route {
            "fleets/list" => {
                only(body, &["include_imported"])?;
                Ok(json!(self.lock().fleets))
            }
            "runs/get_plan" => {
                let known = [
                    "run_spec",
                    "max_offers",
                    "reverse_offers",
                    "full_offers",
                    "unallocated_resources",
                    "for_offers_only",
                ];
                only(body, &known)?;
                self.plan(body)
            }
            "runs/apply" => {
                only(body, &["plan", "force"])?;
                let force = needed(body, "force", Value::as_bool)?;
                assert!(!force, "only what is not forced is played");
                only(&body["plan"], &["run_spec", "current_resource"])?;
                self.apply(spec_of(needed(&body["plan"], "run_spec", Some)?)?)
            }
            "runs/get" => {
                only(body, &["run_name", "id"])?;
                self.get_run(body)
            }
            "runs/stop" => {
                only(body, &["runs_names", "abort"])?;
                assert!(needed(body, "abort", Value::as_bool)?, "only aborting is played");
                self.stop_runs(&names(body)?);
                Ok(Value::Null)
            }
            "runs/delete" => {
                only(body, &["runs_names"])?;
                self.delete_runs(&names(body)?)?;
                Ok(Value::Null)
            }
            _ => Err((405, json!({"detail": "Method Not Allowed"}))),
        }
    }

    fn project(&self) -> Value {
        let mut project = template(include_str!("../data/project.json"));
        project["project_name"] = json!(self.0.project);
        let state = self.lock();
        let mut names: Vec<&str> = state.offers.iter().map(|offer| text(&offer["backend"])).collect();
        names.sort_unstable();
        names.dedup();
        names.retain(|name| *name != "remote");
        let backends: Vec<Value> = names
            .iter()
            .map(|name| json!({"name": name, "config": {"type": name}}))
            .collect();
        project["backends"] = json!(backends);
        project
    }

    /// Offers in the fleets that are named; of fleets, all have the same.
    fn plan(&self, asked: &Value) -> Answer {
        let spec = spec_of(needed(asked, "run_spec", Some)?)?;
        assert!(asked["for_offers_only"] == true, "only offers are played");
        let wanted = &spec["configuration"];
        let mut state = self.lock();
        state.planned.push(wanted.clone());
        let fleets = wanted["fleets"].as_array().cloned().unwrap_or_default();
        let is_named = |fleet: &Value| {
            let (name, project) = (text(&fleet["name"]), text(&fleet["project_name"]));
            fleets.iter().any(|named| match named.as_str() {
                Some(named) => named == name || named == format!("{project}/{name}"),
                None => named["name"] == name && (named["project"].is_null() || named["project"] == project),
            })
        };
        let has_fleet = state.fleets.iter().any(is_named);
        let all = state
            .offers
            .iter()
            .filter(|offer| has_fleet && runs::fits(offer, wanted));
        let mut offers: Vec<Value> = all.cloned().collect();
        let is_early = state.early_plans > 0;
        state.early_plans = state.early_plans.saturating_sub(1);
        drop(state);
        if is_early {
            offers.clear();
        }
        let most = match asked["max_offers"].as_u64().unwrap_or(50) {
            most @ 1..=10_000 => usize::try_from(most).unwrap(),
            _ => return Err(invalid("less_than_equal", "max_offers", asked)),
        };
        let mut plan = template(include_str!("../data/plan.json"));
        plan["run_spec"] = spec.clone();
        plan["effective_run_spec"] = spec;
        plan["project_name"] = json!(self.0.project);
        plan["job_plans"][0]["total_offers"] = json!(offers.len());
        let shown: Vec<&Value> = offers.iter().take(most).collect();
        plan["job_plans"][0]["offers"] = json!(shown);
        if is_early {
            let late = "Offers of aws are missing: it has not answered yet. Ask again in a moment";
            plan["notices"] = json!([late]);
        }
        Ok(plan)
    }

    /// What is deleted is not kept, and what is over and not deleted is.
    fn settle(&self) {
        let mut state = self.lock();
        for run in state.runs.iter_mut().filter(|run| run.deleted && !run.is_settled) {
            run.is_settled = true;
            self.0.ledger.removed(&run.id);
        }
    }
}

async fn serve(
    State(server): State<Sky>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let answer = match method {
        Method::POST => server.answer(uri.path(), &headers, &body),
        _ => Err((404, json!({"detail": "Not Found"}))),
    };
    server.settle();
    let (status, answer) = match answer {
        Ok(answer) => (200, answer),
        Err(refused) => refused,
    };
    let status = StatusCode::from_u16(status).unwrap();
    (status, [(CONTENT_TYPE, "application/json")], answer.to_string()).into_response()
}

impl Emulator for Sky {
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
        for run in &mut self.lock().runs {
            run.is_lost = true;
        }
    }
}
