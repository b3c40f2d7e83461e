//! What the jobs of a run must know of one another before they start (dstack 0.22.5: pipelines §6.1 and §6.5): the addresses
//! of the other nodes and of their router, and which of them are to run first.

use std::time::Duration;

use dstack_model::configurations::{AnyRunConfiguration, ReplicaGroup, RouterType};
use dstack_model::interpolate::{
    GroupMember, GroupReference, InterpolateError, contains_group_reference, find_group_references,
    interpolate_groups,
};
use dstack_model::profiles::StartupOrder;
use dstack_model::runs::{JobProvisioningData, JobSpec, JobStatus, JobTerminationReason, RunSpec};

use crate::lifecycle::WaitReason;
use crate::services::routers::{router_group, worker_of};

/// In which workers of a Dynamo router find its address.
pub const ROUTER_VARIABLE: &str = "DSTACK_ROUTER_INTERNAL_IP";

/// How long workers wait for the address of their router, from their submission on (dstack 0.22.5's).
pub const ROUTER_TIMEOUT: Duration = Duration::from_secs(1800);

/// Why a job can never be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Impossible {
    /// With which it ends.
    pub reason: JobTerminationReason,
    /// Why the job cannot start, as `dstack ps -v` and events show it.
    pub message: String,
}

/// A job of the run, in its present submission.
#[derive(Debug, Clone)]
pub struct Peer<'a> {
    /// What it is to do.
    pub spec: &'a JobSpec,
    /// Status of its present submission.
    pub status: JobStatus,
    /// Why it ends or ended.
    pub reason: Option<JobTerminationReason>,
    /// It is of an older deployment than the run.
    pub out_of_date: bool,
    /// If it ended, the retry policy has it submitted again.
    pub is_retried: bool,
    /// Where it is, if it has a place.
    pub place: Option<&'a JobProvisioningData>,
    /// How many GPUs it has got.
    pub gpus: i64,
}

impl Peer<'_> {
    /// Whether its instance has an address.
    fn is_addressed(&self) -> bool {
        self.place.is_some_and(|place| place.hostname.is_some())
    }

    const fn ends(&self) -> bool {
        self.status.is_finished() || matches!(self.status, JobStatus::Terminating)
    }

    /// It was stopped, and belongs to its group no more.
    fn is_stopped(&self) -> bool {
        self.reason == Some(JobTerminationReason::ScaledDown)
    }

    /// A replica that ended: whether another submission takes its place, as [`crate::services::replicas`] and the retry policy
    /// have it.
    fn returns(&self) -> bool {
        let no_place = self.reason == Some(JobTerminationReason::FailedToStartDueToNoCapacity);
        self.out_of_date || self.is_retried || no_place || self.status == JobStatus::Done
    }

    /// The address for other nodes; empty where it is not known, as runners expect it.
    fn internal_ip(&self) -> String {
        self.place
            .and_then(|place| place.internal_ip.clone())
            .unwrap_or_default()
    }

    /// The address that replaces a reference in commands; empty where it is not known. Replicas need not share a network: a place without an internal
    /// address is known by its public one.
    fn reference_address(&self) -> String {
        let place = self.place.filter(|_| self.is_addressed());
        place
            .and_then(|place| place.internal_ip.clone().or_else(|| place.hostname.clone()))
            .unwrap_or_default()
    }
}

/// The nodes of a replica, as a runner is told of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cluster {
    /// Internal addresses in the order of nodes; empty where one is not known.
    pub ips: Vec<String>,
    /// GPUs of each, in the same order.
    pub gpus: Vec<i64>,
}

/// Whether a job must know others of its run before it starts.
pub fn needs_peers(run: &RunSpec, job: &JobSpec) -> bool {
    job.jobs_per_replica > 1
        || (member(run).is_some() && refers_to_groups(job))
        || is_told_of_router(run, job)
}

/// Whether the job is to know the address of its service's router: Dynamo's workers register there by themselves.
fn is_told_of_router(run: &RunSpec, job: &JobSpec) -> bool {
    let service = run.configuration.service();
    service.and_then(|service| worker_of(service, &job.replica_group)) == Some(RouterType::Dynamo)
}

