use std::time::Duration;

use dstack_model::decode::decode_strict;
use dstack_units::Range;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::services::rollout::state::Phase;
use crate::services::testing::service;

fn groups(counts: &[(&str, i64)]) -> ServiceConfiguration {
    let groups: Vec<Value> = counts
        .iter()
        .map(|(name, count)| json!({"name": name, "replicas": count, "commands": ["serve"]}))
        .collect();
    decode_strict(&json!({"type": "service", "port": 8000, "groups": groups})).unwrap()
}

/// The next step of a service of whose requests nothing is known.
fn next(service: &ServiceConfiguration, jobs: &[Job<'_>], now: Time) -> Changes {
    super::next(service, jobs, &Demand::default(), now)
}

/// The replicas of a service that starts, of whose requests nothing is known.
fn start(service: &ServiceConfiguration, jobs: &[Job<'_>]) -> Vec<Slot> {
    super::start(service, jobs, &Demand::default(), now()).start
}

fn now() -> Time {
    Time::from_millis(1_790_000_000_000)
}

const JOB: Job<'static> = Job {
    replica_num: 0,
    group: "0",
    status: JobStatus::Running,
    reason: None,
    out_of_date: false,
    submitted_at: Time::from_millis(1_789_998_900_000),
    changed_at: Time::from_millis(1_790_000_000_000),
    running_at: Some(Time::from_millis(1_789_999_000_000)),
    serves: true,
    probed: false,
    in_a_row: 1,
};

fn ended(replica_num: i64, status: JobStatus, reason: JobTerminationReason) -> Job<'static> {
    Job {
        replica_num,
        status,
        reason: Some(reason),
        ..JOB
    }
}

fn slot(group: &str, num: i64) -> Slot {
    Slot {
        group: Some(group.to_owned()),
        num,
    }
}

#[test]
fn numbers_go_through_all_groups() {
    let service = groups(&[("a", 2), ("b", 0), ("c", 1)]);
    assert_eq!(start(&service, &[]), [slot("a", 0), slot("a", 1), slot("c", 2)]);
}

#[test]
fn numbers_of_ended_replicas_come_first() {
    let service = groups(&[("a", 1), ("b", 2)]);
    let of = |group, replica_num| Job {
        group,
        replica_num,
        status: JobStatus::Failed,
        ..JOB
    };
    let jobs = [of("b", 0), of("a", 4)];
    assert_eq!(start(&service, &jobs), [slot("a", 4), slot("b", 0), slot("b", 5)]);
}

#[test]
fn a_service_grows_and_shrinks() {
    let two = [
        JOB,
        Job {
            replica_num: 1,
            ..JOB
        },
    ];
    let grown = next(&service(&json!({"replicas": 3})), &two, now());
    assert_eq!(
        (grown.start, grown.stop, grown.wanted),
        (vec![slot("0", 2)], vec![], 3)
    );
    let shrunk = next(&service(&json!({"replicas": 1})), &two, now());
    assert_eq!((shrunk.start, shrunk.stop), (vec![], vec![1]));
    assert_eq!(next(&service(&json!({"replicas": 2})), &two, now()).start, []);
}

#[test]
fn a_group_that_is_gone_ends() {
    let jobs = [
        Job { group: "a", ..JOB },
        Job {
            group: "b",
            replica_num: 1,
            ..JOB
        },
    ];
    let changes = next(&groups(&[("a", 1)]), &jobs, now());
    assert_eq!((changes.start, changes.stop), (vec![], vec![1]));
}

#[test]
fn what_failed_keeps_its_place_until_the_next_deployment() {
    let failed = ended(
        1,
        JobStatus::Failed,
        JobTerminationReason::ContainerExitedWithError,
    );
    let service = service(&json!({"replicas": 2}));
    assert_eq!(next(&service, &[JOB, failed], now()).start, []);
    let before = Job {
        out_of_date: true,
        ..failed
    };
    assert_eq!(next(&service, &[JOB, before], now()).start, [slot("0", 1)]);
}

