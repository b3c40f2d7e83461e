//! How busy services are: what is measured here and at gateways, and what servers that share a database tell one another of it.
//! Pure: the time is handed in.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use dstack_engine::services::Measured;
use dstack_plan::services::signals::{Observed, Times};
use dstack_proxy::stats::Strain;
use dstack_units::RunId;
use tokio::time::Instant;

/// How what servers tell of this begins.
const TITLE: &str = "strain";

/// What another server has told last is of use for so long.
const REMEMBERED: Duration = Duration::from_secs(600);

/// What was missed counts as if it had just been, if it was in so short a time.
const RECENT: Duration = Duration::from_secs(15);

/// Servers tell whole milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);

/// What follows from it for rules that look back so many seconds; not all of it may be known.
#[allow(clippy::cast_precision_loss)] // seconds
pub(super) fn measured(strain: Strain, seconds: u64, is_whole: bool) -> Measured {
    let concurrency = strain.busy.as_secs_f64() / seconds.max(1) as f64;
    let times = Times {
        count: strain.first_pieces,
        seconds: strain.waited.as_secs_f64(),
    };
    Measured {
        concurrency: match is_whole {
            true => Observed::Is(concurrency),
            false => Observed::AtLeast(concurrency),
        },
        first_pieces: is_whole.then_some(times),
    }
}

/// What a server tells of a service: how busy it was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ToldStrain {
    pub(super) run: RunId,
    /// Since the server began.
    all: Strain,
    /// Since it told last: for those who have not heard of it before.
    new: Strain,
}

impl fmt::Display for ToldStrain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{TITLE} {}", self.run)?;
        for strain in [self.all, self.new] {
            let (busy, waited) = (strain.busy.as_millis(), strain.waited.as_millis());
            write!(f, " {busy} {} {waited}", strain.first_pieces)?;
        }
        Ok(())
    }
}

impl ToldStrain {
    /// What a newer version tells may be unknown here.
    pub(super) fn read(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix(TITLE)?.strip_prefix(' ')?.split(' ');
        let run = parts.next()?.parse().ok()?;
        let mut number = || parts.next()?.parse::<u64>().ok();
        let mut strain = || {
            Some(Strain {
                busy: Duration::from_millis(number()?),
                first_pieces: number()?,
                waited: Duration::from_millis(number()?),
            })
        };
        let (all, new) = (strain()?, strain()?);
        parts.next().is_none().then_some(Self { run, all, new })
    }
}

/// What has come since; of one that counts anew, all.
fn since(before: Strain, now: Strain) -> Strain {
    let new = || {
        Some(Strain {
            busy: now.busy.checked_sub(before.busy)?,
            first_pieces: now.first_pieces.checked_sub(before.first_pieces)?,
            waited: now.waited.checked_sub(before.waited)?,
        })
    };
    new().unwrap_or(now)
}

/// What this server has told, and what it has heard.
#[derive(Debug, Default)]
pub(super) struct Strains {
    told: HashMap<RunId, Strain>,
    heard: HashMap<(String, RunId), (Instant, Strain)>,
    /// When it was found that something was not heard of a service.
    missed: HashMap<RunId, Instant>,
}

impl Strains {
    /// The service follows how busy it is from now on; how busy it was here so far counts for nobody.
    pub(super) fn begin(&mut self, run: RunId, here: Strain) {
        self.told.entry(run).or_insert(here);
    }

    /// What is to be told of a service that was so busy here since the beginning; `None`: nothing. What was before it began counts for
    /// nobody.
    pub(super) fn next(&mut self, run: RunId, here: Strain) -> Option<ToldStrain> {
        let before = self.told.insert(run, here)?;
        let new = since(before, here);
        (new != Strain::default()).then_some(ToldStrain { run, all: here, new })
    }

    /// Tells only of these services any more.
    pub(super) fn retain(&mut self, keep: impl Fn(RunId) -> bool) {
        self.told.retain(|run, _| keep(*run));
    }

    /// Takes in what a server tells: how busy the service was besides, lately.
    pub(super) fn hear(&mut self, server: &str, told: ToldStrain, now: Instant) -> Strain {
        self.heard.retain(|_, (at, _)| now < *at + REMEMBERED);
        self.missed.retain(|_, at| now < *at + REMEMBERED);
        let before = self.heard.insert((server.to_owned(), told.run), (now, told.all));
        let Some((at, before)) = before else {
            return told.new;
        };
        let all = since(before, told.all);
        if now <= at + RECENT {
            return all;
        }
        // When that was is unknown: all of it in one second would make the service look far busier than it was at any time.
        if all.busy > told.new.busy + ROUNDING || all.first_pieces > told.new.first_pieces {
            self.missed.insert(told.run, now);
        }
        told.new
    }

