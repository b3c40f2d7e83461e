//! `/metrics` in Prometheus' text format: instances, runs and jobs with the names and labels of dstack 0.22.5, and services.

mod services;
mod text;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Extensions, HeaderMap, HeaderValue, Response, header};
use dstack_model::instances::{InstanceStatus, Resources};
use dstack_model::runs::JobStatus;
use dstack_store::queries::Page;
use dstack_store::queries::metrics::MetricsPoint;
use dstack_store::queries::views::{InstanceFilter, ListedInstance, ListedRun, RunFilter};
use dstack_store::rows::JobRow;
use dstack_system::task;
use dstack_telemetry::http::Seen;
use dstack_units::{RunId, Time};
use subtle::ConstantTimeEq;

use self::text::{Exposition, Kind};
use crate::access::{bearer, peer};
use crate::error::{ApiError, Result};
use crate::state::{AppState, Data};

/// All of them: Prometheus does not page.
const ALL: i64 = 1_000_000;

/// Ids in one statement.
const MAX_IDS: usize = 1_000;

const MIB: f64 = 1024.0 * 1024.0;

/// Answers 404 unless metrics are switched on, and 403 to those without the token, if there is one.
pub(crate) async fn metrics(
    State(state): State<Arc<AppState>>,
    headers: HeaderMap,
    extensions: Extensions,
) -> Response<Body> {
    if let Some(seen) = Seen::of(&extensions) {
        seen.route("/metrics");
    }
    match answer(&state, &headers, peer(&extensions)).await {
        Ok(text) => {
            let mut response = Response::new(Body::from(text));
            response.headers_mut().insert(
                header::CONTENT_TYPE,
                HeaderValue::from_static("text/plain; charset=utf-8"),
            );
            response
        }
        Err(error) => error.into_response(),
    }
}

async fn answer(state: &AppState, headers: &HeaderMap, peer: Option<IpAddr>) -> Result<String> {
    if !state.edge.settings.prometheus {
        return Err(ApiError::NotFound);
    }
    if let Some(expected) = &state.edge.settings.prometheus_token {
        let given = bearer(headers).ok_or(ApiError::Denied)?;
        if !bool::from(given.as_bytes().ct_eq(expected.as_bytes())) {
            let now = state.data.clock.now();
            return Err(state
                .auth
                .access
                .refusal(given, peer, now, ApiError::InvalidToken));
        }
    }
    let now = state.data.clock.now();
    let mut text = Exposition::default();
    instances(&state.data, now, &mut text).await?;
    runs(&state.data, &mut text).await?;
    jobs(&state.data, now, &mut text).await?;
    services::add(&state.services, &mut text).await;
    text.add(
        "dstack_server_panics_total",
        Kind::Counter,
        "Steps of this process's work that ended in a panic, which is in its log",
        &[],
        count(usize::try_from(task::panics()).unwrap_or(usize::MAX)),
    );
    let mut text = text.finish();
    if let Some(own) = state.edge.telemetry.prometheus() {
        text.push_str(&own);
    }
    Ok(text)
}

#[allow(clippy::cast_precision_loss)] // shown to people
fn number(value: i64) -> f64 {
    value as f64
}

#[allow(clippy::cast_precision_loss)] // shown to people
fn count(value: usize) -> f64 {
    value as f64
}

fn seconds(from: Time, to: Time) -> f64 {
    number(to.as_micros().saturating_sub(from.as_micros())) / 1_000_000.0
}

fn gpu_name(resources: Option<&Resources>) -> String {
    let gpu = resources.and_then(|resources| resources.gpus.first());
    gpu.map(|gpu| gpu.name.clone()).unwrap_or_default()
}

/// Instances that somebody pays for.
const RUNNING: &[InstanceStatus] = {
    use InstanceStatus::{Busy, Idle, Provisioning, Terminating};
    &[Provisioning, Idle, Busy, Terminating]
};

