//! Requests to services: `/proxy/services/{project}/{run}/…`.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri, header};
use axum::routing::any;
use dstack_proxy::{Client, Forward as _, Paths, ProxyBody, Scheme, Service};
use dstack_telemetry::http::Seen;
use http_body_util::BodyExt as _;
use percent_encoding::percent_decode_str;

use super::{members, refusal};
use crate::access::peer;
use crate::state::AppState;

pub(super) fn routes() -> Router<Arc<AppState>> {
    Router::new()
        .route("/proxy/services/{project}/{run}", any(add_slash))
        .route("/proxy/services/{project}/{run}/", any(pass_on))
        .route("/proxy/services/{project}/{run}/{*path}", any(pass_on))
}

/// Relative links of a service only work below a slash. Where the client has the server's scheme, host and port from is not
/// known here: a proxy in front may speak TLS, so that only the path is said.
async fn add_slash(uri: Uri) -> Response<Body> {
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::PERMANENT_REDIRECT;
    if let Ok(location) = HeaderValue::from_str(&format!("{}/{query}", uri.path())) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

async fn pass_on(State(state): State<Arc<AppState>>, request: Request) -> Response<Body> {
    let (head, body) = request.into_parts();
    let (project, run) = names(head.uri.path());
    match admit(&state, &project, &run, &head).await {
        Ok(service) => to_service(&state, &service, head, body).await,
        Err(refused) => refused,
    }
}

/// Project and run of a path. The rest of it is the service's to read.
fn names(path: &str) -> (String, String) {
    let mut parts = path.split('/').skip(3).map(|part| {
        let decoded = percent_decode_str(part).decode_utf8_lossy();
        decoded.into_owned()
    });
    (parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
}

/// The service, if the request may go there; the checks in dstack 0.22.5's order.
async fn admit(
    state: &AppState,
    project: &str,
    run: &str,
    head: &Parts,
) -> Result<Arc<Service>, Response<Body>> {
    let headers = &head.headers;
    if headers.contains_key(header::UPGRADE) && !is_websocket(head) {
        return Err(refusal(
            StatusCode::BAD_REQUEST,
            "Upgrading connections is not supported",
        ));
    }
    let project = members::stored_name(state, project, run).await?;
    let service = found(state, &project, run)?;
    if !service.auth {
        return Ok(service);
    }
    let member = members::admit(state, &project, headers, peer(&head.extensions)).await?;
    if let Some(token) = member.reads_by.filter(|_| !head.method.is_safe()) {
        let detail = format!("The token {token} is for reading only");
        return Err(refusal(StatusCode::FORBIDDEN, &detail));
    }
    // It may have other replicas by now.
    found(state, &project, run)
}

fn found(state: &AppState, project: &str, run: &str) -> Result<Arc<Service>, Response<Body>> {
    let service = state.services.routes().service(project, run).map(Arc::clone);
    service.ok_or_else(|| {
        let detail = format!("Service {project}/{run} not found");
        refusal(StatusCode::NOT_FOUND, &detail)
    })
}

/// Whether a WebSocket is asked for, by a handshake that is one (RFC 6455, 4.1).
fn is_websocket(head: &Parts) -> bool {
    let headers = &head.headers;
    let has = |name: header::HeaderName, wanted: &str| {
        let values = headers.get_all(name).into_iter();
        let mut tokens = values
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','));
        tokens.any(|token| token.trim().eq_ignore_ascii_case(wanted))
    };
    head.method == Method::GET
        && has(header::CONNECTION, "upgrade")
        && has(header::UPGRADE, "websocket")
        && headers.contains_key(header::SEC_WEBSOCKET_KEY)
}

