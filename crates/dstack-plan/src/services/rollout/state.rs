//! A roll-out under way that is not merely rolling, as it is stored with its run.

use std::collections::BTreeSet;

use dstack_model::configurations::service::{
    ReplicaGroup, RolloutSpec, RolloutStrategy, ServiceConfiguration,
};
use dstack_model::runs::{RunSpec, ServiceSpec};
use dstack_units::Time;
use serde::{Deserialize, Serialize};

use crate::PlanError;
use crate::diff::changed_fields;

/// A roll-out, under way or rolled back. What the run asked for before is stored apart: it may have secrets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rollout {
    /// Number of the new deployment.
    pub deployment: i64,
    /// Number of the deployment before.
    pub from_deployment: i64,
    /// When the last job was submitted that was there as it began: jobs of the new deployment that are no later are as they were.
    pub after: Time,
    /// How far it is.
    pub phase: Phase,
    /// Since when it is so far.
    pub since: Time,
    /// What somebody has asked for, and was not done yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<Ask>,
    /// URL and model of the service before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_spec: Option<ServiceSpec>,
    /// Groups that were found to stay as they are: they do so when their replicas are made again.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub kept: BTreeSet<String>,
}

/// How far a roll-out is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// New replicas get ready beside the old ones, and get those requests only that have the header.
    Preparing,
    /// Canary: new replicas get their share, and are watched.
    Watching,
    /// Blue/green: all new replicas are ready, and the switch waits to be asked for.
    Ready,
    /// Blue/green: all requests go to the new replicas; the old ones are kept.
    Kept,
    /// Canary: what was watched was well; the others are replaced one after another.
    Following,
    /// The run is as it was before, for this reason.
    RolledBack(String),
}

impl Phase {
    /// Whether the new deployment has yet to show that it can replace the old one.
    pub const fn is_unproven(&self) -> bool {
        matches!(self, Self::Preparing | Self::Watching | Self::Ready)
    }

    /// Whether it is over.
    pub const fn is_over(&self) -> bool {
        matches!(self, Self::RolledBack(_))
    }
}

/// What may be asked for by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// The new deployment goes on.
    Promote,
    /// The old deployment is back.
    Abort,
}

/// The rules by which a run is rolled out; `None`: its replicas are replaced one after another.
pub fn gradual(run: &RunSpec) -> Option<&RolloutSpec> {
    rules(run.configuration.service()?)
}

/// As [`gradual`].
pub fn rules(service: &ServiceConfiguration) -> Option<&RolloutSpec> {
    let rollout = service.rollout.as_ref()?;
    (rollout.effective_strategy() != RolloutStrategy::Rolling).then_some(rollout)
}

/// Whether each group of a service that is rolled out has replicas beside which its new ones can stand.
///
/// # Errors
/// A group has none, by its name: they would get requests before they have shown what they are good for.
pub fn check_groups(before: &RunSpec, after: &RunSpec) -> Result<(), PlanError> {
    let (Some(rules), Some(new)) = (gradual(after), after.configuration.service()) else {
        return Ok(());
    };
    let Some(old) = before.configuration.service() else {
        return Ok(());
    };
    let old = old.replica_groups();
    let is_added = |name: &String| old.iter().all(|group| group.name.as_ref() != Some(name));
    let names = new.replica_groups().into_iter().filter_map(|group| group.name);
    match names.into_iter().find(is_added) {
        None => Ok(()),
        Some(name) => Err(PlanError::new(format!(
            "Replica group `{name}` is new or has another name, and `rollout.strategy: {}` has no replicas of it to put the new ones \
             beside. Apply that change with `strategy: rolling` first",
            rules.effective_strategy()
        ))),
    }
}

/// What may change although no replica is made of it, or is told of each group.
const FIELDS_OF_NO_REPLICA: [&str; 6] = [
    "configuration_path",
    "configuration.groups",
    "configuration.replicas",
    "configuration.scaling",
    "configuration.rollout",
    "configuration.priority",
];

/// Groups of whose replicas the specification of a new deployment makes the same as that of the one before. There may be others,
/// whose replicas are the same although something has changed.
pub fn same_groups(before: &RunSpec, after: &RunSpec) -> BTreeSet<String> {
    let (Some(old), Some(new)) = (before.configuration.service(), after.configuration.service()) else {
        return BTreeSet::new();
    };
    let changed = changed_fields(before, after);
    if !changed
        .iter()
        .all(|field| FIELDS_OF_NO_REPLICA.contains(&field.as_str()))
    {
        return BTreeSet::new();
    }
    let (old, new) = (old.replica_groups(), new.replica_groups());
    let is_same = |group: &&ReplicaGroup| {
        old.iter().any(|old| {
            let (replicas, scaling) = (group.replicas, group.scaling.clone());
            let as_many = ReplicaGroup {
                replicas,
                scaling,
                ..old.clone()
            };
            as_many == **group
        })
    };
    new.iter()
        .filter(is_same)
        .filter_map(|group| group.name.clone())
        .collect()
}

