//! The replicas of a service whose new deployment stands beside the old one: which are started and stopped, and how far both are.

use std::collections::BTreeMap;

use dstack_model::configurations::service::{RolloutSpec, RolloutStrategy};

use super::state::Phase;
use super::{Replica, Stage};
use crate::services::replicas::{Changes, Job, Slot};

/// How many new replicas of a group stand beside the old ones, and whether the old ones are still looked after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Course {
    /// At most so many new ones; `None`: as many as are wanted.
    most_new: Option<i64>,
    /// What becomes of the old ones.
    old: Old,
}

/// What becomes of old replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Old {
    /// There are as many as are wanted.
    Scaled,
    /// They are left alone.
    Left,
    /// All are stopped once the new ones of all groups serve.
    Stopped,
}

impl Course {
    /// Of a roll-out that has come so far; `None`: replicas are replaced one after another. `keep_over`: old replicas were kept for
    /// long enough.
    pub fn of(rules: &RolloutSpec, phase: &Phase, keep_over: bool) -> Option<Self> {
        let few = match rules.effective_strategy() {
            RolloutStrategy::Canary => Some(rules.effective_replicas()),
            RolloutStrategy::Rolling | RolloutStrategy::BlueGreen => None,
        };
        match phase {
            Phase::Preparing | Phase::Watching | Phase::Ready => Some(Self {
                most_new: few,
                old: Old::Scaled,
            }),
            Phase::Kept => Some(Self {
                most_new: None,
                old: match keep_over {
                    true => Old::Stopped,
                    false => Old::Left,
                },
            }),
            Phase::Following | Phase::RolledBack(_) => None,
        }
    }

    /// Whether the new deployment has yet to show what it is good for, which it cannot without replicas, nor without old ones beside.
    pub(crate) fn is_unproven(self) -> bool {
        self.old == Old::Scaled
    }

    fn new_of(&self, wanted: i64) -> i64 {
        self.most_new.map_or(wanted, |most| most.min(wanted))
    }
}

/// The jobs of a service by what a roll-out makes of them.
#[derive(Debug, Clone, Copy)]
pub struct Jobs<'a, 'j> {
    /// Of the old deployment. Those of the one before are not out of date, so that those that end by themselves are treated as ever.
    pub old: &'a [Job<'j>],
    /// Of the new deployment.
    pub new: &'a [Job<'j>],
    /// Of groups that the new deployment leaves as they are.
    pub kept: &'a [Job<'j>],
}

/// How far both sides of a group are that changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sides {
    /// Name of the group.
    pub group: String,
    /// It has replicas of the old deployment.
    pub has_old: bool,
    /// New replicas that there are to be.
    pub new_wanted: i64,
    /// New replicas that serve.
    pub new_ready: i64,
    /// New replicas that have failed for good.
    pub new_failed: Vec<i64>,
    /// Old replicas that serve.
    pub old_ready: i64,
}

impl Sides {
    /// Whether all new replicas serve that there are to be.
    pub const fn is_ready(&self) -> bool {
        self.new_ready >= self.new_wanted
    }
}

/// The next step of both sides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Step {
    /// As for all services; what is started is of the new deployment.
    pub changes: Changes,
    /// Replicas of the old deployment to start.
    pub start_old: Vec<Slot>,
    /// Groups that change.
    pub sides: Vec<Sides>,
}

/// What is done with one group.
#[derive(Debug)]
pub(crate) struct GroupStep {
    pub(crate) start: i64,
    pub(crate) start_old: i64,
    pub(crate) stop: Vec<i64>,
    /// Old ones to stop if the new ones of all groups serve.
    pub(crate) stop_once_ready: Vec<i64>,
    pub(crate) sides: Sides,
}

/// How many replicas of a group are wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// Of the new deployment, by its rules.
    pub(crate) new: i64,
    /// Of the old one, by its own.
    pub(crate) old: i64,
    /// Of each of them that has any, at least.
    pub(crate) least: i64,
}

