//! What the guarded client reaches, with real connections on this machine. `127.0.0.2` plays the internet.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONNECTION, LOCATION};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use dstack_http::{
    AddressLookup, ClientOptions, GuardedClient, GuardedRedirects, Lookup, Network, OutboundError,
    OutboundPolicy,
};
use dstack_system::{Locked, task};
use reqwest::Url;
use tokio::net::TcpListener;

const INTERNET: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// A service that notes what it is asked, and redirects `/to?URL`.
#[derive(Debug)]
struct Service {
    address: SocketAddr,
    asked: Locked<Vec<String>>,
}

async fn service(address: Ipv4Addr, port: u16) -> Arc<Service> {
    let listener = TcpListener::bind((address, port)).await.unwrap();
    let service = Arc::new(Service {
        address: listener.local_addr().unwrap(),
        asked: Locked::default(),
    });
    let app = Router::new().fallback(answer).with_state(Arc::clone(&service));
    drop(task::spawn("test.service", async move {
        axum::serve(listener, app).await.unwrap();
    }));
    service
}

async fn answer(State(service): State<Arc<Service>>, request: Request) -> Response {
    let authorization = request.headers().get(AUTHORIZATION);
    let credentials = authorization.map_or("", |_| " with credentials");
    service
        .asked
        .lock()
        .push(format!("{}{credentials}", request.uri().path()));
    let target = match request.uri().path() {
        "/circle" => Some("/circle"),
        _ => request.uri().query(),
    };
    // Each request gets a connection of its own, and its name is looked up anew.
    match target {
        Some(target) => (StatusCode::FOUND, [(LOCATION, target), (CONNECTION, "close")]).into_response(),
        None => ([(CONNECTION, "close")], "found").into_response(),
    }
}

impl Service {
    fn url(&self, path: &str) -> Url {
        format!("http://{}/{path}", self.address).parse().unwrap()
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().clone()
    }
}

/// Answers names one address at a time; the last one for ever.
#[derive(Debug, Default)]
struct Names(Locked<HashMap<String, Vec<IpAddr>>>);

impl Names {
    fn of(names: &[(&str, &[Ipv4Addr])]) -> Arc<Self> {
        let names = names.iter().map(|(name, addresses)| {
            let addresses = addresses.iter().map(|address| IpAddr::V4(*address)).collect();
            ((*name).to_owned(), addresses)
        });
        Arc::new(Self(Locked::new(names.collect())))
    }
}

impl AddressLookup for Names {
    fn addresses(&self, host: &str) -> Lookup {
        let mut names = self.0.lock();
        let found = match names.get_mut(host) {
            Some(left) if left.len() > 1 => Ok(vec![left.remove(0)]),
            Some(left) => Ok(left.clone()),
            None => Err(io::Error::other("no such name")),
        };
        Box::pin(std::future::ready(found))
    }
}

/// Public is `127.0.0.2`; besides it reaches what the list allows.
fn client(allow: &str, names: &[(&str, &[Ipv4Addr])]) -> GuardedClient {
    let internet = "127.0.0.2/32".parse().unwrap();
    let mut policy = OutboundPolicy::new().with_network(internet, Network::Public);
    assert!(policy.allow_list(allow).is_empty());
    GuardedClient::with_lookup(policy, ClientOptions::default(), Names::of(names))
}

async fn get(client: &GuardedClient, url: Url) -> Result<Network, OutboundError> {
    let request = client.get(url).redirects(GuardedRedirects::AnyHost);
    Ok(request.send().await?.network)
}

#[tokio::test]
async fn this_machine_is_not_reached_however_it_is_written() {
    let inside = service(HERE, 0).await;
    let port = inside.address.port();
    let client = client("", &[("rebound.example", &[HERE])]);
    for host in [
        "127.0.0.1",
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
        "0",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::1]",
        "rebound.example",
    ] {
        let url: Url = format!("http://{host}:{port}/secret").parse().unwrap();
        let refused = get(&client, url).await.unwrap_err();
        assert!(
            matches!(refused, OutboundError::Refused(_)),
            "{host}: {refused:?}"
        );
    }
    assert_eq!(inside.asked(), Vec::<String>::new());
}

#[tokio::test]
async fn what_the_administrator_allows_is_reached() {
    let inside = service(HERE, 0).await;
    let names: &[(&str, &[Ipv4Addr])] = &[("registry.corp", &[HERE]), ("other.corp", &[HERE])];
    let named = |host: &str| -> Url {
        format!("http://{host}:{}/", inside.address.port())
            .parse()
            .unwrap()
    };
    let by_network = client("127.0.0.0/8", names);
    assert_eq!(get(&by_network, inside.url("")).await.unwrap(), Network::Loopback);
    let by_name = client("registry.corp", names);
    assert_eq!(
        get(&by_name, named("registry.corp")).await.unwrap(),
        Network::Loopback
    );
    let error = get(&by_name, named("other.corp")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "other.corp is on the server's own machine, which the server does not contact for its users. An administrator can allow \
         it by DSTACK_SERVER_OUTBOUND_ALLOW=other.corp"
    );
}

