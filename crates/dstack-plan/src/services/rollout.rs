//! Which replicas of a group are started and stopped.
//!
//! A new deployment replaces replicas one after another: one more than wanted may live at a time, and an old one that
//! answers requests is stopped only when more answer than are wanted.
//!
//! * [`state`] — a roll-out in which the new deployment stands beside the old one for a while.
//! * [`sides`] — which replicas both have meanwhile.
//! * [`judge`] — whether the answers of the new one are good enough.
//! * [`course`] — what becomes of it next.

pub mod course;
pub mod judge;
pub mod sides;
pub mod state;

use std::cmp::Reverse;

use dstack_model::limits::MAX_JOBS_OF_RUN;

/// More replicas than wanted that may live while they are replaced.
pub const SURGE: i64 = 1;

/// How far a replica is. Later ones are worth more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// All its jobs have ended.
    Ended,
    /// Ended or ending by itself: nothing is started in its place.
    Held,
    /// As [`Stage::Held`], for a while.
    Paused,
    /// Some of its jobs are ending, or have ended.
    Ending,
    /// Waits for instances.
    Waiting,
    /// Its instances or containers are being made.
    Starting,
    /// Runs, but gets no requests yet.
    Running,
    /// Runs and gets requests.
    Serving,
}

impl Stage {
    /// Whether it is still to be stopped when it is not wanted.
    const fn is_active(self) -> bool {
        !matches!(self, Self::Ended | Self::Held | Self::Paused | Self::Ending)
    }
}

/// A replica of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replica {
    /// Its number in the run.
    pub num: i64,
    /// Of an older deployment.
    pub out_of_date: bool,
    /// How far it is.
    pub stage: Stage,
}

/// What to do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Replicas to start, of the newest deployment.
    pub start: i64,
    /// Replicas to stop.
    pub stop: Vec<i64>,
}

/// The next step towards so many replicas, all of the newest deployment; never towards more than a service can have.
pub fn step(replicas: &[Replica], desired: i64) -> Changes {
    let desired = desired.clamp(0, MAX_JOBS_OF_RUN);
    let out_of_date = |replica: &&Replica| replica.out_of_date && replica.stage != Stage::Ended;
    if replicas.iter().any(|replica| out_of_date(&replica)) {
        replace(replicas, desired)
    } else {
        scale(replicas, desired)
    }
}

/// All replicas of a group that is no longer in the configuration.
pub fn remove(replicas: &[Replica]) -> Changes {
    Changes {
        start: 0,
        stop: least_needed(replicas, replicas.len()),
    }
}

/// Where no replica is left that could serve, those that failed keep no place.
pub fn free_held(replicas: &mut [Replica]) {
    if replicas.iter().any(|replica| replica.stage.is_active()) {
        return;
    }
    for replica in replicas.iter_mut().filter(|one| one.stage == Stage::Held) {
        replica.stage = Stage::Ended;
    }
}

/// Towards so many replicas, whatever their deployment.
fn scale(replicas: &[Replica], desired: i64) -> Changes {
    let active = count(replicas, |replica| replica.stage.is_active());
    let held = count(replicas, |replica| {
        matches!(replica.stage, Stage::Held | Stage::Paused)
    });
    Changes {
        start: (desired - active - held).max(0),
        stop: least_needed(replicas, to_usize(active - desired)),
    }
}

fn replace(replicas: &[Replica], desired: i64) -> Changes {
    let alive = count(replicas, |replica| replica.stage != Stage::Ended);
    let serving = count(replicas, |replica| replica.stage == Stage::Serving);
    let useless = count(replicas, |replica| {
        replica.out_of_date && replica.stage.is_active() && replica.stage != Stage::Serving
    });
    Changes {
        start: (desired + SURGE - alive).max(0),
        stop: least_needed(replicas, to_usize(useless + (serving - desired).max(0))),
    }
}

/// Out-of-date ones first, then those that are least far, then the youngest.
fn least_needed(replicas: &[Replica], how_many: usize) -> Vec<i64> {
    let mut active: Vec<&Replica> = replicas
        .iter()
        .filter(|replica| replica.stage.is_active())
        .collect();
    active.sort_by_key(|replica| (!replica.out_of_date, replica.stage, Reverse(replica.num)));
    active
        .into_iter()
        .take(how_many)
        .map(|replica| replica.num)
        .collect()
}

fn count(replicas: &[Replica], counts: impl Fn(&Replica) -> bool) -> i64 {
    let found = replicas.iter().filter(|replica| counts(replica)).count();
    i64::try_from(found).unwrap_or(i64::MAX)
}