#[test]
fn a_replacement_that_fails_stops_the_replacing() {
    let old = |replica_num| Job {
        replica_num,
        out_of_date: true,
        ..JOB
    };
    let service = service(&json!({"replicas": 2}));
    let first = next(&service, &[old(0), old(1)], now());
    assert_eq!((first.start, first.stop), (vec![slot("0", 2)], vec![]));
    let failed = ended(
        2,
        JobStatus::Failed,
        JobTerminationReason::ContainerExitedWithError,
    );
    let halted = next(&service, &[old(0), old(1), failed], now());
    assert_eq!((halted.start, halted.stop), (vec![], vec![]));
}

#[test]
fn a_replacement_serves_when_it_has_run_for_a_while() {
    let old = |replica_num| Job {
        replica_num,
        out_of_date: true,
        ..JOB
    };
    let new = Job {
        replica_num: 2,
        running_at: Some(now()),
        ..JOB
    };
    let service = service(&json!({"replicas": 2}));
    let early = next(&service, &[old(0), old(1), new], now());
    let settled = now() + SETTLED;
    assert_eq!((early.stop, early.wake_at), (vec![], Some(settled)));
    assert_eq!(next(&service, &[old(0), old(1), new], settled).stop, [1]);
}

#[test]
fn a_replacement_with_probes_serves_when_they_say_so() {
    let old = |replica_num| Job {
        replica_num,
        out_of_date: true,
        ..JOB
    };
    let new = |serves| Job {
        replica_num: 2,
        running_at: Some(now()),
        probed: true,
        serves,
        ..JOB
    };
    let service = service(&json!({"replicas": 2}));
    let late = now() + Duration::from_secs(24 * 60 * 60);
    let never = next(&service, &[old(0), old(1), new(false)], late);
    assert_eq!((never.start, never.stop, never.wake_at), (vec![], vec![], None));
    assert_eq!(next(&service, &[old(0), old(1), new(true)], now()).stop, [1]);
    // What does not serve is the first to go.
    let ejected = Job {
        serves: false,
        ..old(0)
    };
    assert_eq!(next(&service, &[ejected, old(1), new(true)], now()).stop, [0]);
}

proptest! {
    /// Whatever replicas there are, and however their probes go: no step takes requests from one that is needed.
    #[test]
    fn never_fewer_serve_than_are_wanted_or_did(
        replicas in proptest::collection::vec(any::<(bool, bool, bool, bool)>(), 0..8), wanted in 0i64..6,
    ) {
        let statuses = [JobStatus::Running, JobStatus::Pulling];
        let job = |(num, (out_of_date, serves, probed, starting)): (usize, (bool, bool, bool, bool))| Job {
            replica_num: i64::try_from(num).unwrap(),
            status: statuses[usize::from(starting)],
            out_of_date,
            serves,
            probed,
            ..JOB
        };
        let jobs: Vec<Job<'_>> = replicas.into_iter().enumerate().map(job).collect();
        let serving = |stopped: &[i64]| {
            let serves = |job: &&Job<'_>| {
                job.serves && job.status == JobStatus::Running && !stopped.contains(&job.replica_num)
            };
            i64::try_from(jobs.iter().filter(serves).count()).unwrap()
        };
        let changes = next(&service(&json!({ "replicas": wanted })), &jobs, now());
        prop_assert!(serving(&changes.stop) >= wanted.min(serving(&[])));
    }
}

#[test]
fn what_ends_by_itself_is_not_replaced_meanwhile() {
    let ending = ended(1, JobStatus::Terminating, JobTerminationReason::DoneByRunner);
    let service = service(&json!({"replicas": 2}));
    assert_eq!(next(&service, &[JOB, ending], now()).start, []);
    let stopped = ended(1, JobStatus::Terminating, JobTerminationReason::ScaledDown);
    assert_eq!(next(&service, &[JOB, stopped], now()).start, [slot("0", 2)]);
}

#[test]
fn what_was_stopped_makes_room_at_once() {
    let stopped = ended(1, JobStatus::Terminated, JobTerminationReason::ScaledDown);
    let changes = next(&service(&json!({"replicas": 2})), &[JOB, stopped], now());
    assert_eq!(changes.start, [slot("0", 1)]);
}

#[test]
fn what_is_done_or_found_no_place_is_started_again_after_a_while() {
    let service = service(&json!({"replicas": 2}));
    for job in [
        ended(1, JobStatus::Done, JobTerminationReason::DoneByRunner),
        ended(
            1,
            JobStatus::Failed,
            JobTerminationReason::FailedToStartDueToNoCapacity,
        ),
    ] {
        let early = next(&service, &[JOB, job], now());
        let again = now() + Duration::from_secs(15);
        assert_eq!((early.start, early.wake_at), (vec![], Some(again)));
        assert_eq!(next(&service, &[JOB, job], again).start, [slot("0", 1)]);
    }
}

