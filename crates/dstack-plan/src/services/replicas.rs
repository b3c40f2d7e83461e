//! Which replicas a run consists of, and what is to be done so that these are all of the newest deployment (dstack 0.22.5:
//! pipelines §4.2).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dstack_model::configurations::service::{ReplicaGroup, ServiceConfiguration};
use dstack_model::limits::MAX_JOBS_OF_RUN;
use dstack_model::runs::{JobStatus, JobTerminationReason, RunSpec};
use dstack_units::Time;

use super::autoscaling::{self, Demand, Group, Scale};
use super::rollout::sides::{self, Course, Sides, Step, Wanted};
use super::rollout::{self, Replica, Stage};
use crate::lifecycle::retry::backoff;

/// A replica without probes counts as serving when it has run for so long. One that crashes as it starts does not get as far.
const SETTLED: Duration = Duration::from_secs(10);

/// A replica to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Its group; `None`: the run has no groups of replicas.
    pub group: Option<String>,
    /// Its number, unique in the run.
    pub num: i64,
}

/// The replicas with which a run starts: one of a task or a dev environment, as many as each group asks for of a service.
pub fn first(run: &RunSpec) -> Vec<Slot> {
    match run.configuration.service() {
        // Nothing is asked of it yet: the time does not matter.
        Some(service) => start(service, &[], &Demand::default(), Time::from_millis(0)).start,
        None => vec![Slot { group: None, num: 0 }],
    }
}

/// The latest submission of a job of a service.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// Number of its replica within the run.
    pub replica_num: i64,
    /// The group of its replica.
    pub group: &'a str,
    /// Status.
    pub status: JobStatus,
    /// Why it ends or ended.
    pub reason: Option<JobTerminationReason>,
    /// Of an older deployment than the run.
    pub out_of_date: bool,
    /// When it was submitted.
    pub submitted_at: Time,
    /// When it changed last.
    pub changed_at: Time,
    /// When its commands started.
    pub running_at: Option<Time>,
    /// It gets requests, or would if they were not passed on by others.
    pub serves: bool,
    /// It is asked whether it can.
    pub probed: bool,
    /// Submissions in a row, this one included, that ended as this one did.
    pub in_a_row: i64,
}

/// What to do next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Replicas to start.
    pub start: Vec<Slot>,
    /// Replicas to stop.
    pub stop: Vec<i64>,
    /// Replicas wanted, of all groups.
    pub wanted: i64,
    /// Replicas wanted of each group that scales.
    pub wanted_of: BTreeMap<String, Scale>,
    /// When a replica that ended by itself is started again.
    pub wake_at: Option<Time>,
    /// When the requests are to be looked at again.
    pub look_at: Option<Time>,
    /// Why the numbers of groups change whose rules have signals, for people.
    pub scaled: Vec<String>,
}

impl Changes {
    /// A group of which this is known is to have so many replicas from now on.
    fn want(&mut self, group: &ReplicaGroup, known: &Group<'_>, scale: Scale, now: Time) {
        self.wanted += scale.wanted;
        if group.scaling.is_some() {
            let name = group.name.clone().unwrap_or_default();
            let scaled = autoscaling::change_of(known, scale.wanted);
            self.scaled
                .extend(scaled.map(|why| format!("of group {name} changed {why}")));
            self.wanted_of.insert(name, scale);
        }
        let look_at = autoscaling::look_at(known, scale.wanted, now);
        self.look_at = self.look_at.into_iter().chain(look_at).min();
    }
}

/// Whether the number of a service's replicas follows its requests.
pub fn scales(service: &ServiceConfiguration) -> bool {
    service
        .replica_groups()
        .iter()
        .any(|group| group.scaling.is_some())
}

/// Whether the number of a service's replicas follows other signals than requests per second.
pub fn has_signals(service: &ServiceConfiguration) -> bool {
    let mut groups = service.replica_groups().into_iter();
    groups.any(|group| group.scaling.is_some_and(|rules| !rules.signals.is_empty()))
}

/// Whether a service may have no replicas until requests come.
pub fn starts_on_request(service: &ServiceConfiguration) -> bool {
    let starts =
        |group: &ReplicaGroup| autoscaling::starts_on_request(&group.replicas, group.scaling.as_ref());
    service.replica_groups().iter().any(starts)
}

