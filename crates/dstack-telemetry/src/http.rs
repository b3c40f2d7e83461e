//! Requests: a span and a measurement of each. The route is told by whoever knows it, with [`Seen`].
//!
//! What is told of a request: its method, the route as the table has it (without what stands in the path), its status, and
//! who called. Never headers, queries or bodies.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Extensions, HeaderMap, Method, Response, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use dstack_system::observe;
use opentelemetry::KeyValue;
use opentelemetry::metrics::Histogram;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::TraceContextExt;
use opentelemetry_http::{HeaderExtractor, HeaderInjector};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tokio::time::Instant;
use tracing::field::Empty;
use tracing::{Instrument, Span};
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// What a handler knows of its request, for telemetry. There is one only while somebody wants to know.
#[derive(Debug, Clone, Default)]
pub struct Seen(Arc<Facts>);

#[derive(Debug, Default)]
struct Facts {
    /// Handlers may run in tasks of their own, where it is not the current one.
    span: OnceLock<Span>,
    route: OnceLock<&'static str>,
    user: OnceLock<String>,
}

impl Seen {
    /// That of a request.
    pub fn of(extensions: &Extensions) -> Option<Self> {
        extensions.get::<Self>().cloned()
    }

    /// The route that took it, as the table has it: `/api/project/{project_name}/runs/list`.
    pub fn route(&self, route: &'static str) {
        self.0.route.set(route).ok(); // the first to know is right
    }

    /// Makes a request that is passed on part of the trace of this one. Without traces, what the caller has said of its own stays.
    pub fn continue_trace(&self, headers: &mut HeaderMap) {
        let Some(span) = self.0.span.get() else {
            return;
        };
        let context = span.context();
        if context.span().span_context().is_valid() {
            TraceContextPropagator::new().inject_context(&context, &mut HeaderInjector(headers));
        }
    }

    /// The name of the user who called.
    pub fn user(&self, name: &str) {
        self.0.user.set(name.to_owned()).ok();
    }
}

/// Watches requests.
#[derive(Debug, Clone)]
pub struct Http {
    pub(crate) durations: Option<Histogram<f64>>,
    /// OpenTelemetry wants spans.
    pub(crate) traces: bool,
    /// Sentry wants spans.
    pub(crate) sentry: bool,
}

impl Http {
    /// Every request to these routes is watched.
    pub fn watch(self, router: Router) -> Router {
        router.layer(from_fn_with_state(Arc::new(self), watch))
    }

    fn span(&self, name: &str, method: &'static str, headers: &HeaderMap) -> Span {
        if !self.traces && !self.sentry {
            return Span::none();
        }
        let span = tracing::info_span!(
            target: observe::TARGET,
            parent: None,
            "HTTP request",
            otel.name = self.traces.then_some(name),
            otel.kind = self.traces.then_some("server"),
            otel.status_code = Empty,
            sentry.name = self.sentry.then_some(name),
            sentry.op = self.sentry.then_some("http.server"),
            http.request.method = method,
            http.route = Empty,
            http.response.status_code = Empty,
            dstack.user.name = Empty,
        );
        if self.traces {
            // Whoever calls may be part of a trace already.
            let caller = TraceContextPropagator::new().extract(&HeaderExtractor(headers));
            if caller.span().span_context().is_valid() {
                span.set_parent(caller).ok(); // a span of its own otherwise
            }
        }
        span
    }
}

async fn watch(State(http): State<Arc<Http>>, mut request: Request, next: Next) -> Response<Body> {
    let start = Instant::now();
    let method = method(request.method());
    let seen = Seen::default();
    request.extensions_mut().insert(seen.clone());
    let span = http.span(method, method, request.headers());
    seen.0.span.set(span.clone()).ok(); // it is new
    let response = next.run(request).instrument(span.clone()).await;
    let route = seen.0.route.get().copied();
    let status = response.status();
    if !span.is_disabled() {
        finish(&http, &span, method, &seen, status);
    }
    if let Some(durations) = &http.durations {
        durations.record(start.elapsed().as_secs_f64(), &labels(method, route, status));
    }
    response
}

/// What is known of a request once it is answered.
fn finish(http: &Http, span: &Span, method: &str, seen: &Seen, status: StatusCode) {
    if let Some(route) = seen.0.route.get() {
        let name = format!("{method} {route}");
        span.record("http.route", route);
        if http.traces {
            // The layer takes a name at the start only.
            span.context().span().update_name(name.clone());
        }
        if http.sentry {
            span.record("sentry.name", &name);
        }
    }
    if let Some(user) = seen.0.user.get() {
        span.record("dstack.user.name", user);
    }
    span.record("http.response.status_code", status.as_u16());
    if status.is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
}

fn labels(method: &'static str, route: Option<&'static str>, status: StatusCode) -> Vec<KeyValue> {
    let mut labels = vec![
        KeyValue::new("http.request.method", method),
        KeyValue::new("http.response.status_code", i64::from(status.as_u16())),
    ];
    labels.extend(route.map(|route| KeyValue::new("http.route", route)));
    if status.is_server_error() {
        labels.push(KeyValue::new("error.type", status.as_str().to_owned()));
    }
    labels
}

/// Those that are known; anybody can invent others (OpenTelemetry's conventions).
fn method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::HEAD => "HEAD",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        Method::CONNECT => "CONNECT",
        Method::TRACE => "TRACE",
        _ => "_OTHER",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_few() {
        let shown = |labels: Vec<KeyValue>| {
            let pairs = labels
                .iter()
                .map(|label| format!("{}={}", label.key, label.value));
            pairs.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            shown(labels("GET", None, StatusCode::NOT_FOUND)),
            "http.request.method=GET http.response.status_code=404"
        );
        assert_eq!(
            shown(labels("POST", Some("/api/{x}"), StatusCode::SERVICE_UNAVAILABLE)),
            "http.request.method=POST http.response.status_code=503 http.route=/api/{x} error.type=503"
        );
        assert_eq!(method(&Method::from_bytes(b"BREW").unwrap()), "_OTHER");
    }
}