    /// Whether it is not known how busy the service was elsewhere within the window: something was not heard, or one of these servers,
    /// to which requests came, has told nothing of it, as older versions do.
    pub(super) fn is_unknown(
        &self,
        run: RunId,
        window: Duration,
        mut asked: impl Iterator<Item = String>,
        now: Instant,
    ) -> bool {
        let has_missed = self.missed.get(&run).is_some_and(|at| now < *at + window);
        has_missed || asked.any(|server| !self.heard.contains_key(&(server, run)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> RunId {
        uuid::Uuid::from_u128(1).into()
    }

    fn strain(busy: u64, first_pieces: u64, waited: u64) -> Strain {
        Strain {
            busy: Duration::from_millis(busy),
            first_pieces,
            waited: Duration::from_millis(waited),
        }
    }

    #[test]
    fn what_is_told_is_read_as_it_was_meant() {
        let told = ToldStrain {
            run: run(),
            all: strain(70, 3, 9),
            new: strain(20, 1, 4),
        };
        assert_eq!(ToldStrain::read(&told.to_string()), Some(told));
        for unknown in [
            "",
            "strain",
            "strain x 1 2 3 4 5 6",
            &format!("{told} 7"),
            &run().to_string(),
        ] {
            assert_eq!(ToldStrain::read(unknown), None, "{unknown}");
        }
        // Versions that know nothing of it must not take it for something else.
        assert_eq!(super::super::others::Told::read(&told.to_string()), None);
    }

    #[test]
    fn what_others_measure_counts_once_also_where_something_was_not_heard() {
        let (mut here, mut there, now) = (Strains::default(), Strains::default(), Instant::now());
        assert_eq!(here.next(run(), strain(1000, 10, 100)), None, "it was before");
        assert_eq!(here.next(run(), strain(1000, 10, 100)), None, "nothing is new");
        let first = here.next(run(), strain(1500, 11, 150)).unwrap();
        assert_eq!(there.hear("a", first, now), strain(500, 1, 50));
        here.next(run(), strain(2000, 12, 200)).unwrap();
        let third = here.next(run(), strain(2100, 12, 200)).unwrap();
        assert_eq!(
            there.hear("a", third, now),
            strain(600, 1, 50),
            "the second was not heard"
        );
        assert_eq!(
            there.hear("b", third, now),
            strain(100, 0, 0),
            "the others are old"
        );
        let anew = here.next(run(), strain(5, 0, 0)).unwrap();
        assert_eq!(there.hear("a", anew, now), strain(5, 0, 0), "it counts anew");
        here.retain(|_| false);
        assert_eq!(here.next(run(), strain(9000, 9, 9)), None);
    }

    #[test]
    fn what_was_missed_for_long_counts_as_unknown_and_not_as_of_now() {
        const SECOND: Duration = Duration::from_secs(1);
        let (mut here, mut there, start) = (Strains::default(), Strains::default(), Instant::now());
        let unknown = |there: &Strains, after: u32| {
            let nobody = std::iter::empty();
            there.is_unknown(run(), 60 * SECOND, nobody, start + after * SECOND)
        };
        here.begin(run(), strain(0, 0, 0));
        let first = here.next(run(), strain(5000, 0, 0)).unwrap();
        there.hear("a", first, start);
        // Nothing was under way in between.
        let second = here.next(run(), strain(6000, 1, 10)).unwrap();
        assert_eq!(there.hear("a", second, start + 100 * SECOND), strain(1000, 1, 10));
        assert!(!unknown(&there, 100));
        here.next(run(), strain(306_000, 1, 10)).unwrap();
        let last = here.next(run(), strain(311_000, 1, 10)).unwrap();
        assert_eq!(there.hear("a", last, start + 400 * SECOND), strain(5000, 0, 0));
        assert_eq!([459, 460].map(|after| unknown(&there, after)), [true, false]);
    }

    #[test]
    fn a_server_that_tells_of_requests_only_leaves_unknown_how_busy_they_make_the_service() {
        let (mut here, mut there, now) = (Strains::default(), Strains::default(), Instant::now());
        let unknown = |there: &Strains, servers: &[&str]| {
            let servers = servers.iter().map(|name| (*name).to_owned());
            there.is_unknown(run(), Duration::from_secs(60), servers, now)
        };
        here.begin(run(), strain(0, 0, 0));
        let told = here.next(run(), strain(10, 0, 0)).unwrap();
        there.hear("new", told, now);
        assert!(!unknown(&there, &[]) && !unknown(&there, &["new"]));
        assert!(unknown(&there, &["new", "old"]));
    }

    #[test]
    fn what_is_not_whole_is_a_least() {
        let busy = strain(60_000, 4, 2000);
        let whole = measured(busy, 30, true);
        assert_eq!(whole.concurrency, Observed::Is(2.0));
        let times = whole.first_pieces.unwrap();
        assert_eq!((times.count, times.seconds), (4, 2.0));
        let part = measured(busy, 30, false);
        assert_eq!(
            (part.concurrency, part.first_pieces),
            (Observed::AtLeast(2.0), None)
        );
    }
}
