//! What a running job uses, measured now and then: for users, and for the policy that ends jobs whose GPUs do nothing.

use std::sync::Arc;
use std::time::Duration;

use dstack_agent_api::runner::Metrics;
use dstack_model::profiles::UtilizationPolicy;
use dstack_plan::lifecycle::policies::unused_gpus;
use dstack_store::EntityRef;
use dstack_store::queries::metrics::MetricsPoint;
use dstack_system::clock::sleep_until;
use dstack_units::{JobId, Time};

use crate::context::Context;
use crate::{Result, Runner, operations};

/// As often as dstack 0.22.5 does.
const EVERY: Duration = Duration::from_secs(10);

/// Most GPUs of a host whose use is kept. The runner is in the job's container: what it says is not to be trusted.
const MAX_GPUS: usize = 256;

/// Measures the job until it is dropped.
pub(super) async fn sample(ctx: &Arc<Context>, id: JobId) {
    loop {
        match find(ctx, id).await {
            Ok(Some(measured)) => measured.until_out_of_reach(ctx).await,
            Ok(None) => {}
            Err(error) => ctx.report("measure what a job uses", &error),
        }
        pause(ctx).await;
    }
}

async fn pause(ctx: &Context) {
    sleep_until(ctx.deps.clock.as_ref(), ctx.now() + EVERY).await;
}

/// A job that runs. It is read once, since that decrypts its specification, and again when its agent was out of reach.
struct Measured {
    id: JobId,
    runner: Arc<dyn Runner>,
    policy: Option<UtilizationPolicy>,
}

async fn find(ctx: &Context, id: JobId) -> Result<Option<Measured>> {
    let Some(snapshot) = ctx.deps.store.job(id).await? else {
        return Ok(None);
    };
    let runner = match snapshot.instance.as_ref().and_then(|row| row.agent.as_ref()) {
        Some(address) => operations::runner_of(ctx, &snapshot, address).await?,
        None => None,
    };
    Ok(runner.map(|runner| Measured {
        id,
        runner,
        policy: snapshot.job.job_spec.utilization_policy.clone(),
    }))
}

impl Measured {
    async fn until_out_of_reach(&self, ctx: &Context) {
        loop {
            match self.runner.metrics().await {
                Ok(Some(metrics)) => {
                    if let Err(error) = self.keep(ctx, &metrics).await {
                        ctx.report("keep what a job uses", &error);
                    }
                }
                // Nothing to measure with will not come up later.
                Ok(None) => return std::future::pending().await,
                Err(error) => {
                    tracing::debug!(job.id = %self.id, %error, "what the job uses is not known just now");
                    return;
                }
            }
            pause(ctx).await;
        }
    }

    async fn keep(&self, ctx: &Context, metrics: &Metrics) -> Result<()> {
        let point = point(metrics, ctx.now());
        ctx.deps.store.add_metrics(self.id, point).await?;
        match &self.policy {
            Some(policy) => judge(ctx, self.id, policy).await,
            None => Ok(()),
        }
    }
}

fn point(metrics: &Metrics, now: Time) -> MetricsPoint {
    let gpus = metrics.gpus.iter().take(MAX_GPUS);
    let bytes = |count: Option<i64>| count.filter(|count| *count >= 0);
    MetricsPoint {
        // Points are deleted when they are old: one of the future would stay.
        at: Time::from_micros(metrics.timestamp_micro).min(now),
        cpu_usage_micro: metrics.cpu_usage_micro,
        memory_usage_bytes: metrics.memory_usage_bytes,
        memory_working_set_bytes: metrics.memory_working_set_bytes,
        gpus_memory_usage_bytes: gpus.clone().map(|gpu| gpu.gpu_memory_usage_bytes).collect(),
        gpus_util_percent: gpus.map(|gpu| gpu.gpu_util_percent).collect(),
        network_receive_bytes: bytes(metrics.network_receive_bytes),
        network_transmit_bytes: bytes(metrics.network_transmit_bytes),
    }
}

/// Whether its GPUs did something within the policy's window.
async fn judge(ctx: &Context, id: JobId, policy: &UtilizationPolicy) -> Result<()> {
    let now = ctx.now();
    let window = Duration::from_secs(u64::try_from(policy.time_window.0).unwrap_or(0));
    let points = ctx.deps.store.metrics_since(id, now - window).await?;
    let gpus = points.last().map_or(0, |point| point.gpus_util_percent.len());
    let samples: Vec<Vec<(Time, i64)>> = (0..gpus)
        .map(|gpu| {
            let of_gpu = |point: &MetricsPoint| Some((point.at, *point.gpus_util_percent.get(gpu)?));
            points.iter().filter_map(of_gpu).collect()
        })
        .collect();
    let gpus: Vec<&[(Time, i64)]> = samples.iter().map(Vec::as_slice).collect();
    if let Some(message) = unused_gpus(policy, &gpus, now) {
        ctx.seen.update_job(id, |seen| seen.unused_gpus = Some(message));
        ctx.wakes.wake(EntityRef::Job(id));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use dstack_agent_api::runner::GpuMetrics;

    use super::*;

    #[test]
    fn what_a_runner_says_is_kept_within_bounds() {
        let now = Time::from_millis(1_790_000_000_000);
        let metrics = Metrics {
            timestamp_micro: i64::MAX,
            gpus: vec![GpuMetrics::default(); 10_000],
            network_receive_bytes: Some(5),
            network_transmit_bytes: Some(-5),
            ..Metrics::default()
        };
        let kept = point(&metrics, now);
        assert_eq!(kept.at, now);
        assert_eq!(kept.gpus_memory_usage_bytes.len(), MAX_GPUS);
        assert_eq!(kept.gpus_util_percent.len(), MAX_GPUS);
        assert_eq!(
            (kept.network_receive_bytes, kept.network_transmit_bytes),
            (Some(5), None)
        );
        let before = Metrics {
            timestamp_micro: now.as_micros() - 1,
            ..metrics
        };
        assert_eq!(point(&before, now).at.as_micros(), now.as_micros() - 1);
    }
}
