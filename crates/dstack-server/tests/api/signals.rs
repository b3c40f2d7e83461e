//! What the number of replicas follows besides requests per second: pages of replicas, and what the proxy measures.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::routing::{get, post};
use dstack_engine::Services as _;
use dstack_engine::services::Measured;
use dstack_plan::services::pages::Told;
use dstack_plan::services::signals::Observed;
use dstack_units::{JobId, Seconds};
use http::header::CONTENT_TYPE;
use http_body_util::BodyExt as _;
use serde_json::json;
use tokio_util::sync::{CancellationToken, DropGuard};
use tower::ServiceExt as _;

use super::proxy::{change, reach, replica_of, until};
use super::services::{apply, run};
use super::{ADMIN, Server, request};

const MINUTE: Seconds = Seconds(60);

/// A server with a service whose only replica is this one.
async fn serving(replica: Router) -> (Server, JobId, DropGuard) {
    let server = Server::new().await;
    reach(&server, replica_of(replica).await);
    let scaling = json!({"signals": [{"metric": "queue_length", "target": 1}, {"metric": "time_to_first_token", "target": "1s"}]});
    apply(
        &server,
        json!({"replicas": "1..2", "scaling": scaling, "model": "org/m"}),
    )
    .await
    .ok();
    run(&server).await;
    let job = change(&server, |_| {}).await.remove(0).id;
    let stop = CancellationToken::new();
    server.state.services.follow(stop.clone());
    (server, job, stop.drop_guard())
}

#[tokio::test]
async fn the_page_of_a_replica_is_read_when_somebody_asks_for_it() {
    let read = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&read);
    let page = move || {
        counted.fetch_add(1, Ordering::SeqCst);
        async { "vllm:num_requests_waiting{engine=\"0\"} 3\nvllm:num_requests_waiting{engine=\"1\"} 4\n" }
    };
    let elsewhere = || async { "vllm:num_requests_waiting 9\n" };
    let replica = Router::new()
        .route("/stats", get(page))
        .route("/elsewhere", get(elsewhere));
    let (server, job, _stop) = serving(replica).await;
    let services = &server.state.services;
    assert_eq!(
        services.told(&[job], "/stats", MINUTE),
        Told::default(),
        "it is not read yet"
    );
    until("its page is read", async || {
        services.told(&[job], "/stats", MINUTE).queue == Observed::Is(7.0)
    })
    .await;
    assert_eq!(read.load(Ordering::SeqCst), 1, "however often it is asked for");
    let other = JobId::new(uuid::Uuid::from_u128(1));
    let both = services.told(&[job, other], "/stats", MINUTE);
    assert_eq!(
        both.queue,
        Observed::AtLeast(7.0),
        "nobody knows of the other one"
    );
    assert_eq!(services.told(&[job], "/elsewhere", MINUTE), Told::default());
    until("its other page is read", async || {
        services.told(&[job], "/elsewhere", MINUTE).queue == Observed::Is(9.0)
    })
    .await;
}

#[tokio::test]
async fn how_long_a_client_waits_for_the_first_piece_of_a_stream_is_measured() {
    let stream = || async {
        (
            [(CONTENT_TYPE, "text/event-stream")],
            "data: {}\n\ndata: [DONE]\n\n",
        )
    };
    let whole = || async { ([(CONTENT_TYPE, "application/json")], "{}") };
    let replica = Router::new()
        .route("/v1/chat/completions", post(stream))
        .route("/v1/completions", post(whole));
    let (server, _, _stop) = serving(replica).await;
    let services = &server.state.services;
    for _ in 0..3 {
        let chat = json!({"model": "org/m", "messages": [], "stream": true});
        let asked = request(
            "POST",
            "/proxy/models/main/chat/completions",
            Some(ADMIN),
            Some(&chat),
        );
        let answer = server.router.clone().oneshot(asked).await.unwrap();
        let stream = answer.into_body().collect().await.unwrap().to_bytes();
        assert!(stream.ends_with(b"data: [DONE]\n\n"), "{stream:?}");
        let text = json!({"model": "org/m", "prompt": "x"});
        server
            .post(ADMIN, "/proxy/models/main/completions", text)
            .await
            .ok();
    }
    let run = services.routes().all().next().unwrap().run_id;
    let here = services.forwarder().stats().strain_here(run);
    assert_eq!(here.first_pieces, 3, "of streams only");
    assert!(here.busy >= here.waited && !here.waited.is_zero(), "{here:?}");
    // It has not counted for so long.
    assert_eq!(services.measured(run, None, MINUTE), Measured::default());
}
