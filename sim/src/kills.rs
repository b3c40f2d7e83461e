//! A story told again and again, each time with the server killed at another place.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dstack_engine::failpoint::DieAt;
use dstack_engine::{Engine, Failpoints, Result};

use crate::World;

/// Tells a story once without a kill, and then with a kill at each failpoint that it passed: the n-th time it is passed, for each
/// of `times`, as long as it is passed so often. Returns the failpoints.
///
/// `story` gets the failpoint and the number, starts a server with a [`DieAt`] of them, and returns that.
///
/// # Panics
/// A failpoint that the story passed without a kill is not passed again: the story is not always the same.
pub async fn killed_everywhere<S: Future<Output = Arc<DieAt>>>(
    times: impl IntoIterator<Item = u32> + Clone,
    story: impl Fn(&'static str, u32) -> S,
) -> BTreeSet<&'static str> {
    killed_where(|_| true, times, story).await
}

/// As [`killed_everywhere`], at those failpoints only that are `wanted`.
pub async fn killed_where<S: Future<Output = Arc<DieAt>>>(
    wanted: impl Fn(&str) -> bool,
    times: impl IntoIterator<Item = u32> + Clone,
    story: impl Fn(&'static str, u32) -> S,
) -> BTreeSet<&'static str> {
    let mut points = story("nowhere", 1).await.seen();
    points.retain(|point| wanted(point));
    for point in &points {
        for nth in times.clone() {
            if !story(point, nth).await.fired() {
                assert!(nth > 1, "{point} was passed without a kill");
                break;
            }
        }
    }
    points
}

impl World {
    /// Starts an engine that dies where `die` says.
    ///
    /// # Errors
    /// As [`World::start`].
    pub async fn start_dying(&self, die: &Arc<DieAt>) -> Result<Engine> {
        self.start_with(Arc::clone(die) as Arc<dyn Failpoints>).await
    }

    /// Another server takes over, once the lease of the one that died has run out.
    ///
    /// # Errors
    /// As [`World::start`].
    pub async fn restart(&self) -> Result<Engine> {
        self.leases_run_out().await;
        self.start().await
    }

    /// Waits until the engine is dead, or has told the whole story, which takes so long; another server goes on.
    ///
    /// # Errors
    /// As [`World::start`].
    pub async fn after_death(&self, engine: Engine, story: Duration) -> Result<Engine> {
        tokio::select! {
            () = engine.stopped() => {}
            () = self.pass(story) => {}
        }
        engine.stop();
        self.restart().await
    }

    /// Asks for something until it is there. A client whose server dies meanwhile looks whether it is before it asks the next one
    /// again.
    ///
    /// # Errors
    /// As [`World::start`].
    pub async fn ask_until_there<T>(
        &self,
        engine: &mut Engine,
        ask: impl AsyncFn(&Engine) -> T,
        there: impl Fn(&World) -> Option<T>,
    ) -> Result<T> {
        loop {
            tokio::select! {
                made = ask(engine) => return Ok(made),
                () = engine.stopped() => {}
            }
            *engine = self.restart().await?;
            if let Some(found) = there(self) {
                return Ok(found);
            }
        }
    }

    /// Does something; all of it again under the next engine where this one dies meanwhile, and says whether it did.
    ///
    /// # Errors
    /// As [`World::start`].
    pub async fn outliving(&self, engine: &mut Engine, work: impl AsyncFn(&Engine)) -> Result<bool> {
        let is_killed = tokio::select! {
            () = engine.stopped() => true,
            () = work(engine) => false,
        };
        if is_killed {
            *engine = self.restart().await?;
            work(engine).await;
        }
        Ok(is_killed)
    }
}
