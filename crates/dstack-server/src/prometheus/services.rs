//! Requests to services: those that came through this server, and those that gateways have counted. dstack 0.22.5 has no such metrics.

use dstack_units::RunId;

use super::text::{Exposition, Kind, float};
use crate::services::ServiceRoutes;
use crate::services::counts::Counts;

/// What was counted of one service in one place, with the labels that say which and where.
struct Labelled {
    labels: Vec<(&'static str, String)>,
    counts: Counts,
}

/// Adds the metrics of all services that this server has routes of, and of those at gateways that answer soon.
pub(super) async fn add(services: &ServiceRoutes, text: &mut Exposition) {
    let stats = services.forwarder().stats();
    let mut here: Vec<Labelled> = Vec::new();
    for service in services.routes().all() {
        if let Some(snapshot) = stats.snapshot(service.run_id) {
            here.push(Labelled {
                labels: labels(&service.project, &service.run, service.run_id, String::new()),
                counts: Counts::from(&snapshot),
            });
        }
    }
    here.sort_by(|one, other| one.labels.cmp(&other.labels));
    let mut elsewhere: Vec<Labelled> = services
        .counted_at_gateways()
        .await
        .into_iter()
        .map(|service| Labelled {
            labels: labels(
                &service.project,
                &service.run_name,
                service.run,
                service.replica.to_string(),
            ),
            counts: Counts::from(service.counts),
        })
        .collect();
    elsewhere.sort_by(|one, other| one.labels.cmp(&other.labels));
    for counted in here.iter().chain(&elsewhere) {
        add_service(counted, text);
    }
}

fn labels(project: &str, name: &str, run: RunId, gateway_replica: String) -> Vec<(&'static str, String)> {
    vec![
        ("dstack_project_name", project.to_owned()),
        ("dstack_run_name", name.to_owned()),
        ("dstack_run_id", run.to_string()),
        ("dstack_gateway_replica_id", gateway_replica),
    ]
}

fn add_service(Labelled { labels, counts }: &Labelled, text: &mut Exposition) {
    let with = |label: &'static str, value: &str| {
        let mut labels = labels.clone();
        labels.push((label, value.to_owned()));
        labels
    };
    for (class, count) in ["1xx", "2xx", "3xx", "4xx", "5xx"]
        .into_iter()
        .zip(counts.by_class)
    {
        text.add(
            "dstack_service_requests_total",
            Kind::Counter,
            "Requests to the service that are over, by the first digit of their status; 1xx: upgraded connections",
            &with("code", class),
            float(count),
        );
    }
    text.add(
        "dstack_service_requests_in_flight",
        Kind::Gauge,
        "Requests to the service under way",
        labels,
        float(counts.under_way),
    );
    for (name, help, times) in [
        (
            "dstack_service_response_head_seconds",
            "Seconds from a request to the head of its answer",
            &counts.head,
        ),
        (
            "dstack_service_request_duration_seconds",
            "Seconds from a request to the end of its answer",
            &counts.total,
        ),
    ] {
        let buckets = times.buckets.iter().copied();
        text.add_histogram(name, help, labels, buckets, (times.count, times.sum));
    }
    for (kind, count) in ["prompt", "completion"].into_iter().zip(counts.tokens) {
        text.add(
            "dstack_service_tokens_total",
            Kind::Counter,
            "Tokens of requests to the service's model, and of its answers, as far as it says so",
            &with("type", kind),
            float(count),
        );
    }
}