/// The step of one group. `stands_beside`: there are replicas of the old deployment, in this group or in another one.
pub(crate) fn of_group(
    group: &str,
    (old, new): (&[Replica], &[Replica]),
    wanted: Wanted,
    course: Course,
    stands_beside: bool,
) -> GroupStep {
    let has_old = has_present(old);
    let old_wanted = match has_old {
        true => wanted.old.max(wanted.new).max(wanted.least),
        // None are started to stand beside; only those that requests ask for.
        false => wanted.old,
    };
    let wanted = wanted.new.max(wanted.least);
    if !stands_beside {
        // Nothing is left that it could replace.
        let step = super::step(new, wanted);
        return GroupStep {
            start: step.start,
            start_old: 0,
            stop: step.stop,
            stop_once_ready: Vec::new(),
            sides: sides(group, (old, new), wanted, has_old),
        };
    }
    let new_wanted = course.new_of(wanted);
    let news = super::scale(new, new_wanted);
    let olds = match course.old {
        Old::Scaled => super::scale(old, old_wanted),
        Old::Left | Old::Stopped => super::Changes::default(),
    };
    GroupStep {
        start: news.start,
        start_old: olds.start,
        stop: news.stop.into_iter().chain(olds.stop).collect(),
        stop_once_ready: stopped_in_the_end(old, course),
        sides: sides(group, (old, new), new_wanted, has_old),
    }
}

/// The step of a group that is not in the configuration any more: it stays as long as the old deployment may be needed.
pub(crate) fn of_left_over(group: &str, old: &[Replica], course: Course) -> GroupStep {
    let has_old = has_present(old);
    GroupStep {
        start: 0,
        start_old: 0,
        stop: Vec::new(),
        stop_once_ready: stopped_in_the_end(old, course),
        sides: sides(group, (old, &[]), 0, has_old),
    }
}

fn stopped_in_the_end(old: &[Replica], course: Course) -> Vec<i64> {
    match course.old {
        Old::Scaled | Old::Left => Vec::new(),
        Old::Stopped => super::remove(old).stop,
    }
}

fn sides(group: &str, (old, new): (&[Replica], &[Replica]), new_wanted: i64, has_old: bool) -> Sides {
    let ready = |side: &[Replica]| super::count(side, |one| one.stage == Stage::Serving);
    let failed = new.iter().filter(|one| one.stage == Stage::Held);
    Sides {
        group: group.to_owned(),
        has_old,
        new_wanted,
        new_ready: ready(new),
        new_failed: failed.map(|one| one.num).collect(),
        old_ready: ready(old),
    }
}

/// Whether one of these lives, or comes back by itself.
pub(crate) fn has_present(replicas: &[Replica]) -> bool {
    replicas.iter().any(|one| is_present(one.stage))
}

/// Whether it lives, or comes back by itself.
const fn is_present(stage: Stage) -> bool {
    !matches!(stage, Stage::Ended | Stage::Held | Stage::Ending)
}

/// Jobs by group and replica.
pub(crate) fn by_group<'a, 'j>(jobs: &'a [Job<'j>]) -> BTreeMap<&'j str, BTreeMap<i64, Vec<&'a Job<'j>>>> {
    let mut found: BTreeMap<&str, BTreeMap<i64, Vec<&Job<'_>>>> = BTreeMap::new();
    for job in jobs {
        let group = found.entry(job.group).or_default();
        group.entry(job.replica_num).or_default().push(job);
    }
    found
}

#[cfg(test)]
mod tests {
    use dstack_model::decode::decode_strict;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn course(rules: &Value, phase: &Phase, keep_over: bool) -> Option<Course> {
        Course::of(&decode_strict(rules).unwrap(), phase, keep_over)
    }

    fn canary() -> Course {
        course(&json!({"strategy": "canary"}), &Phase::Watching, false).unwrap()
    }

    fn green(phase: &Phase, keep_over: bool) -> Course {
        course(&json!({"strategy": "blue_green"}), phase, keep_over).unwrap()
    }

    fn replicas(first: i64, stages: &[Stage]) -> Vec<Replica> {
        let replica = |(num, stage): (i64, &Stage)| Replica {
            num,
            out_of_date: false,
            stage: *stage,
        };
        (first..).zip(stages).map(replica).collect()
    }

    const SERVING: Stage = Stage::Serving;

    /// Of a group of a service that has old replicas: so many are wanted of both.
    fn of_both(
        old: &[Replica],
        new: &[Replica],
        (wanted, old_wanted): (i64, i64),
        course: Course,
    ) -> GroupStep {
        let wanted = Wanted {
            new: wanted,
            old: old_wanted,
            least: 0,
        };
        of_group("0", (old, new), wanted, course, true)
    }

    #[test]
    fn few_new_ones_stand_beside_all_old_ones_of_a_canary_and_all_of_blue_green() {
        let old = replicas(0, &[SERVING; 3]);
        for (course, wanted) in [(canary(), 1), (green(&Phase::Preparing, false), 3)] {
            let step = of_both(&old, &[], (3, 3), course);
            assert_eq!((step.start, step.start_old, step.stop), (wanted, 0, vec![]));
            assert_eq!((step.sides.new_wanted, step.sides.has_old), (wanted, true));
        }
        let phase = Phase::Following;
        assert_eq!(course(&json!({"strategy": "canary"}), &phase, false), None);
    }