/// Requests for more are refused; a run that was stored before they were asks for as many as it likes.
#[test]
fn no_service_gets_more_replicas_than_it_can_have() {
    let most = usize::try_from(MAX_JOBS_OF_RUN).unwrap();
    let stored = json!({"type": "service", "port": 80, "commands": ["serve"], "replicas": i64::MAX});
    let service: ServiceConfiguration = dstack_model::decode::decode_lenient(&stored).unwrap();
    assert_eq!(start(&service, &[]).len(), most);
    let changes = next(&service, &[], now());
    assert_eq!((changes.start.len(), changes.wanted), (most, MAX_JOBS_OF_RUN));
}

/// Two groups that scale by other rules, with one replica each.
fn scaling_groups() -> ServiceConfiguration {
    let group = |name, target, down| {
        json!({"name": name, "replicas": "0..4", "commands": ["serve"],
            "scaling": {"metric": "rps", "target": target, "scale_down_delay": down}})
    };
    let groups = [group("a", 1, 600), group("b", 2, 900)];
    decode_strict(&json!({"type": "service", "port": 8000, "groups": groups})).unwrap()
}

/// Of which nobody has noted when they were scaled.
fn demand(wanted: [i64; 2], requests: Option<u64>, awaited: bool) -> Demand {
    let of_both = |of: [i64; 2]| [("a".to_owned(), of[0]), ("b".to_owned(), of[1])];
    let load = |requests| autoscaling::Load { requests };
    let loads = requests.map(|requests| {
        of_both([0, 0])
            .into_iter()
            .map(|(name, _)| (name, load(requests)))
            .collect()
    });
    let untimed = |wanted| Scale {
        wanted,
        at: None,
        fell_at: None,
    };
    Demand {
        scales: of_both(wanted)
            .into_iter()
            .map(|(name, wanted)| (name, untimed(wanted)))
            .collect(),
        loads: loads.unwrap_or_default(),
        awaited,
        ..Demand::default()
    }
}

/// Submitted 1100 s ago.
const OF_A: Job<'static> = Job { group: "a", ..JOB };
const OF_B: Job<'static> = Job {
    group: "b",
    replica_num: 1,
    ..JOB
};

#[test]
fn each_group_scales_by_its_own_rules() {
    let service = scaling_groups();
    let grown = super::next(&service, &[OF_A, OF_B], &demand([1, 1], Some(240), false), now());
    assert_eq!(
        grown.start,
        [2, 3, 4]
            .map(|num| slot("a", num))
            .into_iter()
            .chain([slot("b", 5)])
            .collect::<Vec<_>>()
    );
    let of = |name: &str| (grown.wanted_of[name].wanted, grown.wanted_of[name].at);
    assert_eq!(
        (grown.wanted, of("a"), of("b")),
        (6, (4, Some(now())), (2, Some(now())))
    );
    // The one was scaled 1100 s ago, the other 800 s.
    let later = Job {
        submitted_at: now() - Duration::from_secs(800),
        ..OF_B
    };
    let shrunk = super::next(&service, &[OF_A, later], &demand([1, 1], Some(0), false), now());
    assert_eq!((shrunk.stop, shrunk.wanted), (vec![0], 1));
    assert_eq!(shrunk.look_at, Some(now() + autoscaling::LOOK_INTERVAL));
}

#[test]
fn a_replica_that_ends_counts_as_a_change_as_much_as_one_that_starts() {
    let service = scaling_groups();
    let just_stopped = Job {
        replica_num: 2,
        ..ended(2, JobStatus::Terminating, JobTerminationReason::ScaledDown)
    };
    let stopped = Job {
        group: "a",
        ..just_stopped
    };
    let changes = super::next(&service, &[OF_A, stopped], &demand([1, 0], Some(0), false), now());
    assert_eq!((changes.stop, changes.wanted), (vec![], 1));
}

#[test]
fn unknown_requests_leave_a_service_as_it_is() {
    let service = scaling_groups();
    let changes = super::next(&service, &[OF_A, OF_B], &demand([1, 1], None, false), now());
    assert_eq!((changes.start, changes.stop), (vec![], vec![]));
}

