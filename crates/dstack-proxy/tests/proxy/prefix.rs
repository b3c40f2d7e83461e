//! Requests whose prompts begin alike, to replicas that would have them in their caches.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dstack_proxy::body::full;
use dstack_proxy::{Balancing, ProxyBody, Replica, Service};
use dstack_units::JobId;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::harness::{Peer, Proxy, request, service, soon, whole};

/// Replicas that answer with their name and what they got, as soon as they may.
async fn replicas(may_answer: &Arc<Semaphore>) -> Vec<Peer> {
    let mut peers = Vec::new();
    for name in 0..4 {
        let may_answer = Arc::clone(may_answer);
        let answer = move |request: Request<Incoming>| {
            let may_answer = Arc::clone(&may_answer);
            async move {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                drop(may_answer.acquire().await.unwrap());
                let said = json!({"name": name, "body": String::from_utf8_lossy(&body)});
                Response::new(full(said.to_string()))
            }
        };
        peers.push(Peer::http(answer).await);
    }
    peers
}

async fn proxy(peers: &[Peer], balancing: Balancing, read_timeout: Duration) -> Proxy {
    let replica = |(number, peer): (u128, &Peer)| {
        Replica::new(JobId::new(Uuid::from_u128(number)), Arc::clone(&peer.connector))
    };
    let replicas = (0..).zip(peers).map(replica);
    let service = Service {
        balancing,
        ..service(replicas, read_timeout)
    };
    Proxy::new(service).await
}

const TWENTY_SECONDS: Duration = Duration::from_secs(20);

fn chat(conversation: usize, turns: usize) -> Request<ProxyBody> {
    let said =
        |turn| json!({"role": "user", "content": format!("{conversation} {turn} {}", "why? ".repeat(100))});
    let messages: Vec<Value> = (0..turns).map(said).collect();
    let body = json!({"model": "m", "messages": messages}).to_string();
    let mut chat = request("POST", "/v1/chat/completions", full(body));
    let json = HeaderValue::from_static("application/json");
    chat.headers_mut().insert(CONTENT_TYPE, json);
    chat
}

/// The name of the replica that answered, and what it got.
async fn answered(proxy: &Proxy, request: Request<ProxyBody>) -> (u64, String) {
    let answer = soon(proxy.send(request)).await.unwrap();
    assert_eq!(answer.status(), 200);
    let said: Value = serde_json::from_slice(&whole(answer.into_body()).await.unwrap()).unwrap();
    (
        said["name"].as_u64().unwrap(),
        said["body"].as_str().unwrap().to_owned(),
    )
}

#[tokio::test]
async fn conversations_go_on_where_they_began() {
    let peers = replicas(&Arc::new(Semaphore::new(100))).await;
    let proxy = proxy(&peers, Balancing::Prefix, TWENTY_SECONDS).await;
    let mut began = Vec::new();
    for conversation in 0..16 {
        let (name, got) = answered(&proxy, chat(conversation, 1)).await;
        let sent = chat(conversation, 1)
            .into_body()
            .collect()
            .await
            .unwrap()
            .to_bytes();
        assert_eq!(got.as_bytes(), sent, "it is passed on as it came");
        began.push(name);
    }
    let distinct: BTreeSet<u64> = began.iter().copied().collect();
    assert!(distinct.len() > 1, "{began:?}");
    for turns in 2..5 {
        for (conversation, name) in began.iter().enumerate() {
            assert_eq!(answered(&proxy, chat(conversation, turns)).await.0, *name);
        }
    }
}

#[tokio::test]
async fn a_replica_that_answers_at_once_that_it_can_not_loses_its_conversations() {
    let overloaded = Arc::new(AtomicUsize::new(usize::MAX));
    let mut peers = Vec::new();
    for name in 0..4 {
        let overloaded = Arc::clone(&overloaded);
        let answer = move |_: Request<Incoming>| {
            let is_overloaded = overloaded.load(Ordering::SeqCst) == name;
            async move {
                let mut answer = Response::new(full(name.to_string()));
                if is_overloaded {
                    *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                }
                answer
            }
        };
        peers.push(Peer::http(answer).await);
    }
    let proxy = proxy(&peers, Balancing::Prefix, TWENTY_SECONDS).await;
    let ask = async |turns| {
        let answer = soon(proxy.send(chat(1, turns))).await.unwrap();
        let status = answer.status();
        let name = whole(answer.into_body()).await.unwrap();
        (status, String::from_utf8(name.to_vec()).unwrap())
    };
    let (_, first) = ask(1).await;
    overloaded.store(first.parse().unwrap(), Ordering::SeqCst);
    assert_eq!(ask(2).await, (StatusCode::SERVICE_UNAVAILABLE, first));
    // Any of the four from then on, until one answers.
    let mut answered = false;
    for _ in 0..30 {
        answered |= ask(2).await.0.is_success();
    }
    assert!(answered);
}

#[tokio::test]
async fn without_it_they_go_anywhere() {
    let peers = replicas(&Arc::new(Semaphore::new(100))).await;
    let proxy = proxy(&peers, Balancing::LeastRequests, TWENTY_SECONDS).await;
    let mut names = BTreeSet::new();
    for _ in 0..30 {
        names.insert(answered(&proxy, chat(1, 3)).await.0);
    }
    assert!(names.len() > 1);
}

#[tokio::test]
async fn a_replica_that_has_too_much_shares_the_conversation() {
    let may_answer = Arc::new(Semaphore::new(0));
    let peers = replicas(&may_answer).await;
    let proxy = proxy(&peers, Balancing::Prefix, TWENTY_SECONDS).await;
    let asked = (0..16).map(|_| answered(&proxy, chat(1, 3)));
    let all_under_way = async {
        while (0..4)
            .map(|place| proxy.replica(place).in_flight())
            .sum::<usize>()
            < 16
        {
            tokio::task::yield_now().await;
        }
        let most = (0..4).map(|place| proxy.replica(place).in_flight()).max();
        may_answer.add_permits(100);
        most
    };
    let (answers, most) = tokio::join!(futures_util::future::join_all(asked), soon(all_under_way));
    let names: BTreeSet<u64> = answers.into_iter().map(|(name, _)| name).collect();
    assert!(names.len() > 1, "{names:?}");
    // One and a half times the average, two more, and the one that was let in.
    assert!(most <= Some(9), "{most:?}");
}

#[tokio::test]
async fn a_client_that_does_not_send_its_prompt_is_told_so_and_bothers_no_replica() {
    let peers = replicas(&Arc::new(Semaphore::new(100))).await;
    let proxy = proxy(&peers, Balancing::Prefix, Duration::from_millis(50)).await;
    let mut client = proxy.connect().await;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    client.write_all(head.as_bytes()).await.unwrap();
    let answer = soon(crate::harness::read_head(&mut client)).await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert_eq!(peers.iter().map(Peer::accepted).sum::<usize>(), 0);
}