/// The next step of a service whose jobs are these.
pub fn next(service: &ServiceConfiguration, jobs: &[Job<'_>], demand: &Demand, now: Time) -> Changes {
    let mut replicas: BTreeMap<&str, BTreeMap<i64, Vec<&Job<'_>>>> = BTreeMap::new();
    for job in jobs {
        let group = replicas.entry(job.group).or_default();
        group.entry(job.replica_num).or_default().push(job);
    }
    let mut changes = Changes::default();
    let mut numbers = Numbers::after(jobs);
    for group in service.replica_groups() {
        let name = group.name.as_deref().unwrap_or_default();
        let members = replicas.remove(name).unwrap_or_default();
        let mut known = demand.of(name, &group.replicas, group.scaling.as_ref());
        known.last_scaled_at = known.last_scaled_at.or_else(|| scaled_at(&members));
        let wanted = bounded(autoscaling::desired(&known, now));
        let scale = Scale::next(demand.scales.get(name).copied(), wanted, now);
        changes.want(&group, &known, scale, now);
        let fell_at = scale.fell_at;
        let mut stages: Vec<Replica> = members
            .iter()
            .map(|(num, jobs)| replica(*num, jobs, fell_at, now, &mut changes.wake_at))
            .collect();
        if demand.awaited {
            rollout::free_held(&mut stages);
        }
        let step = rollout::step(&stages, wanted);
        let ended: Vec<i64> = stages
            .iter()
            .filter(|one| one.stage == Stage::Ended)
            .map(|one| one.num)
            .collect();
        changes.stop.extend(step.stop);
        changes.start.extend(numbers.take(step.start, &ended, name));
    }
    // What is left belongs to groups that are not in the configuration any more.
    for members in replicas.into_values() {
        changes.stop.extend(left_over(&members, now));
    }
    changes
}

/// The next step of a service whose old and new deployment stand side by side. `before`: what the old one asked for.
pub fn next_of_both(
    service: &ServiceConfiguration,
    before: Option<&ServiceConfiguration>,
    jobs: sides::Jobs<'_, '_>,
    demand: &Demand,
    course: Course,
    now: Time,
) -> Step {
    let all: Vec<Job<'_>> = [jobs.old, jobs.new, jobs.kept].concat();
    let [mut olds, mut news, mut kept] = [jobs.old, jobs.new, jobs.kept].map(sides::by_group);
    let stands_beside = olds
        .values()
        .any(|members| sides::has_present(&staged(members, None, now, &mut None)));
    let mut numbers = Numbers::after(&all);
    let mut step = Step::default();
    let mut stop_once_ready = Vec::new();
    let before = before
        .map(ServiceConfiguration::replica_groups)
        .unwrap_or_default();
    for group in service.replica_groups() {
        let name = group.name.as_deref().unwrap_or_default();
        let [old, new, kept] =
            [&mut olds, &mut news, &mut kept].map(|side| side.remove(name).unwrap_or_default());
        let mut known = demand.of(name, &group.replicas, group.scaling.as_ref());
        let scaled = [&old, &new, &kept].into_iter().filter_map(scaled_at).max();
        known.last_scaled_at = known.last_scaled_at.or(scaled);
        let wanted = bounded(autoscaling::desired(&known, now));
        let asked_before = before.iter().find(|before| before.name == group.name);
        let old_wanted = asked_before.map_or(wanted, |before| {
            let mut known = demand.of(name, &before.replicas, before.scaling.as_ref());
            known.last_scaled_at = known.last_scaled_at.or(scaled);
            bounded(autoscaling::desired(&known, now))
        });
        // What the old one asks for by its own rules is not forgotten before the new one has shown what it is good for.
        let old_scales = asked_before.is_some_and(|before| before.scaling.is_some());
        let most = match old_scales && course.is_unproven() {
            true => wanted.max(old_wanted),
            false => wanted,
        };
        let scale = Scale::next(demand.scales.get(name).copied(), most, now);
        step.changes.want(&group, &known, Scale { wanted, ..scale }, now);
        if most > wanted {
            step.changes.wanted_of.insert(name.to_owned(), scale);
        }
        let wake_at = &mut step.changes.wake_at;
        let [old, new, kept] =
            [&old, &new, &kept].map(|members| staged(members, scale.fell_at, now, wake_at));
        let free: Vec<i64> = [&new, &old, &kept]
            .into_iter()
            .flat_map(|side| ended_nums(side))
            .collect();
        if !kept.is_empty() {
            let members = [new, kept].concat();
            let changes = rollout::step(&members, wanted);
            step.changes.stop.extend(changes.stop);
            step.changes
                .start
                .extend(numbers.take(changes.start, &free, name));
            continue;
        }
        let least = i64::from(course.is_unproven()).min(group.replicas.max.unwrap_or(i64::MAX));
        let wanted = Wanted {
            new: wanted,
            old: old_wanted,
            least,
        };
        let of_group = sides::of_group(name, (&old, &new), wanted, course, stands_beside);
        let started = numbers.take(of_group.start, &free, name);
        let is_free = |num: &i64| started.iter().all(|slot| slot.num != *num);
        let free: Vec<i64> = free.into_iter().filter(is_free).collect();
        step.changes.stop.extend(of_group.stop);
        stop_once_ready.extend(of_group.stop_once_ready);
        step.changes.start.extend(started);
        step.start_old
            .extend(numbers.take(of_group.start_old, &free, name));
        step.sides.push(of_group.sides);
    }
    for (name, members) in olds {
        let of_group = sides::of_left_over(name, &staged(&members, None, now, &mut None), course);
        stop_once_ready.extend(of_group.stop_once_ready);
        step.sides.push(of_group.sides);
    }
    if step.sides.iter().all(Sides::is_ready) {
        step.changes.stop.extend(stop_once_ready);
    }
    for members in news.into_values().chain(kept.into_values()) {
        step.changes.stop.extend(left_over(&members, now));
    }
    step
}

fn staged(
    members: &BTreeMap<i64, Vec<&Job<'_>>>,
    fell_at: Option<Time>,
    now: Time,
    wake_at: &mut Option<Time>,
) -> Vec<Replica> {
    let members = members.iter();
    members
        .map(|(num, jobs)| replica(*num, jobs, fell_at, now, wake_at))
        .collect()
}

fn ended_nums(replicas: &[Replica]) -> Vec<i64> {
    let ended = replicas.iter().filter(|one| one.stage == Stage::Ended);
    ended.map(|one| one.num).collect()
}

/// Replicas of a group that is not in the configuration any more.
fn left_over(members: &BTreeMap<i64, Vec<&Job<'_>>>, now: Time) -> Vec<i64> {
    rollout::remove(&staged(members, None, now, &mut None)).stop
}

fn bounded(wanted: i64) -> i64 {
    wanted.clamp(0, MAX_JOBS_OF_RUN)
}

/// When a group last got or lost a replica, as its jobs tell.
fn scaled_at(members: &BTreeMap<i64, Vec<&Job<'_>>>) -> Option<Time> {
    let is_there = |job: &&Job<'_>| !job.status.is_finished() && !is_stopped(job);
    let changed = |jobs: &Vec<&Job<'_>>| match jobs.iter().any(is_there) {
        true => jobs.iter().map(|job| job.submitted_at).min(),
        false => jobs.iter().map(|job| job.changed_at).max(),
    };
    members.values().filter_map(changed).max()
}

