//! How much one request or configuration file may ask for, so that a small text cannot make the server build millions of
//! things. dstack 0.22.5 has no such limits.
//!
//! They hold for requests and files ([`Mode::Strict`](crate::decode::Mode::Strict)). What is stored, and what peers answer,
//! is read whatever it asks for: a run that was accepted by an earlier version can still be shown and stopped.

use dstack_units::Range;

use crate::configurations::{NodeGroup, ReplicaGroup};
use crate::fleets::FleetNodesSpec;

pub use dstack_decode::MAX_ITEMS;

/// Most nodes of a task, or replicas of a service, all groups together.
pub const MAX_JOBS_OF_RUN: i64 = 2_000;

/// Most groups of nodes or replicas of a run: each is planned by itself.
pub const MAX_GROUPS: usize = 100;

/// Most instances that a fleet is to have at least (`nodes.min`), or at first (`nodes.target`): all of them are created at
/// once.
pub const MAX_FLEET_INSTANCES: i64 = 10_000;

/// Highest `nodes.max` of a fleet: an upper bound that creates nothing by itself.
pub const MAX_FLEET_UPPER_BOUND: i64 = 1_000_000;

/// Most rows of a page of lists without a smaller limit of their own.
pub const MAX_PAGE: i64 = 10_000;

/// Checks the number of nodes of a task.
///
/// # Errors
/// There are more than [`MAX_JOBS_OF_RUN`].
pub fn check_nodes(nodes: i64) -> Result<(), String> {
    check_number("A task can have", nodes, MAX_JOBS_OF_RUN, "nodes")
}

/// Checks the number of replicas of a service.
///
/// # Errors
/// There are more than [`MAX_JOBS_OF_RUN`].
pub fn check_replicas(replicas: i64) -> Result<(), String> {
    check_number("A service can have", replicas, MAX_JOBS_OF_RUN, "replicas")
}

/// Checks the size of a fleet.
///
/// # Errors
/// It is to start with more instances than [`MAX_FLEET_INSTANCES`], or may have more than [`MAX_FLEET_UPPER_BOUND`].
pub fn check_fleet(size: &FleetNodesSpec) -> Result<(), String> {
    fleet_instances(&size.min)?;
    fleet_instances(&size.target)?;
    fleet_upper_bound(&size.max)
}

pub(crate) fn optional_nodes(nodes: &Option<i64>) -> Result<(), String> {
    check_nodes(nodes.unwrap_or(0))
}

pub(crate) fn replica_range(replicas: &Range<i64>) -> Result<(), String> {
    check_replicas(most_replicas(replicas))
}

pub(crate) fn optional_replica_range(replicas: &Option<Range<i64>>) -> Result<(), String> {
    replicas.as_ref().map_or(Ok(()), replica_range)
}

pub(crate) fn node_groups(groups: &Option<Vec<NodeGroup>>) -> Result<(), String> {
    let groups = groups.as_deref().unwrap_or_default();
    check_group_count(groups.len())?;
    check_nodes(sum(groups.iter().map(|group| group.nodes)))
}

pub(crate) fn replica_groups(groups: &Option<Vec<ReplicaGroup>>) -> Result<(), String> {
    let groups = groups.as_deref().unwrap_or_default();
    check_group_count(groups.len())?;
    check_replicas(sum(groups.iter().map(|group| most_replicas(&group.replicas))))
}

pub(crate) fn fleet_instances(instances: &i64) -> Result<(), String> {
    check_number(
        "A fleet can start with",
        *instances,
        MAX_FLEET_INSTANCES,
        "instances",
    )
}

pub(crate) fn fleet_upper_bound(max: &Option<i64>) -> Result<(), String> {
    let max = max.unwrap_or(0);
    check_number("A fleet can have", max, MAX_FLEET_UPPER_BOUND, "instances")
}

/// The sum, or the largest number where that is more.
pub fn sum(numbers: impl Iterator<Item = i64>) -> i64 {
    numbers.fold(0, i64::saturating_add)
}

fn most_replicas(replicas: &Range<i64>) -> i64 {
    replicas.max.or(replicas.min).unwrap_or(0)
}

fn check_group_count(groups: usize) -> Result<(), String> {
    match groups > MAX_GROUPS {
        true => Err(format!(
            "A run can have at most {MAX_GROUPS} groups, not {groups}"
        )),
        false => Ok(()),
    }
}

