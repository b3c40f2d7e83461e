//! Compression of answers, and requests that are too large.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::http::Request;
use dstack_api::{Body as Kind, Guard, ROUTES, RouteInfo};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::matrix::path_of;
use super::{ADMIN, Server, request};

/// Content encoding and body of a GET.
async fn get(server: &Server, path: &str, accepted: &str) -> (Option<String>, Vec<u8>) {
    let request = Request::get(path).header("accept-encoding", accepted);
    let request = request.body(Body::empty()).unwrap();
    let response = server.router.clone().oneshot(request).await.unwrap();
    let encoding = response.headers().get("content-encoding");
    let encoding = encoding.map(|value| value.to_str().unwrap().to_owned());
    let body = response.into_body().collect().await.unwrap();
    (encoding, body.to_bytes().to_vec())
}

#[tokio::test]
async fn large_answers_are_compressed_for_those_who_ask() {
    let server = Server::new().await;
    let (encoding, plain) = get(&server, "/openapi.json", "identity").await;
    assert_eq!(encoding, None);
    // What the Python client sends.
    let (encoding, small) = get(&server, "/openapi.json", "gzip, deflate").await;
    assert_eq!(encoding.as_deref(), Some("gzip"));
    assert!(
        small.len() < plain.len() / 4,
        "{} of {}",
        small.len(),
        plain.len()
    );
    let mut unpacked = Vec::new();
    flate2::read::GzDecoder::new(&small[..])
        .read_to_end(&mut unpacked)
        .unwrap();
    assert!(unpacked == plain, "another document");
    let (encoding, _) = get(&server, "/healthcheck", "gzip").await;
    assert_eq!(encoding, None, "not worth it");
}

/// A body of spaces, sent in pieces, and how many bytes of it were taken.
fn spaces(bytes: usize) -> (Body, Arc<AtomicUsize>) {
    const PIECE: usize = 1024;
    let taken = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&taken);
    let pieces = (0..bytes.div_ceil(PIECE)).map(move |number| {
        let size = PIECE.min(bytes - number * PIECE);
        counted.fetch_add(size, Ordering::Relaxed);
        Ok::<_, std::io::Error>(vec![b' '; size])
    });
    (Body::from_stream(futures_util::stream::iter(pieces)), taken)
}

fn post(path: &str, token: Option<&str>, declared: Option<usize>, body: Body) -> Request<Body> {
    let mut request = Request::post(path).header("content-type", "application/json");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    if let Some(length) = declared {
        request = request.header("content-length", length);
    }
    request.body(body).unwrap()
}

/// Whoever a route lets through may send as much as the table says, and is told how much that is; of what others send
/// nothing is kept, and little is read.
#[tokio::test]
async fn every_route_has_a_limit_of_its_own_for_those_whom_it_lets_through() {
    const LITTLE: usize = 66 * 1024;
    let server = Server::new().await;
    let takes_json = |route: &&RouteInfo| matches!(route.body, Kind::Json | Kind::OptionalJson);
    for route in ROUTES.iter().filter(takes_json) {
        let path = path_of(route).replace("/team", "/main");
        let what = route.path;
        for declared in [true, false] {
            let size = route.max_body + 1;
            let (body, _) = spaces(size);
            let admin = post(&path, Some(ADMIN), declared.then_some(size), body);
            let answer = server.send(admin).await;
            if matches!(route.guard, Guard::SshProxyToken | Guard::MetricsToken) {
                assert_eq!(answer.status, 403, "{what}");
                continue;
            }
            assert_eq!(answer.status, 413, "{what}");
            let limit = match route.max_body {
                kib if kib < 1024 * 1024 => format!("{} KiB", kib / 1024),
                mib => format!("{} MiB", mib / 1024 / 1024),
            };
            let text = answer.body["detail"].as_str().unwrap().to_owned();
            assert!(text.contains(&format!("more than {limit},")), "{what}: {text}");
        }
        if route.guard != Guard::Anyone {
            for (token, status) in [(None, [401, 403]), (Some("nobody's"), [403, 403])] {
                for declared in [Some(route.max_body), None] {
                    let (body, taken) = spaces(route.max_body);
                    let answer = server.send(post(&path, token, declared, body)).await;
                    assert!(status.contains(&answer.status), "{what}: {}", answer.status);
                    let taken = taken.load(Ordering::Relaxed);
                    assert!(taken <= LITTLE, "{what}: {taken} bytes were read");
                }
            }
        }
    }
}

