//! Whether the answers of a new deployment are within the bounds of its configuration.

use dstack_model::configurations::service::RolloutSpec;

/// What replicas have answered. Attempts that brought no answer count as failed ones.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Answers {
    /// How many there were.
    pub requests: u64,
    /// Those of status 5xx, broken ones, and those that never began.
    pub failed: u64,
    /// Seconds that 95% of them took at most to begin, estimated; `None`: there were none.
    pub p95_seconds: Option<f64>,
    /// Seconds than which surely more than 5% of them took longer to begin; 0 if none are known.
    pub p95_over_seconds: f64,
    /// Somebody who counts some of them has not said lately how many.
    pub is_partial: bool,
}

impl Answers {
    /// The share of failed ones; 0 if there were none.
    #[allow(clippy::cast_precision_loss)] // numbers of requests
    pub fn error_rate(&self) -> f64 {
        match self.requests {
            0 => 0.0,
            requests => self.failed as f64 / requests as f64,
        }
    }
}

/// What both sides of a roll-out have answered.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Answered {
    /// The new deployment.
    pub new: Answers,
    /// The old one.
    pub old: Answers,
}

/// What the answers say of a new deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// There is nothing to be said yet: too few, or nobody knows how many.
    Open,
    /// All of them are within the bounds.
    Well,
    /// They are not, for this reason.
    Exceeded(String),
}

/// Judges answers; `None`: whoever counts them does not say. Some of them may tell that all are not well, and never that all are.
pub fn judge(rules: &RolloutSpec, answers: Option<&Answers>) -> Judgement {
    if !rules.has_bounds() {
        return Judgement::Well;
    }
    let Some(answers) = answers.filter(|answers| answers.requests >= rules.effective_min_requests()) else {
        return Judgement::Open;
    };
    let rate = answers.error_rate();
    if let Some(most) = rules.max_error_rate.filter(|most| rate > most.fraction()) {
        return Judgement::Exceeded(format!(
            "{} of {} answers failed ({:.1}%), and `max_error_rate` is {most}",
            answers.failed,
            answers.requests,
            rate * 100.0
        ));
    }
    let over = answers.p95_over_seconds;
    if let Some(most) = rules.max_latency.filter(|most| over >= most.as_secs_f64()) {
        return Judgement::Exceeded(format!(
            "of {} answers more than 5% took longer than {over} s to begin, and `max_latency` is {most}",
            answers.requests
        ));
    }
    match answers.is_partial {
        true => Judgement::Open,
        false => Judgement::Well,
    }
}

#[cfg(test)]
mod tests {
    use dstack_model::decode::decode_strict;
    use serde_json::json;

    use super::*;

    fn rules() -> RolloutSpec {
        let rules =
            json!({"strategy": "canary", "max_error_rate": "5%", "max_latency": "2s", "min_requests": 20});
        decode_strict(&rules).unwrap()
    }

    const fn answers(requests: u64, failed: u64, p95_over_seconds: f64) -> Answers {
        Answers {
            requests,
            failed,
            p95_seconds: Some(p95_over_seconds),
            p95_over_seconds,
            is_partial: false,
        }
    }

    #[test]
    fn bounds_are_exceeded_by_more_than_they_say() {
        let judged = |found| judge(&rules(), Some(&found));
        assert_eq!(judged(answers(20, 1, 1.0)), Judgement::Well);
        let Judgement::Exceeded(rate) = judged(answers(20, 2, 0.1)) else {
            panic!("10% is too many")
        };
        assert_eq!(rate, "2 of 20 answers failed (10.0%), and `max_error_rate` is 5%");
        let Judgement::Exceeded(slow) = judged(answers(40, 0, 2.5)) else {
            panic!("too slow")
        };
        assert_eq!(
            slow,
            "of 40 answers more than 5% took longer than 2.5 s to begin, and `max_latency` is 2s"
        );
    }

    #[test]
    fn some_of_the_answers_tell_that_all_are_not_well_and_never_that_all_are() {
        let judged = |found: Answers| {
            let is_partial = true;
            judge(&rules(), Some(&Answers { is_partial, ..found }))
        };
        assert_eq!(judged(answers(100, 0, 0.1)), Judgement::Open);
        assert!(matches!(judged(answers(100, 50, 0.1)), Judgement::Exceeded(_)));
        assert_eq!(judged(answers(19, 19, 0.1)), Judgement::Open);
    }

    #[test]
    fn too_few_and_unknown_answers_say_nothing() {
        assert_eq!(judge(&rules(), Some(&answers(19, 19, 9.0))), Judgement::Open);
        assert_eq!(judge(&rules(), None), Judgement::Open);
        let unbounded = decode_strict(&json!({"strategy": "canary"})).unwrap();
        assert_eq!(judge(&unbounded, None), Judgement::Well);
    }
}
