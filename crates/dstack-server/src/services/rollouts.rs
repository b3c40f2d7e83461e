//! Roll-outs in which a new deployment stands beside the old one: how requests are split between both, and what both have answered,
//! through this server and through those that share its database.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dstack_agent_api::gateway::{
    RolloutCounts, SideCounts, Split as ToldSplit, SplitHeader, Times as ToldTimes,
};
use dstack_model::configurations::service::{Percent, RolloutHeader};
use dstack_plan::services::rollout::judge::{Answered as Judged, Answers as JudgedSide};
use dstack_plan::services::rollout::state::{Phase, Rollout, rules};
use dstack_proxy::Split;
use dstack_proxy::split::{Answered, Side};
use dstack_store::rows::{JobRow, RunRow};
use dstack_units::{JobId, RunId};
use tokio::time::Instant;

use super::counts::Times;

/// Who is to tell and does not for so long is silent.
const SILENCE: Duration = Duration::from_secs(15);

/// Who is silent for so long is gone, and tells no more.
const GONE: Duration = Duration::from_secs(60);

/// How the requests to a service are to be split.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Planned {
    pub(super) deployment: i64,
    new: BTreeSet<JobId>,
    share: Percent,
    header: Option<RolloutHeader>,
}

/// How the requests to a service are to be split, whose registered jobs are these. `None`: not at all.
pub(super) fn split<'a>(run: &RunRow, jobs: impl Iterator<Item = &'a JobRow> + Clone) -> Option<Planned> {
    let rollout = run.rollout_under_way()?;
    let rules = rules(run.run_spec.configuration.service()?)?;
    let share = match rollout.phase {
        Phase::Preparing | Phase::Ready => Percent::NONE,
        Phase::Watching => rules.effective_share(),
        Phase::Kept => Percent::ALL,
        Phase::Following | Phase::RolledBack(_) => return None,
    };
    Some(Planned {
        deployment: rollout.deployment,
        new: new_jobs(run, rollout, jobs),
        share,
        header: rules.header.clone(),
    })
}

/// Those of groups that stay as they are count as old ones, until all requests go to the new deployment, to which they belong.
fn new_jobs<'a>(
    run: &RunRow,
    rollout: &Rollout,
    jobs: impl Iterator<Item = &'a JobRow> + Clone,
) -> BTreeSet<JobId> {
    let is_old = |job: &JobRow| job.deployment_num < rollout.deployment;
    if rollout.phase == Phase::Kept {
        return jobs.filter(|job| !is_old(job)).map(|job| job.id).collect();
    }
    let kept = run.kept_groups(jobs.clone());
    let is_new = |job: &&JobRow| {
        rollout.is_new(job.deployment_num, job.submitted_at) && !kept.contains(&job.job_spec.replica_group)
    };
    jobs.filter(is_new).map(|job| job.id).collect()
}

impl Planned {
    /// As this server splits them.
    pub(super) fn routed(self, answered: Arc<Answered>) -> Split {
        let header = self
            .header
            .and_then(|header| Some((header.name.parse().ok()?, header.value.parse().ok()?)));
        Split {
            deployment: self.deployment,
            new: self.new.into_iter().collect(),
            share: self.share.of_ten_thousand(),
            header,
            answered,
        }
    }

    /// As a gateway is told.
    pub(super) fn told(self) -> ToldSplit {
        ToldSplit {
            deployment: self.deployment,
            new: self.new.into_iter().map(told_id).collect(),
            share: self.share.of_ten_thousand(),
            header: self.header.map(|header| SplitHeader {
                name: header.name,
                value: header.value,
            }),
        }
    }
}

pub(super) fn told_id(job: JobId) -> String {
    job.uuid().simple().to_string()
}

/// Whether a gateway that splits requests so `present`ly may be told of a job, where they are `wanted` to be split so.
pub(super) fn may_be_told(job: JobId, wanted: Option<&ToldSplit>, present: Option<&ToldSplit>) -> bool {
    let id = told_id(job);
    let Some(wanted) = wanted.filter(|wanted| wanted.new.contains(&id)) else {
        return true;
    };
    present.is_some_and(|present| present.deployment == wanted.deployment && present.new.contains(&id))
}

/// What one side has answered, wherever that was.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct SideAnswers {
    requests: u64,
    failed: u64,
    head: Times,
}

/// What both sides have answered.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Both {
    new: SideAnswers,
    old: SideAnswers,
    /// Somebody who counts some of it has not said so lately.
    is_partial: bool,
}

impl SideAnswers {
    fn of(answered: &Answered, side: Side) -> Self {
        let answers = answered.of(side);
        Self {
            requests: answers.requests,
            failed: answers.failed,
            head: Times::from(&answers.head),
        }
    }