async fn instances(data: &Data, now: Time, text: &mut Exposition) -> Result<()> {
    let filter = InstanceFilter {
        statuses: Some(RUNNING),
        ..InstanceFilter::default()
    };
    let found = data
        .database
        .views()
        .instances(&filter, &Page::newest(ALL))
        .await?;
    for listed in &found {
        let row = &listed.instance;
        let offer = row.offer.as_deref();
        let gpus = offer.map_or(0, |offer| offer.instance.resources.gpus.len());
        let labels = instance_labels(listed);
        text.add(
            "dstack_instance_duration_seconds_total",
            Kind::Counter,
            "Total seconds the instance is running",
            &labels,
            seconds(row.created_at, now),
        );
        text.add(
            "dstack_instance_price_dollars_per_hour",
            Kind::Gauge,
            "Instance price, USD/hour",
            &labels,
            row.price.unwrap_or(0.0),
        );
        text.add(
            "dstack_instance_gpu_count",
            Kind::Gauge,
            "Instance GPU count",
            &labels,
            count(gpus),
        );
    }
    Ok(())
}

fn instance_labels(listed: &ListedInstance) -> Vec<(&'static str, String)> {
    let row = &listed.instance;
    let offer = row.offer.as_deref();
    vec![
        ("dstack_project_name", listed.project_name.clone()),
        ("dstack_fleet_name", listed.fleet_name.clone().unwrap_or_default()),
        (
            "dstack_fleet_id",
            row.fleet_id.map(|id| id.to_string()).unwrap_or_default(),
        ),
        ("dstack_instance_name", row.name.clone()),
        ("dstack_instance_id", row.id.to_string()),
        (
            "dstack_instance_type",
            offer.map(|offer| offer.instance.name.clone()).unwrap_or_default(),
        ),
        ("dstack_backend", row.backend.clone().unwrap_or_default()),
        (
            "dstack_gpu",
            gpu_name(offer.map(|offer| &offer.instance.resources)),
        ),
    ]
}

async fn runs(data: &Data, text: &mut Exposition) -> Result<()> {
    for counted in data.database.counts().runs().await? {
        let labels = [
            ("dstack_project_name", counted.project_name),
            ("dstack_user_name", counted.user_name),
        ];
        for (name, help, value) in [
            ("dstack_run_count_total", "Total runs count", counted.total),
            (
                "dstack_run_count_terminated_total",
                "Terminated runs count",
                counted.terminated,
            ),
            (
                "dstack_run_count_failed_total",
                "Failed runs count",
                counted.failed,
            ),
            ("dstack_run_count_done_total", "Done runs count", counted.done),
        ] {
            text.add(name, Kind::Counter, help, &labels, number(value));
        }
    }
    Ok(())
}

/// Runs that are read at a time.
const RUNS: usize = 500;

async fn jobs(data: &Data, now: Time, text: &mut Exposition) -> Result<()> {
    let filter = RunFilter {
        only_active: true,
        ..RunFilter::default()
    };
    let keys = data
        .database
        .views()
        .run_keys(&filter, &Page::newest(ALL))
        .await?;
    let mut ids: Vec<RunId> = keys.into_iter().map(|(id, _)| id).collect();
    ids.sort_unstable();
    for ids in ids.chunks(RUNS) {
        jobs_of(data, ids, now, text).await?;
    }
    Ok(())
}

async fn jobs_of(data: &Data, runs: &[RunId], now: Time, text: &mut Exposition) -> Result<()> {
    use JobStatus::{Provisioning, Pulling, Running, Terminating};
    let database = &data.database;
    let listed = database.views().runs(runs).await?;
    let by_id: HashMap<RunId, &ListedRun> = listed.iter().map(|run| (run.run.id, run)).collect();
    let mut jobs = database.views().jobs(runs).await?;
    jobs.retain(|job| {
        job.job_provisioning_data.is_some()
            && matches!(job.status(), Provisioning | Pulling | Running | Terminating)
    });
    for jobs in jobs.chunks(MAX_IDS) {
        let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
        let latest = database.metrics().latest(&ids).await?;
        for job in jobs {
            if let Some(run) = by_id.get(&job.run_id) {
                add_job(job, run, latest.get(&job.id), now, text);
            }
        }
    }
    Ok(())
}

