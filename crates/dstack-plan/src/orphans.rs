//! What in a cloud carries our marks and belongs to nobody: what is to be said of it, and when it may be ended.
//!
//! A thing is an orphan once it was in no live row's name at each look of a whole grace, or was a second one beside that of such a
//! row. Each look begins anew whatever is not certain: a thing that was known in between, or was not listed, or that nobody has
//! looked for, has its grace before it again.

use std::collections::BTreeMap;
use std::time::Duration;

use dstack_units::Time;

/// In whose name a thing was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// A row that is not over, or one that a call is still to be made for.
    Live,
    /// Such a row, which has another one: the thing was made twice.
    Duplicate {
        /// Whether the row's own is listed as well.
        own_is_listed: bool,
    },
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
    /// It was told that it is being ended.
    pub is_ending: bool,
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
    /// No orphan is ended: they are reported.
    #[default]
    Nothing,
    /// Those whose row is here and over, or has its own one, which is listed. What another server has made with a copy of the
    /// database has no row here.
    Ended,
    /// Orphans of which no row is here are ended as well.
    Everything,
}

impl Removes {
    /// Whether something in this name is ended.
    pub const fn includes(self, holder: Holder) -> bool {
        match holder {
            Holder::Live => false,
            // Who knows which of them is the row's, where its own is not to be seen.
            Holder::Duplicate { own_is_listed } => own_is_listed && !matches!(self, Self::Nothing),
            Holder::Ended => !matches!(self, Self::Nothing),
            Holder::Nobody => matches!(self, Self::Everything),
        }
    }
}

/// How long something belongs to nobody before it is an orphan, unless the administrator says otherwise.
pub const GRACE: Duration = Duration::from_secs(30 * 60);

/// What was seen so long ago, or a grace ago if that is longer, says nothing of now: nobody has looked since.
pub const MAX_GAP: Duration = Duration::from_secs(60 * 60);

/// How often things are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Pause between two looks, if nothing holds them up. Of the time between two looks, twice as much counts at most: more may be
    /// the clock's, which was set forward.
    pub interval: Duration,
    /// See [`MAX_GAP`]; longer where looks take that long.
    pub max_gap: Duration,
}

impl Pace {
    /// Where a look at everything took so long (`last`), and the one under way has taken so long (`now`).
    pub fn of(interval: Duration, last: Duration, now: Duration) -> Self {
        let between = last
            .saturating_add(now)
            .saturating_add(interval.saturating_mul(2));
        Self {
            interval,
            max_gap: MAX_GAP.max(between),
        }
    }
}

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
    /// It was being ended, and is gone.
    pub has_ended: bool,
}

impl Verdict {
    const FORGOTTEN: Self = Self {
        sighting: None,
        is_reported_now: false,
        may_end: false,
        has_ended: false,
    };
}

/// What follows from a look at everything that an account lists with our marks (`listed`), of which `seen` is remembered.
///
/// Whatever is neither listed nor remembered has no verdict.
pub fn judge<K: Ord + Clone>(
    listed: &BTreeMap<K, Holder>,
    seen: &BTreeMap<K, Sighting>,
    policy: Policy,
    pace: Pace,
    now: Time,
) -> BTreeMap<K, Verdict> {
    let gone = seen.iter().filter(|(key, _)| !listed.contains_key(*key));
    let gone = gone.map(|(key, seen)| {
        let verdict = Verdict {
            has_ended: seen.is_ending,
            ..Verdict::FORGOTTEN
        };
        (key.clone(), verdict)
    });
    let verdicts = listed.iter().filter_map(|(key, holder)| {
        let before = seen.get(key);
        match holder {
            Holder::Live => before.map(|_| (key.clone(), Verdict::FORGOTTEN)),
            holder => Some((key.clone(), of_nobody(*holder, before, policy, pace, now))),
        }
    });
    gone.chain(verdicts).collect()
}

