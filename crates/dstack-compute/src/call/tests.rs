use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dstack_system::clock::VirtualClock;

use super::*;

const WINDOW: Duration = Duration::from_secs(60);

/// Notes that survive the calls of a test.
#[derive(Default)]
struct Notes {
    kept: Mutex<Value>,
    is_full: bool,
}

#[async_trait]
impl Journal for Notes {
    async fn keep(&self, notes: &Value) -> Result<(), String> {
        if self.is_full {
            return Err("the disk is full".to_owned());
        }
        *self.kept.lock().unwrap() = notes.clone();
        Ok(())
    }
}

/// A cloud that counts what it is asked, and the clock that all see.
struct World {
    clock: SharedClock,
    notes: Notes,
    asked: AtomicUsize,
    found: AtomicUsize,
    deleted: AtomicUsize,
}

impl World {
    fn new() -> Self {
        Self {
            clock: Arc::new(VirtualClock::starting_at(Time::from_millis(1_000_000))),
            notes: Notes::default(),
            asked: AtomicUsize::new(0),
            found: AtomicUsize::new(0),
            deleted: AtomicUsize::new(0),
        }
    }

    /// A further call, perhaps of a server that was started since.
    fn call(&self) -> Call<'_> {
        let notes = self.notes.kept.lock().unwrap().clone();
        Call::new(self.clock.clone(), &self.notes, &notes).unwrap()
    }

    async fn make(
        &self,
        answer: Result<&'static str, ComputeError>,
        listed: Option<&'static str>,
    ) -> Result<String, ComputeError> {
        let ask = || async {
            self.asked.fetch_add(1, Ordering::Relaxed);
            answer.map(str::to_owned)
        };
        let find = || async {
            self.found.fetch_add(1, Ordering::Relaxed);
            Ok(listed.map(str::to_owned))
        };
        self.call().make("disk", WINDOW, ask, find).await
    }

    async fn unmake(
        &self,
        known: Option<&str>,
        listed: Option<&'static str>,
        answer: Result<Removal, ComputeError>,
    ) -> Result<Removal, ComputeError> {
        let find = || async { Ok(listed.map(str::to_owned)) };
        let delete = |_: String| async {
            self.deleted.fetch_add(1, Ordering::Relaxed);
            answer
        };
        self.call()
            .unmake("disk", known.map(str::to_owned), WINDOW, find, delete)
            .await
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    fn deleted(&self) -> usize {
        self.deleted.load(Ordering::Relaxed)
    }
}

fn unclear() -> ComputeError {
    ComputeError::Unclear("503".to_owned())
}

fn full() -> ComputeError {
    ComputeError::NoCapacity("none left".to_owned())
}