    #[test]
    fn old_ones_are_scaled_until_the_switch_left_alone_after_it_and_stopped_in_the_end() {
        let old = replicas(0, &[SERVING, SERVING]);
        let new = replicas(5, &[SERVING; 3]);
        let step = |course| of_both(&old, &new, (3, 3), course);
        assert_eq!(
            (
                step(green(&Phase::Ready, false)).start_old,
                step(green(&Phase::Ready, false)).stop
            ),
            (1, vec![])
        );
        let kept = step(green(&Phase::Kept, false));
        assert_eq!((kept.start_old, kept.stop), (0, vec![]));
        assert_eq!(kept.stop_once_ready, Vec::<i64>::new());
        let mut stopped = step(green(&Phase::Kept, true)).stop_once_ready;
        stopped.sort_unstable();
        assert_eq!(stopped, [0, 1]);
        // A new one that failed is not replaced: it is rolled back.
        let failed = replicas(5, &[Stage::Held]);
        let step = of_both(&old, &failed, (2, 2), canary());
        assert_eq!((step.start, step.sides.new_failed), (0, vec![5]));
    }

    #[test]
    fn without_old_ones_in_any_group_all_are_new() {
        let gone = replicas(0, &[Stage::Ended, Stage::Ending]);
        let wanted = Wanted {
            new: 3,
            old: 3,
            least: 1,
        };
        let step = of_group("0", (&gone, &[]), wanted, canary(), false);
        assert_eq!((step.start, step.start_old, step.sides.has_old), (3, 0, false));
    }

    #[test]
    fn without_old_ones_in_its_group_a_canary_is_as_small_as_beside_them() {
        let wanted = |old| Wanted {
            new: 3,
            old,
            least: 1,
        };
        for (gone, old, started) in [
            (vec![], 0, 0),
            // Requests ask for some, which the old deployment answers as long as the new one is watched.
            (vec![], 2, 2),
            (vec![Stage::Held], 1, 0),
        ] {
            let step = of_group("0", (&replicas(0, &gone), &[]), wanted(old), canary(), true);
            assert_eq!((step.start, step.start_old), (1, started), "{gone:?}");
            assert_eq!((step.sides.has_old, step.sides.new_wanted), (false, 1));
        }
        let scaled = of_group("0", (&replicas(0, &[SERVING]), &[]), wanted(0), canary(), true);
        assert_eq!(
            (scaled.start, scaled.start_old),
            (1, 2),
            "as many as were asked for last"
        );
    }

    #[test]
    fn a_group_that_is_gone_stays_until_old_ones_are_stopped() {
        let old = replicas(0, &[SERVING]);
        let stopped = |course| of_left_over("a", &old, course).stop_once_ready;
        assert_eq!(stopped(canary()), Vec::<i64>::new());
        assert_eq!(stopped(green(&Phase::Kept, true)), [0]);
    }

    fn stages() -> impl Strategy<Value = Vec<Stage>> {
        use Stage::{Ended, Ending, Held, Paused, Running, Starting, Waiting};
        let stage = proptest::sample::select(vec![
            Ended, Held, Paused, Ending, Waiting, Starting, Running, SERVING,
        ]);
        proptest::collection::vec(stage, 0..6)
    }

    proptest! {
        /// Whatever becomes of new replicas, none of the old ones that serve is stopped before the switch, unless more serve than are
        /// wanted; nor after it, until they were kept for long enough and all new ones serve.
        #[test]
        fn no_healthy_old_replica_is_stopped(
            old in stages(), new in stages(), wanted in (0_i64..5, 0_i64..5), kept: bool, keep_over: bool,
        ) {
            let (old, new) = (replicas(0, &old), replicas(100, &new));
            let phase = if kept { Phase::Kept } else { Phase::Preparing };
            for course in [canary(), green(&phase, kept && keep_over)] {
                let step = of_both(&old, &new, wanted, course);
                let serving: Vec<i64> = old.iter().filter(|one| one.stage == SERVING).map(|one| one.num).collect();
                let stopped = serving.iter().filter(|num| step.stop.contains(num)).count();
                let needed = usize::try_from(wanted.0.max(wanted.1)).unwrap();
                prop_assert!(serving.len() - stopped >= serving.len().min(needed));
                prop_assert!(step.stop_once_ready.is_empty() || (kept && keep_over));
            }
        }
    }
}
