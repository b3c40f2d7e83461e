//! What was counted of the requests of services, for autoscaling and for metrics.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Json, Response};
use dstack_agent_api::gateway::{RolloutCounts, ServiceCounts, SideCounts, Times};
use dstack_proxy::split::{Side, Split};
use dstack_proxy::stats::{Histogram, Snapshot, StatsRegistry, WINDOWS};
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

/// What was counted since the gateway was started.
pub(super) async fn counts(State(api): State<Arc<Api>>) -> Response {
    let (state, splits) = (api.registry.state().await, api.registry.splits().await);
    let of = |(_, _, service): (&str, &str, &Arc<ServiceRecord>)| {
        let split = splits.get(&service.key);
        let counted = api.stats.snapshot(RunId::from(service.key));
        let snapshot = counted.or_else(|| split.map(|_| Snapshot::default()))?;
        Some(ServiceCounts {
            id: service.key.simple().to_string(),
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
    let Some(snapshot) = stats.snapshot(run) else {
        let none = |seconds: u64| (seconds.to_string(), json!({ "requests": 0, "request_time": 0.0 }));
        return WINDOWS.into_iter().map(none).collect();
    };
    let window = |window: &dstack_proxy::stats::Window| {
        let counted = json!({ "requests": window.requests, "request_time": window.request_time });
        (window.seconds.to_string(), counted)
    };
    snapshot.windows.iter().map(window).collect()
}
