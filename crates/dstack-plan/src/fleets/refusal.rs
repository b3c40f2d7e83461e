//! What is told of a job that gets no place: the words of dstack 0.22.5, with the reasons in between.

use dstack_model::profiles::CreationPolicy;

use super::{Fleet, NoCapacity, Skipped, check_named, check_room};
use crate::placement::{Candidate, Request, Wants};

/// How many fleets or instances are named before "and … more".
const NAMED: usize = 3;
/// Clients tell jobs that found no fleet from those that found no capacity by this.
const NO_FLEET: &str = "No matching fleet found";
/// Clients show the link as it is.
const WHY_NO_FLEET: &str = "Possible reasons: https://dstack.ai/docs/guides/troubleshooting/#no-fleets";
const TROUBLESHOOTING: &str = "See https://dstack.ai/docs/guides/troubleshooting/#provisioning-fails";

/// Ends a message about capacity that was not found with where to read on.
pub(super) fn with_advice(message: &str) -> String {
    let end = if message.ends_with('.') { "" } else { "." };
    format!("{message}{end}\n{TROUBLESHOOTING}")
}

/// Returns why the fleet of this name does not grow for a job.
pub(crate) fn obstacle(fleet: &str, reason: &NoCapacity) -> String {
    match reason {
        NoCapacity::Full { .. } => format!("Fleet is at capacity: {fleet} {reason}"),
        _ => format!("Fleet {fleet} {reason}"),
    }
}

/// Returns why a job gets no place. `obstacle` is why the first of the fleets that could have grown does not.
pub(crate) fn refusal(request: &Request<'_>, fleets: &[&Fleet<'_>], obstacle: Option<&str>) -> String {
    let params = request.run_spec.merged_profile().params;
    if params.instances.is_some() {
        return "Failed to use specified instances".to_owned();
    }
    let mut eligible = fleets.iter().filter(|fleet| check(request, fleet).is_ok());
    let Some(fleet) = eligible.next() else {
        return match params.fleets {
            Some(_) => "Failed to use specified fleets".to_owned(),
            None => sentences(&[NO_FLEET, &skipped(request, fleets), WHY_NO_FLEET]),
        };
    };
    if params.creation_policy == Some(CreationPolicy::Reuse) {
        return "Could not reuse any instance for this job".to_owned();
    }
    if let Some(obstacle) = obstacle {
        return with_advice(obstacle);
    }
    let headline = no_offers(fleet.name);
    with_advice(&sentences(&[&headline, &unfit(request, &fleet.instances)]))
}

fn check(request: &Request<'_>, fleet: &Fleet<'_>) -> Result<(), Skipped> {
    check_named(request, fleet).and_then(|()| check_room(request, fleet))
}

/// The message for a fleet that nothing was offered for.
pub(super) fn no_offers(fleet: &str) -> String {
    format!("No offers matching the run requirements in fleet '{fleet}'")
}

fn sentences(parts: &[&str]) -> String {
    let parts: Vec<&str> = parts.iter().copied().filter(|part| !part.is_empty()).collect();
    parts.join(". ")
}

/// Why the job may not use these fleets.
fn skipped(request: &Request<'_>, fleets: &[&Fleet<'_>]) -> String {
    let why = |fleet: &&Fleet<'_>| match check(request, fleet).err()? {
        Skipped::TooSmall { .. } if !fleet.instances.is_empty() => Some(unfit(request, &fleet.instances)),
        reason => Some(format!("Fleet {} {reason}", fleet.name)),
    };
    let reasons: Vec<String> = fleets.iter().filter_map(why).collect();
    let total = reasons.len();
    listed(reasons.into_iter(), total)
}

/// Why none of these instances takes the job.
fn unfit(request: &Request<'_>, instances: &[Candidate<'_>]) -> String {
    let wants = Wants::new(*request);
    let why = |candidate: &Candidate<'_>| {
        let reason = match wants.share_of(candidate) {
            Ok(_) => "is busy".to_owned(),
            Err(unfit) => unfit.to_string(),
        };
        format!("{} {reason}", candidate.instance_name)
    };
    listed(instances.iter().map(why), instances.len())
}