async fn to_service(state: &AppState, service: &Service, mut head: Parts, body: Body) -> Response<Body> {
    let Some(target) = target(service, &head.uri) else {
        return refusal(StatusCode::FORBIDDEN, "Path is not allowed for this service");
    };
    let client = peer(&head.extensions).map(|address| Client {
        address,
        scheme: Scheme::Http,
        trusted: state.edge.settings.trusts_proxy(address),
    });
    // The host that stands in the URI counts, and not the header (RFC 9112, 3.2.2).
    let authority = head
        .uri
        .authority()
        .map(|host| HeaderValue::from_str(host.as_str()));
    let authority = authority.and_then(Result::ok);
    head.uri = target;
    if service.auth {
        take_token(&mut head.headers);
    }
    if let Some(host) = authority {
        head.headers.insert(header::HOST, host);
    }
    if let Some(seen) = Seen::of(&head.extensions) {
        seen.continue_trace(&mut head.headers);
    }
    if let Some(client) = client {
        head.extensions.insert(client);
    }
    let body: ProxyBody = body.map_err(Into::into).boxed_unsync();
    let request = Request::from_parts(head, body);
    let mut answer = state.services.forwarder().forward(service, request).await;
    if state.edge.settings.sandbox_services {
        // A second policy: what the service says itself counts as well.
        let headers = answer.headers_mut();
        headers.append(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(SANDBOX));
    }
    answer.map(Body::new)
}

/// All that pages do but being of the origin that they came from.
const SANDBOX: &str = "sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts";

/// The token let its bearer in here, and is nobody else's affair.
fn take_token(headers: &mut HeaderMap) {
    headers.remove(header::AUTHORIZATION);
}

/// What the replica is asked for; `None`: not this.
fn target(service: &Service, uri: &Uri) -> Option<Uri> {
    let below = below_service(uri.path());
    let path = if service.strip_prefix { below } else { uri.path() };
    if service.paths == Paths::OfRouter && !is_of_router(below) {
        return None;
    }
    let target = match uri.query() {
        Some(query) => format!("{path}?{query}").parse(),
        None => path.parse(),
    };
    target.ok()
}

/// The path as the service knows it: after `/proxy/services/{project}/{run}`.
fn below_service(path: &str) -> &str {
    let slash = path.match_indices('/').nth(4);
    slash.and_then(|(at, _)| path.get(at..)).unwrap_or("/")
}

/// What routers of models are asked for. Routers take dots in paths for what they mean.
fn is_of_router(path: &str) -> bool {
    let decoded = percent_decode_str(path).decode_utf8_lossy();
    let climbs = decoded.split(['/', '\\']).any(|part| part == ".." || part == ".");
    matches!(path, "/generate" | "/chat/completions") || path.starts_with("/v1/") && !climbs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(strip_prefix: bool, paths: Paths) -> Service {
        Service {
            run_id: uuid::Uuid::nil().into(),
            project: "main".to_owned(),
            run: "web".to_owned(),
            created: 0,
            auth: true,
            strip_prefix,
            paths,
            read_timeout: std::time::Duration::from_secs(1),
            shares_origin: true,
            starts_on_request: false,
            split: None,
            model: None,
            balancing: dstack_proxy::Balancing::default(),
            replicas: Vec::new(),
        }
    }

    #[test]
    fn paths_are_passed_on_as_they_are() {
        let uri = |text: &str| text.parse::<Uri>().unwrap();
        let stripped = |text: &str| {
            target(&service(true, Paths::All), &uri(text))
                .unwrap()
                .to_string()
        };
        assert_eq!(stripped("/proxy/services/main/web/"), "/");
        assert_eq!(
            stripped("/proxy/services/main/web/a%2Fb/../c?q=%20&r"),
            "/a%2Fb/../c?q=%20&r"
        );
        assert_eq!(stripped("/proxy/services/main/web//double"), "//double");
        let whole = target(&service(false, Paths::All), &uri("/proxy/services/main/web/a?b")).unwrap();
        assert_eq!(whole, "/proxy/services/main/web/a?b");
    }

    #[test]
    fn routers_are_asked_for_what_models_have() {
        let router = service(true, Paths::OfRouter);
        let allowed = |below: &str| {
            let uri = format!("/proxy/services/main/web{below}").parse().unwrap();
            target(&router, &uri).is_some()
        };
        for below in ["/generate", "/chat/completions", "/v1/models", "/v1/"] {
            assert!(allowed(below), "{below}");
        }
        for below in [
            "/",
            "/generate/",
            "/workers",
            "/v1",
            "/v1x",
            "/V1/models",
            "/v1/../workers",
            "/v1/%2e%2E/workers",
            "/v1/..%2fworkers",
        ] {
            assert!(!allowed(below), "{below}");
        }
    }
}
