//! Changes of what is registered cost no connection.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use http::Request;
use http_body_util::BodyExt as _;
use serde_json::json;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;

use crate::support::app::App;
use crate::support::client::send;
use crate::support::ssh::Ssh;
use crate::support::{Setup, ok};

pub(crate) async fn next_piece(body: &mut hyper::body::Incoming) -> Option<String> {
    let frame = tokio::time::timeout(Duration::from_secs(10), body.frame())
        .await
        .unwrap()?;
    Some(String::from_utf8(frame.unwrap().into_data().unwrap().to_vec()).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn open_streams_and_websockets_outlive_every_change() {
    let (setup, ssh, app) = (Setup::start().await, Ssh::start().await, App::start("one").await);
    setup.register("web", json!({}), &ssh).await;
    setup.register_replica("web", 1, app.port, &ssh).await;

    let stream = TcpStream::connect(setup.http()).await.unwrap();
    let request = Request::get("/stream")
        .header("host", "web.example.com")
        .body(String::new())
        .unwrap();
    app.pieces.add_permits(1);
    let mut body = send(stream, request).await.into_body();
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
    let job = ssh.replica(1, 0)["job_id"].as_str().unwrap().to_owned();
    let path = format!("/api/registry/main/services/web/replicas/{job}/unregister");
    assert_eq!(setup.post(&path, &json!(null)).await, ok());
    assert_eq!(setup.ask("web.example.com", "/").await.json()["app"], "two");
    assert_eq!(
        setup
            .post("/api/registry/main/services/web/unregister", &json!(null))
            .await,
        ok()
    );
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
    let (setup, ssh, app) = (Setup::start().await, Ssh::start().await, App::start("one").await);
    setup.register("web", json!({}), &ssh).await;
    setup.register_replica("web", 1, app.port, &ssh).await;
    let stream = TcpStream::connect(setup.http()).await.unwrap();
    let request = Request::get("/stream")
        .header("host", "web.example.com")
        .body(String::new())
        .unwrap();
    let body = send(stream, request).await.into_body();
    let job = ssh.replica(1, 0)["job_id"].as_str().unwrap().to_owned();
    let path = format!("/api/v2/registry/main/services/web/replicas/{job}/drain");
    let ending = async {
        // Once it gets no more requests, the one under way ends.
        crate::support::until("it is out", async || {
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
    let (setup, ssh, app) = (Setup::start().await, Ssh::start().await, App::start("one").await);
    setup.register("web", json!({}), &ssh).await;
    setup.register_replica("web", 1, app.port, &ssh).await;
    let address = setup.http();
    let stream = TcpStream::connect(address).await.unwrap();
    let request = Request::get("/stream")
        .header("host", "web.example.com")
        .body(String::new())
        .unwrap();
    let mut body = send(stream, request).await.into_body();
    let stopping = tokio::spawn(setup.gateway.stop(Duration::from_secs(30)));
    crate::support::until("nobody accepts", async || {
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
