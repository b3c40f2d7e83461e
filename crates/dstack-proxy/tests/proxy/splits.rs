//! Requests to a service whose new deployment stands beside the old one.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use dstack_proxy::split::{ALL, Side};
use dstack_proxy::{Replica, Service, Split};
use dstack_units::JobId;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::BodyExt;
use uuid::Uuid;

use crate::harness::*;

fn job(number: u128) -> JobId {
    JobId::new(Uuid::from_u128(number))
}

fn replica(number: u128, peer: &Peer) -> Replica {
    Replica::new(job(number), Arc::clone(&peer.connector))
}

/// Job 1 is new; requests with `x-canary: 1` are for it.
fn split(replicas: impl IntoIterator<Item = Replica>, share: u16) -> Service {
    let split = Split {
        deployment: 2,
        new: HashSet::from([job(1)]),
        share,
        header: Some((HeaderName::from_static("x-canary"), HeaderValue::from_static("1"))),
        answered: Arc::default(),
    };
    Service {
        split: Some(Arc::new(split)),
        ..service(replicas, Duration::from_secs(20))
    }
}

async fn said(proxy: &Proxy, canary: Option<&'static str>) -> String {
    let mut request = get("/");
    if let Some(value) = canary {
        request
            .headers_mut()
            .insert("x-canary", HeaderValue::from_static(value));
    }
    let answer = soon(proxy.send(request)).await.unwrap();
    let body = soon(answer.into_body().collect()).await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

/// What a side has answered, and how much of that has failed.
fn answered(proxy: &Proxy, side: Side) -> (u64, u64) {
    let split = proxy.service.split.as_ref().unwrap();
    let answers = split.answered.of(side);
    (answers.requests, answers.failed)
}

#[tokio::test]
async fn requests_are_shared_by_weight_and_those_with_the_header_go_to_the_new_replica() {
    let (new, one, other) = (
        Peer::says("new").await,
        Peer::says("old").await,
        Peer::says("old").await,
    );
    let replicas = [replica(1, &new), replica(2, &one), replica(3, &other)];
    let proxy = Proxy::new(split(replicas, 1000)).await;
    let mut to_new = 0;
    for _ in 0..1000 {
        to_new += u64::from(said(&proxy, None).await == "new");
    }
    // 10% of 1000, of a third of the replicas: four standard deviations are 38.
    assert!((62..=138).contains(&to_new), "{to_new}");
    for _ in 0..50 {
        assert_eq!(said(&proxy, Some("1")).await, "new");
    }
    soon(proxy.replica(0).idle()).await;
    assert_eq!(answered(&proxy, Side::New), (to_new + 50, 0));
    assert_eq!(answered(&proxy, Side::Old), (1000 - to_new, 0));
}

#[tokio::test]
async fn before_the_switch_nobody_is_sent_to_the_new_replica_and_after_it_everybody() {
    let (new, old) = (Peer::says("new").await, Peer::says("old").await);
    for (share, all) in [(0, "old"), (ALL, "new")] {
        let proxy = Proxy::new(split([replica(1, &new), replica(2, &old)], share)).await;
        for _ in 0..50 {
            assert_eq!(said(&proxy, None).await, all);
            assert_eq!(said(&proxy, Some("1")).await, "new");
            assert_eq!(said(&proxy, Some("2")).await, all);
        }
    }
}

#[tokio::test]
async fn a_new_replica_that_is_not_reached_costs_no_request_and_is_counted() {
    let old = Peer::says("old").await;
    let gone = Replica::new(job(1), Arc::clone(refusing().connector()));
    let proxy = Proxy::new(split([gone, replica(2, &old)], ALL)).await;
    assert_eq!(said(&proxy, None).await, "old");
    assert_eq!(answered(&proxy, Side::New), (1, 1));
    assert_eq!(answered(&proxy, Side::Old), (1, 0));
}

#[tokio::test]
async fn requests_for_old_replicas_are_never_sent_to_new_ones_without_a_share() {
    let new = Peer::says("new").await;
    let gone = Replica::new(job(2), Arc::clone(refusing().connector()));
    let proxy = Proxy::new(split([replica(1, &new), gone], 0)).await;
    let answer = soon(proxy.send(get("/"))).await.unwrap();
    assert_eq!(answer.status(), StatusCode::BAD_GATEWAY);
    let alone = Proxy::new(split([replica(1, &new)], 0)).await;
    assert_eq!(said(&alone, None).await, "new", "there are no old ones");
}

#[tokio::test]
async fn failures_of_the_new_replica_are_its_own() {
    let failing = Peer::http(|_| async {
        let mut answer = Response::new(dstack_proxy::body::full("broken"));
        *answer.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        answer
    })
    .await;
    let breaking = Peer::writes(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc").await;
    let old = Peer::says("old").await;
    for new in [&failing, &breaking] {
        let proxy = Proxy::new(split([replica(1, new), replica(2, &old)], ALL)).await;
        let answer = soon(proxy.send(get("/"))).await;
        if let Ok(answer) = answer {
            // It breaks off, or is whole.
            let _ = soon(answer.into_body().collect()).await;
        }
        soon(proxy.replica(0).idle()).await;
        assert_eq!(answered(&proxy, Side::New), (1, 1));
    }
}

#[tokio::test]
async fn a_client_that_gives_up_on_a_silent_replica_is_counted_and_one_that_goes_at_once_is_not() {
    let (asked, mut was_asked) = tokio::sync::mpsc::unbounded_channel();
    let silent = Peer::http(move |_| {
        asked.send(()).unwrap();
        std::future::pending()
    })
    .await;
    let old = Peer::says("old").await;
    let proxy = Proxy::new(split([replica(1, &silent), replica(2, &old)], ALL)).await;
    for (patience, counted) in [(10, (0, 0)), (1200, (1, 1))] {
        let mut sent = Box::pin(proxy.send(get("/")));
        tokio::select! {
            answer = &mut sent => panic!("{answer:?}"),
            () = async { soon(was_asked.recv()).await.unwrap() } => {}
        }
        let given_up = tokio::time::timeout(Duration::from_millis(patience), &mut sent).await;
        assert!(given_up.is_err());
        drop(sent);
        soon(proxy.replica(0).idle()).await;
        assert_eq!(answered(&proxy, Side::New), counted);
    }
    let split = proxy.service.split.as_ref().unwrap();
    assert!(split.answered.of(Side::New).head.sum >= 1.0);
}
