//! What can be seen without sending anything: numbers for `/metrics`, and that nothing is done when nothing is wanted.
#![allow(clippy::unwrap_used)]

use axum::Router;
use axum::body::Body;
use axum::http::{Extensions, Request};
use axum::routing::get;
use dstack_system::{observe, task_span};
use dstack_telemetry::http::Seen;
use dstack_telemetry::{MetricsExporters, Options, Telemetry};
use tower::ServiceExt;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;

fn options() -> Options {
    Options {
        version: "1.2.3",
        instance: "one".to_owned(),
        environment: "test".to_owned(),
        traces: None,
        logs: false,
        metrics: None,
        sentry: None,
    }
}

fn numbers() -> Telemetry {
    Telemetry::start(&Options {
        metrics: Some(MetricsExporters {
            otlp: false,
            prometheus: true,
        }),
        ..options()
    })
    .unwrap()
}

#[tokio::test]
async fn steps_are_counted_by_how_they_end() {
    let telemetry = numbers();
    let layers = telemetry.layers(|| EnvFilter::new("error"));
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(layers));
    for outcome in [Ok(1), Err("no"), Ok(2)] {
        observe::task(task_span!("pipeline_tasks.Test.process"), async { outcome })
            .await
            .ok();
    }
    // Given up half-way: neither.
    let never = observe::task(
        task_span!("pipeline_tasks.Test.process"),
        std::future::pending::<Result<(), ()>>(),
    );
    tokio::time::timeout(std::time::Duration::from_millis(1), never)
        .await
        .unwrap_err();
    let text = telemetry.prometheus().unwrap();
    let count = |status: &str| {
        let found = text.lines().find(|line| {
            line.starts_with("dstack_server_background_task_runs_total{")
                && line.contains("task=\"pipeline_tasks.Test.process\"")
                && line.contains(&format!("status=\"{status}\""))
        });
        found
            .unwrap_or_else(|| panic!("no {status} in {text}"))
            .rsplit(' ')
            .next()
            .unwrap()
            .to_owned()
    };
    assert_eq!((count("success").as_str(), count("error").as_str()), ("2", "1"));
    assert!(text.contains("service_instance_id=\"one\""), "{text}");
}

async fn known(extensions: Extensions) -> &'static str {
    Seen::of(&extensions).unwrap().route("/known/{name}");
    ""
}

#[tokio::test]
async fn requests_are_measured_by_route_and_status() {
    let telemetry = numbers();
    let routes = Router::new().route("/known/{name}", get(known));
    let router = telemetry.http().unwrap().watch(routes);
    for path in ["/known/a", "/known/b", "/other/secret"] {
        let request = Request::get(path).body(Body::empty()).unwrap();
        router.clone().oneshot(request).await.unwrap();
    }
    let text = telemetry.prometheus().unwrap();
    let counts: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("http_server_request_duration_seconds_count"))
        .collect();
    assert_eq!(counts.len(), 2, "{counts:?}");
    let of = |part: &str| counts.iter().any(|line| line.contains(part));
    assert!(
        of("http_route=\"/known/{name}\"") && of("} 2") && of("http_response_status_code=\"404\""),
        "{counts:?}"
    );
    assert!(!text.contains("secret"), "paths are not told");
}

#[test]
fn nothing_is_done_when_nothing_is_wanted() {
    assert!(options().is_off());
    let telemetry = Telemetry::start(&options()).unwrap();
    assert!(telemetry.layers(|| EnvFilter::new("trace")).is_empty());
    assert!(telemetry.http().is_none() && telemetry.prometheus().is_none());
    telemetry.stop(std::time::Duration::ZERO);
    // Nobody wants spans: none is made.
    assert!(task_span!("pipeline_tasks.Test.process").is_disabled());
}