fn job_labels(job: &JobRow, run: &ListedRun, resources: Option<&Resources>) -> Vec<(&'static str, String)> {
    let place = job.job_provisioning_data.as_deref();
    let backend = place.map(|place| place.base_backend.unwrap_or(place.backend).to_string());
    vec![
        ("dstack_project_name", run.project_name.clone()),
        ("dstack_user_name", run.user_name.clone()),
        ("dstack_run_name", run.run.run_name.clone()),
        ("dstack_run_id", run.run.id.to_string()),
        ("dstack_job_name", job.job_name.clone()),
        ("dstack_job_id", job.id.to_string()),
        ("dstack_job_num", job.job_num.to_string()),
        ("dstack_replica_num", job.replica_num.to_string()),
        (
            "dstack_run_type",
            run.run.run_spec.configuration.type_name().to_owned(),
        ),
        ("dstack_backend", backend.unwrap_or_default()),
        ("dstack_gpu", gpu_name(resources)),
    ]
}

fn add_job(job: &JobRow, run: &ListedRun, latest: Option<&MetricsPoint>, now: Time, text: &mut Exposition) {
    let place = job.job_provisioning_data.as_deref();
    // A share of an instance has its own numbers.
    let offer = job
        .job_runtime_data
        .as_deref()
        .and_then(|data| data.offer.as_ref());
    let resources = offer
        .map(|offer| &offer.instance.resources)
        .or(place.map(|place| &place.instance_type.resources));
    let labels = job_labels(job, run, resources);
    let price = offer.map(|offer| offer.price).or(place.map(|place| place.price));
    let of_resources = |value: &dyn Fn(&Resources) -> f64| resources.map_or(0.0, value);
    let gauge = Kind::Gauge;
    text.add(
        "dstack_job_duration_seconds_total",
        Kind::Counter,
        "Total seconds the job is running",
        &labels,
        seconds(job.submitted_at, now),
    );
    text.add(
        "dstack_job_price_dollars_per_hour",
        gauge,
        "Job instance price, USD/hour",
        &labels,
        price.unwrap_or(0.0),
    );
    let gpus = of_resources(&|resources| count(resources.gpus.len()));
    text.add("dstack_job_gpu_count", gauge, "Job GPU count", &labels, gpus);
    let cpus = of_resources(&|resources| number(resources.cpus));
    text.add("dstack_job_cpu_count", gauge, "Job CPU count", &labels, cpus);
    if let Some(point) = latest {
        text.add(
            "dstack_job_cpu_time_seconds_total",
            Kind::Counter,
            "Total CPU time consumed by the job, seconds",
            &labels,
            number(point.cpu_usage_micro) / 1_000_000.0,
        );
    }
    let memory = of_resources(&|resources| number(resources.memory_mib) * MIB);
    text.add(
        "dstack_job_memory_total_bytes",
        gauge,
        "Total memory allocated for the job, bytes",
        &labels,
        memory,
    );
    let Some(point) = latest else { return };
    text.add(
        "dstack_job_memory_usage_bytes",
        gauge,
        "Memory used by the job (including cache), bytes",
        &labels,
        number(point.memory_usage_bytes),
    );
    text.add(
        "dstack_job_memory_working_set_bytes",
        gauge,
        "Memory used by the job (not including cache), bytes",
        &labels,
        number(point.memory_working_set_bytes),
    );
    add_gpus(point, resources, &labels, text);
}

fn add_gpus(
    point: &MetricsPoint,
    resources: Option<&Resources>,
    labels: &[(&'static str, String)],
    text: &mut Exposition,
) {
    let Some(gpu) = resources.and_then(|resources| resources.gpus.first()) else {
        return;
    };
    let total = number(gpu.memory_mib) * MIB;
    let gpus = point
        .gpus_util_percent
        .iter()
        .zip(&point.gpus_memory_usage_bytes)
        .enumerate();
    for (place, (used, memory)) in gpus {
        let mut labels = labels.to_vec();
        labels.push(("dstack_gpu_num", place.to_string()));
        text.add(
            "dstack_job_gpu_usage_ratio",
            Kind::Gauge,
            "Job GPU usage, percent (as 0.0-1.0)",
            &labels,
            number(*used) / 100.0,
        );
        text.add(
            "dstack_job_gpu_memory_total_bytes",
            Kind::Gauge,
            "Total GPU memory allocated for the job, bytes",
            &labels,
            total,
        );
        text.add(
            "dstack_job_gpu_memory_usage_bytes",
            Kind::Gauge,
            "GPU memory used by the job, bytes",
            &labels,
            number(*memory),
        );
    }
}
