//! From the route table to a router: version, authentication, project, guard, body, handler, in this order. Until the guard
//! has let a call through, nothing of its body is kept.

use std::collections::HashMap;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{RawPathParams, Request};
use axum::http::request::Parts as RequestHead;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use axum::routing::{MethodFilter, MethodRouter, on};
use dstack_api::{Body as BodyKind, Endpoint, Guard, Method, RouteInfo};
use dstack_store::queries::users::UserRow;
use dstack_system::Secret;
use dstack_telemetry::http::Seen;
use dstack_units::ProjectId;
use serde::Serialize;
use serde_json::json;

use crate::access::{Caller, Freshness, Project, bearer, check, peer, permit};
use crate::compat::{foreign, older};
use crate::error::{ApiError, Result, json_bytes, json_response};
use crate::request::body::{self, Received};
use crate::request::{self, Upload};
use crate::state::AppState;
use crate::version::ClientVersion;

/// A call that passed the guard.
#[derive(Debug, Clone)]
pub struct Call {
    /// The four handles of the server.
    pub state: Arc<AppState>,
    /// Version of the client.
    pub version: ClientVersion,
    caller: Option<Caller>,
    token: Option<Secret>,
    project: Option<Arc<Project>>,
    params: HashMap<String, String>,
    cookies: Vec<String>,
    last_event_id: Option<String>,
    is_python: bool,
}

impl Call {
    /// Who calls. Every route with a guard has a user.
    pub fn user(&self) -> Result<&UserRow> {
        Ok(&self.caller()?.user)
    }

    pub(crate) fn caller(&self) -> Result<&Caller> {
        self.caller.as_ref().ok_or(ApiError::NotAuthenticated)
    }

    /// The token with which the user called, if it is a further one: they do not see their own with it.
    pub(crate) fn further_token(&self) -> Option<&Secret> {
        let caller = self.caller.as_ref()?;
        self.token.as_ref().filter(|_| caller.token.is_some())
    }

    /// The token with which the user called.
    pub(crate) fn token(&self) -> Result<&Secret> {
        self.token.as_ref().ok_or(ApiError::NotAuthenticated)
    }

    /// After which event a stream of them is to go on.
    pub(crate) fn last_event_id(&self) -> Option<&str> {
        self.last_event_id.as_deref()
    }

    /// The only project that the caller's token is good for. Routes without a project in their path must not show or
    /// change anything of others.
    pub(crate) fn only_project(&self) -> Option<ProjectId> {
        self.caller.as_ref()?.token.as_ref()?.project_id
    }

    /// Whether the caller's token is good for this project.
    pub(crate) fn reaches(&self, project: ProjectId) -> bool {
        self.caller.as_ref().is_some_and(|caller| caller.reaches(project))
    }

    /// The project of the path. Every route below a project has one.
    pub fn project(&self) -> Result<&Project> {
        self.project.as_deref().ok_or(ApiError::NotFound)
    }

    /// What the client keeps under this name.
    pub fn cookie(&self, name: &str) -> Option<&str> {
        let pairs = self.cookies.iter().flat_map(|line| line.split(';'));
        let mut values = pairs.filter_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('='));
        values.next()
    }

    /// Whether the client is one that reads the output of jobs over SSH: the Python command line and library, up to
    /// 0.22.5 at least. Our own command line reads it from the server.
    pub(crate) fn attaches_over_ssh(&self) -> bool {
        self.is_python
    }

    /// Another parameter of the path.
    pub fn param(&self, name: &str) -> &str {
        self.params.get(name).map(String::as_str).unwrap_or_default()
    }
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>>> + Send>>;
type Handler = Arc<dyn Fn(Call, Parts) -> Answer + Send + Sync>;

struct Parts {
    headers: HeaderMap,
    query: Option<String>,
    /// Where the route takes JSON.
    json: Received,
    /// Where the route takes an upload.
    upload: Body,
}

/// Collects handlers for endpoints.
pub struct Api {
    state: Arc<AppState>,
    handlers: Vec<(RouteInfo, Handler)>,
}

impl Api {
    /// Collects handlers that get these handles; there are none yet.
    pub fn new(state: Arc<AppState>) -> Self {
        Self {
            state,
            handlers: Vec::new(),
        }
    }

    /// A handler that answers with the endpoint's type.
    #[must_use]
    pub fn on<E, F, R>(self, handle: F) -> Self
    where
        E: Endpoint,
        F: Fn(Call, E::Request) -> R + Send + Sync + Clone + 'static,
        R: Future<Output = Result<E::Response>> + Send + 'static,
    {
        self.on_raw::<E, _, _>(move |call, request| {
            let version = call.version.clone();
            let answer = handle(call, request);
            async move { shown(&answer.await?, &version) }
        })
    }