fn to_usize(number: i64) -> usize {
    usize::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn replica(num: i64, out_of_date: bool, stage: Stage) -> Replica {
        Replica {
            num,
            out_of_date,
            stage,
        }
    }

    #[test]
    fn scaling_stops_what_is_needed_least() {
        let replicas = [
            replica(0, false, Stage::Serving),
            replica(1, false, Stage::Waiting),
            replica(2, false, Stage::Serving),
            replica(3, false, Stage::Ended),
        ];
        assert_eq!(
            step(&replicas, 5),
            Changes {
                start: 2,
                stop: vec![]
            }
        );
        assert_eq!(
            step(&replicas, 1),
            Changes {
                start: 0,
                stop: vec![1, 2]
            }
        );
    }

    #[test]
    fn replacing_goes_one_by_one() {
        let old = |num| replica(num, true, Stage::Serving);
        let first = [old(0), old(1)];
        assert_eq!(
            step(&first, 2),
            Changes {
                start: 1,
                stop: vec![]
            }
        );
        let starting = [old(0), old(1), replica(2, false, Stage::Starting)];
        assert_eq!(step(&starting, 2), Changes::default());
        let serving = [old(0), old(1), replica(2, false, Stage::Serving)];
        assert_eq!(
            step(&serving, 2),
            Changes {
                start: 0,
                stop: vec![1]
            }
        );
        let not_yet = [old(0), replica(1, true, Stage::Starting)];
        assert_eq!(
            step(&not_yet, 2),
            Changes {
                start: 1,
                stop: vec![1]
            }
        );
    }

    #[test]
    fn removed_groups_end() {
        let replicas = [replica(0, true, Stage::Serving), replica(1, false, Stage::Ending)];
        assert_eq!(remove(&replicas).stop, [0]);
    }

    fn stage() -> impl Strategy<Value = Stage> {
        proptest::sample::select(vec![
            Stage::Ended,
            Stage::Held,
            Stage::Paused,
            Stage::Ending,
            Stage::Waiting,
            Stage::Starting,
            Stage::Running,
            Stage::Serving,
        ])
    }

    fn group() -> impl Strategy<Value = Vec<Replica>> {
        proptest::collection::vec((any::<bool>(), stage()), 0..8).prop_map(|replicas| {
            let numbered = replicas.into_iter().enumerate();
            numbered
                .map(|(num, (out_of_date, stage))| replica(i64::try_from(num).unwrap(), out_of_date, stage))
                .collect()
        })
    }

    fn serving(replicas: &[Replica]) -> i64 {
        count(replicas, |replica| replica.stage == Stage::Serving)
    }

    proptest! {
        /// No step leaves fewer serving than were wanted, or than there were.
        #[test]
        fn never_below_the_promise(replicas in group(), desired in 0i64..6) {
            let changes = step(&replicas, desired);
            let left: Vec<Replica> = replicas.iter().filter(|one| !changes.stop.contains(&one.num)).copied().collect();
            prop_assert!(serving(&left) >= desired.min(serving(&replicas)));
        }

        /// Never more alive than wanted and one, unless there were more before.
        #[test]
        fn never_many_more(replicas in group(), desired in 0i64..6) {
            let changes = step(&replicas, desired);
            let alive = count(&replicas, |one| one.stage.is_active());
            prop_assert!(alive + changes.start <= (desired + SURGE).max(alive));
        }

        /// Whatever the order in which replicas get ready and end, the new deployment arrives, and on the way never fewer
        /// serve than were wanted (once so many did).
        #[test]
        fn arrives(order in proptest::collection::vec((any::<u8>(), any::<bool>()), 60), desired in 1i64..4) {
            let mut replicas: Vec<Replica> = (0..desired).map(|num| replica(num, true, Stage::Serving)).collect();
            let mut next = desired;
            for (at, end) in order.into_iter().chain((0..200).map(|at| (at, at % 2 == 0))) {
                let changes = step(&replicas, desired);
                for _ in 0..changes.start {
                    replicas.push(replica(next, false, Stage::Waiting));
                    next += 1;
                }
                for one in &mut replicas {
                    if changes.stop.contains(&one.num) {
                        one.stage = Stage::Ending;
                    }
                }
                prop_assert!(serving(&replicas) >= desired);
                let place = usize::from(at) % replicas.len();
                let one = &mut replicas[place];
                one.stage = match one.stage {
                    Stage::Waiting => Stage::Starting,
                    Stage::Starting => Stage::Running,
                    Stage::Running => Stage::Serving,
                    Stage::Ending if end => Stage::Ended,
                    other => other,
                };
            }
            let up_to_date = replicas.iter().filter(|one| !one.out_of_date && one.stage == Stage::Serving).count();
            prop_assert_eq!(i64::try_from(up_to_date).unwrap(), desired);
            prop_assert!(replicas.iter().all(|one| !one.out_of_date || one.stage == Stage::Ended));
        }
    }
}