fn check_number(can_have: &str, number: i64, most: i64, what: &str) -> Result<(), String> {
    match number > most {
        true => Err(format!("{can_have} at most {most} {what}, not {number}")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::configurations::AnyRunConfiguration;
    use crate::decode::{Decode, MAX_PROBLEMS, decode_lenient, decode_strict};
    use crate::fleets::FleetConfiguration;

    /// Place and text of the one problem of a request; nothing is wrong with it where it is stored.
    fn refused<T: Decode>(asked: &Value) -> String {
        let Err(problems) = decode_strict::<T>(asked) else {
            panic!("{asked} was accepted");
        };
        assert!(decode_lenient::<T>(asked).is_ok(), "stored: {asked}");
        let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
        texts.join("; ")
    }

    #[allow(clippy::needless_pass_by_value)] // `json!` values
    fn task(key: &str, value: Value) -> Value {
        json!({"type": "task", "image": "x", key: value})
    }

    #[allow(clippy::needless_pass_by_value)] // `json!` values
    fn service(key: &str, value: Value) -> Value {
        json!({"type": "service", "image": "x", "port": 80, key: value})
    }

    fn replicas(min: i64, max: i64) -> Value {
        json!({"replicas": {"min": min, "max": max}, "scaling": {"metric": "rps", "target": 1}})
    }

    #[test]
    fn runs_of_too_many_jobs_are_refused_at_the_field() {
        let run = refused::<AnyRunConfiguration>;
        assert_eq!(
            run(&task("nodes", json!(1_000_000_000))),
            "nodes: A task can have at most 2000 nodes, not 1000000000"
        );
        let halves = json!([{"nodes": 1500, "commands": ["a"]}, {"nodes": i64::MAX, "commands": ["b"]}]);
        assert_eq!(
            run(&task("groups", halves)),
            format!("groups: A task can have at most 2000 nodes, not {}", i64::MAX)
        );
        assert_eq!(
            run(&service("replicas", json!(2001))),
            "replicas: A service can have at most 2000 replicas, not 2001"
        );
        let mut scaled = replicas(0, 3000);
        scaled["type"] = json!("service");
        scaled["image"] = json!("x");
        scaled["port"] = json!(80);
        assert_eq!(
            run(&scaled),
            "replicas: A service can have at most 2000 replicas, not 3000"
        );
        let groups = json!([replicas(0, 1500), replicas(1, 501)]);
        assert_eq!(
            run(&service("groups", groups)),
            "groups: A service can have at most 2000 replicas, not 2001"
        );
    }

    #[test]
    fn the_largest_run_is_accepted() {
        let accepted = |asked: Value| decode_strict::<AnyRunConfiguration>(&asked).is_ok();
        assert!(accepted(task("nodes", json!(MAX_JOBS_OF_RUN))));
        assert!(accepted(service("replicas", json!(MAX_JOBS_OF_RUN))));
        let groups = vec![json!({"nodes": 20, "commands": ["a"]}); MAX_GROUPS];
        assert!(accepted(task("groups", json!(groups))));
    }

    #[test]
    fn too_many_groups_are_refused() {
        let groups = vec![json!({"commands": ["a"]}); MAX_GROUPS + 1];
        assert_eq!(
            refused::<AnyRunConfiguration>(&task("groups", json!(groups))),
            "groups: A run can have at most 100 groups, not 101"
        );
    }

    #[test]
    fn fleets_of_too_many_instances_are_refused_at_the_field() {
        let fleet = |nodes: Value| refused::<FleetConfiguration>(&json!({"type": "fleet", "nodes": nodes}));
        let most = "A fleet can start with at most 10000 instances, not 10001";
        assert_eq!(
            fleet(json!({"min": 10_001})),
            format!("nodes.min: {most}; nodes.target: {most}")
        );
        assert_eq!(
            fleet(json!({"min": 0, "target": 10_001})),
            format!("nodes.target: {most}")
        );
        assert_eq!(
            fleet(json!("0..1000000000")),
            "nodes.max: A fleet can have at most 1000000 instances, not 1000000000"
        );
    }

    #[test]
    fn long_lists_and_mappings_are_refused() {
        let items = vec!["true"; MAX_ITEMS + 1];
        assert_eq!(
            refused::<AnyRunConfiguration>(&task("commands", json!(items))),
            "commands: List should have at most 10000 items after validation, not 10001"
        );
        let entries: serde_json::Map<String, Value> = (0..=MAX_ITEMS)
            .map(|number| (format!("A{number}"), json!("x")))
            .collect();
        let text = refused::<AnyRunConfiguration>(&task("env", json!(entries)));
        assert!(
            text.contains("env: Dictionary should have at most 10000 items after validation, not 10001"),
            "{text}"
        );
    }

    #[test]
    fn what_is_said_of_a_bad_document_is_bounded() {
        let entries: serde_json::Map<String, Value> = (0..50_000)
            .map(|number| (format!("key{number}"), json!(0)))
            .collect();
        let mut document = Value::Object(entries);
        document["type"] = json!("task");
        document["commands"] = json!(["x".repeat(1_000_000)]);
        document["image"] = json!(["y".repeat(1_000_000)]);
        let problems = decode_strict::<AnyRunConfiguration>(&document).unwrap_err();
        assert_eq!(problems.len(), MAX_PROBLEMS);
        let answer = crate::decode::problem::validation_body("body", &problems).to_string();
        assert!(answer.len() < 100_000, "{} bytes", answer.len());
        assert!(answer.contains("yyyy…"), "of long texts the beginning is shown");
    }
}
