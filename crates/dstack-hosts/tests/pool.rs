//! The pool against SSH servers of this process, and against the real OpenSSH server where one is installed.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dstack_hosts::pool::connector::PortError;
use dstack_hosts::pool::{Pool, ReachError};
use dstack_model::reach::Reach;
use dstack_ssh::keys::{fingerprint, generate_ed25519, generate_host_keys};
use dstack_system::{Random, task};
use russh::server::{Auth, ChannelOpenHandle, Msg, Session};
use russh::{Channel, ChannelOpenFailure, server};
use support::{Keys, OpenSsh, Server, echo, free_port, hop, key_ref, new_key, pool, reach};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

#[tokio::test(flavor = "multi_thread")]
async fn many_that_need_a_host_share_one_connection() {
    let server = Server::start().await;
    let (pool, reach) = (server.pool(), server.reach());
    let all: Vec<_> = (0..20)
        .map(|_| {
            let (pool, reach) = (pool.clone(), reach.clone());
            task::spawn("caller", async move { pool.connection(&reach).await.unwrap() })
        })
        .collect();
    let mut connections = Vec::new();
    for one in all {
        connections.push(one.await.unwrap().unwrap());
    }
    assert!(connections.iter().all(|one| Arc::ptr_eq(one, &connections[0])));
    pool.connection(&reach).await.unwrap();
    assert_eq!((server.network.accepted(), pool.live()), (1, 1));
    assert_eq!(connections[0].host_keys().len(), 1);
    let open = server.handle.connections();
    // What a runner does not count as somebody at its job.
    assert_eq!(open[0].client, dstack_agent_api::container::SERVER_CLIENT);
    assert!(
        server
            .host_keys()
            .contains(&connections[0].host_key_line().to_owned())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_asked_first_may_go_away() {
    let server = Server::start().await;
    let (pool, reach) = (server.pool(), server.reach());
    let mut first = Box::pin(pool.connection(&reach));
    // One poll starts the attempt.
    tokio::select! {
        biased;
        _ = &mut first => panic!("too early"),
        () = std::future::ready(()) => {}
    }
    drop(first);
    pool.connection(&reach).await.unwrap();
    assert_eq!(server.network.accepted(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_gone_is_made_anew() {
    let server = Server::start().await;
    let (pool, reach) = (server.pool(), server.reach());
    let first = pool.connection(&reach).await.unwrap();
    server.network.cut();
    first.closed().await;
    assert_eq!(pool.live(), 0);
    let second = pool.connection(&reach).await.unwrap();
    assert!(!Arc::ptr_eq(&first, &second) && !second.is_closed());
    assert_eq!((server.network.accepted(), pool.live()), (2, 1));
    pool.forget(&reach);
    second.closed().await;
    assert_eq!(pool.live(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_go_to_ports_of_the_host_and_a_dead_connection_is_no_error() {
    let server = Server::start().await;
    let (pool, reach) = (server.pool(), server.reach());
    let connector = pool.connector(reach.clone(), echo().await);
    for round in 0..2 {
        let mut stream = connector.connect().await.unwrap();
        stream.write_all(b"hello").await.unwrap();
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"hello");
        assert_eq!(server.network.accepted(), round + 1);
        // The pool does not know yet that this one is gone.
        server.network.cut();
    }
    let closed = pool.connector(reach, free_port()).connect().await.err().unwrap();
    assert_eq!(closed.kind(), std::io::ErrorKind::ConnectionRefused);
    assert!(
        closed.to_string().starts_with("nothing listens on port"),
        "{closed}"
    );
}

#[tokio::test(start_paused = true)]
async fn after_a_failure_nobody_tries_for_a_while() {
    let keys = Arc::new(Keys {
        broken: Some("the database is away".to_owned()),
        ..Keys::default()
    });
    let pool = Pool::new(Arc::clone(&keys) as Arc<dyn dstack_hosts::pool::Keyring>);
    let reach = reach(1, "k");
    let asked = || keys.asked.load(Ordering::Relaxed);
    let fails = async |expected| {
        let error = pool.connection(&reach).await.unwrap_err();
        assert!(error.to_string().contains("the database is away"), "{error}");
        assert_eq!(asked(), expected);
    };
    let mut pause = Duration::from_millis(500);
    for attempt in 1..8 {
        fails(attempt).await;
        fails(attempt).await;
        tokio::time::advance(pause - Duration::from_millis(1)).await;
        fails(attempt).await;
        tokio::time::advance(Duration::from_millis(1)).await;
        pause = (pause * 2).min(Duration::from_secs(10));
    }
    // Whoever forgets begins anew.
    fails(8).await;
    pool.forget(&reach);
    fails(9).await;
    tokio::time::advance(Duration::from_millis(500)).await;
    fails(10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_known_host_key_is_taken() {
    let server = Server::start().await;
    let pool = server.pool();
    let mut reach = server.reach();
    let seen = pool.connection(&reach).await.unwrap().host_key_line().to_owned();
    reach.host.host_keys = vec![seen.clone()];
    pool.connection(&reach).await.unwrap();
    let other = generate_ed25519(&Random::seeded(1), "")
        .unwrap()
        .public
        .trim()
        .to_owned();
    reach.host.host_keys = vec![other.clone()];
    let error = pool.connection(&reach).await.unwrap_err();
    let text = error.to_string();
    let ReachError::HostKeyChanged {
        host,
        port,
        expected,
        found,
    } = error
    else {
        panic!("{text}")
    };
    assert_eq!((host.as_str(), port), ("127.0.0.1", server.network.port));
    assert_eq!(expected, fingerprint(&other).unwrap());
    assert!(
        server
            .host_keys()
            .iter()
            .any(|key| fingerprint(key).unwrap() == found)
    );
    assert!(text.contains(&expected) && text.contains(&found), "{text}");
    // What is no key is never taken for "any".
    reach.host.host_keys = vec!["ssh-ed25519 AAAA".to_owned()];
    let error = pool.connection(&reach).await.unwrap_err();
    assert!(matches!(error, ReachError::KnownKey { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_offered_in_order_and_unusable_ones_are_named() {
    let server = Server::start().await;
    let (good, wrong) = (server.key.private.expose().to_owned(), new_key());
    let pool = pool(&[
        ("good", &good),
        ("wrong", wrong.private.expose()),
        ("text", "hello"),
    ]);
    let with = |keys: &[&str]| {
        let mut reach = server.reach();
        reach.host.keys = keys.iter().map(|key| key_ref(key)).collect();
        reach
    };
    pool.connection(&with(&["missing", "wrong", "good"]))
        .await
        .unwrap();
    let denied = pool.connection(&with(&["wrong"])).await.unwrap_err();
    let text = denied.to_string();
    assert!(matches!(denied, ReachError::Denied { .. }), "{text}");
    assert!(
        text.contains(&support::user()) && text.contains("authorized_keys"),
        "{text}"
    );
    let unusable = pool.connection(&with(&["text", "good"])).await.unwrap_err();
    let text = unusable.to_string();
    assert!(
        unusable.is_final() && text.contains("`ssh_config` gives for text"),
        "{text}"
    );
    assert!(text.contains("without a passphrase"), "{text}");
    let none = pool.connection(&with(&["missing"])).await.unwrap_err();
    assert!(none.to_string().contains("there is no private key"), "{none}");
}

#[tokio::test(flavor = "multi_thread")]
async fn jump_hosts_have_their_own_keys() {
    let (jump, server) = (Server::start().await, Server::start().await);
    let pool = pool(&[
        ("jump", jump.key.private.expose()),
        ("k", server.key.private.expose()),
    ]);
    let way = |through: &str, port| Reach {
        jumps: vec![hop(jump.network.port, through)],
        host: hop(port, "k"),
    };
    let reach = way("jump", server.network.port);
    let connection = pool.connection(&reach).await.unwrap();
    let keys = connection.host_keys();
    assert!(jump.host_keys().contains(&keys[0]) && server.host_keys().contains(&keys[1]));
    let mut stream = pool.connector(reach, echo().await).connect().await.unwrap();
    stream.write_all(b"x").await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'x');

    let denied = pool.connection(&way("k", server.network.port)).await.unwrap_err();
    let port = jump.network.port;
    assert!(
        matches!(denied, ReachError::Denied { port: at, .. } if at == port),
        "{denied}"
    );
    let closed = free_port();
    let failed = pool.connection(&way("jump", closed)).await.unwrap_err();
    assert!(
        matches!(failed, ReachError::JumpFailed { port, .. } if port == closed),
        "{failed}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_the_way_is_told_apart() {
    let pool = pool(&[("k", new_key().private.expose())]);
    let nobody = pool.connection(&reach(free_port(), "k")).await.unwrap_err();
    assert!(matches!(nobody, ReachError::Refused { .. }), "{nobody}");
    let mut nameless = reach(22, "k");
    nameless.host.host = "no-such-host.invalid".to_owned();
    let nameless = pool.connection(&nameless).await.unwrap_err();
    assert!(matches!(nameless, ReachError::Unresolved { .. }), "{nameless}");
    let other = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .unwrap();
    let port = other.local_addr().unwrap().port();
    task::spawn("no SSH server", async move {
        while let Ok((mut stream, _)) = other.accept().await {
            stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                .await
                .unwrap();
        }
    });
    let foreign = pool.connection(&reach(port, "k")).await.unwrap_err();
    assert!(matches!(foreign, ReachError::Handshake { .. }), "{foreign}");
}

#[tokio::test]
async fn a_host_that_does_not_answer_is_not_waited_for_without_end() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let pool = pool(&[("k", new_key().private.expose())]);
    let reach = reach(silent.local_addr().unwrap().port(), "k");
    let mut waiting = Box::pin(pool.connection(&reach));
    // Until it is connected, time must be real.
    let connected = async {
        silent.set_nonblocking(true).unwrap();
        let silent = tokio::net::TcpListener::from_std(silent).unwrap();
        let (stream, _) = silent.accept().await.unwrap();
        (silent, stream)
    };
    let _open = tokio::select! {
        _ = &mut waiting => panic!("it cannot be there"),
        open = connected => open,
    };
    tokio::time::pause();
    let error = waiting.await.unwrap_err();
    assert!(
        matches!(error, ReachError::TimedOut { seconds: 10, .. }),
        "{error}"
    );
}

/// Lets everybody in, and forwards nothing.
struct WithoutForwarding;

impl server::Handler for WithoutForwarding {
    type Error = russh::Error;

    async fn auth_publickey(
        &mut self,
        _: &str,
        _: server::VerifiedPublicKey<'_>,
    ) -> Result<Auth, Self::Error> {
        Ok(Auth::Accept)
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        _channel: Channel<Msg>,
        _host: &str,
        _port: u32,
        _originator: &str,
        _originator_port: u32,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        reply.reject(ChannelOpenFailure::AdministrativelyProhibited).await;
        Ok(())
    }
}

async fn server_without_forwarding() -> u16 {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = Arc::new(server::Config {
        keys: generate_host_keys(&Random::seeded(7)).unwrap(),
        ..server::Config::default()
    });
    task::spawn("sshd", async move {
        while let Ok((stream, _)) = listener.accept().await {
            let session = server::run_stream(Arc::clone(&config), stream, WithoutForwarding)
                .await
                .unwrap();
            task::spawn("session", session);
        }
    });
    port
}

async fn says_that_forwarding_is_off(pool: &Pool, at: Reach) {
    let forbidden = pool.open_port(&at, 10998).await.unwrap_err();
    assert!(matches!(forbidden, PortError::Forbidden { .. }), "{forbidden}");
    assert!(
        forbidden.to_string().contains("AllowTcpForwarding"),
        "{forbidden}"
    );
    let behind = Reach {
        jumps: vec![at.host.clone()],
        host: hop(at.host.port, "k"),
    };
    let forbidden = pool.connection(&behind).await.unwrap_err();
    assert!(matches!(forbidden, ReachError::JumpForbids { .. }), "{forbidden}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_forwards_nothing_is_named_with_the_remedy() {
    let port = server_without_forwarding().await;
    says_that_forwarding_is_off(&pool(&[("k", new_key().private.expose())]), reach(port, "k")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn openssh_says_the_same() {
    let Some(open) = OpenSsh::start("").await else {
        return;
    };
    let pool = open.pool();
    let connector = pool.connector(open.reach(), echo().await);
    let mut stream = connector.connect().await.unwrap();
    stream.write_all(b"x").await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'x');
    let closed = pool.open_port(&open.reach(), free_port()).await.unwrap_err();
    assert!(matches!(closed, PortError::NothingListens { .. }), "{closed}");
    let Some(off) = OpenSsh::start("AllowTcpForwarding no").await else {
        return;
    };
    says_that_forwarding_is_off(&off.pool(), off.reach()).await;
}

/// A program of anybody, which has the port on the other loopback address.
#[tokio::test(flavor = "multi_thread")]
async fn agents_are_looked_for_at_the_address_at_which_they_listen_only() {
    let server = Server::start().await;
    let Ok(other) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) else {
        eprintln!("skipped: no IPv6 here");
        return;
    };
    let port = other.local_addr().unwrap().port();
    let opened = server.pool().open_port(&server.reach(), port).await;
    assert!(
        matches!(opened, Err(PortError::NothingListens { .. })),
        "{:?}",
        opened.err()
    );
}
