//! How busy services are, for autoscaling by what is under way and by how long clients wait.

use std::time::Duration;

use dstack_units::RunId;
use tokio::time::Instant;

use super::{Record, ServiceStats, StatsRegistry, Strain};

impl StatsRegistry {
    /// How busy a service was within the last `seconds`, 300 at most, here and elsewhere. `None`: nothing was counted yet for so long.
    pub fn strain(&self, run: RunId, seconds: u64) -> Option<Strain> {
        let now = Instant::now();
        if now.saturating_duration_since(self.since) < Duration::from_secs(seconds) {
            return None;
        }
        let services = self.services.load();
        Some(
            services
                .get(&run)
                .map_or(Strain::default(), |stats| stats.strain(now, seconds)),
        )
    }

    /// A service was so busy elsewhere lately: that counts as well.
    pub fn add_strain(&self, run: RunId, strain: Strain) {
        if strain != Strain::default() {
            let stats = self.of(run);
            let second = stats.second(Instant::now());
            stats.counts.lock().frames.strain(second, strain);
        }
    }

    /// How busy a service was here since the beginning.
    pub fn strain_here(&self, run: RunId) -> Strain {
        let services = self.services.load();
        services
            .get(&run)
            .map_or(Strain::default(), |stats| stats.strain_here(Instant::now()))
    }
}

impl ServiceStats {
    /// Up to now.
    fn strain_here(&self, now: Instant) -> Strain {
        let since = self.since(now);
        let mut counts = self.counts.lock();
        let counts = &mut *counts;
        let busy = counts.occupancy.account(since, &mut counts.frames);
        Strain {
            busy,
            ..counts.waited
        }
    }

    fn strain(&self, now: Instant, seconds: u64) -> Strain {
        self.strain_here(now);
        self.counts.lock().frames.strained(self.second(now), seconds)
    }

    fn first_piece(&self, now: Instant, waited: Duration) {
        let second = self.second(now);
        let mut counts = self.counts.lock();
        counts.waited.first_pieces += 1;
        counts.waited.waited += waited;
        let strain = Strain {
            first_pieces: 1,
            waited,
            ..Strain::default()
        };
        counts.frames.strain(second, strain);
    }
}

impl Record {
    /// The answer is a stream: how long its first piece takes is counted, unless a replica had to be started for it.
    pub(crate) const fn streams(&mut self) {
        self.awaits_piece = !self.has_waited_for_start;
    }

    /// A replica had to be started.
    pub(crate) const fn waited_for_start(&mut self) {
        self.has_waited_for_start = true;
    }

    /// A piece of the answer has come.
    pub(crate) fn piece(&mut self) {
        if std::mem::take(&mut self.awaits_piece) {
            let now = Instant::now();
            let waited = now.saturating_duration_since(self.started);
            self.stats.first_piece(now, waited);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;
    use uuid::Uuid;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn run() -> RunId {
        RunId::new(Uuid::from_u128(1))
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_under_way_counts_as_long_as_it_is() {
        let stats = StatsRegistry::default();
        advance(10 * SECOND).await;
        let first = stats.begin(run(), Instant::now());
        let second = stats.begin(run(), Instant::now());
        assert_eq!(stats.strain(run(), 30), None, "it has not counted for so long");
        advance(20 * SECOND).await;
        drop(first);
        advance(10 * SECOND).await;
        assert_eq!(
            stats.strain(run(), 30).unwrap().busy,
            48 * SECOND,
            "of 29 s: the present one has begun"
        );
        assert_eq!(stats.strain_here(run()).busy, 50 * SECOND);
        drop(second);
        stats.add_strain(
            run(),
            Strain {
                busy: 5 * SECOND,
                ..Strain::default()
            },
        );
        advance(10 * SECOND).await;
        assert_eq!(stats.strain(run(), 30).unwrap().busy, (18 + 10 + 5) * SECOND);
        assert_eq!(
            stats.strain_here(run()).busy,
            50 * SECOND,
            "of those that came here"
        );
        advance(30 * SECOND).await;
        assert_eq!(stats.strain(run(), 30), Some(Strain::default()));
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_first_piece_of_a_stream_counts() {
        let stats = StatsRegistry::default();
        let mut stream = stats.begin(run(), Instant::now());
        let mut page = stats.begin(run(), Instant::now());
        let mut late = stats.begin(run(), Instant::now());
        late.waited_for_start();
        advance(2 * SECOND).await;
        stream.streams();
        late.streams();
        for record in [&mut stream, &mut page, &mut late] {
            advance(SECOND).await;
            record.piece();
            record.piece();
        }
        let here = stats.strain_here(run());
        assert_eq!((here.first_pieces, here.waited), (1, 3 * SECOND));
        advance(30 * SECOND).await;
        assert_eq!(stats.strain(run(), 60), None);
        let lately = stats.strain(run(), 30).unwrap();
        assert_eq!(lately.first_pieces, 0, "it was too long ago");
    }
}