#[tokio::test]
async fn limits_are_as_narrow_as_what_the_routes_are_for() {
    const KIB: usize = 1024;
    const MIB: usize = 1024 * KIB;
    let server = Server::new().await;
    for route in ROUTES {
        let limit = match (route.guard, route.name) {
            (Guard::Anyone, _) => 16 * KIB,
            (_, "RunsApply" | "FleetsApply") => 16 * MIB,
            (_, "RunsGetPlan" | "FleetsGetPlan" | "GpusList") => 2 * MIB,
            (_, name) if name.starts_with("Backends") => 2 * MIB,
            _ => MIB,
        };
        assert!(route.max_body <= limit, "{}", route.name);
    }
    // Just as much as may be is read: it is no run, but that is found out.
    let (body, _) = spaces(2 * MIB - 2);
    let whole = body.collect().await.unwrap().to_bytes();
    let whole = [&b"{"[..], &whole, b"}"].concat();
    let path = "/api/project/main/runs/get_plan";
    let answer = server
        .send(post(path, Some(ADMIN), Some(2 * MIB), whole.into()))
        .await;
    assert_eq!(answer.status, 422, "{}", answer.body);
}

#[tokio::test]
async fn bodies_of_too_many_values_are_refused() {
    let server = Server::new().await;
    let list = format!("[{}0]", "0,".repeat(100_000));
    let answer = server
        .send(post("/api/runs/list", Some(ADMIN), Some(list.len()), list.into()))
        .await;
    assert_eq!(answer.status, 413, "{}", answer.body);
    let text = answer.body["detail"].as_str().unwrap();
    assert!(text.contains("more than 65536 values,"), "{text}");
}

#[tokio::test]
async fn a_small_request_for_a_huge_run_or_fleet_is_refused() {
    let server = Server::new().await;
    let run =
        |configuration: Value| json!({"run_spec": {"run_name": "huge", "configuration": configuration}});
    let fleet = |nodes: Value| {
        let configuration = json!({"type": "fleet", "name": "huge", "nodes": nodes});
        json!({"spec": {"configuration": configuration, "profile": {}}})
    };
    let billion = 1_000_000_000_i64;
    let scaling = json!({"metric": "rps", "target": 1});
    for (path, body, field) in [
        (
            "runs/get_plan",
            run(json!({"type": "task", "commands": ["a"], "nodes": billion})),
            "nodes",
        ),
        (
            "runs/get_plan",
            run(json!({"type": "task", "groups": [{"commands": ["a"], "nodes": billion}]})),
            "groups",
        ),
        (
            "runs/get_plan",
            run(json!({"type": "service", "port": 80, "commands": ["a"], "replicas": billion})),
            "replicas",
        ),
        (
            "runs/get_plan",
            run(json!({
                "type": "service", "port": 80, "commands": ["a"], "replicas": "0..1000000000", "scaling": scaling,
            })),
            "replicas",
        ),
        ("fleets/get_plan", fleet(json!(billion)), "min"),
        (
            "fleets/get_plan",
            fleet(json!({"min": 0, "target": billion})),
            "target",
        ),
    ] {
        let answer = server.main(path, body).await;
        assert_eq!(answer.status, 422, "{}", answer.body);
        let place = answer.body["detail"][0]["loc"]
            .as_array()
            .unwrap()
            .last()
            .unwrap();
        assert_eq!(place, field, "{}", answer.body);
        let text = answer.body["detail"][0]["msg"].as_str().unwrap();
        assert!(text.contains(" can ") && text.contains(" at most "), "{text}");
    }
}

#[tokio::test]
async fn pages_have_limits() {
    let server = Server::new().await;
    for limit in [-1, 10_001] {
        let answer = server
            .post(ADMIN, "/api/instances/list", json!({"limit": limit}))
            .await;
        assert_eq!(answer.status, 422, "{}", answer.body);
        let path = format!("/api/project/main/metrics/job/x?limit={limit}");
        let answer = server.send(request("GET", &path, Some(ADMIN), None)).await;
        assert_eq!(answer.status, 422, "{}", answer.body);
    }
    let ids: Vec<String> = (0..10_000)
        .map(|_| server.state.data.random.uuid().to_string())
        .collect();
    let answer = server
        .post(ADMIN, "/api/instances/list", json!({"fleet_ids": ids}))
        .await;
    assert_eq!(answer.ok(), json!([]));
}
