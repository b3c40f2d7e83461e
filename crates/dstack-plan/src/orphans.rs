//! What in a cloud carries our marks and belongs to nobody: what is to be said of it, and when it may be ended.
//!
//! A thing is an orphan once it was in no live row's name at each look of a whole grace. Each look begins anew whatever is not
//! certain: a thing that was known in between, or was not listed, or that nobody has looked for, has its grace before it again.

use std::collections::BTreeMap;
use std::time::Duration;

use dstack_units::Time;

/// In whose name a thing was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// A row that is not over, or one that a call is still to be made for.
    Live,
    /// A row that is over: the thing should be gone.
    Ended,
    /// No row that is known.
    Nobody,
}

/// When something was seen that belongs to nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
    /// At the first look.
    pub first: Time,
    /// At the last.
    pub last: Time,
    /// It was reported.
    pub is_reported: bool,
}

/// What the administrator wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// How long something belongs to nobody before it is an orphan.
    pub grace: Duration,
    /// Which orphans are ended, not only reported.
    pub removes: Removes,
}

/// Which orphans are ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Removes {
    /// None.
    #[default]
    Nothing,
    /// Those whose row is here and over. What another server has made with a copy of the database has no row here.
    Ended,
    /// All.
    Everything,
}

impl Removes {
    /// Whether something in this name is ended.
    pub const fn includes(self, holder: Holder) -> bool {
        match holder {
            Holder::Live => false,
            Holder::Ended => !matches!(self, Self::Nothing),
            Holder::Nobody => matches!(self, Self::Everything),
        }
    }
}

/// How long something belongs to nobody before it is an orphan, unless the administrator says otherwise.
pub const GRACE: Duration = Duration::from_secs(30 * 60);

/// What was seen so long ago, or a grace ago if that is longer, says nothing of now: nobody has looked since.
pub const MAX_GAP: Duration = Duration::from_secs(60 * 60);

impl Default for Policy {
    fn default() -> Self {
        Self {
            grace: GRACE,
            removes: Removes::Nothing,
        }
    }
}

/// What follows from a look at one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// What is remembered of it; `None`: nothing any more.
    pub sighting: Option<Sighting>,
    /// It is reported now.
    pub is_reported_now: bool,
    /// It may be ended, if it still belongs to nobody immediately before.
    pub may_end: bool,
}

impl Verdict {
    const FORGOTTEN: Self = Self {
        sighting: None,
        is_reported_now: false,
        may_end: false,
    };
}

/// What follows from a look at everything that an account lists with our marks (`listed`), of which `seen` is remembered.
///
/// Whatever is neither listed nor remembered has no verdict.
pub fn judge<K: Ord + Clone>(
    listed: &BTreeMap<K, Holder>,
    seen: &BTreeMap<K, Sighting>,
    policy: Policy,
    now: Time,
) -> BTreeMap<K, Verdict> {
    let gone = seen.keys().filter(|key| !listed.contains_key(*key));
    let gone = gone.map(|key| (key.clone(), Verdict::FORGOTTEN));
    let verdicts = listed.iter().filter_map(|(key, holder)| {
        let before = seen.get(key);
        match holder {
            Holder::Live => before.map(|_| (key.clone(), Verdict::FORGOTTEN)),
            Holder::Ended | Holder::Nobody => Some((key.clone(), of_nobody(*holder, before, policy, now))),
        }
    });
    gone.chain(verdicts).collect()
}