/// Of a thing that belongs to nobody now.
fn of_nobody(holder: Holder, before: Option<&Sighting>, policy: Policy, pace: Pace, now: Time) -> Verdict {
    // Nobody has looked for too long, or a clock was set back: who knows what was so meanwhile.
    let gap = policy.grace.max(pace.max_gap);
    let goes_on = |seen: &&Sighting| seen.first <= seen.last && seen.last <= now && now - gap <= seen.last;
    let new = Sighting {
        first: now,
        last: now,
        is_reported: before.is_some_and(|seen| seen.is_reported),
        is_ending: before.is_some_and(|seen| seen.is_ending),
    };
    let seen = before.filter(goes_on).copied().unwrap_or(new);
    let passed = now.since(seen.last);
    let first = seen.first + passed.saturating_sub(pace.interval.saturating_mul(2));
    let is_orphan = first + policy.grace <= now;
    Verdict {
        sighting: Some(Sighting {
            first,
            last: now,
            is_reported: seen.is_reported || is_orphan,
            ..seen
        }),
        is_reported_now: is_orphan && !seen.is_reported,
        may_end: is_orphan && policy.removes.includes(holder),
        has_ended: false,
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
    const PACE: Pace = Pace {
        interval: Duration::from_secs(10 * 60),
        max_gap: MAX_GAP,
    };

    fn at(minutes: i64) -> Time {
        Time::from_millis(1_790_000_000_000 + minutes * 60_000)
    }

    /// Looks at one thing at these minutes, with these holders (`None`: it is not listed). The verdicts.
    fn looks(policy: Policy, looks: &[(i64, Option<Holder>)]) -> Vec<Option<Verdict>> {
        looks_at(PACE, policy, looks)
    }

    fn looks_at(pace: Pace, policy: Policy, looks: &[(i64, Option<Holder>)]) -> Vec<Option<Verdict>> {
        let mut seen = BTreeMap::new();
        let mut verdicts = Vec::new();
        for (minute, holder) in looks {
            let listed = holder.map(|holder| ("i-1", holder)).into_iter().collect();
            let verdict = judge(&listed, &seen, policy, pace, at(*minute)).remove("i-1");
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
            (15, NOBODY),
            (60, NOBODY),
            (121, NOBODY),
            (136, NOBODY),
            (151, NOBODY),
        ];
        let verdicts = looks(REMOVES, &story);
        assert_eq!(reports(&verdicts), [false, false, true, false, false, false]);
        assert_eq!(ends(&verdicts), [false, false, true, false, false, true]);
    }

    #[test]
    fn a_clock_that_was_set_forward_counts_as_two_pauses() {
        let story = [(0, NOBODY), (55, NOBODY), (64, NOBODY), (65, NOBODY)];
        let verdicts = looks(REMOVES, &story);
        assert_eq!(ends(&verdicts), [false, false, false, true]);
        assert_eq!(verdicts[1].unwrap().sighting.unwrap().first, at(35));
    }

    #[test]
    fn looks_that_take_long_are_waited_for() {
        let story = [(0, NOBODY), (100, NOBODY), (200, NOBODY)];
        assert_eq!(ends(&looks(REMOVES, &story)), [false, false, false]);
        let pace = Pace::of(PACE.interval, MINUTE * 90, MINUTE * 90);
        assert_eq!(ends(&looks_at(pace, REMOVES, &story)), [false, false, true]);
        assert_eq!(Pace::of(PACE.interval, MINUTE, MINUTE), PACE);
    }

    #[test]
    fn the_second_one_of_a_live_row_is_ended_where_the_row_s_own_is_seen() {
        let duplicate = |own_is_listed| Some(Holder::Duplicate { own_is_listed });
        let story = [
            (0, duplicate(true)),
            (15, duplicate(false)),
            (30, duplicate(false)),
            (40, duplicate(true)),
            (50, Some(Holder::Live)),
            (60, duplicate(true)),
        ];
        let ended = [false, false, false, true, false, false];
        for (removes, ended) in [
            (Removes::Nothing, [false; 6]),
            (Removes::Ended, ended),
            (Removes::Everything, ended),
        ] {
            let verdicts = looks(Policy { removes, ..REMOVES }, &story);
            assert_eq!(reports(&verdicts), [false, false, true, false, false, false]);
            assert_eq!(ends(&verdicts), ended);
        }
    }

    #[test]
    fn what_was_being_ended_and_is_gone_has_ended() {
        let sighting = |is_ending| Sighting {
            first: at(0),
            last: at(40),
            is_reported: true,
            is_ending,
        };
        let seen = BTreeMap::from([
            ("ended", sighting(true)),
            ("gone", sighting(false)),
            ("known again", sighting(true)),
            ("there", sighting(true)),
        ]);
        let listed = BTreeMap::from([("known again", Holder::Live), ("there", Holder::Ended)]);
        let verdicts = judge(&listed, &seen, REMOVES, PACE, at(50));
        let ended: Vec<_> = verdicts.iter().filter(|(_, verdict)| verdict.has_ended).collect();
        assert_eq!(ended.len(), 1);
        assert_eq!(*ended[0].0, "ended");
        assert!(
            verdicts["there"].sighting.unwrap().is_ending,
            "it is not told twice"
        );
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
            any::<bool>().prop_map(|own_is_listed| Some(Holder::Duplicate { own_is_listed })),
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
        /// between two looks than may be, and no more of it counted than two pauses; nothing may be ended unless that is wanted, and all that may be is reported.
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
                let verdicts = judge(&listed, &seen, policy, PACE, now);
                for thing in 0..3 {
                    let belongs_to_nobody = holders[thing].is_some_and(|holder| holder != Holder::Live);
                    since[thing] = match since[thing] {
                        Some((first, last)) if belongs_to_nobody && last <= now && now - MAX_GAP <= last => {
                            // More than two pauses may be the clock's.
                            Some((first + now.since(last).saturating_sub(PACE.interval * 2), now))
                        }
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
                        Removes::Ended => matches!(holders[thing], Some(Holder::Ended | Holder::Duplicate { own_is_listed: true })),
                        Removes::Everything => holders[thing] != Some(Holder::Duplicate { own_is_listed: false }),
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
        fn reported_once(minutes in proptest::collection::vec(1i64..21, 1..60)) {
            let mut now = 0;
            let story: Vec<(i64, Option<Holder>)> = minutes.iter().map(|minutes| { now += minutes; (now, NOBODY) }).collect();
            let told = reports(&looks(Policy::default(), &story)).into_iter().filter(|told| *told).count();
            let lasts = story.last().unwrap().0 - story[0].0 >= 30;
            prop_assert_eq!(told, usize::from(lasts));
        }
    }
}
