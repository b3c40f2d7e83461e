use std::time::Duration;

use dstack_compute::{Call, LISTED_WITHIN, Removal};
use dstack_units::Time;
use serde::{Deserialize, Serialize};

/// What is noted of a thing that was made, of an API that knows new things late.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Noted")]
pub struct Made {
    /// By what the API knows it.
    pub id: String,
    /// When that became known.
    at: Time,
}

/// As it is read: earlier builds noted the id alone.
#[derive(Deserialize)]
#[serde(untagged)]
enum Noted {
    Id(String),
    Made { id: String, at: Time },
}

impl From<Noted> for Made {
    fn from(noted: Noted) -> Self {
        match noted {
            Noted::Id(id) => Self::long_ago(id),
            Noted::Made { id, at } => Self { id, at },
        }
    }
}

impl Made {
    /// Of this moment.
    pub fn now(id: String, call: &Call<'_>) -> Self {
        Self { id, at: call.now() }
    }

    /// Of which nothing was noted: the API has known it for long.
    pub const fn long_ago(id: String) -> Self {
        let at = Time::from_millis(0);
        Self { id, at }
    }

    /// Whether the API may not know it yet, which it should within [`LISTED_WITHIN`].
    pub fn is_new(&self, call: &Call<'_>) -> bool {
        self.is_new_within(LISTED_WITHIN, call)
    }

    /// As [`Made::is_new`], of an API that takes another time for it.
    pub fn is_new_within(&self, listed_within: Duration, call: &Call<'_>) -> bool {
        call.now() < self.at + listed_within
    }

    /// What an API means that says that it is gone: of what is new, that it is not known there yet, and has to be removed again.
    pub fn removal(&self, call: &Call<'_>, told: Removal, again: Duration) -> Removal {
        self.removal_within(LISTED_WITHIN, call, told, again)
    }

    /// As [`Made::removal`], of an API that takes another time until it knows new things.
    pub fn removal_within(
        &self,
        listed_within: Duration,
        call: &Call<'_>,
        told: Removal,
        again: Duration,
    ) -> Removal {
        match told == Removal::Gone && self.is_new_within(listed_within, call) {
            true => Removal::Underway { again },
            false => told,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use async_trait::async_trait;
    use dstack_compute::Journal;
    use dstack_system::clock::VirtualClock;
    use serde_json::Value;

    use super::*;

    #[test]
    fn notes_of_earlier_builds_are_read() {
        let at = Time::from_millis(1_000);
        let made = Made {
            id: "i".to_owned(),
            at,
        };
        let noted = serde_json::to_value(&made).unwrap();
        assert_eq!(serde_json::from_value::<Made>(noted).unwrap(), made);
        let old: Made = serde_json::from_value("i".into()).unwrap();
        assert_eq!(old, Made::long_ago("i".to_owned()));
    }

    struct NoJournal;

    #[async_trait]
    impl Journal for NoJournal {
        async fn keep(&self, _: &Value) -> Result<(), String> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_new_is_not_gone_because_nobody_knows_it() {
        let clock = Arc::new(VirtualClock::starting_at(Time::from_millis(1_000_000_000)));
        let call = Call::new(clock, &NoJournal, &Value::Null).unwrap();
        let again = Duration::from_secs(5);
        let made = Made::now("i".to_owned(), &call);
        assert_eq!(
            made.removal(&call, Removal::Gone, again),
            Removal::Underway { again }
        );
        tokio::time::sleep(LISTED_WITHIN).await;
        assert_eq!(made.removal(&call, Removal::Gone, again), Removal::Gone);
        let old = Made::long_ago("i".to_owned());
        assert_eq!(old.removal(&call, Removal::Gone, again), Removal::Gone);
    }
}
