//! The HTTP API, by dstack 0.22.5's conventions: plain-text errors, a bare newline for empty answers. What it serves is the
//! table of [`dstack_agent_api::shim::routes`].

mod body;
mod stream;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use dstack_agent_api::proof::{self, Gate, checked};
use dstack_agent_api::shim::routes::{Endpoint, find};
use dstack_agent_api::shim::{
    ComponentInstall, Healthcheck, HostReport, InstanceHealth, InstanceInfo, SERVICE, ShutdownRequest,
    TaskConfig, TaskTerminate, UNAUTHORIZED,
};
use tokio_util::sync::CancellationToken;

use crate::components::{Components, RefusedInstall};
use crate::dcgm::Exporter;
use crate::error::chain;
use crate::self_termination::{Hold, Needed};
use crate::tasks::{OrderError, Tasks};
use body::{empty, json, read_json, text};

/// What the API serves.
pub struct Api {
    /// Tasks of this host.
    pub tasks: Tasks,
    /// Binaries of shim and runner on this host.
    pub components: Components,
    /// GPU vendor and driver.
    pub instance: InstanceInfo,
    /// What the machine has, and how it runs tasks.
    pub host: HostReport,
    /// GPU metrics, where an exporter runs.
    pub exporter: Option<Exporter>,
    /// Lets in what is signed with the agent's token; `None`: whoever reaches the API may use it.
    pub gate: Option<Gate>,
    /// Knows who needs this machine: requests and streams, beside tasks.
    pub needed: Needed,
    /// Cancelled when the agent is to end; open streams end with it.
    pub shutdown: CancellationToken,
    /// Cancelled when it is to end at once.
    pub force: CancellationToken,
}

/// An error answer.
#[derive(Debug)]
struct ApiError {
    status: StatusCode,
    message: String,
}

impl ApiError {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }
}