    fn plus(&self, other: &Self) -> Self {
        Self {
            requests: self.requests.saturating_add(other.requests),
            failed: self.failed.saturating_add(other.failed),
            head: self.head.clone().plus(&other.head),
        }
    }

    fn judged(&self, is_partial: bool) -> JudgedSide {
        JudgedSide {
            requests: self.requests,
            failed: self.failed,
            p95_seconds: self.head.quantile(0.95),
            p95_over_seconds: self.head.surely_over(0.95),
            is_partial,
        }
    }

    fn told(&self) -> SideCounts {
        SideCounts {
            requests: self.requests,
            failed: self.failed,
            head: ToldTimes {
                buckets: self.head.buckets.clone(),
                count: self.head.count,
                sum: self.head.sum,
            },
        }
    }
}

impl From<&SideCounts> for SideAnswers {
    fn from(counts: &SideCounts) -> Self {
        Self {
            requests: counts.requests,
            failed: counts.failed,
            head: Times::from(counts.head.clone()),
        }
    }
}

impl From<&RolloutCounts> for Both {
    fn from(counts: &RolloutCounts) -> Self {
        Self {
            new: SideAnswers::from(&counts.new),
            old: SideAnswers::from(&counts.old),
            is_partial: false,
        }
    }
}

impl From<&Answered> for Both {
    fn from(answered: &Answered) -> Self {
        Self {
            new: SideAnswers::of(answered, Side::New),
            old: SideAnswers::of(answered, Side::Old),
            is_partial: false,
        }
    }
}

impl Both {
    /// With what was counted elsewhere.
    pub(super) fn plus(&self, other: &Self) -> Self {
        Self {
            new: self.new.plus(&other.new),
            old: self.old.plus(&other.old),
            is_partial: self.is_partial || other.is_partial,
        }
    }

    /// As far as is known: somebody has not said lately what was counted.
    #[must_use]
    pub(super) fn partial(mut self) -> Self {
        self.is_partial = true;
        self
    }

    /// As it is judged.
    pub(super) fn answered(&self) -> Judged {
        Judged {
            new: self.new.judged(self.is_partial),
            old: self.old.judged(self.is_partial),
        }
    }
}

/// What a server tells the others of a roll-out.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Told {
    run: RunId,
    counts: RolloutCounts,
}

/// How what is told of a roll-out begins. Servers that know no roll-outs find no run in it.
const WORD: &str = "rollout";

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = serde_json::to_string(&self.counts).map_err(|_| fmt::Error)?;
        write!(f, "{WORD} {} {counts}", self.run)
    }
}

impl Told {
    /// What a newer version tells may be unknown here.
    pub(super) fn read(text: &str) -> Option<Self> {
        let (run, counts) = text.strip_prefix(WORD)?.strip_prefix(' ')?.split_once(' ')?;
        Some(Self {
            run: run.parse().ok()?,
            counts: serde_json::from_str(counts).ok()?,
        })
    }
}

/// What is known of what both sides of roll-outs have answered.
#[derive(Debug, Default)]
pub(super) struct Rollouts {
    /// Through this server, of this deployment.
    own: HashMap<RunId, (i64, Arc<Answered>)>,
    /// What other servers have told last, and when.
    heard: HashMap<(String, RunId), (RolloutCounts, Instant)>,
    /// Since when all that is told is heard; `None`: it is not.
    since: Option<Instant>,
}

impl Rollouts {
    /// Where the answers of a deployment are counted.
    pub(super) fn of(&mut self, run: RunId, deployment: i64) -> Arc<Answered> {
        let own = self
            .own
            .entry(run)
            .or_insert_with(|| (deployment, Arc::default()));
        if own.0 != deployment {
            *own = (deployment, Arc::default());
        }
        Arc::clone(&own.1)
    }

    /// No roll-out of the run is under way.
    pub(super) fn forget(&mut self, run: RunId) {
        self.own.remove(&run);
        self.heard.retain(|(_, of), _| *of != run);
    }

    /// What the others are to hear.
    pub(super) fn to_tell(&self) -> Vec<Told> {
        let told = |(run, (deployment, answered)): (&RunId, &(i64, Arc<Answered>))| {
            let both = Both::from(&**answered);
            Told {
                run: *run,
                counts: RolloutCounts {
                    deployment: *deployment,
                    new: both.new.told(),
                    old: both.old.told(),
                },
            }
        };
        self.own.iter().map(told).collect()
    }

