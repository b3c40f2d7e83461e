//! No more requests are under way than allowed.

use std::time::Duration;

use dstack_proxy::{Forward, Forwarder, Limits, NotReceived};
use dstack_system::Random;

use crate::harness::*;

fn limited(requests: usize, tunnels: usize) -> Forwarder {
    Forwarder::new(Random::seeded(1)).with_limits(Limits { requests, tunnels })
}

#[tokio::test]
async fn more_requests_than_allowed_are_to_come_again_in_a_second() {
    let peer = Peer::says("good").await;
    let service = service([peer.replica()], Duration::from_secs(20));
    let forwarder = limited(1, 0);
    let first = forwarder.forward(&service, get("/")).await;
    let second = forwarder.forward(&service, get("/")).await;
    assert_eq!(second.status(), 503);
    assert_eq!(second.headers()["retry-after"], "1");
    assert!(second.extensions().get::<NotReceived>().is_some());
    assert_eq!(
        whole(second.into_body()).await.unwrap(),
        r#"{"detail":"Too many requests to services are under way"}"#
    );
    assert_eq!(whole(first.into_body()).await.unwrap(), "good");
    for _ in 0..3 {
        let next = forwarder.forward(&service, get("/")).await;
        assert_eq!(next.status(), 200, "those before have ended");
        whole(next.into_body()).await.unwrap();
    }
    drop(forwarder.forward(&service, get("/")).await);
    let after_one_that_went = forwarder.forward(&service, get("/")).await;
    assert_eq!(after_one_that_went.status(), 200);
    let by_class = forwarder.stats().snapshot(RUN).unwrap().by_class;
    assert_eq!(by_class[4], 1, "it is a request that should have been served");
}

#[tokio::test]
async fn websockets_have_a_limit_of_their_own() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use crate::websockets::{HANDSHAKE, echo};

    let peer = echo().await;
    let replicas = service([peer.replica()], Duration::from_secs(20));
    let proxy = Proxy::with(replicas, limited(0, 1)).await;
    let handshake = async || {
        let mut stream = proxy.connect().await;
        stream.write_all(HANDSHAKE.as_bytes()).await.unwrap();
        let head = soon(read_head(&mut stream)).await;
        (head[9..12].to_owned(), stream)
    };
    let (status, mut first) = handshake().await;
    assert_eq!(status, "101");
    assert_eq!(handshake().await.0, "503");
    assert_eq!(proxy.get("/").await.0, 503, "of which there may be none");
    first.shutdown().await.unwrap();
    soon(first.read_to_end(&mut Vec::new())).await.unwrap();
    soon(proxy.replica(0).idle()).await;
    soon(async { while handshake().await.0 != "101" {} }).await;
}
