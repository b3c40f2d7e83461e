//! A manifest's lists whose pages never end: they are not asked for for ever, and are no empty lists either.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::routing::get;
use axum::{Json, Router};
use dstack_backend_kit::{CANARY, EmulatedTransport, env};
use dstack_backend_manifest::kind;
use dstack_compute::ComputeError;
use dstack_compute::config::BackendConfig;
use serde_json::{Value, json};

use crate::manifests::{LAMBDA, manifest};
use crate::with_key;

/// What is answered to the request of this number, counted from 0.
type Page = fn(u64) -> Value;

fn machine(number: u64) -> Value {
    json!({"id": format!("i-{number}"), "name": "of somebody else", "status": "active"})
}

/// What comes of listing an account of Lambda, whose list has these pages, and how many were asked for.
async fn listed(pages: &str, page: Page) -> (Result<usize, ComputeError>, u64) {
    let without = "{get: instances, items: /data}";
    assert!(LAMBDA.contains(without));
    let list = format!("{{get: instances, items: /data, pages: {pages}}}");
    let manifest = manifest(&LAMBDA.replacen(without, &list, 1));
    let asked = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&asked);
    let answer = move || {
        let number = counted.fetch_add(1, Ordering::Relaxed);
        async move { Json(page(number)) }
    };
    let router = Router::new().route("/api/v1/instances", get(answer));
    let kind = kind(env(Arc::new(EmulatedTransport::new(router))), manifest).unwrap();
    let config = BackendConfig::read(&with_key("lambda-manifest", CANARY)).unwrap();
    let backend = kind.open(&config.split()).unwrap();
    let owned = backend.inventory().await.map(|owned| owned.len());
    (owned, asked.load(Ordering::Relaxed))
}

#[tokio::test(start_paused = true)]
async fn pages_without_end_are_an_error() {
    let endless: Page = |number| json!({"data": [machine(number)], "next": format!("?page={number}")});
    let empty: Page = |number| json!({"data": [], "next": format!("?page={number}")});
    let large: Page = |number| {
        let machines = (0..3000).map(|of_page| machine(number * 3000 + of_page));
        json!({"data": machines.collect::<Vec<_>>(), "next": format!("?page={number}")})
    };
    let repeated: Page = |number| json!({"data": [machine(0)], "next": format!("?page={number}")});
    let itself: Page = |number| json!({"data": [machine(number)], "next": "?page=1"});
    let by_number = "{by: number, query: page}";
    let by_cursor = "{by: cursor, query: after, next: /next}";
    let by_link = "{by: link, next: /next}";
    for (pages, page, told, expected) in [
        (by_number, endless, "a list has more than 500 pages", 500),
        (by_cursor, endless, "a list has more than 500 pages", 500),
        (by_link, endless, "a list has more than 500 pages", 500),
        (by_cursor, empty, "a list has more than 500 pages", 500),
        (by_number, large, "a list has more than 10000 entries", 4),
        (by_link, repeated, "two pages of a list are the same", 2),
        (
            by_cursor,
            itself,
            "a page of a list names itself as the next one",
            2,
        ),
    ] {
        let (owned, asked) = listed(pages, page).await;
        let error = owned.unwrap_err();
        assert!(error.to_string().contains(told), "{pages}: {error}");
        assert_eq!(asked, expected, "{pages}: {told}");
    }
    let last: Page = |number| match number {
        0..3 => json!({"data": [machine(number)], "next": format!("?page={number}")}),
        _ => json!({"data": [], "next": null}),
    };
    for pages in [by_number, by_cursor, by_link] {
        assert_eq!(
            listed(pages, last).await,
            (Ok(0), 4),
            "{pages}: none of them is ours"
        );
    }
}
