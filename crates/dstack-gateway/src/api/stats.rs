//! What was counted of the requests of services, for autoscaling and for metrics.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Json, Response};
use dstack_agent_api::gateway::{RolloutCounts, ServiceCounts, SideCounts, Strained, Times};
use dstack_proxy::split::{Side, Split};
use dstack_proxy::stats::{Histogram, Snapshot, StatsRegistry, Strain, WINDOWS, Window};
use dstack_units::RunId;
use serde_json::{Map, Value, json};

use super::Api;
use crate::state::ServiceRecord;

pub(super) async fn collect(State(api): State<Arc<Api>>) -> Response {
    let state = api.registry.state().await;
    let of = |(project, run, service): (&str, &str, &Arc<ServiceRecord>)| {
        let stats = windows(&api.stats, RunId::from(service.key));
        json!({ "project_name": project, "run_name": run, "stats": stats })
    };
    let all: Vec<Value> = state.services().map(of).collect();
    Json(all).into_response()
}

/// What was counted since the gateway was started of services of which it is known which runs they are.
pub(super) async fn counts(State(api): State<Arc<Api>>) -> Response {
    let (state, splits) = (api.registry.state().await, api.registry.splits().await);
    let of = |(_, _, service): (&str, &str, &Arc<ServiceRecord>)| {
        let split = splits.get(&service.key);
        let counted = api.stats.snapshot(RunId::from(service.key));
        let snapshot = counted.or_else(|| split.map(|_| Snapshot::default()))?;
        Some(ServiceCounts {
            // Counted by the key of this gateway, and told by that of the server.
            id: service.id.clone()?,
            by_class: snapshot.by_class,
            under_way: snapshot.under_way,
            head: times(&snapshot.head),
            total: times(&snapshot.total),
            prompt_tokens: snapshot.tokens.prompt,
            completion_tokens: snapshot.tokens.completion,
            rollout: split.map(|split| rollout(split)),
        })
    };
    let all: Vec<ServiceCounts> = state.services().filter_map(of).collect();
    Json(all).into_response()
}

fn rollout(split: &Split) -> RolloutCounts {
    let side = |side: Side| {
        let answers = split.answered.of(side);
        SideCounts {
            requests: answers.requests,
            failed: answers.failed,
            head: times(&answers.head),
        }
    };
    RolloutCounts {
        deployment: split.deployment,
        new: side(Side::New),
        old: side(Side::Old),
    }
}

fn times(histogram: &Histogram) -> Times {
    Times {
        buckets: histogram.cumulative().collect(),
        count: histogram.count,
        sum: histogram.sum,
    }
}

fn windows(stats: &StatsRegistry, run: RunId) -> Map<String, Value> {
    let counted = stats.snapshot(run).map(|snapshot| snapshot.windows);
    let counted = counted.unwrap_or_default();
    let window = |(seconds, window): (u64, Window)| {
        let mut counted = json!({ "requests": window.requests, "request_time": window.request_time });
        if let (Some(strain), Value::Object(counted)) = (stats.strain(run, seconds), &mut counted) {
            counted.insert("strain".to_owned(), json!(strained(strain)));
        }
        (seconds.to_string(), counted)
    };
    WINDOWS.into_iter().zip(counted).map(window).collect()
}

fn strained(strain: Strain) -> Strained {
    Strained {
        busy: strain.busy.as_secs_f64(),
        first_pieces: strain.first_pieces,
        waited: strain.waited.as_secs_f64(),
    }
}