/// Of a thing that belongs to nobody now.
fn of_nobody(holder: Holder, before: Option<&Sighting>, policy: Policy, now: Time) -> Verdict {
    // Nobody has looked for too long, or a clock was set back: who knows what was so meanwhile.
    let gap = policy.grace.max(MAX_GAP);
    let goes_on = |seen: &&Sighting| seen.first <= seen.last && seen.last <= now && now - gap <= seen.last;
    let new = Sighting {
        first: now,
        last: now,
        is_reported: before.is_some_and(|seen| seen.is_reported),
    };
    let seen = before.filter(goes_on).copied().unwrap_or(new);
    let is_orphan = seen.first + policy.grace <= now;
    Verdict {
        sighting: Some(Sighting {
            last: now,
            is_reported: seen.is_reported || is_orphan,
            ..seen
        }),
        is_reported_now: is_orphan && !seen.is_reported,
        may_end: is_orphan && policy.removes.includes(holder),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const REMOVES: Policy = Policy {
        grace: GRACE,
        removes: Removes::Everything,
    };

    fn at(minutes: i64) -> Time {
        Time::from_millis(1_790_000_000_000 + minutes * 60_000)
    }

    /// Looks at one thing at these minutes, with these holders (`None`: it is not listed). The verdicts.
    fn looks(policy: Policy, looks: &[(i64, Option<Holder>)]) -> Vec<Option<Verdict>> {
        let mut seen = BTreeMap::new();
        let mut verdicts = Vec::new();
        for (minute, holder) in looks {
            let listed = holder.map(|holder| ("i-1", holder)).into_iter().collect();
            let verdict = judge(&listed, &seen, policy, at(*minute)).remove("i-1");
            seen = verdict
                .and_then(|verdict| verdict.sighting)
                .map(|sighting| ("i-1", sighting))
                .into_iter()
                .collect();
            verdicts.push(verdict);
        }
        verdicts
    }

    fn reports(verdicts: &[Option<Verdict>]) -> Vec<bool> {
        let reported = |verdict: &Option<Verdict>| verdict.is_some_and(|verdict| verdict.is_reported_now);
        verdicts.iter().map(reported).collect()
    }

    fn ends(verdicts: &[Option<Verdict>]) -> Vec<bool> {
        let ended = |verdict: &Option<Verdict>| verdict.is_some_and(|verdict| verdict.may_end);
        verdicts.iter().map(ended).collect()
    }

    const NOBODY: Option<Holder> = Some(Holder::Nobody);

    #[test]
    fn what_belongs_to_nobody_for_a_grace_is_reported_once_and_ended_only_where_that_is_wanted() {
        let story = [
            (0, NOBODY),
            (10, NOBODY),
            (29, Some(Holder::Ended)),
            (30, NOBODY),
            (40, NOBODY),
        ];
        for policy in [Policy::default(), REMOVES] {
            let verdicts = looks(policy, &story);
            assert_eq!(reports(&verdicts), [false, false, false, true, false]);
            let ended = policy == REMOVES;
            assert_eq!(ends(&verdicts), [false, false, false, ended, ended]);
        }
    }

    #[test]
    fn what_has_no_row_here_is_ended_only_where_everything_is() {
        let policy = Policy {
            grace: Duration::ZERO,
            removes: Removes::Ended,
        };
        let story = [(0, NOBODY), (1, Some(Holder::Ended)), (2, NOBODY)];
        let verdicts = looks(policy, &story);
        assert_eq!(ends(&verdicts), [false, true, false]);
        assert_eq!(reports(&verdicts), [true, false, false]);
    }

    #[test]
    fn what_is_known_in_between_or_not_listed_begins_anew() {
        for between in [Some(Holder::Live), None] {
            let story = [
                (0, NOBODY),
                (20, between),
                (25, NOBODY),
                (40, NOBODY),
                (54, NOBODY),
                (55, NOBODY),
            ];
            let verdicts = looks(REMOVES, &story);
            assert_eq!(verdicts[1], Some(Verdict::FORGOTTEN));
            assert_eq!(ends(&verdicts), [false, false, false, false, false, true]);
        }
        assert_eq!(looks(REMOVES, &[(0, Some(Holder::Live))]), [None]);
    }

    #[test]
    fn after_a_time_without_looks_the_grace_begins_anew_without_a_second_report() {
        let story = [
            (0, NOBODY),
            (60, NOBODY),
            (121, NOBODY),
            (150, NOBODY),
            (151, NOBODY),
        ];
        let verdicts = looks(REMOVES, &story);
        assert_eq!(reports(&verdicts), [false, true, false, false, false]);
        assert_eq!(ends(&verdicts), [false, true, false, false, true]);
    }

    #[test]
    fn a_clock_that_was_set_back_ends_nothing() {
        let verdicts = looks(REMOVES, &[(0, NOBODY), (-10, NOBODY), (10, NOBODY), (20, NOBODY)]);
        assert_eq!(ends(&verdicts), [false, false, false, true]);
    }

    fn holder() -> impl Strategy<Value = Option<Holder>> {
        prop_oneof![
            Just(None),
            Just(Some(Holder::Live)),
            Just(Some(Holder::Ended)),
            Just(NOBODY),
        ]
    }

    fn removes() -> impl Strategy<Value = Removes> {
        prop_oneof![
            Just(Removes::Nothing),
            Just(Removes::Ended),
            Just(Removes::Everything)
        ]
    }

    /// Minutes since the last look, and the holders of three things.
    fn story() -> impl Strategy<Value = Vec<(i64, [Option<Holder>; 3])>> {
        proptest::collection::vec((-5i64..80, [holder(), holder(), holder()]), 1..40)
    }

    proptest! {
        /// Nothing is reported or may be ended that did not belong to nobody at each look of a whole grace, with no longer gap
        /// between two looks than may be; nothing may be ended unless that is wanted, and all that may be is reported.
        #[test]
        fn only_what_belonged_to_nobody_all_the_time(story in story(), removes in removes()) {
            let policy = Policy { removes, ..REMOVES };
            let mut seen: BTreeMap<usize, Sighting> = BTreeMap::new();
            // Since when each thing has belonged to nobody without a doubt.
            let mut since: [Option<(Time, Time)>; 3] = [None; 3];
            let mut now = at(0);
            for (minutes, holders) in story {
                now = match u32::try_from(minutes) {
                    Ok(minutes) => now + MINUTE * minutes,
                    Err(_) => now - MINUTE * minutes.unsigned_abs() as u32,
                };
                let listed: BTreeMap<usize, Holder> = (0..3).filter_map(|thing| Some((thing, holders[thing]?))).collect();
                let verdicts = judge(&listed, &seen, policy, now);
                for thing in 0..3 {
                    let belongs_to_nobody = matches!(holders[thing], Some(Holder::Ended | Holder::Nobody));
                    since[thing] = match since[thing] {
                        Some((first, last)) if belongs_to_nobody && last <= now && now - MAX_GAP <= last => Some((first, now)),
                        _ => belongs_to_nobody.then_some((now, now)),
                    };
                    let Some(verdict) = verdicts.get(&thing) else {
                        prop_assert!(!belongs_to_nobody);
                        continue;
                    };
                    let is_orphan = since[thing].is_some_and(|(first, _)| first + GRACE <= now);
                    prop_assert!(is_orphan || !(verdict.is_reported_now || verdict.may_end));
                    let is_wanted = match removes {
                        Removes::Nothing => false,
                        Removes::Ended => holders[thing] == Some(Holder::Ended),
                        Removes::Everything => true,
                    };
                    prop_assert_eq!(verdict.may_end, is_orphan && is_wanted);
                    prop_assert_eq!(verdict.sighting.is_some(), belongs_to_nobody);
                    prop_assert!(!is_orphan || verdict.sighting.is_some_and(|sighting| sighting.is_reported));
                }
                seen = verdicts.into_iter().filter_map(|(thing, verdict)| Some((thing, verdict.sighting?))).collect();
            }
        }

        /// What belongs to nobody is reported once, however long it is looked at.
        #[test]
        fn reported_once(minutes in proptest::collection::vec(1i64..29, 1..60)) {
            let mut now = 0;
            let story: Vec<(i64, Option<Holder>)> = minutes.iter().map(|minutes| { now += minutes; (now, NOBODY) }).collect();
            let told = reports(&looks(Policy::default(), &story)).into_iter().filter(|told| *told).count();
            let lasts = story.last().unwrap().0 - story[0].0 >= 30;
            prop_assert_eq!(told, usize::from(lasts));
        }
    }
}