#[test]
fn a_service_without_replicas_starts_when_one_is_waited_for() {
    let service = scaling_groups();
    let none = super::start(&service, &[], &demand([0, 0], None, false), now());
    assert_eq!((none.start, none.wanted), (vec![], 0));
    let started = super::start(&service, &[], &demand([0, 0], None, true), now());
    assert_eq!(started.start, [slot("a", 0), slot("b", 1)]);
    // While the last one ends, one with another number.
    let ending = Job {
        group: "a",
        ..ended(0, JobStatus::Terminating, JobTerminationReason::ScaledDown)
    };
    let again = super::next(&service, &[ending], &demand([0, 0], None, true), now());
    assert_eq!(again.start, [slot("a", 1), slot("b", 2)]);
}

#[test]
fn a_replacement_goes_on_while_a_group_scales() {
    let service = scaling_groups();
    let old = Job {
        out_of_date: true,
        ..OF_A
    };
    let changes = super::next(&service, &[old], &demand([1, 0], Some(180), false), now());
    assert_eq!(
        (
            changes.wanted_of["a"].wanted,
            changes
                .start
                .iter()
                .filter(|one| one.group.as_deref() == Some("a"))
                .count()
        ),
        (3, 3)
    );
}

/// One of three that wants two, as the jobs of all stand; when it was scaled, and with what load.
fn scaled(jobs: &[Job<'_>], scale: Scale, requests: Option<u64>, awaited: bool) -> Changes {
    let rules = json!({"metric": "rps", "target": 1, "scale_up_delay": 300, "scale_down_delay": 600});
    let service = service(&json!({"replicas": "0..3", "scaling": rules}));
    let name = "0".to_owned();
    let load = |requests| autoscaling::Load { requests };
    let demand = Demand {
        scales: BTreeMap::from([(name.clone(), scale)]),
        loads: requests
            .map(|requests| (name, load(requests)))
            .into_iter()
            .collect(),
        awaited,
        ..Demand::default()
    };
    super::next(&service, jobs, &demand, now())
}

fn ago(seconds: u64) -> Time {
    now() - Duration::from_secs(seconds)
}

fn scale(wanted: i64, at: Time) -> Scale {
    Scale {
        wanted,
        at: Some(at),
        fell_at: None,
    }
}

#[test]
fn what_failed_makes_room_once_fewer_are_wanted() {
    let failed = Job {
        changed_at: ago(5000),
        ..ended(
            1,
            JobStatus::Failed,
            JobTerminationReason::ContainerExitedWithError,
        )
    };
    let jobs = [JOB, failed];
    let fallen = |at| Scale {
        fell_at: Some(at),
        ..scale(1, ago(4000))
    };
    let two = Some(120);
    assert_eq!(
        scaled(&jobs, fallen(ago(6000)), two, false).start,
        [],
        "it failed later"
    );
    let grown = scaled(&jobs, fallen(ago(4000)), two, false);
    assert_eq!(grown.start, [slot("0", 1)]);
    // The change itself does not stop what serves.
    let shrunk = scaled(&jobs, scale(2, ago(4000)), Some(60), false);
    assert_eq!((shrunk.start, shrunk.stop), (vec![], vec![]));
    assert_eq!(shrunk.wanted_of["0"].fell_at, Some(now()));
}

#[test]
fn who_waits_is_not_kept_waiting_by_a_replica_that_failed_but_by_one_that_just_found_no_place() {
    let ending = ended(0, JobStatus::Terminating, JobTerminationReason::ScaledDown);
    let failed = ended(
        1,
        JobStatus::Failed,
        JobTerminationReason::ContainerExitedWithError,
    );
    let wanted = scale(0, ago(10));
    assert_eq!(
        scaled(&[ending, failed], wanted, None, true).start,
        [slot("0", 1)]
    );
    let refused = ended(
        1,
        JobStatus::Failed,
        JobTerminationReason::FailedToStartDueToNoCapacity,
    );
    let held = scaled(&[ending, refused], wanted, None, true);
    assert_eq!((held.start, held.wake_at), (vec![], Some(now() + backoff(1))));
    let refused = Job {
        status: JobStatus::Terminating,
        ..refused
    };
    assert_eq!(scaled(&[ending, refused], wanted, None, true).start, []);
}

/// The load says little of the time in which nothing served.
#[test]
fn a_service_that_has_lost_all_replicas_starts_with_as_many_as_before() {
    let rules = json!({"metric": "rps", "target": 1});
    let service = service(&json!({"replicas": "1..3", "scaling": rules}));
    let name = "0".to_owned();
    let demand = Demand {
        scales: BTreeMap::from([(name.clone(), scale(3, ago(5000)))]),
        loads: BTreeMap::from([(name.clone(), autoscaling::Load { requests: 0 })]),
        awaited: false,
        ..Demand::default()
    };
    let lost = ended(
        0,
        JobStatus::Failed,
        JobTerminationReason::InterruptedByNoCapacity,
    );
    let started = super::start(&service, &[lost], &demand, now());
    assert_eq!(started.start.len(), 3);
    assert_eq!(
        started.wanted_of[&name].at,
        Some(now()),
        "its delays count from here"
    );
}

#[test]
fn what_is_submitted_again_or_refused_is_no_scaling() {
    let again = Job {
        replica_num: 1,
        submitted_at: now(),
        ..JOB
    };
    let refused = Job {
        replica_num: 2,
        ..ended(
            2,
            JobStatus::Failed,
            JobTerminationReason::FailedToStartDueToNoCapacity,
        )
    };
    let jobs = [JOB, again, refused];
    let shrunk = scaled(&jobs, scale(2, ago(600)), Some(0), false);
    assert_eq!((shrunk.wanted, shrunk.stop), (0, vec![1, 0]));
    let early = scaled(&jobs, scale(2, ago(599)), Some(0), false);
    assert_eq!((early.wanted, early.stop), (2, vec![]));
}

fn both(
    (service, before): (&ServiceConfiguration, &ServiceConfiguration),
    old: &[Job<'_>],
    new: &[Job<'_>],
    course: Course,
) -> Step {
    let jobs = sides::Jobs { old, new, kept: &[] };
    next_of_both(service, Some(before), jobs, &Demand::default(), course, now())
}

fn of(group: &'static str, replica_num: i64) -> Job<'static> {
    Job {
        replica_num,
        group,
        ..JOB
    }
}

fn course(strategy: &str, phase: &Phase, keep_over: bool) -> Course {
    let rules = decode_strict(&json!({"strategy": strategy})).unwrap();
    Course::of(&rules, phase, keep_over).unwrap()
}

#[test]
fn kept_replicas_of_no_group_are_stopped_while_new_ones_of_another_one_are_dead() {
    let service = groups(&[("a", 1), ("b", 1)]);
    let old = [of("a", 0), of("b", 1)];
    let over = course("blue_green", &Phase::Kept, true);
    let stopped = |new: &[Job<'_>]| both((&service, &service), &old, new, over).changes.stop;
    assert_eq!(stopped(&[of("a", 2), of("b", 3)]), [0, 1]);
    let dead = Job {
        group: "b",
        ..ended(
            3,
            JobStatus::Failed,
            JobTerminationReason::ContainerExitedWithError,
        )
    };
    assert_eq!(stopped(&[of("a", 2), dead]), Vec::<i64>::new());
}

#[test]
fn a_deployment_that_is_unproven_costs_no_old_replica_and_is_never_alone() {
    let (two, four) = (groups(&[("a", 2)]), groups(&[("a", 4)]));
    let old = [of("a", 0), of("a", 1), of("a", 2), of("a", 3)];
    let watching = course("canary", &Phase::Watching, false);
    let new = [of("a", 4)];
    assert_eq!(
        both((&two, &four), &old, &new, watching).changes,
        Changes {
            wanted: 2,
            ..Changes::default()
        }
    );
    assert_eq!(
        both((&two, &two), &old, &new, watching).changes.stop,
        [3, 2],
        "fewer of the old one are asked for"
    );
    // Nobody asks for anything: one of each stays.
    let mut resting = groups(&[("a", 1)]);
    for group in resting.groups.iter_mut().flatten() {
        group.replicas = Range::between(0, 4);
    }
    let step = both((&resting, &resting), &old, &new, watching);
    assert_eq!(step.changes.stop, [3, 2, 1]);
    assert_eq!(step.sides[0].new_wanted, 1);
}
