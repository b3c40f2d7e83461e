//! Resource use of jobs, and requests to services.

use dstack_api::{ErrorCode, Nothing, routes};
use dstack_model::instances::Resources;
use dstack_model::metrics::{JobMetrics, Metric, ServiceMetrics};
use dstack_model::requests::JobMetricsQuery;
use dstack_store::queries::metrics::MetricsPoint;
use dstack_store::rows::JobRow;
use dstack_units::Time;
use serde_json::{Value, json};

use crate::api::{Api, Call};
use crate::error::{ApiError, Result};

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::MetricsJob, _, _>(job)
        .on::<routes::MetricsService, _, _>(service)
}

async fn service(call: Call, _: Nothing) -> Result<ServiceMetrics> {
    let project = call.project()?.row.id;
    let found = call
        .state
        .data
        .database
        .run_by_name(project, call.param("run_name"))
        .await?;
    let run = found
        .map(|found| found.run)
        .filter(|run| run.run_spec.configuration.service().is_some());
    let run = run
        .ok_or_else(|| ApiError::with_code(ErrorCode::ResourceNotExists, "Found no service of this name"))?;
    Ok(call.state.services.metrics(run.id, run.gateway_id).await)
}

async fn job(call: Call, query: JobMetricsQuery) -> Result<JobMetrics> {
    let database = &call.state.data.database;
    let (project, run_name) = (call.project()?.row.id, call.param("run_name"));
    let found = database
        .views()
        .job(project, run_name, query.run_id, query.replica_num, query.job_num)
        .await?;
    let found = found.ok_or_else(|| {
        ApiError::with_code(ErrorCode::ResourceNotExists, "Found no job with given parameters")
    })?;
    // One more: usage of the CPU is a difference.
    let limit = query.limit.max(0).saturating_add(1);
    let points = database
        .metrics()
        .between(found.id, query.after, query.before, limit)
        .await?;
    Ok(JobMetrics {
        metrics: if points.len() < 2 {
            Vec::new()
        } else {
            metrics(&points, resources(&found))
        },
    })
}

/// What the job has: a share of an instance has its own numbers.
fn resources(job: &JobRow) -> Option<&Resources> {
    let offer = job
        .job_runtime_data
        .as_deref()
        .and_then(|data| data.offer.as_ref());
    let place = job.job_provisioning_data.as_deref();
    let whole = || place.map(|place| &place.instance_type.resources);
    offer.map(|offer| &offer.instance.resources).or_else(whole)
}

fn metrics(points: &[MetricsPoint], resources: Option<&Resources>) -> Vec<Metric> {
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
    if let Some(resources) = resources {
        found.push(constant("cpus_detected_num", resources.cpus));
        found.push(constant(
            "memory_total_bytes",
            resources.memory_mib.saturating_mul(1024 * 1024),
        ));
    }
    found.extend(network(points));
    let gpus = shown
        .first()
        .map_or(0, |point| point.gpus_memory_usage_bytes.len());
    let has_all = |point: &MetricsPoint| {
        [&point.gpus_memory_usage_bytes, &point.gpus_util_percent]
            .iter()
            .all(|values| values.len() == gpus)
    };
    // Where their number changed, nobody knows which is which.
    if !shown.iter().all(has_all) {
        return found;
    }
    found.push(constant("gpus_detected_num", i64::try_from(gpus).unwrap_or(0)));
    if let Some(gpu) = resources.and_then(|resources| resources.gpus.first()) {
        found.push(constant(
            "gpu_memory_total_bytes",
            gpu.memory_mib.saturating_mul(1024 * 1024),
        ));
    }
    found.extend((0..gpus).map(|place| {
        of(&format!("gpu_memory_usage_bytes_gpu{place}"), &|point| {
            json!(point.gpus_memory_usage_bytes.get(place))
        })
    }));
    found.extend((0..gpus).map(|place| {
        of(&format!("gpu_util_percent_gpu{place}"), &|point| {
            json!(point.gpus_util_percent.get(place))
        })
    }));
    found
}

/// What went through the job's own network between two points each. Points without that are left out, and so are those before which
/// its counters began anew; a metric without points as well.
fn network(points: &[MetricsPoint]) -> impl Iterator<Item = Metric> {
    let received: Bytes = |point| point.network_receive_bytes;
    let sent: Bytes = |point| point.network_transmit_bytes;
    let both = [
        ("network_receive_bytes_per_second", received),
        ("network_transmit_bytes_per_second", sent),
    ];
    both.into_iter().filter_map(|(name, bytes)| {
        let rates = points.windows(2).filter_map(|pair| rate(pair, bytes));
        let (timestamps, values): (Vec<Time>, Vec<Value>) = rates.unzip();
        (!values.is_empty()).then(|| Metric {
            name: name.to_owned(),
            timestamps,
            values,
        })
    })
}

