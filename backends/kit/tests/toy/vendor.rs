//! The toy cloud's vendor: machines, each with a disk that is made before it. It makes no mistakes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use axum::{Json, Router};
use dstack_backend_kit::{Emulator, Ledger};
use serde_json::{Value, json};
use tokio::time::Instant;

/// Where there are machines.
pub(crate) const REGIONS: [&str; 2] = ["north", "south"];

/// Until a machine runs.
const STARTS: Duration = Duration::from_secs(90);

/// Until a machine that is ended is gone.
const ENDS: Duration = Duration::from_secs(15);

/// The vendor, with one account.
#[derive(Debug, Clone)]
pub(crate) struct Vendor(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    api_key: String,
    ledger: Ledger,
    state: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    things: Vec<Thing>,
    sold_out: bool,
    lag: Duration,
}

#[derive(Debug)]
struct Thing {
    /// `machines` or `disks`.
    kind: String,
    id: String,
    /// As it was asked for: name, region, tags, and the token or the disk.
    asked: Value,
    made_at: Instant,
    listed_at: Instant,
    ended_at: Option<Instant>,
    has_failed: bool,
}

impl Thing {
    fn state(&self) -> &'static str {
        let ends = if self.kind == "disks" {
            Duration::ZERO
        } else {
            ENDS
        };
        match self.ended_at {
            Some(at) if at.elapsed() >= ends => "over",
            Some(_) => "ending",
            None if self.has_failed => "failed",
            None if self.made_at.elapsed() >= STARTS => "running",
            None => "starting",
        }
    }

    /// Whether reads and removals by this id find it, which they do as late as lists.
    fn is_known(&self, id: &str) -> bool {
        self.id == id && self.listed_at <= Instant::now()
    }

    fn to_json(&self) -> Value {
        let address = (self.state() == "running").then_some("192.0.2.7");
        json!({"id": self.id, "name": self.asked["name"], "tags": self.asked["tags"], "state": self.state(), "address": address})
    }
}

type Answer = Result<Json<Value>, (StatusCode, &'static str)>;

const NOT_FOUND: (StatusCode, &str) = (StatusCode::NOT_FOUND, "there is no such thing");

impl Vendor {
    pub(crate) fn new(api_key: &str) -> Self {
        Self(Arc::new(Shared {
            api_key: api_key.to_owned(),
            ledger: Ledger::default(),
            state: Mutex::default(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is over costs nothing any more, nor do machines that have failed.
    fn settle(&self) {
        for thing in &self.lock().things {
            let is_free = thing.state() == "over" || (thing.state() == "failed" && thing.kind == "machines");
            if is_free {
                self.0.ledger.removed(&thing.id);
            }
        }
    }

    fn check(&self, headers: &HeaderMap) -> Result<(), (StatusCode, &'static str)> {
        self.settle();
        let key = headers.get("x-api-key").map(http::HeaderValue::as_bytes);
        match key == Some(self.0.api_key.as_bytes()) {
            true => Ok(()),
            false => Err((StatusCode::UNAUTHORIZED, "this key is not known")),
        }
    }
}

async fn account(State(vendor): State<Vendor>, headers: HeaderMap) -> Answer {
    vendor.check(&headers)?;
    let free = !vendor.lock().sold_out;
    Ok(Json(json!({"regions": REGIONS, "free": free})))
}

/// Makes a thing; the same one for a disk's token that was seen before, whatever has become of it.
async fn make(
    State(vendor): State<Vendor>,
    headers: HeaderMap,
    Path(kind): Path<String>,
    Json(asked): Json<Value>,
) -> Answer {
    vendor.check(&headers)?;
    let mut books = vendor.lock();
    let of_token =
        |thing: &&Thing| thing.asked["token"].is_string() && thing.asked["token"] == asked["token"];
    if let Some(known) = books.things.iter().find(of_token) {
        return Ok(Json(known.to_json()));
    }
    if kind == "machines" {
        let is_disk = |thing: &Thing| asked["disk"] == *thing.id && thing.state() != "over";
        if !books.things.iter().any(is_disk) {
            return Err((StatusCode::BAD_REQUEST, "there is no such disk"));
        }
        if books.sold_out {
            return Err((StatusCode::CONFLICT, "sold out"));
        }
    }
    let now = Instant::now();
    let id = format!("{kind}-{}", books.things.len());
    let (ledger_kind, name) = (
        if kind == "disks" { "disk" } else { "machine" },
        asked["name"].as_str().unwrap().to_owned(),
    );
    vendor.0.ledger.made(ledger_kind, &id, &name);
    let listed_at = now + books.lag;
    let thing = Thing {
        kind,
        id,
        asked,
        made_at: now,
        listed_at,
        ended_at: None,
        has_failed: false,
    };
    let told = thing.to_json();
    books.things.push(thing);
    Ok(Json(told))
}

/// One thing of a region on each page, also what is over.
async fn list(
    State(vendor): State<Vendor>,
    headers: HeaderMap,
    Path(kind): Path<String>,
    Query(query): Query<HashMap<String, String>>,
) -> Answer {
    vendor.check(&headers)?;
    let books = vendor.lock();
    let page: usize = query["page"].parse().unwrap();
    let mut there = books.things.iter().filter(|thing| {
        thing.kind == kind && thing.asked["region"] == query["region"] && thing.listed_at <= Instant::now()
    });
    let things: Vec<Value> = there.by_ref().skip(page).take(1).map(Thing::to_json).collect();
    let next = there.next().map(|_| page + 1);
    Ok(Json(json!({"things": things, "next": next})))
}

async fn tell(
    State(vendor): State<Vendor>,
    headers: HeaderMap,
    Path((_, id)): Path<(String, String)>,
) -> Answer {
    vendor.check(&headers)?;
    let books = vendor.lock();
    let thing = books.things.iter().find(|thing| thing.is_known(&id));
    Ok(Json(thing.ok_or(NOT_FOUND)?.to_json()))
}

async fn end(
    State(vendor): State<Vendor>,
    headers: HeaderMap,
    Path((_, id)): Path<(String, String)>,
) -> Answer {
    vendor.check(&headers)?;
    let mut books = vendor.lock();
    let uses = |thing: &Thing| thing.asked["disk"] == *id && thing.state() != "over";
    if books.things.iter().any(uses) {
        return Err((StatusCode::CONFLICT, "a machine uses the disk"));
    }
    let thing = books
        .things
        .iter_mut()
        .find(|thing| thing.is_known(&id))
        .ok_or(NOT_FOUND)?;
    thing.ended_at.get_or_insert_with(Instant::now);
    let told = thing.to_json();
    drop(books);
    vendor.settle();
    Ok(Json(told))
}

impl Emulator for Vendor {
    fn router(&self) -> Router {
        Router::new()
            .route("/account", get(account))
            .route("/{kind}", get(list).post(make))
            .route("/{kind}/{id}", get(tell).delete(end))
            .with_state(self.clone())
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
            thing.has_failed |= thing.kind == "machines";
        }
        self.settle();
    }
}