fn refers_to_groups(job: &JobSpec) -> bool {
    job.commands
        .iter()
        .any(|command| contains_group_reference(command))
}

/// What the groups of a run consist of, if it can have any.
fn member(run: &RunSpec) -> Option<GroupMember> {
    match &run.configuration {
        AnyRunConfiguration::Task(_) => Some(GroupMember::Nodes),
        AnyRunConfiguration::Service(_) => Some(GroupMember::Replicas),
        AnyRunConfiguration::DevEnvironment(_) => None,
    }
}

/// A job among the others of its run.
#[derive(Debug)]
pub struct Peers<'a> {
    run: &'a RunSpec,
    job: &'a JobSpec,
    /// Those of its replica with itself, by number.
    replica: Vec<&'a Peer<'a>>,
    /// All of the run, by replica and number.
    all: &'a [Peer<'a>],
}

impl<'a> Peers<'a> {
    /// Of the job among `all` jobs of its run, itself among them: each in its present submission, by replica and number.
    pub fn new(run: &'a RunSpec, job: &'a JobSpec, all: &'a [Peer<'a>]) -> Self {
        let replica = all.iter();
        let replica = replica
            .filter(|peer| peer.spec.replica_num == job.replica_num)
            .collect();
        Self {
            run,
            job,
            replica,
            all,
        }
    }

    /// What the job's task waits for by the `startup_order` of the run.
    pub fn task_waits_for(&self) -> Option<WaitReason> {
        let is_master = |job: &JobSpec| job.job_num == 0;
        let order = self.run.merged_profile().params.startup_order;
        let first = match order.unwrap_or(StartupOrder::Any) {
            StartupOrder::Any => return None,
            StartupOrder::MasterFirst if is_master(self.job) => return None,
            StartupOrder::WorkersFirst if !is_master(self.job) => return None,
            StartupOrder::MasterFirst => true,
            StartupOrder::WorkersFirst => false,
        };
        let waiting = self.replica.iter().filter(|peer| is_master(peer.spec) == first);
        let waiting = waiting.filter(|peer| !has_run(peer.status));
        let names: Vec<_> = waiting.map(|peer| peer.spec.job_name.clone()).collect();
        let (node, others) = first_of(names)?;
        Some(WaitReason::NodeRunning { node, others })
    }

    /// What the job's commands wait for: nodes without an address.
    pub fn start_waits_for(&self) -> Option<WaitReason> {
        let nodes = self.replica.iter().filter(|peer| !peer.is_addressed());
        let mut names: Vec<_> = nodes.map(|peer| peer.spec.job_name.clone()).collect();
        for reference in self.references() {
            match self.referenced(reference) {
                Some(peer) if self.is_reachable(peer) => {}
                Some(peer) => names.push(peer.spec.job_name.clone()),
                None => names.push(reference.to_string()),
            }
        }
        if let Some(router) = self.router_wanted()
            && self.router_address().is_none()
        {
            let job = self.router(&router).map(|peer| peer.spec.job_name.clone());
            names.push(job.unwrap_or(router));
        }
        names.dedup();
        let (node, others) = first_of(names)?;
        Some(WaitReason::NodeAddress { node, others })
    }

    /// Why the job's commands can never be started: a replica that they refer to, or their router, is over, and none takes its
    /// place; or the router has no address this long after the job was submitted.
    pub fn start_impossible(&self, submitted_for: Duration) -> Option<Impossible> {
        let lost = self.reference_lost().map(|message| Impossible {
            reason: JobTerminationReason::ExecutorError,
            message,
        });
        lost.or_else(|| {
            self.router_lost(submitted_for).map(|message| Impossible {
                reason: JobTerminationReason::TerminatedByServer,
                message,
            })
        })
    }

    fn reference_lost(&self) -> Option<String> {
        let references = self.references().into_iter();
        let mut found = references.filter_map(|reference| Some((reference, self.referenced(reference)?)));
        let (reference, peer) =
            found.find(|(_, peer)| self.is_service() && peer.ends() && !peer.returns())?;
        Some(format!(
            "The commands refer to {reference}, but that replica ({}) has ended and is not started again. See why it ended, and \
             apply the service again",
            peer.spec.job_name
        ))
    }

    /// In the words of dstack 0.22.5.
    fn router_lost(&self, submitted_for: Duration) -> Option<String> {
        let router = self.router_wanted()?;
        if self.router_address().is_some() {
            return None;
        }
        if self
            .router(&router)
            .is_none_or(|peer| peer.ends() && !peer.returns())
        {
            let text =
                "Router replica is in a terminal state; cannot provision worker without a running router.";
            return Some(text.to_owned());
        }
        (submitted_for > ROUTER_TIMEOUT).then(|| {
            format!(
                "Router replica did not acquire an internal IP within {}s; terminating worker.",
                ROUTER_TIMEOUT.as_secs()
            )
        })
    }

    /// The group of the router whose address the job is to know.
    fn router_wanted(&self) -> Option<String> {
        if !is_told_of_router(self.run, self.job) {
            return None;
        }
        let group: &ReplicaGroup = router_group(self.run.configuration.service()?)?;
        group.name.clone()
    }

    /// The present replica of the router's group, rather one that lives.
    fn router(&self, group: &str) -> Option<&Peer<'a>> {
        let of_group = || self.all.iter().filter(|peer| peer.spec.replica_group == group);
        of_group()
            .find(|peer| !peer.ends())
            .or_else(|| of_group().next_back())
    }

    /// The internal address of the router, if the job is to know it and it is known.
    pub fn router_address(&self) -> Option<&'a str> {
        let router = self.router(&self.router_wanted()?)?;
        let place = router.place.filter(|_| !router.ends())?;
        place.internal_ip.as_deref().filter(|address| !address.is_empty())
    }

    /// Whether the job is to know an address of its router that is not known yet.
    pub fn lacks_router(&self) -> bool {
        self.router_wanted().is_some() && self.router_address().is_none()
    }

    fn is_service(&self) -> bool {
        matches!(self.run.configuration, AnyRunConfiguration::Service(_))
    }

    /// Whether commands may name its address. The nodes of a task end together, replicas each for itself.
    fn is_reachable(&self, peer: &Peer<'_>) -> bool {
        peer.is_addressed() && !(self.is_service() && peer.ends())
    }

    /// What the job's runner is told of its replica.
    pub fn cluster(&self) -> Cluster {
        Cluster {
            ips: self.replica.iter().map(|peer| peer.internal_ip()).collect(),
            gpus: self.replica.iter().map(|peer| peer.gpus).collect(),
        }
    }

    /// The job's commands with the addresses that they refer to.
    ///
    /// # Errors
    /// A reference to what does not exist, or has no address yet.
    pub fn commands(&self) -> Result<Vec<String>, InterpolateError> {
        let commands = &self.job.commands;
        let Some(member) = member(self.run).filter(|_| refers_to_groups(self.job)) else {
            return Ok(commands.clone());
        };
        let addresses = self.addresses();
        let fill = |command: &String| interpolate_groups(command, &addresses, member);
        commands.iter().map(fill).collect()
    }

    fn references(&self) -> Vec<GroupReference> {
        let wanted = member(self.run);
        let commands = self.job.commands.iter();
        let found = commands.flat_map(|command| find_group_references(command));
        found
            .filter(|reference| Some(reference.member) == wanted)
            .collect()
    }

    fn referenced(&self, reference: GroupReference) -> Option<&Peer<'a>> {
        self.groups().get(reference.group)?.get(reference.index).copied()
    }

    fn addresses(&self) -> Vec<Vec<String>> {
        let address = |peer: &&Peer<'_>| match self.is_reachable(peer) {
            true => peer.reference_address(),
            false => String::new(),
        };
        let group = |peers: Vec<&Peer<'_>>| peers.iter().map(address).collect();
        self.groups().into_iter().map(group).collect()
    }

    /// The members of each group, in the order of the configuration.
    fn groups(&self) -> Vec<Vec<&'a Peer<'a>>> {
        match &self.run.configuration {
            AnyRunConfiguration::Task(task) => {
                let of = |group: usize| {
                    let nodes = self.replica.iter().copied();
                    nodes.filter(move |peer| usize::try_from(peer.spec.node_group_index) == Ok(group))
                };
                let groups = 0..task.node_groups().len();
                groups.map(|group| of(group).collect()).collect()
            }
            AnyRunConfiguration::Service(service) => {
                let groups = service.replica_groups().into_iter();
                groups
                    .map(|group| {
                        let wanted = usize::try_from(group.replicas.min.unwrap_or(0)).unwrap_or(0);
                        self.replicas(&group.name.unwrap_or_default(), wanted)
                    })
                    .collect()
            }
            AnyRunConfiguration::DevEnvironment(_) => Vec::new(),
        }
    }
}

