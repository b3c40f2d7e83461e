//! Remembers answers, and asks once for all who ask meanwhile.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_plan::ImageConfig;
use dstack_system::Locked;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::{ImageError, Images, RegistryCredentials};

/// How long answers are good.
#[derive(Debug, Clone, Copy)]
pub struct Lifetimes {
    /// Of a configuration: a tag may point to another image (dstack 0.22.5: 80 s).
    pub config: Duration,
    /// Of a failure: long enough that a plan's many questions wait once only.
    pub failure: Duration,
    /// Answers kept at once (dstack 0.22.5: 2048).
    pub entries: usize,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self {
            config: Duration::from_secs(80),
            failure: Duration::from_secs(10),
            entries: 2048,
        }
    }
}

/// The same image may be another one for other credentials, or none.
type Key = (String, Option<RegistryCredentials>);

#[derive(Debug)]
struct Answer {
    result: Result<ImageConfig, ImageError>,
    expires_at: Instant,
}

/// Empty while somebody is asking; another takes over when that one gives up.
type Slot = Arc<OnceCell<Answer>>;

/// Remembers what `inner` answered.
#[derive(Debug)]
pub struct Cached<I> {
    inner: I,
    lifetimes: Lifetimes,
    slots: Locked<HashMap<Key, Slot>>,
}

impl<I: Images> Cached<I> {
    /// Nothing is remembered yet.
    pub fn new(inner: I, lifetimes: Lifetimes) -> Self {
        Self {
            inner,
            lifetimes,
            slots: Locked::default(),
        }
    }

    fn slot(&self, key: Key) -> Slot {
        let now = Instant::now();
        let is_good = |slot: &Slot| slot.get().is_none_or(|answer| answer.expires_at > now);
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.get(&key).filter(|slot| is_good(slot)) {
            return Arc::clone(slot);
        }
        if slots.len() >= self.lifetimes.entries {
            slots.retain(|_, slot| is_good(slot));
        }
        if slots.len() >= self.lifetimes.entries {
            // All good: the one that would expire next is the least loss, one that is being asked for the greatest.
            let expiry = |slot: &Slot| slot.get().map(|answer| answer.expires_at);
            let next = slots
                .iter()
                .min_by_key(|(_, slot)| (expiry(slot).is_none(), expiry(slot)))
                .map(|(key, _)| key.clone());
            if let Some(next) = next {
                slots.remove(&next);
            }
        }
        let slot = Slot::default();
        slots.insert(key, Arc::clone(&slot));
        slot
    }
}

#[async_trait]
impl<I: Images> Images for Cached<I> {
    async fn config(
        &self,
        image: &str,
        credentials: Option<&RegistryCredentials>,
    ) -> Result<ImageConfig, ImageError> {
        let slot = self.slot((image.to_owned(), credentials.cloned()));
        let ask = || async {
            let result = self.inner.config(image, credentials).await;
            let lifetime = match result {
                Ok(_) => self.lifetimes.config,
                Err(_) => self.lifetimes.failure,
            };
            Answer {
                result,
                expires_at: Instant::now() + lifetime,
            }
        };
        slot.get_or_init(ask).await.result.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Takes a second for each answer; images named `bad…` fail.
    #[derive(Debug, Default)]
    struct Slow(AtomicUsize);

    #[async_trait]
    impl Images for Slow {
        async fn config(
            &self,
            image: &str,
            _credentials: Option<&RegistryCredentials>,
        ) -> Result<ImageConfig, ImageError> {
            self.0.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_secs(1)).await;
            if image.starts_with("bad") {
                Err(ImageError::Transient("on purpose".to_owned()))
            } else {
                Ok(ImageConfig::default())
            }
        }
    }

    fn cached(entries: usize) -> Cached<Slow> {
        let lifetimes = Lifetimes {
            entries,
            ..Lifetimes::default()
        };
        Cached::new(Slow::default(), lifetimes)
    }

    fn asked(cached: &Cached<Slow>) -> usize {
        cached.inner.0.load(Ordering::SeqCst)
    }

    #[tokio::test(start_paused = true)]
    async fn many_ask_once() {
        let cached = cached(10);
        let answers = tokio::join!(
            cached.config("a", None),
            cached.config("a", None),
            cached.config("a", None)
        );
        assert!(answers.0.is_ok() && answers.1.is_ok() && answers.2.is_ok());
        assert_eq!(asked(&cached), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_leaves_the_question_to_the_next() {
        let cached = cached(10);
        let first = tokio::time::timeout(Duration::from_millis(500), cached.config("a", None));
        let (first, second) = tokio::join!(first, cached.config("a", None));
        assert!(first.is_err() && second.is_ok());
        assert_eq!(asked(&cached), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_expire_and_failures_sooner() {
        let cached = cached(10);
        let ask = || async {
            drop(cached.config("good", None).await);
            drop(cached.config("bad", None).await);
        };
        ask().await;
        ask().await;
        assert_eq!(asked(&cached), 2);
        tokio::time::advance(Duration::from_secs(11)).await;
        ask().await;
        assert_eq!(asked(&cached), 3, "the failure only");
        tokio::time::advance(Duration::from_secs(80)).await;
        ask().await;
        assert_eq!(asked(&cached), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn other_credentials_are_another_question() {
        let cached = cached(10);
        let credentials = |password: &str| RegistryCredentials {
            username: "u".to_owned(),
            password: password.to_owned().into(),
        };
        for credentials in [
            None,
            Some(credentials("a")),
            Some(credentials("b")),
            Some(credentials("a")),
        ] {
            cached.config("a", credentials.as_ref()).await.unwrap();
        }
        assert_eq!(asked(&cached), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_is_kept_than_allowed() {
        let cached = cached(2);
        for image in ["a", "b", "c"] {
            cached.config(image, None).await.unwrap();
        }
        assert_eq!(cached.slots.lock().len(), 2);
        cached.config("c", None).await.unwrap();
        cached.config("b", None).await.unwrap();
        assert_eq!(asked(&cached), 3, "the oldest went");
    }
}
