//! Changes of what is registered cost no connection.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use http::Request;
use serde_json::json;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;

use crate::support::app::App;
use crate::support::authority::{certificate, new_root};
use crate::support::client::{Answer, Http2, ask, next_piece, tls};
use crate::support::ssh::Ssh;
use crate::support::{Setup, job, own_certificate, soon, until};

#[tokio::test(flavor = "multi_thread")]
async fn open_streams_and_websockets_outlive_every_change() {
    let (setup, ssh, app) = Setup::serving(json!({})).await;

    app.pieces.add_permits(1);
    let mut body = setup.stream().await;
    assert_eq!(next_piece(&mut body).await.unwrap(), "piece");
    let stream = TcpStream::connect(setup.http()).await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async("ws://web.example.com/ws", stream)
        .await
        .unwrap();
    socket.send(Message::text("a")).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("echo a"));

    let second = App::start("two").await;
    setup.register("other", json!({}), &ssh).await;
    setup.register_replica("web", 2, second.port, &ssh).await;
    setup.register_replica("other", 3, second.port, &ssh).await;
    setup.unregister_replica("web", 1).await;
    assert_eq!(setup.ask("web.example.com", "/").await.json()["app"], "two");
    setup.unregister("web").await;
    assert_eq!(setup.ask("web.example.com", "/").await.status, 404);

    socket.send(Message::text("b")).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("echo b"));
    app.pieces.add_permits(1);
    assert_eq!(next_piece(&mut body).await.unwrap(), "piece");
    app.pieces.close();
    assert_eq!(next_piece(&mut body).await, None, "it comes to its end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_may_wait_for_the_requests_under_way_at_a_replica() {
    let (setup, _ssh, _app) = Setup::serving(json!({})).await;
    let body = setup.stream().await;
    let path = format!("/api/v2/registry/main/services/web/replicas/{}/drain", job(1));
    let ending = async {
        // Once it gets no more requests, the one under way ends.
        until("it is out", async || {
            setup.ask("web.example.com", "/").await.status == 503
        })
        .await;
        drop(body);
    };
    let drain = json!({ "timeout": 30 });
    let (drained, ()) = tokio::join!(setup.post(&path, &drain), ending);
    assert_eq!(drained, (200, json!({ "status": "ok", "in_flight": 0 })));
    assert_eq!(setup.post(&path, &drain).await.0, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_ends_answers_what_is_under_way_and_accepts_no_more() {
    let (setup, _ssh, app) = Setup::serving(json!({})).await;
    let address = setup.http();
    let mut body = setup.stream().await;
    let stopping = tokio::spawn(setup.gateway.stop(Duration::from_secs(30)));
    until("nobody accepts", async || {
        TcpStream::connect(address).await.is_err()
    })
    .await;
    app.pieces.add_permits(1);
    assert_eq!(next_piece(&mut body).await.unwrap(), "piece");
    assert!(!stopping.is_finished());
    app.pieces.close();
    assert_eq!(next_piece(&mut body).await, None);
    stopping.await.unwrap();
}

#[tokio::test]
async fn a_connection_that_waits_to_be_accepted_when_a_gateway_ends_is_answered() {
    use std::io::{Read as _, Write as _};

    let setup = Setup::start().await;
    // The system accepts it; what accepts in the gateway has no turn before it is told to end.
    let mut stream = std::net::TcpStream::connect(setup.http()).unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: none.example.com\r\nconnection: close\r\n\r\n")
        .unwrap();
    setup.gateway.stop(Duration::from_secs(30)).await;
    stream.set_nonblocking(true).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
}

#[tokio::test]
async fn a_gateway_that_has_ended_listens_nowhere() {
    let setup = Setup::start().await;
    let (front, addresses) = (setup.http(), setup.gateway.addresses());
    setup.gateway.stop(Duration::from_secs(30)).await;
    for address in [front, addresses.https, addresses.api] {
        assert!(std::net::TcpStream::connect(address).is_err(), "{address}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn websockets_are_among_the_connections_that_are_counted() {
    // Each of the two listeners has a place for its next connection.
    let setup = Setup::start_with(|settings| settings.max_connections = 2).await;
    let (ssh, app) = (Ssh::start().await, App::start("one").await);
    setup.serve(json!({}), &ssh, &app).await;
    let stream = TcpStream::connect(setup.http()).await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async("ws://web.example.com/ws", stream)
        .await
        .unwrap();
    let address = setup.http();
    let other = tokio::spawn(async move {
        let request = Request::get("/").header("host", "web.example.com");
        ask(address, request.body(String::new()).unwrap()).await.status
    });
    for _ in 0..100 {
        socket.send(Message::text("a")).await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("echo a"));
    }
    assert!(!other.is_finished(), "it waits for a place");
    drop(socket);
    assert_eq!(soon(other).await.unwrap(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_connection_of_http2_has_no_more_requests_under_way_than_all_may() {
    let (root, issuer) = new_root();
    let (chain, key) = certificate(&issuer, "web.example.com", -1..60);
    let setup = Setup::start_with(|settings| {
        own_certificate(settings, "web.example.com", &chain, &key);
        settings.max_connections = 3;
    })
    .await;
    let (ssh, app) = (Ssh::start().await, App::start("one").await);
    setup.serve(json!({"https": true}), &ssh, &app).await;
    let stream = tls(setup.https(), "web.example.com", &root, &[b"h2"])
        .await
        .unwrap();
    let connection = Http2::new(stream).await;
    let request = || {
        Request::get("https://web.example.com/stream")
            .body(String::new())
            .unwrap()
    };
    let mut under_way = Vec::new();
    for _ in 0..3 {
        under_way.push(connection.send(request()).await);
    }
    assert!(under_way.iter().all(|response| response.status() == 200));
    let refused = connection.send(request()).await;
    assert_eq!(
        (refused.status().as_u16(), &refused.headers()["retry-after"]),
        (503, &"1".parse().unwrap())
    );
    app.pieces.close();
    for response in under_way {
        assert_eq!(Answer::of(response).await.body, "");
    }
    assert_eq!(connection.send(request()).await.status(), 200);
}