    /// A handler that renders its answer itself.
    #[must_use]
    pub fn on_raw<E, F, R>(mut self, handle: F) -> Self
    where
        E: Endpoint,
        F: Fn(Call, E::Request) -> R + Send + Sync + Clone + 'static,
        R: Future<Output = Result<Response<Body>>> + Send + 'static,
    {
        let handler: Handler = Arc::new(move |call, parts| {
            let handle = handle.clone();
            Box::pin(async move {
                let json = |optional| {
                    request::json_body(&parts.headers, &parts.json.bytes, E::ROUTE.max_body, optional)
                };
                let request: E::Request = match E::ROUTE.body {
                    BodyKind::Json => json(false)?,
                    BodyKind::OptionalJson => json(true)?,
                    BodyKind::Query | BodyKind::Upload => request::query(parts.query.as_deref())?,
                    BodyKind::None => request::query(None)?,
                };
                drop(parts.json.bytes);
                // Its memory is given back when the answer is made: what was decoded takes as much.
                let _reserved = parts.json.reserved;
                handle(call, request).await
            })
        });
        self.handlers.push((E::ROUTE, handler));
        self
    }

    /// A handler of an uploaded file.
    #[must_use]
    pub(crate) fn on_upload<E, F, R>(mut self, handle: F) -> Self
    where
        E: Endpoint,
        F: Fn(Call, E::Request, Upload) -> R + Send + Sync + Clone + 'static,
        R: Future<Output = Result<E::Response>> + Send + 'static,
    {
        let handler: Handler = Arc::new(move |call, parts| {
            let handle = handle.clone();
            Box::pin(async move {
                let query = request::query(parts.query.as_deref())?;
                let (limit, memory) = (
                    call.state.edge.settings.code_upload_limit,
                    call.state.edge.overload.memory(),
                );
                let upload = request::upload(&parts.headers, parts.upload, limit, memory).await?;
                let answer = within_time(handle(call, query, upload)).await?;
                Ok(json_response(StatusCode::OK, &answer))
            })
        });
        self.handlers.push((E::ROUTE, handler));
        self
    }

    /// Names of all endpoints that have a handler.
    pub fn names(&self) -> Vec<&'static str> {
        self.handlers.iter().map(|(route, _)| route.name).collect()
    }

    /// The router of all of them. What no route takes is answered by the page, else by [`no_route`].
    pub fn into_router(self) -> Router {
        let mut methods: HashMap<&'static str, MethodRouter> = HashMap::new();
        for (route, handler) in self.handlers {
            let filter = match route.method {
                Method::Get => MethodFilter::GET,
                Method::Post => MethodFilter::POST,
            };
            let state = Arc::clone(&self.state);
            let service = move |params: RawPathParams, request: Request| {
                let (state, handler) = (Arc::clone(&state), Arc::clone(&handler));
                async move { serve(state, route, handler, &params, request).await }
            };
            let known = methods.remove(route.path).unwrap_or_default();
            methods.insert(route.path, known.merge(on(filter, service)));
        }
        let mut router = Router::new();
        for (path, method) in methods {
            router = router.route(path, method.fallback(no_route));
        }
        let state = self.state;
        router.fallback(move |request: Request| {
            let page = state.edge.site.answer(&request);
            async move {
                match page {
                    Some(page) => page,
                    None => no_route(request).await,
                }
            }
        })
    }
}

/// An answer in the shape that the client can read.
pub(crate) fn shown(answer: &impl Serialize, version: &ClientVersion) -> Result<Response<Body>> {
    if older::is_older(version) {
        let answer = older::answer(answer, version).map_err(ApiError::internal)?;
        return Ok(json_response(StatusCode::OK, &answer));
    }
    Ok(json_response(StatusCode::OK, answer))
}

async fn serve(
    state: Arc<AppState>,
    route: RouteInfo,
    handler: Handler,
    params: &RawPathParams,
    request: Request,
) -> Response<Body> {
    let peer = peer(request.extensions());
    let seen = Seen::of(request.extensions());
    if let Some(seen) = &seen {
        seen.route(route.path);
    }
    let (head, body) = request.into_parts();
    let admitted = match version_of(&head) {
        Ok(version) => within_time(admit(state, &route, version, params, &head.headers, peer))
            .await
            .map_err(ApiError::into_response),
        Err(response) => Err(*response),
    };
    let call = match admitted {
        Ok(call) => call,
        Err(response) => {
            body::discard(&head.headers, body).await;
            return response;
        }
    };
    if let (Some(seen), Some(caller)) = (&seen, &call.caller) {
        seen.user(&caller.user.name);
    }
    let is_python = call.is_python;
    let answered = answer(call, &route, handler, head, body).await;
    let answered = match answered {
        Ok(response) if is_python => foreign::answer(response).await,
        answered => answered,
    };
    answered.unwrap_or_else(ApiError::into_response)
}

