//! What becomes of a roll-out next: by how far its replicas are, what they have answered, and what was asked for.

use dstack_model::configurations::service::{RolloutSpec, RolloutStrategy, RolloutSwitch};
use dstack_units::Time;

use super::judge::{Answers, Judgement, judge};
use super::sides::Sides;
use super::state::{Ask, Phase, Rollout};

/// All that is known of a roll-out.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The rules of the new deployment.
    pub rules: &'a RolloutSpec,
    /// How far it is.
    pub state: &'a Rollout,
    /// Its groups that change.
    pub groups: &'a [Sides],
    /// What its new replicas have answered; `None`: not known.
    pub answers: Option<Answers>,
}

/// What becomes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It stays as it is, and is looked at again then.
    Stay(Option<Time>),
    /// It has come so far.
    Enter(Phase),
    /// Nothing is left of the old deployment.
    Finish,
    /// The old deployment is back, for this reason.
    RollBack(String),
}

/// Whether old replicas were kept for long enough after the switch.
pub fn keep_over(rules: &RolloutSpec, state: &Rollout, now: Time) -> bool {
    state.phase == Phase::Kept && kept_until(rules, state) <= now
}

fn kept_until(rules: &RolloutSpec, state: &Rollout) -> Time {
    state.since + rules.effective_keep().to_duration()
}

/// Until when it stays as it is, if nothing happens.
pub fn until(rules: &RolloutSpec, state: &Rollout) -> Option<Time> {
    match state.phase {
        Phase::Watching => Some(state.since + rules.effective_duration().to_duration()),
        Phase::Kept => Some(kept_until(rules, state)),
        _ => None,
    }
}

/// Decides about a roll-out that nobody wants to abort.
pub fn decide(facts: &Facts<'_>, now: Time) -> Verdict {
    if facts.state.phase.is_over() {
        return Verdict::Stay(None);
    }
    if facts.groups.iter().all(|group| !group.has_old) {
        return Verdict::Finish;
    }
    if facts.state.phase.is_unproven()
        && let Some(reason) = failure(facts.groups)
    {
        return Verdict::RollBack(reason);
    }
    let is_canary = facts.rules.effective_strategy() == RolloutStrategy::Canary;
    let is_promoted = facts.state.asked == Some(Ask::Promote);
    let is_ready = facts.groups.iter().all(Sides::is_ready);
    match facts.state.phase {
        Phase::Preparing | Phase::Watching if is_canary && is_promoted => Verdict::Enter(Phase::Following),
        Phase::Preparing if is_ready && is_canary => Verdict::Enter(Phase::Watching),
        Phase::Preparing if is_ready && !is_manual(facts) => Verdict::Enter(Phase::Kept),
        Phase::Preparing if is_ready => Verdict::Enter(Phase::Ready),
        Phase::Ready if is_ready && !is_manual(facts) => Verdict::Enter(Phase::Kept),
        Phase::Watching => watched(facts, is_ready, now),
        Phase::Kept => Verdict::Stay(until(facts.rules, facts.state).filter(|until| *until > now)),
        _ => Verdict::Stay(None),
    }
}

fn is_manual(facts: &Facts<'_>) -> bool {
    facts.rules.switch == Some(RolloutSwitch::Manual) && facts.state.asked != Some(Ask::Promote)
}

/// Why new replicas cannot replace the old ones.
fn failure(groups: &[Sides]) -> Option<String> {
    let failed = groups.iter().find(|group| !group.new_failed.is_empty())?;
    let nums: Vec<String> = failed.new_failed.iter().map(ToString::to_string).collect();
    Some(match nums.as_slice() {
        [one] => format!("new replica {one} failed"),
        several => format!("new replicas {} failed", several.join(", ")),
    })
}