    /// What is told is heard from now on, if it was not already.
    pub(super) fn listen(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// What is told may be missed from now on.
    pub(super) fn miss(&mut self) {
        self.since = None;
    }

    /// Another server tells what came through it.
    pub(super) fn hear(&mut self, server: &str, told: Told, now: Instant) {
        self.heard
            .insert((server.to_owned(), told.run), (told.counts, now));
    }

    /// What both sides have answered through all servers; `shared`: others share the database, and it is now. It is partial where one
    /// of them has just fallen silent, or may have told what was not heard.
    pub(super) fn answered(&self, run: RunId, deployment: i64, shared: Option<Instant>) -> Both {
        let own = self.own.get(&run).filter(|(of, _)| *of == deployment);
        let own = own
            .map(|(_, answered)| Both::from(&**answered))
            .unwrap_or_default();
        let Some(now) = shared else {
            return own;
        };
        let heard = self.heard.iter().filter(|((_, of), _)| *of == run);
        let mut all = match self.since.is_none_or(|since| now < since + SILENCE) {
            true => own.partial(),
            false => own,
        };
        for (_, (counts, at)) in heard.filter(|(_, (counts, _))| counts.deployment == deployment) {
            all = all.plus(&Both::from(counts));
            if now > *at + SILENCE && now < *at + GONE {
                all = all.partial();
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn run() -> RunId {
        uuid::Uuid::from_u128(1).into()
    }

    fn told(deployment: i64, requests: u64) -> Told {
        let times = || ToldTimes {
            buckets: vec![(0.1, requests)],
            count: requests,
            sum: 0.0,
        };
        let side = |failed| SideCounts {
            requests,
            failed,
            head: times(),
        };
        Told {
            run: run(),
            counts: RolloutCounts {
                deployment,
                new: side(1),
                old: side(0),
            },
        }
    }

    #[test]
    fn what_is_told_is_read_as_it_was_meant_and_by_no_other_version() {
        let told = told(2, 7);
        let text = told.to_string();
        assert_eq!(Told::read(&text), Some(told));
        assert!(text.parse::<RunId>().is_err() && super::super::others::Told::read(&text).is_none());
        for unknown in [
            "",
            "rollout",
            "rollout x {}",
            "rollout 1",
            &format!("rollout {} 5", run()),
        ] {
            assert_eq!(Told::read(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn what_came_through_all_servers_counts_once_all_have_been_heard() {
        let (mut rollouts, start) = (Rollouts::default(), Instant::now());
        rollouts.of(run(), 2);
        let failed = |rollouts: &Rollouts, after: u32| {
            let new = rollouts
                .answered(run(), 2, Some(start + after * SECOND))
                .answered()
                .new;
            (!new.is_partial).then_some((new.requests, new.failed))
        };
        assert_eq!(failed(&rollouts, 100), None, "it hears nothing");
        rollouts.listen(start);
        assert_eq!(
            [14, 15].map(|after| failed(&rollouts, after)),
            [None, Some((0, 0))]
        );
        rollouts.hear("a", told(2, 10), start + 10 * SECOND);
        rollouts.hear("a", told(2, 20), start + 20 * SECOND);
        rollouts.hear("b", told(2, 5), start + 20 * SECOND);
        rollouts.hear("c", told(1, 100), start + 20 * SECOND);
        assert_eq!(failed(&rollouts, 25), Some((25, 2)), "of this deployment");
        assert_eq!(failed(&rollouts, 40), None, "they are silent");
        assert_eq!(failed(&rollouts, 90), Some((25, 2)), "they are gone");
        rollouts.miss();
        assert_eq!(failed(&rollouts, 91), None);
        let known = rollouts.answered(run(), 2, Some(start + 91 * SECOND)).answered();
        assert_eq!(
            (known.new.requests, known.new.failed),
            (25, 2),
            "as far as is known"
        );
        let alone = rollouts.answered(run(), 2, None).answered();
        assert!(!alone.new.is_partial, "there are no others");
    }

    #[test]
    fn another_deployment_counts_anew() {
        let mut rollouts = Rollouts::default();
        let first = rollouts.of(run(), 2);
        assert!(Arc::ptr_eq(&first, &rollouts.of(run(), 2)));
        assert!(!Arc::ptr_eq(&first, &rollouts.of(run(), 3)));
        assert_eq!(rollouts.to_tell().len(), 1);
        rollouts.forget(run());
        assert_eq!(rollouts.to_tell(), []);
    }

    #[test]
    fn a_gateway_hears_of_a_new_replica_once_it_knows_that_it_is_new() {
        let job = JobId::from(uuid::Uuid::from_u128(5));
        let split = |deployment, new: &[JobId]| ToldSplit {
            deployment,
            new: new.iter().copied().map(told_id).collect(),
            share: 0,
            header: None,
        };
        let wanted = split(2, &[job]);
        assert!(!may_be_told(job, Some(&wanted), None));
        assert!(!may_be_told(job, Some(&wanted), Some(&split(2, &[]))));
        assert!(!may_be_told(job, Some(&wanted), Some(&split(1, &[job]))));
        assert!(may_be_told(job, Some(&wanted), Some(&wanted)));
        assert!(may_be_told(job, Some(&split(2, &[])), None), "an old one");
        assert!(may_be_told(job, None, None));
    }
}