/// Reads the body, and does the work of a call that was let in.
async fn answer(
    call: Call,
    route: &RouteInfo,
    handler: Handler,
    head: RequestHead,
    mut body: Body,
) -> Result<Response<Body>> {
    let state = Arc::clone(&call.state);
    let mut json = Received::default();
    match route.body {
        BodyKind::Json | BodyKind::OptionalJson => {
            let body = std::mem::take(&mut body);
            json = body::read(&head.headers, body, route.max_body, state.edge.overload.memory()).await?;
        }
        BodyKind::None | BodyKind::Query => body::discard(&head.headers, std::mem::take(&mut body)).await,
        BodyKind::Upload => {}
    }
    // Held until the answer is made. Only those who may call at all take a place.
    let place = match state.edge.overload.enter(route) {
        Ok(place) => place,
        Err(refused) => {
            body::drain_upload(body).await;
            return Err(refused);
        }
    };
    let parts = Parts {
        query: head.uri.query().map(str::to_owned),
        headers: head.headers,
        json,
        upload: body,
    };
    let work = place.work(handler(call, parts));
    match route.body {
        // As long as bytes come.
        BodyKind::Upload => work.await,
        _ => within_time(work).await,
    }
}

/// The client's version, if this server can talk to it.
fn version_of(head: &RequestHead) -> std::result::Result<ClientVersion, Box<Response<Body>>> {
    let version = ClientVersion::from_headers(&head.headers)?;
    match head.uri.path().starts_with("/api/").then(|| version.refused()) {
        Some(Some(response)) => Err(Box::new(response)),
        _ => Ok(version),
    }
}

/// What takes longer has lost something on the way, such as the connection to the database.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Waits for [`MAX_WAIT`] at most.
///
/// # Errors
/// 503 when that is over.
pub(crate) async fn within_time<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let done = tokio::time::timeout(MAX_WAIT, work).await;
    done.unwrap_or(Err(ApiError::Busy(
        "The server could not answer in time: something it depends on does not answer. Try again in a while",
    )))
}

/// Authentication, project, guard.
async fn admit(
    state: Arc<AppState>,
    route: &RouteInfo,
    version: ClientVersion,
    params: &RawPathParams,
    headers: &HeaderMap,
    peer: Option<IpAddr>,
) -> Result<Call> {
    let now = state.data.clock.now();
    let params = params
        .iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let mut call = Call {
        state,
        version,
        caller: None,
        token: None,
        project: None,
        params,
        cookies: cookies(headers),
        last_event_id: text_of(headers, "last-event-id"),
        is_python: is_python(headers),
    };
    let service = |expected: Option<&str>, wrong| {
        service_token(expected, headers, wrong).map_err(|wrong| match bearer(headers) {
            Some(token) => call.state.auth.access.refusal(token, peer, now, wrong),
            None => wrong,
        })
    };
    match route.guard {
        Guard::Anyone => return Ok(call),
        Guard::SshProxyToken => {
            service(
                call.state.edge.settings.sshproxy_token.as_deref(),
                ApiError::Denied,
            )?;
            return Ok(call);
        }
        Guard::MetricsToken => {
            if let Some(token) = &call.state.edge.settings.prometheus_token {
                service(Some(token), ApiError::InvalidToken)?;
            }
            return Ok(call);
        }
        _ => {}
    }
    let token = bearer(headers).ok_or(ApiError::NotAuthenticated)?;
    let freshness = Freshness::for_route(route);
    let caller = call
        .state
        .auth
        .access
        .authenticate(token, peer, now, freshness)
        .await?;
    if let Some(name) = call.params.get("project_name") {
        let project = call.state.auth.access.project(name, freshness).await?;
        call.project = Some(project.ok_or(ApiError::NotFound)?);
    }
    if let Some(token) = &caller.token {
        permit(token, route, call.project.as_deref())?;
    }
    check(route.guard, &caller.user, call.project.as_deref())?;
    call.caller = Some(caller);
    call.token = Some(Secret::new(token));
    Ok(call)
}

fn cookies(headers: &HeaderMap) -> Vec<String> {
    let lines = headers.get_all(header::COOKIE).iter();
    lines
        .filter_map(|line| line.to_str().ok().map(str::to_owned))
        .collect()
}

fn text_of(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// Whether the client is made with Python's `requests`, as dstack 0.22.5 is.
fn is_python(headers: &HeaderMap) -> bool {
    let name = headers
        .get(header::USER_AGENT)
        .and_then(|name| name.to_str().ok());
    name.is_some_and(|name| name.starts_with("python-requests/"))
}

/// Compares a fixed token in constant time.
fn service_token(expected: Option<&str>, headers: &HeaderMap, wrong: ApiError) -> Result<()> {
    use subtle::ConstantTimeEq;
    let given = bearer(headers).ok_or(ApiError::Denied)?;
    let expected = expected.ok_or(ApiError::Denied)?;
    match bool::from(given.as_bytes().ct_eq(expected.as_bytes())) {
        true => Ok(()),
        false => Err(wrong),
    }
}

/// What no route takes: 404 for GET, 405 for everything else (the reference's static files take the latter).
pub(crate) async fn no_route(request: Request) -> Response<Body> {
    if matches!(
        *request.method(),
        axum::http::Method::GET | axum::http::Method::HEAD
    ) {
        return json_response(StatusCode::NOT_FOUND, &json!({"detail": "Not Found"}));
    }
    let mut response = json_bytes(
        StatusCode::METHOD_NOT_ALLOWED,
        r#"{"detail":"Method Not Allowed"}"#,
    );
    response
        .headers_mut()
        .insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}
