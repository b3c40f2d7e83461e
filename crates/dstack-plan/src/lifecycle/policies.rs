//! Policies that end what is not used (dstack 0.22.5: pipelines §6.3 and §8.1).

use std::time::Duration;

use dstack_model::configurations::DevEnvironmentConfiguration;
use dstack_model::profiles::UtilizationPolicy;
use dstack_units::{IdleDuration, Time};

/// How late the oldest sample may be for the window to count as covered.
const COVERED: Duration = Duration::from_secs(60);

/// Utilization of one GPU in percent, oldest sample first.
pub type Samples = [(Time, i64)];

/// Why a job ends for leaving a GPU idle; `None` when it stays. `gpus` has the samples of each; those before the window
/// do not count.
pub fn unused_gpus(policy: &UtilizationPolicy, gpus: &[&Samples], now: Time) -> Option<String> {
    let window = Duration::from_secs(u64::try_from(policy.time_window.0).unwrap_or(0));
    let within = |at: Time| now.since(at) <= window;
    let in_window: Vec<Vec<(Time, i64)>> = gpus
        .iter()
        .map(|samples| samples.iter().filter(|(at, _)| within(*at)).copied().collect())
        .collect();
    let oldest = in_window.first()?.first()?.0;
    if now.since(oldest) + COVERED < window {
        return None;
    }
    let unused = |samples: &Vec<(Time, i64)>| {
        samples
            .iter()
            .all(|(_, percent)| *percent < policy.min_gpu_utilization)
    };
    in_window.iter().any(unused).then(|| {
        format!(
            "The job GPU utilization below {}% for {} seconds",
            policy.min_gpu_utilization, policy.time_window.0
        )
    })
}

/// Whether a dev environment has had no connections for too long.
pub fn inactive(dev: &DevEnvironmentConfiguration, without_connections: Duration) -> bool {
    let allowed = dev
        .inactivity_duration
        .and_then(|seconds| u64::try_from(seconds).ok());
    allowed.is_some_and(|allowed| without_connections >= Duration::from_secs(allowed))
}

/// What decides whether an idle instance goes.
#[derive(Debug, Clone, Copy)]
pub struct Idle {
    /// How long it may be idle.
    pub allowed: IdleDuration,
    /// When its last job left, or when it came up.
    pub since: Time,
    /// Instances of its fleet that are not going.
    pub active_in_fleet: i64,
    /// `nodes.min` of its fleet.
    pub kept_in_fleet: i64,
}

/// When an idle instance goes; `None` when it stays.
pub fn idle_until(idle: &Idle) -> Option<Time> {
    if idle.active_in_fleet <= idle.kept_in_fleet {
        return None;
    }
    let allowed = u64::try_from(idle.allowed.0).ok()?;
    Some(idle.since + Duration::from_secs(allowed))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(minutes: u64) -> Time {
        "2026-01-01T00:00:00+00:00".parse::<Time>().unwrap() + Duration::from_secs(60 * minutes)
    }

    #[test]
    fn a_gpu_that_does_little_for_long_ends_the_job() {
        let policy: UtilizationPolicy =
            serde_json::from_value(json!({"min_gpu_utilization": 10, "time_window": "10m"})).unwrap();
        let constant =
            |percent: i64, from: u64| -> Vec<(Time, i64)> { (from..=20).map(|m| (at(m), percent)).collect() };
        let (busy, lazy) = (constant(90, 0), constant(9, 0));
        let verdict = |gpus: &[&Samples]| unused_gpus(&policy, gpus, at(20));
        assert_eq!(verdict(&[&busy]), None);
        assert_eq!(
            verdict(&[&busy, &lazy]).unwrap(),
            "The job GPU utilization below 10% for 600 seconds"
        );
        assert_eq!(verdict(&[&constant(9, 12)]), None, "not enough samples yet");
        assert!(verdict(&[&constant(9, 11)]).is_some());
        assert_eq!(verdict(&[]), None);
        let mut once = lazy.clone();
        once[15].1 = 50;
        assert_eq!(verdict(&[&once]), None);
    }

    #[test]
    fn dev_environments_end_when_nobody_is_connected() {
        let dev = |value: serde_json::Value| -> DevEnvironmentConfiguration {
            serde_json::from_value(json!({"type": "dev-environment", "inactivity_duration": value})).unwrap()
        };
        let hour = Duration::from_secs(3600);
        assert!(inactive(&dev(json!("1h")), hour));
        assert!(!inactive(&dev(json!("2h")), hour));
        assert!(!inactive(&dev(json!("off")), hour));
        assert!(!inactive(&dev(json!(null)), hour));
    }

    #[test]
    fn idle_instances_go_unless_the_fleet_keeps_them() {
        let idle = Idle {
            allowed: IdleDuration(600),
            since: at(0),
            active_in_fleet: 2,
            kept_in_fleet: 1,
        };
        assert_eq!(idle_until(&idle), Some(at(10)));
        assert_eq!(
            idle_until(&Idle {
                kept_in_fleet: 2,
                ..idle
            }),
            None
        );
        assert_eq!(
            idle_until(&Idle {
                allowed: IdleDuration::OFF,
                ..idle
            }),
            None
        );
    }
}