type Bytes = fn(&MetricsPoint) -> Option<i64>;

/// Bytes a second between two points, newest first, and when; whole ones.
fn rate(pair: &[MetricsPoint], bytes: Bytes) -> Option<(Time, Value)> {
    let [newer, older] = pair else { return None };
    let elapsed = i128::from(newer.at.as_micros()) - i128::from(older.at.as_micros());
    let passed = i128::from(bytes(newer)?) - i128::from(bytes(older)?);
    if elapsed <= 0 || passed < 0 {
        return None;
    }
    let rate = passed * 1_000_000 / elapsed;
    Some((newer.at, json!(i64::try_from(rate).unwrap_or(i64::MAX))))
}

/// Percent of one CPU between two points, newest first; rounded as Python rounds.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)] // percents
fn cpu_percent(pair: &[MetricsPoint]) -> i64 {
    let [newer, older] = pair else { return 0 };
    let elapsed = newer.at.as_micros().saturating_sub(older.at.as_micros());
    let used = newer.cpu_usage_micro.saturating_sub(older.cpu_usage_micro);
    match elapsed {
        ..=0 => 0,
        elapsed => (used as f64 / elapsed as f64 * 100.0).round_ties_even() as i64,
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
            ..MetricsPoint::default()
        }
    }

    #[test]
    fn usage_is_the_difference_of_two_points() {
        let second = |cpu: i64| cpu_percent(&[point(2_000_000, cpu), point(1_000_000, 0)]);
        assert_eq!(second(1_500_000), 150);
        assert_eq!(second(996_000), 100);
        assert_eq!((second(5_000), second(15_000)), (0, 2));
        assert_eq!(cpu_percent(&[point(5, 5), point(5, 0)]), 0);
    }

    fn with_network(second: i64, received: Option<i64>, sent: Option<i64>) -> MetricsPoint {
        MetricsPoint {
            network_receive_bytes: received,
            network_transmit_bytes: sent,
            ..point(second * 1_000_000, 0)
        }
    }

    /// Seconds and rates of each metric, newest first.
    fn network_metrics(points: &[MetricsPoint]) -> Vec<(String, Vec<(i64, Value)>)> {
        let all = metrics(points, None).into_iter();
        let all = all.filter(|metric| metric.name.starts_with("network"));
        all.map(|metric| {
            let seconds = metric.timestamps.iter().map(|at| at.as_micros() / 1_000_000);
            (metric.name, seconds.zip(metric.values).collect())
        })
        .collect()
    }

    #[test]
    fn the_network_is_told_in_bytes_a_second_where_it_is_the_jobs_own() {
        let points = [
            with_network(40, Some(700), Some(i64::MAX)),
            with_network(30, Some(500), Some(0)),
            // The counters began anew.
            with_network(20, Some(9_000), Some(4_000)),
            with_network(10, Some(1_001), Some(4_000)),
            with_network(0, None, Some(0)),
        ];
        let expected = [
            (
                "network_receive_bytes_per_second".to_owned(),
                vec![(40, json!(20)), (20, json!(799))],
            ),
            (
                "network_transmit_bytes_per_second".to_owned(),
                vec![(40, json!(i64::MAX / 10)), (20, json!(0)), (10, json!(400))],
            ),
        ];
        assert_eq!(network_metrics(&points), expected);
        let none = [with_network(20, None, None), with_network(10, None, None)];
        assert_eq!(network_metrics(&none), []);
        let at_once = [with_network(10, Some(2), None), with_network(10, Some(1), None)];
        assert_eq!(network_metrics(&at_once), []);
    }

    fn with_gpus(at: i64, used: &[i64]) -> MetricsPoint {
        MetricsPoint {
            gpus_memory_usage_bytes: used.to_vec(),
            gpus_util_percent: used.to_vec(),
            ..point(at, 0)
        }
    }

    fn gpu_metrics(points: &[MetricsPoint]) -> Vec<String> {
        let all = metrics(points, None).into_iter().map(|metric| metric.name);
        all.filter(|name| name.starts_with("gpu")).collect()
    }

    #[test]
    fn gpus_are_told_by_what_is_measured_as_long_as_their_number_stays() {
        let both = [
            "gpus_detected_num",
            "gpu_memory_usage_bytes_gpu0",
            "gpu_memory_usage_bytes_gpu1",
            "gpu_util_percent_gpu0",
            "gpu_util_percent_gpu1",
        ];
        let two = |at| with_gpus(at, &[1, 2]);
        assert_eq!(gpu_metrics(&[two(3), two(2), two(1)]), both);
        // The oldest is there for the difference only.
        assert_eq!(gpu_metrics(&[two(3), two(2), with_gpus(1, &[1])]), both);
        assert_eq!(
            gpu_metrics(&[two(3), with_gpus(2, &[1]), two(1)]),
            Vec::<String>::new()
        );
    }
}