impl<'a> Peers<'a> {
    /// The replicas of a group by their numbers. One that ended by itself keeps its place, so that no other is taken for it; one
    /// of an older deployment only as long as it is to be replaced.
    fn replicas(&self, group: &str, wanted: usize) -> Vec<&'a Peer<'a>> {
        let of_group = self.all.iter();
        let of_group = of_group.filter(|peer| peer.spec.replica_group == group && !peer.is_stopped());
        let mut members: Vec<&Peer<'_>> = of_group.collect();
        members.sort_by_key(|peer| peer.spec.replica_num);
        let is_replaced = |peer: &&Peer<'_>| peer.ends() && peer.out_of_date;
        if members.iter().filter(|peer| !is_replaced(peer)).count() >= wanted {
            members.retain(|peer| !is_replaced(peer));
        }
        members
    }
}

/// The first of some names, and how many there are besides.
fn first_of(names: Vec<String>) -> Option<(String, usize)> {
    let others = names.len().saturating_sub(1);
    Some((names.into_iter().next()?, others))
}

/// Whether the commands of a job have been started.
const fn has_run(status: JobStatus) -> bool {
    !matches!(
        status,
        JobStatus::Submitted | JobStatus::Provisioning | JobStatus::Pulling
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;
    use crate::ServerDefaults;
    use crate::jobs::{JobContext, Target, job_specs};

    fn run(configuration: &Value) -> RunSpec {
        let spec = json!({"run_name": "run", "configuration": configuration});
        serde_json::from_value(spec).unwrap()
    }

    fn jobs(run: &RunSpec, replicas: &[(u32, Option<&str>)]) -> Vec<JobSpec> {
        let context = JobContext {
            server: &ServerDefaults::default(),
            images: &BTreeMap::new(),
            target: Target::Container,
        };
        let of = |(num, group): &(u32, Option<&str>)| job_specs(run, *num, *group, &context).unwrap();
        replicas.iter().flat_map(of).collect()
    }

    fn place(hostname: Option<&str>, internal_ip: Option<&str>) -> JobProvisioningData {
        let kind =
            json!({"name": "small", "resources": {"cpus": 1, "memory_mib": 1024, "gpus": [], "spot": false}});
        let place = json!({"backend": "aws", "instance_type": kind, "instance_id": "i-1", "hostname": hostname,
            "internal_ip": internal_ip, "region": "here", "price": 1.0, "username": "ubuntu", "dockerized": true});
        serde_json::from_value(place).unwrap()
    }

    fn peers<'a>(
        jobs: &'a [JobSpec],
        places: &'a [Option<JobProvisioningData>],
        status: JobStatus,
    ) -> Vec<Peer<'a>> {
        let jobs = jobs.iter().zip(places);
        let of = |(spec, place): (&'a JobSpec, &'a Option<JobProvisioningData>)| Peer {
            spec,
            status,
            reason: None,
            out_of_date: false,
            is_retried: false,
            place: place.as_ref(),
            gpus: 8,
        };
        jobs.map(of).collect()
    }

    #[test]
    fn nodes_without_a_place_or_an_address_are_waited_for() {
        let run = run(&json!({"type": "task", "nodes": 3, "commands": ["a"]}));
        let jobs = jobs(&run, &[(0, None)]);
        let here = place(Some("1.2.3.4"), Some("10.0.0.1"));
        let without = place(None, None);
        let places = [Some(here.clone()), Some(without), None];
        let all = peers(&jobs, &places, JobStatus::Pulling);
        let first = Peers::new(&run, &jobs[0], &all);
        assert!(needs_peers(&run, &jobs[0]));
        let awaited = WaitReason::NodeAddress {
            node: "run-1-0".to_owned(),
            others: 1,
        };
        assert_eq!(first.start_waits_for(), Some(awaited));
        // A host whose internal address is not known has an address all the same.
        let places = [
            Some(here),
            Some(place(Some("h"), None)),
            Some(place(Some("i"), Some("10.0.0.3"))),
        ];
        let all = peers(&jobs, &places, JobStatus::Pulling);
        let first = Peers::new(&run, &jobs[0], &all);
        assert_eq!(first.start_waits_for(), None);
        let cluster = Cluster {
            ips: ["10.0.0.1", "", "10.0.0.3"].map(str::to_owned).to_vec(),
            gpus: vec![8, 8, 8],
        };
        assert_eq!(first.cluster(), cluster);
    }

    #[test]
    fn the_order_of_start_holds_up_who_comes_later() {
        let configuration =
            |order: &str| json!({"type": "task", "nodes": 2, "commands": ["a"], "startup_order": order});
        for (order, master, worker) in [
            ("any", false, false),
            ("master-first", false, true),
            ("workers-first", true, false),
        ] {
            let run = run(&configuration(order));
            let jobs = jobs(&run, &[(0, None)]);
            let waits = |status| {
                let all = peers(&jobs, &[None, None], status);
                [&jobs[0], &jobs[1]].map(|job| Peers::new(&run, job, &all).task_waits_for().is_some())
            };
            assert_eq!(waits(JobStatus::Pulling), [master, worker], "{order}");
            assert_eq!(waits(JobStatus::Running), [false, false], "{order}");
            assert_eq!(waits(JobStatus::Done), [false, false], "{order}");
        }
    }

    #[test]
    fn replicas_of_other_groups_are_named_by_their_addresses() {
        let run = run(&json!({"type": "service", "port": 80, "groups": [
            {"name": "prefill", "replicas": 2, "commands": ["a"]},
            {"name": "router", "replicas": 1, "commands": ["b ${{ groups[0].replicas[1].IP_ADDRESS }}"]},
        ]}));
        let jobs = jobs(
            &run,
            &[(0, Some("prefill")), (1, Some("prefill")), (2, Some("router"))],
        );
        assert!(!needs_peers(&run, &jobs[0]));
        assert!(needs_peers(&run, &jobs[2]));
        let here = || Some(place(Some("1.2.3.4"), Some("10.0.0.1")));
        let places = [here(), None, here()];
        let all = peers(&jobs, &places, JobStatus::Pulling);
        let router = Peers::new(&run, &jobs[2], &all);
        let awaited = WaitReason::NodeAddress {
            node: "run-0-1".to_owned(),
            others: 0,
        };
        assert_eq!(router.start_waits_for(), Some(awaited));
        assert!(router.commands().is_err());
        // It may be in another network: then its public address is named.
        let places = [here(), Some(place(Some("5.6.7.8"), None)), here()];
        let all = peers(&jobs, &places, JobStatus::Pulling);
        let router = Peers::new(&run, &jobs[2], &all);
        assert_eq!(router.start_waits_for(), None);
        assert!(router.commands().unwrap().last().unwrap().ends_with("b 5.6.7.8"));
        assert_eq!(router.start_impossible(Duration::ZERO), None);
    }

    #[test]
    fn a_replica_that_is_over_keeps_its_place_in_its_group() {
        let run = run(&json!({"type": "service", "port": 80, "groups": [
            {"name": "prefill", "replicas": 2, "commands": ["a"]},
            {"name": "router", "replicas": 1, "commands": ["b ${{ groups[0].replicas[0].IP_ADDRESS }}"]},
        ]}));
        let jobs = jobs(
            &run,
            &[(0, Some("prefill")), (1, Some("prefill")), (2, Some("router"))],
        );
        let at = |ip| Some(place(Some("1.2.3.4"), Some(ip)));
        let places = [at("10.0.0.1"), at("10.0.0.2"), at("10.0.0.3")];
        let mut all = peers(&jobs, &places, JobStatus::Running);
        let told = |all: &[Peer<'_>]| {
            let router = Peers::new(&run, &jobs[2], all);
            let command = router.commands().ok().and_then(|all| all.last().cloned());
            let waits = router.start_waits_for().is_some();
            let impossible = router.start_impossible(ROUTER_TIMEOUT * 2).is_some();
            (command, waits, impossible)
        };
        let first = told(&all).0.unwrap();
        assert!(first.ends_with("b 10.0.0.1"), "{first}");
        // Nobody takes the place of one that failed for good, and the second is not taken for it.
        all[0].status = JobStatus::Failed;
        all[0].reason = Some(JobTerminationReason::ContainerExitedWithError);
        assert_eq!(told(&all), (None, true, true));
        // Others come back.
        all[0].is_retried = true;
        assert_eq!(told(&all), (None, true, false));
        all[0].is_retried = false;
        all[0].reason = Some(JobTerminationReason::FailedToStartDueToNoCapacity);
        assert_eq!(told(&all), (None, true, false));
        // One of an older deployment is waited for while another is to come.
        all[0].reason = Some(JobTerminationReason::ContainerExitedWithError);
        all[0].out_of_date = true;
        assert_eq!(told(&all), (None, true, false));
        // One that was stopped is none of the group.
        all[0].reason = Some(JobTerminationReason::ScaledDown);
        let second = told(&all).0.unwrap();
        assert!(second.ends_with("b 10.0.0.2"), "{second}");
    }

    #[test]
    fn workers_of_dynamo_wait_for_the_address_of_their_router() {
        let run = run(&json!({"type": "service", "port": 80, "groups": [
            {"name": "worker", "replicas": 1, "commands": ["a"]},
            {"name": "router", "replicas": 1, "commands": ["b"], "router": {"type": "dynamo"}},
        ]}));
        let jobs = jobs(&run, &[(0, Some("worker")), (1, Some("router"))]);
        assert!(needs_peers(&run, &jobs[0]));
        assert!(!needs_peers(&run, &jobs[1]));
        let here = || Some(place(Some("1.2.3.4"), Some("10.0.0.1")));
        let awaited = Some(WaitReason::NodeAddress {
            node: "run-0-1".to_owned(),
            others: 0,
        });
        let late = ROUTER_TIMEOUT + Duration::from_secs(1);
        // A public address is no use to them, as in dstack 0.22.5.
        for router in [None, Some(place(None, None)), Some(place(Some("5.6.7.8"), None))] {
            let places = [here(), router];
            let all = peers(&jobs, &places, JobStatus::Pulling);
            let worker = Peers::new(&run, &jobs[0], &all);
            assert_eq!(worker.start_waits_for(), awaited);
            assert!(worker.lacks_router());
            assert_eq!(worker.start_impossible(ROUTER_TIMEOUT), None);
            let given_up = worker.start_impossible(late).unwrap();
            assert_eq!(given_up.reason, JobTerminationReason::TerminatedByServer);
            let text = "Router replica did not acquire an internal IP within 1800s; terminating worker.";
            assert_eq!(given_up.message, text);
        }
        let places = [here(), Some(place(Some("5.6.7.8"), Some("10.0.0.2")))];
        let mut all = peers(&jobs, &places, JobStatus::Pulling);
        let told = |all: &[Peer<'_>]| {
            let worker = Peers::new(&run, &jobs[0], all);
            let address = worker.router_address().map(str::to_owned);
            (address, worker.start_waits_for(), worker.start_impossible(late))
        };
        assert_eq!(told(&all), (Some("10.0.0.2".to_owned()), None, None));
        assert_eq!(Peers::new(&run, &jobs[1], &all).router_address(), None);
        all[1].status = JobStatus::Terminating;
        all[1].reason = Some(JobTerminationReason::ContainerExitedWithError);
        let (address, waits, impossible) = told(&all);
        assert_eq!((address, waits), (None, awaited));
        let impossible = impossible.unwrap();
        assert_eq!(impossible.reason, JobTerminationReason::TerminatedByServer);
        assert!(
            impossible
                .message
                .starts_with("Router replica is in a terminal state;")
        );
    }

    #[test]
    fn workers_of_smg_start_at_once() {
        let run = run(&json!({"type": "service", "port": 80, "groups": [
            {"name": "worker", "replicas": 1, "commands": ["a"]},
            {"name": "router", "replicas": 1, "commands": ["b"], "router": {"type": "smg"}},
        ]}));
        let jobs = jobs(&run, &[(0, Some("worker")), (1, Some("router"))]);
        assert!(jobs.iter().all(|job| !needs_peers(&run, job)));
    }
}