#[tokio::test]
async fn a_name_that_changes_between_two_requests_is_checked_again() {
    let internet = service(INTERNET, 0).await;
    let inside = service(HERE, internet.address.port()).await;
    let client = client("", &[("evil.example", &[INTERNET, HERE])]);
    let url = || -> Url {
        format!("http://evil.example:{}/", internet.address.port())
            .parse()
            .unwrap()
    };
    assert_eq!(get(&client, url()).await.unwrap(), Network::Public);
    let second = get(&client, url()).await;
    assert!(matches!(second, Err(OutboundError::Refused(_))), "{second:?}");
    assert_eq!((internet.asked().len(), inside.asked().len()), (1, 0));
}

#[tokio::test]
async fn of_several_addresses_only_the_public_ones_are_used() {
    #[derive(Debug)]
    struct Both;
    impl AddressLookup for Both {
        fn addresses(&self, _host: &str) -> Lookup {
            Box::pin(std::future::ready(Ok(vec![HERE.into(), INTERNET.into()])))
        }
    }
    let internet = service(INTERNET, 0).await;
    let inside = service(HERE, internet.address.port()).await;
    let policy = OutboundPolicy::new().with_network("127.0.0.2/32".parse().unwrap(), Network::Public);
    let client = GuardedClient::with_lookup(policy, ClientOptions::default(), Arc::new(Both));
    let url = format!("http://both.example:{}/", internet.address.port());
    assert_eq!(get(&client, url.parse().unwrap()).await.unwrap(), Network::Public);
    assert_eq!(inside.asked(), Vec::<String>::new());
}

#[tokio::test]
async fn redirects_from_outside_do_not_lead_inside() {
    let internet = service(INTERNET, 0).await;
    let inside = service(HERE, 0).await;
    let named = format!("http://inside.corp:{}/secret", inside.address.port());
    for target in [inside.url("secret").to_string(), named] {
        // Even where all may be reached by those who name it.
        for allow in ["", "*", "127.0.0.0/8"] {
            let client = client(allow, &[("inside.corp", &[HERE])]);
            let refused = get(&client, internet.url(&format!("to?{target}"))).await;
            assert!(
                matches!(refused, Err(OutboundError::Refused(_))),
                "{target} {allow}: {refused:?}"
            );
        }
    }
    assert_eq!(inside.asked(), Vec::<String>::new());
}

#[tokio::test]
async fn redirects_inside_and_to_the_internet_are_followed() {
    let (internet, inside) = (service(INTERNET, 0).await, service(HERE, 0).await);
    let client = client("127.0.0.1", &[]);
    let there = inside.url(&format!("to?{}", internet.url("blob")));
    assert_eq!(get(&client, there).await.unwrap(), Network::Public);
    // Having been outside, it does not come back.
    let back = internet.url(&format!("to?{}", inside.url("secret")));
    let and_back = inside.url(&format!("to?{back}"));
    let refused = get(&client, and_back).await;
    assert!(matches!(refused, Err(OutboundError::Refused(_))), "{refused:?}");
    assert_eq!(inside.asked(), ["/to", "/to"]);
}

#[tokio::test]
async fn credentials_stay_with_the_host_that_they_are_for() {
    let (one, other) = (service(INTERNET, 0).await, service(INTERNET, 0).await);
    let client = client("", &[]);
    let target = one.url(&format!("to?{}", other.url("blob")));
    let request = client.get(target).redirects(GuardedRedirects::AnyHost);
    let request = request.header(AUTHORIZATION, HeaderValue::from_static("Bearer t"));
    request.send().await.unwrap();
    assert_eq!(one.asked(), ["/to with credentials"]);
    assert_eq!(other.asked(), ["/blob"]);
}

#[tokio::test]
async fn redirects_to_another_host_or_without_end_are_refused() {
    let (internet, inside) = (service(INTERNET, 0).await, service(HERE, 0).await);
    let client = client("127.0.0.1", &[]);
    let elsewhere = inside.url(&format!("to?{}", internet.url("token")));
    let same_host = client.get(elsewhere).redirects(GuardedRedirects::SameHost);
    let error = same_host.send().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "a redirect is not followed: it leads to another host"
    );
    assert_eq!(internet.asked(), Vec::<String>::new());
    let here = client
        .get(inside.url("to?/token"))
        .redirects(GuardedRedirects::SameHost);
    assert_eq!(here.send().await.unwrap().response.status(), StatusCode::OK);
    let error = get(&client, inside.url("circle")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "a redirect is not followed: there are too many in a row"
    );
    let never = client.get(internet.url("to?/token")).send().await.unwrap();
    assert_eq!(never.response.status(), StatusCode::FOUND);
}

#[tokio::test]
async fn a_failure_tells_how_close_it_was() {
    // Port 1: refused at once.
    let client = client("127.0.0.1", &[("nowhere.example", &[])]);
    for (url, expected) in [
        ("http://127.0.0.1:1/", Network::Loopback),
        ("http://nowhere.example/", Network::Public),
    ] {
        match get(&client, url.parse().unwrap()).await {
            Err(OutboundError::Failed { network, .. }) => assert_eq!(network, expected),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn only_http_is_spoken() {
    let client = client("*", &[]);
    for url in ["ftp://127.0.0.1/", "file:///etc/passwd", "data:,x"] {
        let refused = get(&client, url.parse().unwrap()).await;
        assert!(
            matches!(refused, Err(OutboundError::NotHttp)),
            "{url}: {refused:?}"
        );
    }
}