/// Until after a call that was made now may have an effect that is not listed.
async fn settle() {
    tokio::time::sleep(CALL_LIMIT + WINDOW).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_made_is_asked_for_once() {
    let world = World::new();
    for _ in 0..3 {
        assert_eq!(world.make(Ok("disk-1"), None).await, Ok("disk-1".to_owned()));
    }
    assert_eq!(world.asked(), 1);
    assert_eq!(world.call().made::<String>("disk"), Ok(Some("disk-1".to_owned())));
    assert_eq!(world.call().made::<String>("address"), Ok(None));
}

#[tokio::test(start_paused = true)]
async fn what_a_lost_answer_was_about_is_looked_for_before_it_is_asked_for_again() {
    let world = World::new();
    assert_eq!(world.make(Err(unclear()), None).await, Err(unclear()));
    // Not listed yet.
    for _ in 0..3 {
        assert!(matches!(
            world.make(Ok("another"), None).await,
            Err(ComputeError::Unclear(_))
        ));
    }
    assert_eq!(world.asked(), 1);
    assert_eq!(
        world.make(Ok("another"), Some("disk-1")).await,
        Ok("disk-1".to_owned())
    );
    assert_eq!(world.make(Ok("another"), None).await, Ok("disk-1".to_owned()));
    assert_eq!(world.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn calls_that_come_to_nothing_are_made_again_a_few_times() {
    let world = World::new();
    for asked in 1..=3 {
        assert_eq!(world.make(Err(unclear()), None).await, Err(unclear()));
        assert_eq!(world.asked(), asked);
        settle().await;
    }
    assert!(matches!(
        world.make(Ok("disk-1"), None).await,
        Err(ComputeError::Broken(_))
    ));
    assert_eq!(world.asked(), 3);
    // Nothing is there to be removed.
    assert_eq!(world.unmake(None, None, Err(full())).await, Ok(Removal::Gone));
}

#[tokio::test(start_paused = true)]
async fn what_the_cloud_refuses_leaves_no_note() {
    let world = World::new();
    assert_eq!(world.make(Err(full()), None).await, Err(full()));
    assert_eq!(world.call().notes(), Value::Null);
    assert_eq!(world.make(Ok("disk-1"), None).await, Ok("disk-1".to_owned()));
    assert_eq!((world.asked(), world.found.load(Ordering::Relaxed)), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_for_that_is_not_written_down() {
    let world = World {
        notes: Notes {
            is_full: true,
            ..Notes::default()
        },
        ..World::new()
    };
    let refused = world.make(Ok("disk-1"), None).await;
    assert_eq!(
        refused,
        Err(ComputeError::NotWritten("the disk is full".to_owned()))
    );
    assert_eq!(world.asked(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_token_saves_looking_for_it() {
    let world = World::new();
    let ask = |answer: Result<&'static str, ComputeError>| {
        let world = &world;
        async move {
            let asked = || async move {
                world.asked.fetch_add(1, Ordering::Relaxed);
                answer.map(str::to_owned)
            };
            world.call().make_once("disk", asked).await
        }
    };
    assert_eq!(ask(Err(unclear())).await, Err(unclear()));
    assert_eq!(ask(Ok("disk-1")).await, Ok("disk-1".to_owned()));
    assert_eq!(ask(Ok("disk-2")).await, Ok("disk-1".to_owned()));
    assert_eq!(world.asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_may_have_been_made_is_removed_or_waited_for() {
    let world = World::new();
    assert_eq!(world.make(Err(unclear()), None).await, Err(unclear()));
    let waits = world.unmake(None, None, Ok(Removal::Gone)).await;
    assert!(matches!(waits, Ok(Removal::Underway { .. })), "{waits:?}");
    assert_eq!(world.deleted(), 0);
    let listed = Some("disk-1");
    assert_eq!(world.unmake(None, listed, Err(unclear())).await, Err(unclear()));
    assert_eq!(
        world.unmake(None, listed, Ok(Removal::Gone)).await,
        Ok(Removal::Gone)
    );
    assert_eq!(world.deleted(), 2);

    let world = World::new();
    assert_eq!(world.make(Err(unclear()), None).await, Err(unclear()));
    settle().await;
    assert_eq!(
        world.unmake(None, None, Ok(Removal::Gone)).await,
        Ok(Removal::Gone)
    );
    assert_eq!(world.deleted(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_made_without_notes_is_removed_once() {
    let world = World::new();
    assert_eq!(
        world.unmake(None, None, Ok(Removal::Gone)).await,
        Ok(Removal::Gone)
    );
    assert_eq!(world.deleted(), 0);
    let again = Duration::from_secs(1);
    let underway = Ok(Removal::Underway { again });
    assert_eq!(
        world.unmake(Some("disk-1"), None, underway.clone()).await,
        underway
    );
    let known = Some("disk-1");
    assert_eq!(
        world.unmake(known, None, Ok(Removal::Gone)).await,
        Ok(Removal::Gone)
    );
    assert_eq!(
        world.unmake(known, None, Ok(Removal::Gone)).await,
        Ok(Removal::Gone)
    );
    assert_eq!(world.deleted(), 2);
}

#[tokio::test(start_paused = true)]
async fn notes_of_a_later_version_stop_everything() {
    let world = World::new();
    let notes = serde_json::json!({"disk": {"state": "frozen"}});
    let refused = Call::new(world.clock.clone(), &world.notes, &notes).unwrap_err();
    assert!(!refused.is_definite(), "{refused}");
}

/// A definite error speaks of its own call, and not of the one before whose answer was lost.
#[tokio::test(start_paused = true)]
async fn what_a_lost_call_may_have_made_is_not_forgotten_by_a_refusal_of_the_next() {
    let world = World::new();
    let lost = ComputeError::Unclear("reset".to_owned());
    let refused = ComputeError::Credentials("expired".to_owned());
    for error in [lost, refused] {
        let answer = world
            .call()
            .make_once::<String, _>("disk", async || Err(error.clone()))
            .await;
        assert_eq!(answer.unwrap_err(), error);
    }
    let removed = world.unmake(None, Some("disk-1"), Ok(Removal::Gone)).await;
    assert_eq!(removed.unwrap(), Removal::Gone);
    assert_eq!(world.deleted.load(Ordering::Relaxed), 1);
}

/// Of several calls without an answer, the last one may have made it.
#[tokio::test(start_paused = true)]
async fn what_the_last_of_many_calls_makes_is_waited_for() {
    let world = World::new();
    for _ in 0..4 {
        let lost = ComputeError::Unclear("reset".to_owned());
        let answer = world
            .call()
            .make_once::<String, _>("disk", async || Err(lost))
            .await;
        answer.unwrap_err();
        tokio::time::sleep(CALL_LIMIT).await;
    }
    let not_listed = world.unmake(None, None, Ok(Removal::Gone)).await;
    assert!(
        matches!(not_listed, Ok(Removal::Underway { .. })),
        "{not_listed:?}"
    );
    let remove = async || {
        world
            .unmake(None, Some("disk-1"), Ok(Removal::Gone))
            .await
            .unwrap()
    };
    assert!(matches!(remove().await, Removal::Underway { .. }));
    tokio::time::sleep(WINDOW).await;
    assert_eq!(remove().await, Removal::Gone);
    assert_eq!(world.deleted(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_comes_late_makes_nothing_after_the_removal() {
    let gone = async |world: &World| world.unmake(None, Some("d1"), Ok(Removal::Gone)).await.unwrap();
    for is_answered in [true, false] {
        let world = World::new();
        let ask = |answer: Result<&'static str, ComputeError>| async { answer.map(str::to_owned) };
        let call = world.call();
        call.make_once("disk", || ask(Err(unclear()))).await.unwrap_err();
        tokio::time::sleep(Duration::from_secs(5)).await;
        let second = if is_answered { Ok("d1") } else { Err(unclear()) };
        let made = world.call().make_once("disk", || ask(second)).await;
        assert_eq!(made.is_ok(), is_answered);
        // The first one, of which there is no answer, may still be on its way.
        let underway = |removal| matches!(removal, Removal::Underway { .. });
        assert!(underway(gone(&world).await));
        tokio::time::sleep(CALL_LIMIT - Duration::from_secs(6)).await;
        assert!(underway(gone(&world).await));
        // Now it has taken effect if it ever does, and what it made may not be listed yet.
        tokio::time::sleep(WINDOW).await;
        assert!(underway(gone(&world).await));
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(gone(&world).await, Removal::Gone);
        assert_eq!(world.deleted(), 4);
    }
}

#[tokio::test(start_paused = true)]
async fn one_call_that_was_answered_is_not_waited_for() {
    let world = World::new();
    let ask = || async { Ok("d1".to_owned()) };
    world.call().make_once("disk", ask).await.unwrap();
    let removed = world.unmake(None, None, Ok(Removal::Gone)).await.unwrap();
    assert_eq!(removed, Removal::Gone);
}

#[tokio::test(start_paused = true)]
async fn a_choice_stays_until_it_is_removed() {
    let world = World::new();
    let choose = async |zone: &str| world.call().choose("zone", zone.to_owned()).await.unwrap();
    assert_eq!(choose("a").await, "a");
    assert_eq!(choose("b").await, "a");
    let call = world.call();
    let gone = async |_: String| Ok(Removal::Gone);
    let removed = call.unmake("zone", None, Duration::ZERO, async || Ok(None), gone);
    assert_eq!(removed.await.unwrap(), Removal::Gone);
    assert_eq!(choose("b").await, "b");
}
