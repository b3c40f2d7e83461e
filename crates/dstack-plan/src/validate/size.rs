//! How large a run may be: each of its jobs has a copy of what it is made from.

use dstack_model::configurations::AnyRunConfiguration;
use dstack_model::limits;
use dstack_model::runs::RunSpec;

use crate::PlanError;

/// Most bytes of the copies in all jobs of a run together.
const MAX_BYTES_OF_JOBS: usize = 32 * 1024 * 1024;

/// Runs of so few jobs are not measured: a request for a plan has at most 2 MiB.
const FEW_JOBS: usize = 16;

/// Refuses a long configuration of many jobs.
pub(super) fn check(spec: &RunSpec) -> Result<(), PlanError> {
    let jobs = jobs_at_most(spec);
    if jobs <= FEW_JOBS {
        return Ok(());
    }
    // Plain data: cannot fail.
    let of_each = serde_json::to_vec(spec).map_or(0, |json| json.len());
    let most = MAX_BYTES_OF_JOBS / jobs;
    if of_each <= most {
        return Ok(());
    }
    Err(PlanError::new(format!(
        "The run is too large for {jobs} jobs: its configuration has {} KB, and {} KB is the most. Put long commands \
         and values into `files`",
        of_each.div_ceil(1024),
        most / 1024,
    )))
}

/// Jobs of the run, if its services are scaled up as far as they may be.
fn jobs_at_most(spec: &RunSpec) -> usize {
    let jobs = match &spec.configuration {
        AnyRunConfiguration::Task(task) => task.nodes_num(),
        AnyRunConfiguration::Service(service) => {
            let groups = service.replica_groups();
            limits::sum(groups.iter().map(|group| group.replicas.max.unwrap_or(0)))
        }
        AnyRunConfiguration::DevEnvironment(_) => 1,
    };
    usize::try_from(jobs).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn checked(mut configuration: Value, bytes: usize) -> Result<(), PlanError> {
        configuration["commands"] = json!(["x".repeat(bytes)]);
        let run: RunSpec = serde_json::from_value(json!({"configuration": configuration})).unwrap();
        check(&run)
    }

    #[test]
    fn long_configurations_are_for_few_jobs() {
        let task = |nodes| json!({"type": "task", "nodes": nodes});
        assert_eq!(checked(task(16), 2_000_000), Ok(()));
        assert_eq!(checked(task(200), 150_000), Ok(()));
        assert_eq!(checked(task(2_000), 10_000), Ok(()));
        let text = checked(task(2_000), 100_000).unwrap_err().0;
        assert!(
            text.starts_with("The run is too large for 2000 jobs: its configuration has ")
                && text.contains(" KB, and 16 KB is the most."),
            "{text}"
        );
    }

    #[test]
    fn services_count_with_all_replicas_that_they_may_get() {
        let scaling = json!({"metric": "rps", "target": 1});
        let service = |most| json!({"type": "service", "port": 80, "replicas": format!("1..{most}"), "scaling": scaling});
        assert_eq!(checked(service(16), 1_000_000), Ok(()));
        assert!(checked(service(200), 1_000_000).is_err());
    }
}
