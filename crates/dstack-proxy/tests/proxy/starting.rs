//! Requests to a service without replicas that starts one for them, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use dstack_proxy::body::full;
use dstack_proxy::{BoxError, Forward, Forwarder, Limits, NotReceived, ProxyBody, Service, Starter};
use dstack_system::{Random, task};
use futures_util::FutureExt as _;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::harness::*;

const PATIENCE: Duration = Duration::from_secs(300);

/// How the service is; `None`: it has gone.
#[derive(Debug)]
struct Starts(watch::Sender<Option<Arc<Service>>>);

impl Starts {
    fn waiting(&self) -> usize {
        self.0.receiver_count()
    }
}

#[async_trait]
impl Starter for Starts {
    async fn start(&self, _: &Service) -> Option<Arc<Service>> {
        let mut present = self.0.subscribe();
        let started =
            |service: &Option<Arc<Service>>| service.as_ref().is_none_or(|service| service.has_replicas());
        present.wait_for(started).await.unwrap().clone()
    }
}

fn starting(replicas: impl IntoIterator<Item = dstack_proxy::Replica>) -> Arc<Service> {
    Arc::new(Service {
        starts_on_request: true,
        ..service(replicas, PATIENCE)
    })
}

fn forwarder(requests: usize) -> (Arc<Forwarder>, Arc<Starts>) {
    let starts = Arc::new(Starts(watch::channel(Some(starting([]))).0));
    let limits = Limits {
        requests,
        ..Limits::default()
    };
    let forwarder = Forwarder::new(Random::seeded(1)).with_limits(limits);
    (Arc::new(forwarder.with_starter(Arc::clone(&starts) as _)), starts)
}

/// A replica that says `good` to each request.
fn good() -> dstack_proxy::Replica {
    let (replica, mut connections) = memory();
    task::spawn("peer", async move {
        while let Some(stream) = connections.recv().await {
            let answer = |_| async { http::Response::new(dstack_proxy::body::full("good")) };
            task::spawn("connection", serve_http(stream, answer));
        }
    });
    replica
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_for_the_replica_that_is_started_for_it() {
    let (forwarder, starts) = forwarder(10);
    let started = Instant::now();
    let story = async {
        tokio::time::sleep(Duration::from_secs(200)).await;
        assert_eq!(starts.waiting(), 1);
        starts.0.send_replace(Some(starting([good()])));
    };
    let service = starting([]);
    let (answer, ()) = tokio::join!(forwarder.forward(&service, get("/")), story);
    assert_eq!(
        (answer.status().as_u16(), started.elapsed().as_secs()),
        (200, 200)
    );
    assert_eq!(whole(answer.into_body()).await.unwrap(), "good");
    assert_eq!(forwarder.stats().arrived(RUN), 1, "it counts once");
}

#[tokio::test(start_paused = true)]
async fn it_waits_no_longer_than_a_replica_may_be_silent() {
    let (forwarder, starts) = forwarder(10);
    let started = Instant::now();
    let answer = forwarder.forward(&starting([]), get("/")).await;
    assert_eq!((answer.status().as_u16(), started.elapsed()), (503, PATIENCE));
    assert_eq!(answer.headers()["retry-after"], "1");
    assert!(answer.extensions().get::<NotReceived>().is_some());
    assert_eq!(
        whole(answer.into_body()).await.unwrap(),
        r#"{"detail":"No replica of the service has become ready in time"}"#
    );
    assert_eq!(starts.waiting(), 0);
    // It counts all the same.
    assert_eq!(forwarder.stats().load(RUN, 300), Some(0), "but it came 300 s ago");
    assert_eq!(forwarder.stats().arrived(RUN), 1);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_goes_meanwhile_is_waited_for_no_longer() {
    let (forwarder, starts) = forwarder(10);
    let service = starting([]);
    let goes = async { drop(starts.0.send_replace(None)) };
    let (answer, ()) = tokio::join!(forwarder.forward(&service, get("/")), goes);
    assert_eq!(answer.status(), 503);
    assert_eq!(
        whole(answer.into_body()).await.unwrap(),
        r#"{"detail":"The service has no replicas"}"#
    );
}

#[tokio::test(start_paused = true)]
async fn who_waits_has_a_place_until_the_client_goes() {
    let (forwarder, starts) = forwarder(1);
    let service = starting([]);
    let mut first = Box::pin(forwarder.forward(&service, get("/")));
    assert!(first.as_mut().now_or_never().is_none());
    let second = forwarder.forward(&service, get("/")).await;
    assert_eq!(
        whole(second.into_body()).await.unwrap(),
        r#"{"detail":"Too many requests to services are under way"}"#
    );
    assert_eq!(starts.waiting(), 1);
    drop(first);
    assert_eq!(starts.waiting(), 0);
    let mut third = Box::pin(forwarder.forward(&service, get("/")));
    assert!(third.as_mut().now_or_never().is_none(), "the place is free again");
}

#[tokio::test(start_paused = true)]
async fn nothing_of_a_body_is_read_while_its_request_waits() {
    let (forwarder, starts) = forwarder(1);
    let service = starting([]);
    let (read, was_read) = watch::channel(false);
    let frames = futures_util::stream::once(async move {
        read.send_replace(true);
        Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"body")))
    });
    let body: ProxyBody = StreamBody::new(frames).boxed_unsync();
    let mut waiting = Box::pin(forwarder.forward(&service, request("POST", "/", body)));
    assert!(waiting.as_mut().now_or_never().is_none());
    assert!(!*was_read.borrow());
    starts.0.send_replace(Some(starting([good()])));
    assert_eq!(waiting.await.status(), 200);
    assert!(*was_read.borrow());
}

