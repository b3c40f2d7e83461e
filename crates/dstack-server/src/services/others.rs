//! Requests to services that came through other servers of the same database: what servers tell one another of them.
//!
//! A server tells of a service that scales every few seconds, as long as the requests that came through it count for anybody.
//! Pure: the time is handed in.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use dstack_units::RunId;
use tokio::time::Instant;

/// Pause between two times of telling.
pub(super) const TELL_INTERVAL: Duration = Duration::from_secs(5);

/// Who is to tell and does not for so long is silent.
const SILENCE: Duration = Duration::from_secs(15);

/// So long requests count, at most.
const COUNTED: Duration = Duration::from_secs(300);

/// What a server tells of the requests to a service that came through it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) run: RunId,
    /// Since the server began.
    pub(super) requests: u64,
    /// Since it told last: for those who have not heard of it before.
    pub(super) new: u64,
    /// Some wait for a replica.
    pub(super) awaited: bool,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let awaited = u8::from(self.awaited);
        write!(f, "{} {} {} {awaited}", self.run, self.requests, self.new)
    }
}

impl Told {
    /// What a newer version tells may be unknown here.
    pub(super) fn read(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let told = Self {
            run: parts.next()?.parse().ok()?,
            requests: parts.next()?.parse().ok()?,
            new: parts.next()?.parse().ok()?,
            awaited: parts.next()? != "0",
        };
        parts.next().is_none().then_some(told)
    }
}

/// What this server has told of one service.
#[derive(Debug, Clone, Copy)]
struct Own {
    requests: u64,
    /// `None`: nothing was to be told yet.
    changed_at: Option<Instant>,
}

/// What this server has told.
#[derive(Debug, Default)]
pub(super) struct Telling(BTreeMap<RunId, Own>);

impl Telling {
    /// The service scales from now on; what has come through this server so far counts for nobody.
    pub(super) fn begin(&mut self, run: RunId, requests: u64) {
        self.own(run, requests);
    }

    fn own(&mut self, run: RunId, requests: u64) -> &mut Own {
        self.0.entry(run).or_insert(Own {
            requests,
            changed_at: None,
        })
    }

    /// What is to be told of a service to which so many requests have come through this server; `None`: nothing.
    pub(super) fn next(&mut self, run: RunId, requests: u64, awaited: bool, now: Instant) -> Option<Told> {
        let own = self.own(run, requests);
        // Who has forgotten it counts from the beginning.
        let new = requests.checked_sub(own.requests).unwrap_or(requests);
        own.requests = requests;
        if new > 0 || awaited {
            own.changed_at = Some(now);
        }
        own.changed_at.filter(|at| now < *at + COUNTED)?;
        Some(Told {
            run,
            requests,
            new,
            awaited,
        })
    }

    /// Forgets all services but these.
    pub(super) fn retain(&mut self, keep: impl Fn(RunId) -> bool) {
        self.0.retain(|run, _| keep(*run));
    }
}

/// What another server has told last of a service.
#[derive(Debug, Clone, Copy)]
struct Heard {
    told: Told,
    at: Instant,
    changed_at: Instant,
}

impl Heard {
    /// It would tell again if it were there.
    fn is_silent(&self, now: Instant) -> bool {
        let owes_more = self.at + SILENCE < self.changed_at + COUNTED;
        owes_more && now > self.at + SILENCE
    }
}

/// What the other servers have told.
#[derive(Debug, Default)]
pub(super) struct Others {
    heard: HashMap<(String, RunId), Heard>,
    /// Since when nothing is missed; `None`: nothing is heard.
    since: Option<Instant>,
}

