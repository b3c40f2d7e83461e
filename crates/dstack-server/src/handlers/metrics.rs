//! Resource use of jobs.

use dstack_api::{ErrorCode, routes};
use dstack_model::metrics::{JobMetrics, Metric};
use dstack_model::requests::JobMetricsQuery;
use dstack_store::directory::lists;
use dstack_store::directory::metrics::{self as points, MetricsPoint};
use dstack_store::rows::JobRow;
use dstack_units::Time;
use serde_json::{Value, json};

use crate::api::{Api, Call};
use crate::error::{ApiError, Result};

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::MetricsJob, _, _>(job)
}

async fn job(call: Call, query: JobMetricsQuery) -> Result<JobMetrics> {
    let pool = call.state.database.pool();
    let (project, run_name) = (call.project()?.row.id, call.param("run_name"));
    let found = lists::job(
        pool,
        project,
        run_name,
        query.run_id,
        query.replica_num,
        query.job_num,
    )
    .await?;
    let found = found.ok_or_else(|| {
        ApiError::with_code(ErrorCode::ResourceNotExists, "Found no job with given parameters")
    })?;
    // One more: usage of the CPU is a difference.
    let limit = query.limit.max(0).saturating_add(1);
    let points = points::between(pool, found.id, query.after, query.before, limit).await?;
    Ok(JobMetrics {
        metrics: if points.len() < 2 {
            Vec::new()
        } else {
            metrics(&points, &found)
        },
    })
}

fn metrics(points: &[MetricsPoint], job: &JobRow) -> Vec<Metric> {
    let shown = points.get(..points.len() - 1).unwrap_or_default();
    let times: Vec<Time> = shown.iter().map(|point| point.at).collect();
    let metric = |name: &str, values: Vec<Value>| Metric {
        name: name.to_owned(),
        timestamps: times.clone(),
        values,
    };
    let of =
        |name: &str, value: &dyn Fn(&MetricsPoint) -> Value| metric(name, shown.iter().map(value).collect());
    let constant = |name: &str, value: i64| metric(name, vec![json!(value); times.len()]);
    let mut found = vec![
        metric(
            "cpu_usage_percent",
            points.windows(2).map(|pair| json!(cpu_percent(pair))).collect(),
        ),
        of("memory_usage_bytes", &|point| json!(point.memory_usage_bytes)),
        of("memory_working_set_bytes", &|point| {
            json!(point.memory_working_set_bytes)
        }),
    ];
    let resources = job
        .job_runtime_data
        .as_deref()
        .and_then(|data| data.offer.as_ref())
        .map(|offer| &offer.instance.resources);
    let resources = resources.or(job
        .job_provisioning_data
        .as_deref()
        .map(|place| &place.instance_type.resources));
    if let Some(resources) = resources {
        found.push(constant("cpus_detected_num", resources.cpus));
        found.push(constant(
            "memory_total_bytes",
            resources.memory_mib.saturating_mul(1024 * 1024),
        ));
    }
    let gpus = shown.first().map_or(0, |point| point.gpus_util_percent.len());
    if points.iter().any(|point| point.gpus_util_percent.len() != gpus) {
        return found;
    }
    found.push(constant("gpus_detected_num", i64::try_from(gpus).unwrap_or(0)));
    if let Some(gpu) = resources.and_then(|resources| resources.gpus.first()) {
        found.push(constant(
            "gpu_memory_total_bytes",
            gpu.memory_mib.saturating_mul(1024 * 1024),
        ));
    }
    for place in 0..gpus {
        found.push(of(&format!("gpu_memory_usage_bytes_gpu{place}"), &|point| {
            json!(point.gpus_memory_usage_bytes.get(place))
        }));
        found.push(of(&format!("gpu_util_percent_gpu{place}"), &|point| {
            json!(point.gpus_util_percent.get(place))
        }));
    }
    found
}

/// Percent of one CPU between two points, newest first; rounded down.
fn cpu_percent(pair: &[MetricsPoint]) -> i64 {
    let [newer, older] = pair else { return 0 };
    let elapsed = newer.at.as_micros().saturating_sub(older.at.as_micros());
    let used = newer.cpu_usage_micro.saturating_sub(older.cpu_usage_micro);
    if elapsed <= 0 {
        0
    } else {
        used.saturating_mul(100) / elapsed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(at: i64, cpu: i64) -> MetricsPoint {
        MetricsPoint {
            at: Time::from_micros(at),
            cpu_usage_micro: cpu,
            memory_usage_bytes: 1,
            memory_working_set_bytes: 1,
            gpus_memory_usage_bytes: vec![],
            gpus_util_percent: vec![],
        }
    }

    #[test]
    fn usage_is_the_difference_of_two_points() {
        assert_eq!(
            cpu_percent(&[point(2_000_000, 1_500_000), point(1_000_000, 0)]),
            150
        );
        assert_eq!(cpu_percent(&[point(5, 5), point(5, 0)]), 0);
    }
}