impl From<OrderError> for ApiError {
    fn from(error: OrderError) -> Self {
        let status = match &error {
            OrderError::Invalid(_) => StatusCode::BAD_REQUEST,
            OrderError::NotFound => StatusCode::NOT_FOUND,
            OrderError::Conflict => StatusCode::CONFLICT,
            OrderError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            OrderError::Runtime(_) | OrderError::Io(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        if status == StatusCode::INTERNAL_SERVER_ERROR {
            tracing::error!(error = %chain(&error), "an order failed");
        }
        Self::new(status, chain(&error))
    }
}

impl From<RefusedInstall> for ApiError {
    fn from(error: RefusedInstall) -> Self {
        let status = if error == RefusedInstall::Busy {
            StatusCode::CONFLICT
        } else {
            StatusCode::BAD_REQUEST
        };
        Self::new(status, error.to_string())
    }
}

/// Makes the router of all routes, with what they need.
pub fn router(api: Arc<Api>) -> axum::Router {
    axum::Router::new().fallback(handle).with_state(api)
}

async fn handle(State(api): State<Arc<Api>>, request: Request) -> Response {
    // Before anything is said of what there is.
    let request = match admit(&api, request) {
        Ok(request) => request,
        Err(answer) => return *answer,
    };
    let nonce = api.gate.as_ref().and_then(|_| proof::nonce(request.headers()));
    let mut response = find_answer(&api, request).await;
    // Made last: the call may have taken long, and a challenge is good for a while only.
    if let (Some(gate), Some(nonce)) = (&api.gate, nonce) {
        gate.next_challenge(&nonce).into_answer(response.headers_mut());
    }
    response
}

async fn find_answer(api: &Arc<Api>, request: Request) -> Response {
    let hold = api.needed.hold();
    let found = find(request.method(), request.uri().path());
    let (endpoint, task) = match found {
        Ok((endpoint, task)) => (endpoint, task.to_owned()),
        Err("") => return text(StatusCode::NOT_FOUND, "404 page not found"),
        Err(allowed) => {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
            response
                .headers_mut()
                .insert(header::ALLOW, HeaderValue::from_static(allowed));
            return response;
        }
    };
    answer(api, endpoint, task, request, hold)
        .await
        .unwrap_or_else(|error| text(error.status, &error.message))
}

/// A request that may be answered, or what is said instead.
fn admit(api: &Api, request: Request) -> Result<Request, Box<Response>> {
    let Some(gate) = &api.gate else { return Ok(request) };
    if let Some(challenge) = gate.challenge(request.method(), request.uri(), request.headers()) {
        return Err(Box::new(json(&challenge)));
    }
    let (parts, body) = request.into_parts();
    if !gate.admits(&parts) {
        return Err(Box::new(unauthorized()));
    }
    let body = Body::new(checked(&parts.headers, body));
    Ok(Request::from_parts(parts, body))
}

fn unauthorized() -> Response {
    let mut response = text(StatusCode::UNAUTHORIZED, UNAUTHORIZED);
    let wanted = HeaderValue::from_static("Dstack");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, wanted);
    response
}

/// `id` is that of the task which the path names; `hold` is kept until the answer is there, a stream included.
async fn answer(
    api: &Arc<Api>,
    endpoint: Endpoint,
    id: String,
    request: Request,
    hold: Hold,
) -> Result<Response, ApiError> {
    Ok(match endpoint {
        Endpoint::Healthcheck => json(&Healthcheck {
            service: SERVICE.to_owned(),
            version: crate::VERSION.to_owned(),
        }),
        Endpoint::Shutdown => {
            let order: ShutdownRequest = read_json(request).await?;
            begin_shutdown(api, order.force);
            empty()
        }
        Endpoint::InstanceHealth => json(&InstanceHealth::default()),
        Endpoint::InstanceInfo => json(&api.instance),
        Endpoint::Components => json(&api.components.list().await),
        Endpoint::InstallComponent => {
            let order: ComponentInstall = read_json(request).await?;
            api.components.install(&order)?;
            empty()
        }
        Endpoint::Tasks => json(&api.tasks.list()?),
        Endpoint::Submit => {
            let config: TaskConfig = read_json(request).await?;
            let tasks = api.tasks.clone();
            json(&uncancelled(async move { tasks.submit(config).await }).await?)
        }
        Endpoint::Host => json(&host_report(api)),
        Endpoint::Stream => stream::response(api, hold),
        Endpoint::Task => json(&api.tasks.get(&id)?),
        Endpoint::Terminate => {
            let order: TaskTerminate = read_json(request).await?;
            let tasks = api.tasks.clone();
            json(&uncancelled(async move { tasks.terminate(&id, &order).await }).await?)
        }
        Endpoint::Remove => {
            let tasks = api.tasks.clone();
            uncancelled(async move { tasks.remove(&id).await }).await?;
            empty()
        }
        Endpoint::Metrics => metrics(api, &id).await?,
    })
}

/// The machine, and what it waits for now.
fn host_report(api: &Api) -> HostReport {
    let mut report = api.host.clone();
    let waits = api.tasks.waits_for();
    report
        .notices
        .extend(waits.map(|what| format!("Tasks of this machine are {what}")));
    report
}

/// Carries an order out to its end even when the client goes away: half an end is no end.
async fn uncancelled<T, F>(order: F) -> Result<T, ApiError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, OrderError>> + Send + 'static,
{
    match dstack_system::task::spawn("task order", order).await {
        Ok(Some(result)) => Ok(result?),
        _ => Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "")),
    }
}

async fn metrics(api: &Api, id: &str) -> Result<Response, ApiError> {
    let missing = |message: &str| ApiError::new(StatusCode::NOT_FOUND, message);
    let exporter = api
        .exporter
        .as_ref()
        .ok_or_else(|| missing("DCGM Exporter is not available"))?;
    let task = api.tasks.get(id).map_err(|_| missing("Task not found"))?;
    let gpus = task.gpus_ids.unwrap_or_default();
    let found = exporter.metrics(&gpus).await;
    let metrics = found.map_err(|error| ApiError::new(StatusCode::BAD_GATEWAY, chain(&error)))?;
    let mut response = Response::new(Body::from(metrics));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

fn begin_shutdown(api: &Api, force: bool) {
    api.components.cancel();
    if force {
        api.force.cancel();
    }
    api.shutdown.cancel();
}