impl Others {
    /// What is told is heard from now on, if it was not already.
    pub(super) fn listen(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// What is told may be missed from now on.
    pub(super) fn miss(&mut self) {
        self.since = None;
    }

    /// Takes in what a server tells: so many requests are new.
    pub(super) fn hear(&mut self, server: &str, told: Told, now: Instant) -> u64 {
        self.heard.retain(|_, heard| now < heard.at + COUNTED * 2);
        let key = (server.to_owned(), told.run);
        let before = self.heard.get(&key);
        let new = before.map_or(told.new, |heard| {
            let requests = told.requests.checked_sub(heard.told.requests);
            requests.unwrap_or(told.new)
        });
        let unchanged_since = before.map(|heard| heard.changed_at);
        let changed_at = unchanged_since
            .filter(|_| new == 0 && !told.awaited)
            .unwrap_or(now);
        let heard = Heard {
            told,
            at: now,
            changed_at,
        };
        self.heard.insert(key, heard);
        new
    }

    /// Whether it is not known how many requests came within the window: a server that passed some on tells no more, or what was told
    /// may have been missed.
    pub(super) fn is_unknown(&self, run: RunId, window: Duration, now: Instant) -> bool {
        if self.since.is_none_or(|since| now < since + window) {
            return true;
        }
        self.of(run)
            .any(|heard| heard.is_silent(now) && now < heard.at + window)
    }

    /// The servers that have told within the window of requests to a service.
    pub(super) fn asked(&self, run: RunId, window: Duration, now: Instant) -> impl Iterator<Item = String> {
        let within = move |heard: &Heard| now < heard.at + window;
        let of_run = self.heard.iter().filter(move |((_, of), _)| *of == run);
        of_run
            .filter(move |(_, heard)| within(heard))
            .map(|((server, _), _)| server.clone())
    }

    /// Whether requests wait at another server.
    pub(super) fn is_awaited(&self, run: RunId, now: Instant) -> bool {
        self.of(run)
            .any(|heard| heard.told.awaited && now <= heard.at + SILENCE)
    }

    fn of(&self, run: RunId) -> impl Iterator<Item = &Heard> {
        let of_run = self.heard.iter().filter(move |((_, of), _)| *of == run);
        of_run.map(|(_, heard)| heard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const WINDOW: Duration = Duration::from_secs(60);

    fn run() -> RunId {
        uuid::Uuid::from_u128(1).into()
    }

    #[test]
    fn what_is_told_is_read_as_it_was_meant() {
        for awaited in [false, true] {
            let told = Told {
                run: run(),
                requests: 7,
                new: 2,
                awaited,
            };
            assert_eq!(Told::read(&told.to_string()), Some(told));
        }
        for unknown in [
            "",
            "x 1 2 0",
            &format!("{} 1 2 0 more", run()),
            &run().to_string(),
        ] {
            assert_eq!(Told::read(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn a_server_tells_as_long_as_its_requests_count() {
        let (mut telling, start) = (Telling::default(), Instant::now());
        telling.begin(run(), 0);
        assert_eq!(telling.next(run(), 0, false, start), None, "nothing to tell");
        let new = |told: Option<Told>| told.map(|told| (told.requests, told.new));
        assert_eq!(new(telling.next(run(), 3, false, start)), Some((3, 3)));
        assert_eq!(
            new(telling.next(run(), 3, false, start + 299 * SECOND)),
            Some((3, 0))
        );
        assert_eq!(telling.next(run(), 3, false, start + 300 * SECOND), None);
        assert_eq!(
            new(telling.next(run(), 4, false, start + 400 * SECOND)),
            Some((4, 1))
        );
        assert!(
            telling
                .next(run(), 4, true, start + 900 * SECOND)
                .unwrap()
                .awaited
        );
        // It was forgotten, and counts from the beginning.
        assert_eq!(
            new(telling.next(run(), 2, false, start + 905 * SECOND)),
            Some((2, 2))
        );
    }

    #[test]
    fn requests_to_a_service_that_did_not_scale_are_not_told_when_it_does() {
        let (mut telling, start) = (Telling::default(), Instant::now());
        telling.begin(run(), 1_000_000);
        assert_eq!(telling.next(run(), 1_000_000, false, start), None);
        let told = telling.next(run(), 1_000_003, false, start + 5 * SECOND);
        assert_eq!(told.map(|told| told.new), Some(3));
        // Reading it again does not begin it again.
        telling.begin(run(), 1_000_005);
        let told = telling.next(run(), 1_000_006, false, start + 10 * SECOND);
        assert_eq!(told.map(|told| told.new), Some(3));
        telling.retain(|_| false);
        telling.begin(run(), 2_000_000);
        let told = telling.next(run(), 2_000_000, true, start + 15 * SECOND);
        assert_eq!(told.map(|told| told.new), Some(0));
    }

    #[test]
    fn who_has_not_heard_all_for_a_window_does_not_know() {
        let (mut others, start) = (Others::default(), Instant::now());
        let unknown = |others: &Others, after: u32| others.is_unknown(run(), WINDOW, start + after * SECOND);
        assert!(unknown(&others, 1000));
        others.listen(start);
        others.listen(start + 30 * SECOND);
        assert_eq!([59, 60].map(|after| unknown(&others, after)), [true, false]);
        others.miss();
        assert!(unknown(&others, 100));
        others.listen(start + 200 * SECOND);
        assert_eq!([259, 260].map(|after| unknown(&others, after)), [true, false]);
    }

    fn told(requests: u64, new: u64, awaited: bool) -> Told {
        Told {
            run: run(),
            requests,
            new,
            awaited,
        }
    }

    #[test]
    fn requests_of_others_count_once_also_where_something_was_not_heard() {
        let (mut others, start) = (Others::default(), Instant::now());
        assert_eq!(
            others.hear("a", told(100, 2, false), start),
            2,
            "the others are old"
        );
        assert_eq!(others.hear("a", told(107, 3, false), start + 10 * SECOND), 7);
        assert_eq!(others.hear("b", told(5, 5, false), start), 5);
        assert_eq!(
            others.hear("b", told(2, 2, false), start + SECOND),
            2,
            "it counts anew"
        );
    }

    #[test]
    fn who_falls_silent_makes_requests_unknown_for_a_window() {
        let (mut others, start) = (Others::default(), Instant::now());
        others.listen(start.checked_sub(WINDOW).unwrap());
        others.hear("a", told(5, 5, false), start);
        let unknown = |others: &Others, after: u32| others.is_unknown(run(), WINDOW, start + after * SECOND);
        assert_eq!(
            [15, 16, 59, 60].map(|after| unknown(&others, after)),
            [false, true, true, false]
        );
        // It has told to the end.
        for after in (5..300).step_by(5) {
            others.hear("a", told(5, 0, false), start + after * SECOND);
            assert!(!unknown(&others, after));
        }
        assert!(!unknown(&others, 320));
    }

    #[test]
    fn who_has_told_of_requests_lately_is_known() {
        let (mut others, start) = (Others::default(), Instant::now());
        others.hear("a", told(1, 1, false), start);
        others.hear("b", told(1, 1, false), start + 30 * SECOND);
        let asked = |after: u32| {
            let mut asked: Vec<String> = others.asked(run(), WINDOW, start + after * SECOND).collect();
            asked.sort();
            asked
        };
        assert_eq!(asked(59), ["a", "b"]);
        assert_eq!(asked(60), ["b"]);
    }

    #[test]
    fn who_waits_elsewhere_is_known_as_long_as_it_is_told() {
        let (mut others, start) = (Others::default(), Instant::now());
        others.hear("a", told(1, 1, true), start);
        assert!(others.is_awaited(run(), start + 15 * SECOND));
        assert!(!others.is_awaited(run(), start + 16 * SECOND), "it is silent");
        others.hear("a", told(1, 0, false), start + SECOND);
        assert!(!others.is_awaited(run(), start + SECOND));
    }
}