impl Rollout {
    /// A roll-out that begins now; the last job that there is was submitted then.
    pub const fn begin((deployment, from_deployment): (i64, i64), after: Time, now: Time) -> Self {
        Self {
            deployment,
            from_deployment,
            after,
            phase: Phase::Preparing,
            since: now,
            asked: None,
            service_spec: None,
            kept: BTreeSet::new(),
        }
    }

    /// From now on it is so far.
    pub fn enter(&mut self, phase: Phase, now: Time) {
        self.phase = phase;
        self.since = now;
        self.asked = None;
    }

    /// Whether a job belongs to the new deployment, and was not there before.
    pub fn is_new(&self, deployment: i64, submitted_at: Time) -> bool {
        deployment == self.deployment && submitted_at > self.after
    }

    /// What keeps it from going on where its gateway cannot split requests, and what can be done about it; `None`: it needs that no
    /// more.
    pub fn unsplit(&self, strategy: RolloutStrategy, run_name: &str) -> Option<String> {
        let remedy = match (&self.phase, strategy) {
            (Phase::Following | Phase::RolledBack(_), _) => return None,
            (_, RolloutStrategy::Canary) => format!(
                "`dstack rollout {run_name} --promote` replaces the replicas one after another, without watching the new ones, and \
                 `--abort` goes back"
            ),
            _ => format!(
                "`dstack rollout {run_name} --abort` goes back, and `strategy: rolling` replaces the replicas one after another"
            ),
        };
        Some(format!(
            "a replica of its gateway runs a version that cannot split requests, so that the new replicas get none until it is updated: {remedy}"
        ))
    }

    /// Jobs of earlier deployments than this do not matter any more once they have ended.
    pub const fn oldest_deployment(&self) -> i64 {
        match self.phase.is_unproven() {
            true => self.from_deployment,
            false => self.deployment,
        }
    }
}

#[cfg(test)]
mod tests {
    use dstack_model::decode::decode_strict;
    use serde_json::{Value, json};

    use super::*;

    fn run(fields: &Value) -> RunSpec {
        let mut service = json!({"type": "service", "port": 80});
        for (key, value) in fields.as_object().unwrap() {
            service[key] = value.clone();
        }
        decode_strict(&json!({"repo_id": "r", "configuration": service})).unwrap()
    }

    fn groups(names: &[&str], strategy: &str) -> RunSpec {
        let group = |name: &&str| json!({"name": name, "replicas": 1, "commands": ["a"]});
        let groups: Vec<Value> = names.iter().map(group).collect();
        run(&json!({"groups": groups, "rollout": {"strategy": strategy}}))
    }

    #[test]
    fn what_to_do_about_a_gateway_that_cannot_split_requests_depends_on_how_far_it_is() {
        let at = |phase: Phase, strategy| {
            let now = Time::from_millis(1_790_000_000_000);
            let mut rollout = Rollout::begin((2, 1), now, now);
            rollout.enter(phase, now);
            rollout.unsplit(strategy, "web")
        };
        let canary = at(Phase::Preparing, RolloutStrategy::Canary).unwrap();
        assert!(
            canary.contains("`dstack rollout web --promote` replaces"),
            "{canary}"
        );
        let green = at(Phase::Preparing, RolloutStrategy::BlueGreen).unwrap();
        assert!(
            !green.contains("--promote") && green.contains("`strategy: rolling`"),
            "{green}"
        );
        assert_eq!(at(Phase::Following, RolloutStrategy::Canary), None);
        assert_eq!(
            at(Phase::RolledBack(String::new()), RolloutStrategy::Canary),
            None
        );
    }

    #[test]
    fn groups_are_the_same_whose_replicas_are_made_of_the_same() {
        let grouped = |commands: [&str; 2], replicas: i64, env: &Value| {
            let group = |name: &str, command: &str| json!({"name": name, "replicas": replicas, "commands": [command]});
            let groups = json!([group("a", commands[0]), group("b", commands[1])]);
            run(&json!({"groups": groups, "env": env}))
        };
        let before = grouped(["one", "two"], 1, &json!({}));
        let same = |after: &RunSpec| same_groups(&before, after).into_iter().collect::<Vec<_>>();
        assert_eq!(same(&grouped(["one", "two"], 3, &json!({}))), ["a", "b"]);
        assert_eq!(same(&grouped(["new", "two"], 3, &json!({}))), ["b"]);
        assert_eq!(same(&grouped(["one", "two"], 1, &json!({"A": "1"}))), [""; 0]);
    }

    #[test]
    fn groups_without_old_replicas_cannot_stand_beside_any() {
        let plain = run(&json!({"commands": ["a"]}));
        let two = groups(&["a", "b"], "rolling");
        for (before, after) in [
            (&plain, groups(&["a"], "canary")),
            (&two, groups(&["a", "c"], "blue_green")),
        ] {
            let refused = check_groups(before, &after).unwrap_err().to_string();
            assert!(refused.contains("with `strategy: rolling` first"), "{refused}");
        }
        for after in [groups(&["b"], "canary"), groups(&["a", "c"], "rolling"), plain] {
            assert_eq!(
                check_groups(&two, &after).map_err(|error| error.to_string()),
                Ok(())
            );
        }
    }
}
