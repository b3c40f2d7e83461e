//! Which replicas the router of a service is to have as its workers (dstack 0.22.5: pipelines §14). Compared is what the router lists
//! with the replicas that run: nothing needs to be remembered of what it was told before.

use std::collections::{BTreeMap, BTreeSet};

use dstack_model::configurations::{ReplicaGroup, RouterType, ServiceConfiguration};
use dstack_units::JobId;

/// Marks a worker as one of ours, with the id of its job (label of SMG's `WorkerSpec`; dstack 0.22.5 has the same).
pub const JOB_LABEL: &str = "dstack.ai/job-id";

/// The group whose replica gets all requests of a service and passes them on to the others; there is one at most.
pub fn router_group(service: &ServiceConfiguration) -> Option<&ReplicaGroup> {
    let groups = service.groups.as_deref().unwrap_or_default();
    groups.iter().find(|group| group.router.is_some())
}

/// The kind of the router that passes requests on to the replicas of this group; `None`: they are no workers.
pub fn worker_of(service: &ServiceConfiguration, group: &str) -> Option<RouterType> {
    let router = router_group(service)?;
    let is_worker = router.name.as_deref() != Some(group);
    router
        .router
        .as_ref()
        .filter(|_| is_worker)
        .map(|router| router.kind)
}

/// Whether the server tells the service's router which workers there are.
pub fn is_told_of_workers(service: &ServiceConfiguration) -> bool {
    let router = router_group(service).and_then(|group| group.router.as_ref());
    router.is_some_and(|router| router.kind == RouterType::Smg)
}

/// A worker as the router lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// By which the router knows it.
    pub id: String,
    /// Where the router reaches it.
    pub url: String,
    /// The job of its [`JOB_LABEL`]; `None`: somebody else has added it.
    pub job: Option<JobId>,
}

/// A replica that runs and is to be a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The job that the router is told of, by [`JOB_LABEL`].
    pub job: JobId,
    /// Host and port, as in the URL by which a router reaches it.
    pub address: String,
}

/// How what a router lists differs from what it is to have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Steps {
    /// Jobs that are among its workers, also those that go.
    pub has: BTreeSet<JobId>,
    /// Jobs that come.
    pub add: BTreeSet<JobId>,
    /// Jobs that cannot come, since another worker has their address.
    pub blocked: BTreeSet<JobId>,
    /// Ids of the workers that go.
    pub remove: BTreeSet<String>,
}

/// What is to be done so that the router has these replicas as workers, and none of ours besides. Workers that somebody else has
/// added stay, and a replica at the address of one is among the workers already.
pub fn steps(listed: &[Listed], wanted: &[Wanted]) -> Steps {
    let is_wanted = |job: JobId| wanted.iter().any(|one| one.job == job);
    let mut owners: BTreeMap<&str, Option<JobId>> = BTreeMap::new();
    let mut steps = Steps::default();
    for worker in listed {
        owners.insert(address(&worker.url), worker.job);
        if let Some(job) = worker.job {
            steps.has.insert(job);
            if !is_wanted(job) {
                steps.remove.insert(worker.id.clone());
            }
        }
    }
    for one in wanted
        .iter()
        .filter(|one| !steps.has.contains(&one.job))
        .collect::<Vec<_>>()
    {
        match owners.get(one.address.as_str()) {
            Some(None) => steps.has.insert(one.job),
            Some(Some(_)) => steps.blocked.insert(one.job),
            None => {
                owners.insert(&one.address, Some(one.job));
                steps.add.insert(one.job)
            }
        };
    }
    steps
}