/// The replicas with which a service starts again, all jobs that it had being over.
pub fn start(service: &ServiceConfiguration, jobs: &[Job<'_>], demand: &Demand, now: Time) -> Changes {
    let mut numbers = Numbers::after(jobs);
    let mut changes = Changes::default();
    for group in service.replica_groups() {
        let name = group.name.as_deref().unwrap_or_default();
        let ended: BTreeSet<i64> = jobs
            .iter()
            .filter(|job| job.group == name)
            .map(|job| job.replica_num)
            .collect();
        let ended: Vec<i64> = ended.into_iter().collect();
        let known = demand.of(name, &group.replicas, group.scaling.as_ref());
        let wanted = bounded(autoscaling::desired_anew(&known, now));
        let scale = Scale::anew(demand.scales.get(name).copied(), wanted, now);
        changes.want(&group, &known, scale, now);
        changes.start.extend(numbers.take(wanted, &ended, name));
    }
    changes
}

/// Gives numbers to replicas: those of ended replicas of the group first, then new ones.
struct Numbers {
    next: i64,
}

impl Numbers {
    fn after(jobs: &[Job<'_>]) -> Self {
        let last = jobs.iter().map(|job| job.replica_num).max();
        Self {
            next: last.map_or(0, |last| last + 1),
        }
    }

    /// So many slots, but never more than a service can have replicas.
    fn take(&mut self, count: i64, ended: &[i64], group: &str) -> Vec<Slot> {
        let count = usize::try_from(count.min(MAX_JOBS_OF_RUN)).unwrap_or(0);
        let mut nums: Vec<i64> = ended.iter().copied().take(count).collect();
        while nums.len() < count {
            nums.push(self.next);
            self.next += 1;
        }
        let slot = |num| Slot {
            group: Some(group.to_owned()),
            num,
        };
        nums.into_iter().map(slot).collect()
    }
}

/// `fell_at`: when fewer were wanted than before.
fn replica(
    num: i64,
    jobs: &[&Job<'_>],
    fell_at: Option<Time>,
    now: Time,
    wake_at: &mut Option<Time>,
) -> Replica {
    Replica {
        num,
        out_of_date: jobs.iter().any(|job| job.out_of_date),
        stage: stage(jobs, fell_at, now, wake_at),
    }
}

fn stage(jobs: &[&Job<'_>], fell_at: Option<Time>, now: Time, wake_at: &mut Option<Time>) -> Stage {
    let any = |wanted: &dyn Fn(&Job<'_>) -> bool| jobs.iter().any(|job| wanted(job));
    let over = |job: &Job<'_>| job.status.is_finished();
    if !any(&|job| !over(job)) {
        return ended(jobs, fell_at, now, wake_at);
    }
    let ends = |job: &Job<'_>| over(job) || job.status == JobStatus::Terminating;
    if any(&ends) {
        // One that ends by itself keeps its place, as it does afterwards.
        match any(&is_stopped) || any(&|job| job.out_of_date) {
            true => Stage::Ending,
            false if any(&|job| ends(job) && !may_start_again(job)) => Stage::Held,
            false => Stage::Paused,
        }
    } else if any(&|job| job.status == JobStatus::Submitted) {
        Stage::Waiting
    } else if any(&|job| job.status != JobStatus::Running) {
        Stage::Starting
    } else if any(&|job| !job.serves) {
        Stage::Running
    } else if any(&|job| job.out_of_date) {
        // It is what there is, however young.
        Stage::Serving
    } else {
        let unprobed = jobs.iter().filter(|job| !job.probed);
        let settled = unprobed.filter_map(|job| job.running_at).max();
        later(settled.map(|at| at + SETTLED), now, wake_at, Stage::Running).unwrap_or(Stage::Serving)
    }
}

fn is_stopped(job: &Job<'_>) -> bool {
    job.reason == Some(JobTerminationReason::ScaledDown)
}

/// `stage` until that time, at which it is to be looked at again.
fn later(until: Option<Time>, now: Time, wake_at: &mut Option<Time>, stage: Stage) -> Option<Stage> {
    let until = until.filter(|until| *until > now)?;
    *wake_at = Some(wake_at.map_or(until, |at| at.min(until)));
    Some(stage)
}

/// Whether a job that has ended or ends by itself was done, or found no place.
fn may_start_again(job: &Job<'_>) -> bool {
    let no_place = Some(JobTerminationReason::FailedToStartDueToNoCapacity);
    let done = Some(JobTerminationReason::DoneByRunner);
    job.status == JobStatus::Done || job.reason == no_place || job.reason == done
}

/// A replica that was stopped makes room at once. One that ended by itself keeps its place: for good if it failed, until
/// something is changed or fewer are wanted, so that a broken deployment is not started again and again; for a while if it was
/// done, or found no place.
fn ended(jobs: &[&Job<'_>], fell_at: Option<Time>, now: Time, wake_at: &mut Option<Time>) -> Stage {
    if jobs.iter().any(|job| job.out_of_date || is_stopped(job)) {
        return Stage::Ended;
    }
    if !jobs.iter().all(|job| may_start_again(job)) {
        let ended_at = jobs.iter().map(|job| job.changed_at).max();
        return match fell_at >= ended_at {
            true => Stage::Ended,
            false => Stage::Held,
        };
    }
    let again = jobs
        .iter()
        .map(|job| job.changed_at + backoff(job.in_a_row))
        .max();
    later(again, now, wake_at, Stage::Paused).unwrap_or(Stage::Ended)
}

#[cfg(test)]
mod tests;
