//! Requests to services: those that came through this server, and those that gateways have counted. dstack 0.22.5 has no such metrics.

use dstack_proxy::stats::{BUCKETS, Histogram, Snapshot};
use dstack_units::RunId;

use super::text::{Exposition, Kind, float};
use crate::services::{CountedService, ServiceRoutes};

/// What was counted of one service in one place.
struct Counted {
    labels: Vec<(&'static str, String)>,
    by_class: [u64; 5],
    under_way: u64,
    head: Times,
    total: Times,
    /// Of what models were asked, and of what they answered.
    tokens: [u64; 2],
}

struct Times {
    buckets: Vec<(f64, u64)>,
    count: u64,
    sum: f64,
}

/// Adds the metrics of all services that this server has routes of, and of those at gateways that answer soon.
pub(super) async fn add(services: &ServiceRoutes, text: &mut Exposition) {
    let stats = services.forwarder().stats();
    let mut here: Vec<Counted> = Vec::new();
    for service in services.routes().all() {
        if let Some(snapshot) = stats.snapshot(service.run_id) {
            here.push(counted_here(
                &service.project,
                &service.run,
                service.run_id,
                &snapshot,
            ));
        }
    }
    here.sort_by(|one, other| one.labels.cmp(&other.labels));
    let mut elsewhere: Vec<Counted> = services
        .counted_at_gateways()
        .await
        .into_iter()
        .map(counted_at_gateway)
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

fn counted_here(project: &str, name: &str, run: RunId, snapshot: &Snapshot) -> Counted {
    Counted {
        labels: labels(project, name, run, String::new()),
        by_class: snapshot.by_class,
        under_way: snapshot.under_way,
        head: times(&snapshot.head),
        total: times(&snapshot.total),
        tokens: [snapshot.tokens.prompt, snapshot.tokens.completion],
    }
}

fn counted_at_gateway(service: CountedService) -> Counted {
    let counts = service.counts;
    // What a gateway says may be anything: only bounds that there are.
    let times = |times: dstack_agent_api::gateway::Times| Times {
        buckets: BUCKETS
            .iter()
            .filter_map(|bound| {
                times
                    .buckets
                    .iter()
                    .find(|(told, _)| told.total_cmp(bound).is_eq())
                    .copied()
            })
            .collect(),
        count: times.count,
        sum: times.sum,
    };
    Counted {
        labels: labels(
            &service.project,
            &service.run_name,
            service.run,
            service.replica.to_string(),
        ),
        by_class: counts.by_class,
        under_way: counts.under_way,
        head: times(counts.head),
        total: times(counts.total),
        tokens: [counts.prompt_tokens, counts.completion_tokens],
    }
}

fn times(histogram: &Histogram) -> Times {
    Times {
        buckets: histogram.cumulative().collect(),
        count: histogram.count,
        sum: histogram.sum,
    }
}

fn add_service(counted: &Counted, text: &mut Exposition) {
    let with = |label: &'static str, value: &str| {
        let mut labels = counted.labels.clone();
        labels.push((label, value.to_owned()));
        labels
    };
    for (class, count) in ["1xx", "2xx", "3xx", "4xx", "5xx"]
        .into_iter()
        .zip(counted.by_class)
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
        &counted.labels,
        float(counted.under_way),
    );
    for (name, help, times) in [
        (
            "dstack_service_response_head_seconds",
            "Seconds from a request to the head of its answer",
            &counted.head,
        ),
        (
            "dstack_service_request_duration_seconds",
            "Seconds from a request to the end of its answer",
            &counted.total,
        ),
    ] {
        let buckets = times.buckets.iter().copied();
        text.add_histogram(name, help, &counted.labels, buckets, (times.count, times.sum));
    }
    for (kind, count) in ["prompt", "completion"].into_iter().zip(counted.tokens) {
        text.add(
            "dstack_service_tokens_total",
            Kind::Counter,
            "Tokens of requests to the service's model, and of its answers, as far as it says so",
            &with("type", kind),
            float(count),
        );
    }
}
