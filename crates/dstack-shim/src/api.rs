//! The HTTP API, by dstack 0.22.5's conventions: plain-text errors, a bare newline for empty answers.

mod body;
mod stream;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use dstack_agent_api::shim::{
    ComponentInstall, Healthcheck, HostReport, InstanceHealth, InstanceInfo, SERVICE, ShutdownRequest,
    TaskConfig, TaskTerminate,
};
use tokio_util::sync::CancellationToken;

use crate::components::{Components, RefusedInstall};
use crate::dcgm::Exporter;
use crate::error::chain;
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

/// What a request is about.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Route {
    Healthcheck,
    Shutdown,
    Health,
    Info,
    Components,
    Install,
    Tasks,
    Submit,
    Host,
    Stream,
    Task(String),
    Terminate(String),
    Remove(String),
    Metrics(String),
}

/// The route, or what is allowed instead (nothing: no such path).
fn route(method: &Method, path: &str) -> Result<Route, &'static str> {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let (get, post): (Option<Route>, Option<Route>) = match parts.as_slice() {
        ["api", "healthcheck"] => (Some(Route::Healthcheck), None),
        ["api", "shutdown"] => (None, Some(Route::Shutdown)),
        ["api", "instance", "health"] => (Some(Route::Health), None),
        ["api", "instance", "info"] => (Some(Route::Info), None),
        ["api", "components"] => (Some(Route::Components), None),
        ["api", "components", "install"] => (None, Some(Route::Install)),
        ["api", "tasks"] => (Some(Route::Tasks), Some(Route::Submit)),
        ["api", "host"] => (Some(Route::Host), None),
        ["api", "stream"] => (Some(Route::Stream), None),
        ["api", "tasks", id] if !id.is_empty() => (Some(Route::Task((*id).to_owned())), None),
        ["api", "tasks", id, "terminate"] => (None, Some(Route::Terminate((*id).to_owned()))),
        ["api", "tasks", id, "remove"] => (None, Some(Route::Remove((*id).to_owned()))),
        ["metrics", "tasks", id] => (Some(Route::Metrics((*id).to_owned())), None),
        _ => (None, None),
    };
    let allowed = match (get.is_some(), post.is_some()) {
        (true, true) => "GET, HEAD, POST",
        (true, false) => "GET, HEAD",
        (false, true) => "POST",
        (false, false) => "",
    };
    match *method {
        Method::GET | Method::HEAD => get.ok_or(allowed),
        Method::POST => post.ok_or(allowed),
        _ => Err(allowed),
    }
}

/// Makes the router of all routes, with what they need.
pub fn router(api: Arc<Api>) -> axum::Router {
    axum::Router::new().fallback(handle).with_state(api)
}

async fn handle(State(api): State<Arc<Api>>, request: Request) -> Response {
    let route = match route(request.method(), request.uri().path()) {
        Ok(route) => route,
        Err("") => return text(StatusCode::NOT_FOUND, "404 page not found"),
        Err(allowed) => {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
            response
                .headers_mut()
                .insert("allow", axum::http::HeaderValue::from_static(allowed));
            return response;
        }
    };
    answer(&api, route, request)
        .await
        .unwrap_or_else(|error| text(error.status, &error.message))
}

async fn answer(api: &Arc<Api>, route: Route, request: Request) -> Result<Response, ApiError> {
    Ok(match route {
        Route::Healthcheck => json(&Healthcheck {
            service: SERVICE.to_owned(),
            version: crate::VERSION.to_owned(),
        }),
        Route::Shutdown => {
            let order: ShutdownRequest = read_json(request).await?;
            begin_shutdown(api, order.force);
            empty()
        }
        Route::Health => json(&InstanceHealth::default()),
        Route::Info => json(&api.instance),
        Route::Components => json(&api.components.list().await),
        Route::Install => {
            let order: ComponentInstall = read_json(request).await?;
            api.components.install(&order)?;
            empty()
        }
        Route::Tasks => json(&api.tasks.list()?),
        Route::Submit => {
            let config: TaskConfig = read_json(request).await?;
            let tasks = api.tasks.clone();
            json(&uncancelled(async move { tasks.submit(config).await }).await?)
        }
        Route::Host => json(&host_report(api)),
        Route::Stream => stream::response(api),
        Route::Task(id) => json(&api.tasks.get(&id)?),
        Route::Terminate(id) => {
            let order: TaskTerminate = read_json(request).await?;
            let tasks = api.tasks.clone();
            json(&uncancelled(async move { tasks.terminate(&id, &order).await }).await?)
        }
        Route::Remove(id) => {
            let tasks = api.tasks.clone();
            uncancelled(async move { tasks.remove(&id).await }).await?;
            empty()
        }
        Route::Metrics(id) => metrics(api, &id).await?,
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
    let kind = axum::http::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert("content-type", kind);
    Ok(response)
}

fn begin_shutdown(api: &Api, force: bool) {
    api.components.cancel();
    if force {
        api.force.cancel();
    }
    api.shutdown.cancel();
}

#[cfg(test)]
mod tests;