/// Host and port of a worker's URL. One of several data-parallel ranks has its number behind them: `http://10.0.0.1:8000@1`.
fn address(url: &str) -> &str {
    let after_scheme = url.split_once("://").map_or(url, |(_, rest)| rest);
    let end = after_scheme.find(['/', '?', '#', '@']);
    end.and_then(|end| after_scheme.get(..end))
        .unwrap_or(after_scheme)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::services::testing::service;

    fn job(number: u128) -> JobId {
        Uuid::from_u128(number).into()
    }

    fn wanted(number: u128, address: &str) -> Wanted {
        Wanted {
            job: job(number),
            address: address.to_owned(),
        }
    }

    fn listed(id: &str, url: &str, number: Option<u128>) -> Listed {
        Listed {
            id: id.to_owned(),
            url: url.to_owned(),
            job: number.map(job),
        }
    }

    #[test]
    fn replicas_come_and_those_that_ended_go() {
        let known = [
            listed("a", "http://10.0.0.1:8000", Some(1)),
            listed("b", "grpc://10.0.0.2:8000/", Some(2)),
        ];
        let found = steps(&known, &[wanted(2, "10.0.0.2:8000"), wanted(3, "10.0.0.3:8000")]);
        let expected = Steps {
            has: [job(1), job(2)].into(),
            add: [job(3)].into(),
            blocked: BTreeSet::new(),
            remove: ["a".to_owned()].into(),
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn all_ranks_of_a_replica_are_its_workers() {
        let known = [
            listed("a", "http://10.0.0.1:8000@0", Some(1)),
            listed("b", "http://10.0.0.1:8000@1", Some(1)),
        ];
        assert_eq!(steps(&known, &[wanted(1, "10.0.0.1:8000")]).add, [].into());
        assert_eq!(steps(&known, &[]).remove, ["a".to_owned(), "b".to_owned()].into());
    }

    #[test]
    fn who_comes_to_the_address_of_one_that_ended_waits_until_that_is_gone() {
        let known = [listed("a", "http://10.0.0.1:8000", Some(1))];
        let found = steps(&known, &[wanted(2, "10.0.0.1:8000")]);
        assert_eq!((found.add, found.blocked), ([].into(), [job(2)].into()));
        assert_eq!(found.remove, ["a".to_owned()].into());
    }

    #[test]
    fn workers_of_others_stay_and_stand_for_the_replica_that_is_there() {
        let known = [
            listed("a", "http://10.0.0.1:8000", None),
            listed("b", "https://api.example.com", None),
        ];
        let found = steps(&known, &[wanted(1, "10.0.0.1:8000")]);
        let expected = Steps {
            has: [job(1)].into(),
            ..Steps::default()
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn the_router_itself_is_no_worker_and_of_dynamo_nobody_is_told() {
        let group = |name: &str| json!({"name": name, "replicas": 1, "commands": ["serve"]});
        let routed = |kind: &str| {
            let mut router = group("router");
            router["router"] = json!({ "type": kind });
            service(&json!({"commands": [], "groups": [router, group("worker")]}))
        };
        assert_eq!(worker_of(&routed("smg"), "worker"), Some(RouterType::Smg));
        assert_eq!(worker_of(&routed("smg"), "router"), None);
        assert_eq!(worker_of(&routed("dynamo"), "worker"), Some(RouterType::Dynamo));
        let plain = service(&json!({"commands": [], "groups": [group("a"), group("worker")]}));
        assert_eq!(worker_of(&plain, "worker"), None);
        let told = [routed("smg"), routed("dynamo"), plain].map(|service| is_told_of_workers(&service));
        assert_eq!(told, [true, false, false]);
    }

    /// A router that does what it is told, as far as it can: one worker at an address.
    fn after(known: &[Listed], steps: &Steps, wanted: &[Wanted]) -> Vec<Listed> {
        let mut now: Vec<Listed> = known.to_vec();
        for one in wanted.iter().filter(|one| steps.add.contains(&one.job)) {
            let url = format!("http://{}", one.address);
            if now.iter().all(|worker| address(&worker.url) != one.address) {
                now.push(Listed {
                    id: format!("of {}", one.job),
                    url,
                    job: Some(one.job),
                });
            }
        }
        now.retain(|worker| !steps.remove.contains(&worker.id));
        now
    }

    prop_compose! {
        /// Hosts by number, so that some are met again.
        fn worker()(host in 0u8..6, job in proptest::option::of(0u128..6), scheme in proptest::sample::select(vec!["http", "grpc"]))
            -> (String, Option<u128>) {
            (format!("{scheme}://10.0.0.{host}:8000"), job)
        }
    }

    proptest! {
        /// Whatever a router lists, in two rounds it has all that run and can be there, and none of ours besides; then nothing is to
        /// be done, and whatever others have added is still there.
        #[test]
        fn a_router_gets_to_what_runs(all in proptest::collection::vec(worker(), 0..8), hosts in proptest::collection::btree_map(0u128..6, 0u8..6, 0..6)) {
            let known: Vec<Listed> = all.iter().enumerate().map(|(id, (url, job))| listed(&id.to_string(), url, *job)).collect();
            let wanted: Vec<Wanted> = hosts.iter().map(|(number, host)| wanted(*number, &format!("10.0.0.{host}:8000"))).collect();
            let first = steps(&known, &wanted);
            let ours = |id: &String| known.iter().any(|worker| worker.id == *id && worker.job.is_some());
            prop_assert!(first.remove.iter().all(ours));
            let once = after(&known, &first, &wanted);
            let twice = after(&once, &steps(&once, &wanted), &wanted);
            let last = steps(&twice, &wanted);
            prop_assert_eq!((&last.add, &last.remove), (&BTreeSet::new(), &BTreeSet::new()));
            let all_wanted: BTreeSet<JobId> = wanted.iter().map(|one| one.job).collect();
            prop_assert_eq!(&last.has | &last.blocked, all_wanted);
            let foreign = |all: &[Listed]| all.iter().filter(|worker| worker.job.is_none()).cloned().collect::<Vec<_>>();
            prop_assert_eq!(foreign(&twice), foreign(&known));
            // Blocked is only who shares its address with another one that runs.
            for one in wanted.iter().filter(|one| last.blocked.contains(&one.job)) {
                let shares = |other: &Listed| address(&other.url) == one.address && other.job.is_some_and(|job| last.has.contains(&job));
                prop_assert!(twice.iter().any(shares));
            }
        }
    }
}