fn watched(facts: &Facts<'_>, is_ready: bool, now: Time) -> Verdict {
    let ends_at = until(facts.rules, facts.state).filter(|until| *until > now);
    match judge(facts.rules, facts.answers.as_ref()) {
        Judgement::Exceeded(reason) => Verdict::RollBack(reason),
        Judgement::Well if ends_at.is_none() && is_ready => Verdict::Enter(Phase::Following),
        Judgement::Well | Judgement::Open => Verdict::Stay(ends_at),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dstack_model::decode::decode_strict;
    use serde_json::{Value, json};

    use super::*;

    fn start() -> Time {
        Time::from_millis(1_790_000_000_000)
    }

    fn later(minutes: u64) -> Time {
        start() + Duration::from_secs(60 * minutes)
    }

    fn rules(rules: &Value) -> RolloutSpec {
        decode_strict(rules).unwrap()
    }

    fn canary() -> RolloutSpec {
        rules(&json!({"strategy": "canary", "max_error_rate": "5%"}))
    }

    fn state(phase: Phase, asked: Option<Ask>) -> Rollout {
        Rollout {
            phase,
            asked,
            ..Rollout::begin((2, 1), start(), start())
        }
    }

    fn group(new_ready: i64, new_failed: &[i64]) -> Sides {
        Sides {
            group: "0".to_owned(),
            has_old: true,
            new_wanted: 2,
            new_ready,
            new_failed: new_failed.to_vec(),
            old_ready: 2,
        }
    }

    fn decided(
        rules: &RolloutSpec,
        state: &Rollout,
        group: Sides,
        answers: Option<Answers>,
        now: Time,
    ) -> Verdict {
        let facts = Facts {
            rules,
            state,
            groups: &[group],
            answers,
        };
        decide(&facts, now)
    }

    const fn answers(requests: u64, failed: u64) -> Option<Answers> {
        Some(Answers {
            requests,
            failed,
            p95_seconds: None,
            p95_over_seconds: 0.0,
            is_partial: false,
        })
    }

    #[test]
    fn a_canary_is_watched_once_it_is_ready_and_goes_on_after_its_time() {
        let preparing = state(Phase::Preparing, None);
        assert_eq!(
            decided(&canary(), &preparing, group(1, &[]), None, start()),
            Verdict::Stay(None)
        );
        assert_eq!(
            decided(&canary(), &preparing, group(2, &[]), None, start()),
            Verdict::Enter(Phase::Watching)
        );
        let watching = state(Phase::Watching, None);
        let at = |minutes, answers| decided(&canary(), &watching, group(2, &[]), answers, later(minutes));
        assert_eq!(at(9, answers(100, 0)), Verdict::Stay(Some(later(10))));
        assert_eq!(at(10, answers(100, 0)), Verdict::Enter(Phase::Following));
        assert_eq!(
            decided(&canary(), &watching, group(1, &[]), answers(100, 0), later(60)),
            Verdict::Stay(None),
            "one has gone"
        );
        for unknown in [None, answers(19, 0)] {
            assert_eq!(at(60, unknown), Verdict::Stay(None), "it waits for answers");
        }
        let Verdict::RollBack(reason) = at(1, answers(100, 6)) else {
            panic!("6% is too many")
        };
        assert!(reason.contains("6 of 100 answers failed"), "{reason}");
    }

    #[test]
    fn new_replicas_that_fail_are_rolled_back_until_all_requests_went_to_them() {
        let failed = |phase| decided(&canary(), &state(phase, None), group(1, &[4]), None, start());
        for phase in [Phase::Preparing, Phase::Watching, Phase::Ready] {
            assert_eq!(
                failed(phase),
                Verdict::RollBack("new replica 4 failed".to_owned())
            );
        }
        for phase in [Phase::Following, Phase::Kept] {
            assert!(matches!(failed(phase), Verdict::Stay(_)));
        }
    }

    #[test]
    fn green_is_switched_to_when_all_are_ready_or_when_told() {
        let auto = rules(&json!({"strategy": "blue_green"}));
        let manual = rules(&json!({"strategy": "blue_green", "switch": "manual"}));
        let preparing = state(Phase::Preparing, None);
        assert_eq!(
            decided(&auto, &preparing, group(1, &[]), None, start()),
            Verdict::Stay(None)
        );
        assert_eq!(
            decided(&auto, &preparing, group(2, &[]), None, start()),
            Verdict::Enter(Phase::Kept)
        );
        assert_eq!(
            decided(&manual, &preparing, group(2, &[]), None, start()),
            Verdict::Enter(Phase::Ready)
        );
        let promoted = state(Phase::Preparing, Some(Ask::Promote));
        assert_eq!(
            decided(&manual, &promoted, group(1, &[]), None, start()),
            Verdict::Stay(None)
        );
        assert_eq!(
            decided(&manual, &promoted, group(2, &[]), None, start()),
            Verdict::Enter(Phase::Kept)
        );
        let ready = |asked| state(Phase::Ready, asked);
        assert_eq!(
            decided(&manual, &ready(None), group(2, &[]), None, later(99)),
            Verdict::Stay(None)
        );
        let told = ready(Some(Ask::Promote));
        assert_eq!(
            decided(&manual, &told, group(1, &[]), None, start()),
            Verdict::Stay(None),
            "one has gone"
        );
        assert_eq!(
            decided(&manual, &told, group(2, &[]), None, start()),
            Verdict::Enter(Phase::Kept)
        );
    }

    #[test]
    fn old_replicas_are_kept_for_a_while_after_the_switch() {
        let green = rules(&json!({"strategy": "blue_green", "keep": "10m"}));
        let kept = state(Phase::Kept, None);
        assert_eq!(
            decided(&green, &kept, group(2, &[]), None, later(9)),
            Verdict::Stay(Some(later(10)))
        );
        assert!(!keep_over(&green, &kept, later(9)));
        assert!(keep_over(&green, &kept, later(10)));
        assert!(!keep_over(&green, &state(Phase::Ready, None), later(10)));
    }

    #[test]
    fn by_hand_a_canary_goes_on_at_once_and_without_old_replicas_it_is_over() {
        for phase in [Phase::Preparing, Phase::Watching] {
            let promoted = state(phase, Some(Ask::Promote));
            assert_eq!(
                decided(&canary(), &promoted, group(0, &[]), None, start()),
                Verdict::Enter(Phase::Following)
            );
        }
        let facts = Facts {
            rules: &canary(),
            state: &state(Phase::Following, None),
            groups: &[],
            answers: None,
        };
        assert_eq!(decide(&facts, start()), Verdict::Finish);
    }
}