/// The first few of `total` reasons.
fn listed(reasons: impl Iterator<Item = String>, total: usize) -> String {
    let mut named: Vec<String> = reasons.take(NAMED).collect();
    if total > named.len() {
        named.push(format!("and {} more", total - named.len()));
    }
    named.join("; ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::needless_pass_by_value)] // `json!` values

    use dstack_model::fleets::FleetSpec;
    use dstack_model::instances::InstanceStatus;
    use serde_json::{Value, json};
    use uuid::Uuid;

    use super::*;
    use crate::placement::FleetOwner;
    use crate::placement::tests::{Sample, run};

    /// What is told of a job with `more` in its configuration when there is this fleet, with one busy instance.
    fn told(fleet: Option<Value>, more: Value) -> String {
        let mut configuration = json!({"type": "task", "commands": ["x"]});
        let all = configuration.as_object_mut().unwrap();
        all.extend(more.as_object().unwrap().clone());
        let (run, jobs) = run(configuration);
        let request = Request::new(&run, &jobs[0]);
        let sample = Sample::new("any", 1.0);
        let busy = Candidate {
            status: InstanceStatus::Busy,
            busy_blocks: 1,
            fleet_name: "cloud",
            fleet_owner: FleetOwner::OWN,
            ..sample.candidate(1)
        };
        let spec: Option<FleetSpec> = fleet
            .map(|fleet| serde_json::from_value(json!({"configuration": fleet, "profile": {}})).unwrap());
        let fleets: Vec<Fleet<'_>> = spec
            .iter()
            .map(|spec| Fleet {
                id: Uuid::nil().into(),
                name: "cloud",
                project: Some("main"),
                own: true,
                spec,
                master: None,
                anchor_pending: false,
                instances: vec![busy],
            })
            .collect();
        refusal(&request, &fleets.iter().collect::<Vec<_>>(), None)
    }

    fn roomy() -> Option<Value> {
        Some(json!({"type": "fleet", "nodes": "0..4"}))
    }

    #[test]
    fn without_a_fleet_the_message_is_that_of_the_reference() {
        assert_eq!(
            told(None, json!({})),
            "No matching fleet found. Possible reasons: https://dstack.ai/docs/guides/troubleshooting/#no-fleets"
        );
    }

    #[test]
    fn what_is_wrong_with_the_fleets_is_told_before_the_advice() {
        let full = Some(json!({"type": "fleet", "nodes": "0..1"}));
        assert_eq!(
            told(full, json!({})),
            "No matching fleet found. fleet-0 is busy. Possible reasons: \
             https://dstack.ai/docs/guides/troubleshooting/#no-fleets"
        );
        assert!(
            told(roomy(), json!({"nodes": 2}))
                .starts_with("No matching fleet found. Fleet cloud is not a cluster")
        );
    }

    #[test]
    fn what_was_named_stands_alone() {
        assert_eq!(
            told(roomy(), json!({"fleets": ["other"]})),
            "Failed to use specified fleets"
        );
        assert_eq!(
            told(roomy(), json!({"instances": ["other-0"]})),
            "Failed to use specified instances"
        );
    }

    #[test]
    fn without_capacity_the_message_ends_with_the_advice() {
        assert_eq!(
            told(roomy(), json!({})),
            format!(
                "No offers matching the run requirements in fleet 'cloud'. fleet-0 is busy.\n{TROUBLESHOOTING}"
            )
        );
    }

    #[test]
    fn a_full_fleet_is_told_first_in_the_words_of_the_reference() {
        assert_eq!(
            obstacle("cloud", &NoCapacity::Full { max: 2 }),
            "Fleet is at capacity: cloud has 2 instances already, its `nodes.max`"
        );
        let ssh = obstacle("hosts", &NoCapacity::Ssh);
        assert!(ssh.starts_with("Fleet hosts is an SSH fleet"), "{ssh}");
    }

    #[test]
    fn what_may_not_be_made_is_not_missing() {
        assert_eq!(
            told(roomy(), json!({"creation_policy": "reuse"})),
            "Could not reuse any instance for this job"
        );
        // Without a fleet there is nothing to be reused either.
        assert!(told(None, json!({"creation_policy": "reuse"})).starts_with(NO_FLEET));
    }
}