/// Without probes a replica gets requests when its commands have begun.
#[tokio::test(start_paused = true)]
async fn a_replica_that_does_not_listen_yet_is_asked_again() {
    let listening = Arc::new(Switched {
        on: false.into(),
        to: Arc::clone(good().connector()),
    });
    let replica = || dstack_proxy::Replica::new(uuid::Uuid::from_u128(3).into(), Arc::clone(&listening) as _);
    let (forwarder, starts) = forwarder(10);
    let started = Instant::now();
    let story = async {
        starts.0.send_replace(Some(starting([replica()])));
        tokio::time::sleep(Duration::from_millis(10_500)).await;
        listening.on.store(true, std::sync::atomic::Ordering::SeqCst);
    };
    let service = starting([]);
    let (answer, ()) = tokio::join!(
        forwarder.forward(&service, request("POST", "/", full("body"))),
        story
    );
    assert_eq!((answer.status().as_u16(), started.elapsed().as_secs()), (200, 11));
    // Who has not waited is told at once, and nobody waits for ever.
    listening.on.store(false, std::sync::atomic::Ordering::SeqCst);
    let started = Instant::now();
    assert_eq!(
        forwarder.forward(&starting([replica()]), get("/")).await.status(),
        502
    );
    assert!(started.elapsed() < Duration::from_secs(1));
    assert_eq!(forwarder.forward(&service, get("/")).await.status(), 502);
    let waited = started.elapsed();
    assert!(
        (PATIENCE - Duration::from_secs(2)..PATIENCE).contains(&waited),
        "{waited:?}"
    );
}

/// Between the end of the last replica and the routes without it.
#[tokio::test(start_paused = true)]
async fn replicas_that_get_no_more_requests_are_none() {
    let (forwarder, starts) = forwarder(10);
    let before = starting([good()]);
    before.replicas[0].retire();
    starts.0.send_replace(Some(starting([good()])));
    assert_eq!(forwarder.forward(&before, get("/")).await.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn other_services_are_not_waited_for() {
    let (forwarder, starts) = forwarder(10);
    let plain = service([], PATIENCE);
    let answer = forwarder.forward(&plain, get("/")).await;
    assert_eq!(
        whole(answer.into_body()).await.unwrap(),
        r#"{"detail":"The service has no replicas"}"#
    );
    assert_eq!(starts.waiting(), 0);
}
