//! Waiting in virtual time: for what is to happen, through what must hold, and until enough time has passed.

use std::fmt;
use std::time::Duration;

use dstack_engine::Settings;
use tokio::time::{Instant, timeout_at};

use crate::{World, inventory};

/// Something did not happen in time, or did not hold all the time: says what, and what is there instead.
#[derive(thiserror::Error)]
#[error("{0}")]
pub struct Unmet(String);

/// As it is read: this is what `unwrap` shows.
impl fmt::Debug for Unmet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl World {
    /// Waits for something: looks now, and at each change of anything in the world.
    pub async fn until(
        &self,
        what: &str,
        within: Duration,
        mut holds: impl FnMut(&World) -> bool,
    ) -> Result<(), Unmet> {
        self.found(what, within, |world| holds(world).then_some(())).await
    }

    /// As [`World::until`]; what was found when it had happened.
    pub async fn found<T>(
        &self,
        what: &str,
        within: Duration,
        mut look: impl FnMut(&World) -> Option<T>,
    ) -> Result<T, Unmet> {
        let deadline = Instant::now() + within;
        loop {
            let change = self.change();
            if let Some(found) = look(self) {
                return Ok(found);
            }
            if timeout_at(deadline, change).await.is_err() {
                let there = inventory::of(self);
                return Err(Unmet(format!(
                    "not within {within:?}: {what}\nThere is:\n{there}"
                )));
            }
        }
    }

    /// Lets this time pass; something must hold now, after each change, and at the end.
    pub async fn throughout(
        &self,
        what: &str,
        time: Duration,
        mut holds: impl FnMut(&World) -> bool,
    ) -> Result<(), Unmet> {
        let begin = Instant::now();
        let mut over = false;
        loop {
            let change = self.change();
            if !holds(self) {
                let (after, there) = (begin.elapsed(), inventory::of(self));
                return Err(Unmet(format!(
                    "no longer after {after:?}: {what}\nThere is:\n{there}"
                )));
            }
            if over {
                return Ok(());
            }
            over = timeout_at(begin + time, change).await.is_err();
        }
    }

    /// Lets this time pass. For what must not happen, which no event tells, and for faults that come at each of many
    /// moments. Nothing is raced: time is virtual, and goes on only when everybody waits for it.
    pub async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Lets the lease of a server that died just now run out, so that another takes over its work at its start. Time
    /// alone ends a lease: there is no event.
    pub async fn leases_run_out(&self) {
        self.pass(Settings::default().lease + Duration::from_secs(1))
            .await;
    }

    /// Ends at the next change of the store, the clouds, the hosts, the output or the requests. What changes after this call counts,
    /// also before the answer is awaited.
    fn change(&self) -> impl Future<Output = ()> {
        let (store, clouds) = (self.store.changed(), self.clouds.changed());
        let (hosts, output) = (self.hosts.changed(), self.output.changed());
        let services = self.services.changed();
        async {
            tokio::select! {
                biased;
                () = store => {}
                () = clouds => {}
                () = hosts => {}
                () = output => {}
                () = services => {}
            }
        }
    }
}
