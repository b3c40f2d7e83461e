//! What became of a call for a pod whose answer was lost, and whether it is made again.

use std::time::Duration;

use dstack_backend::Made;
use dstack_compute::{Call, ComputeError, LISTED_WITHIN, Removal};
use dstack_units::Time;
use http::StatusCode;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Lium;
use crate::client::Event;
use crate::pods::POD;
use crate::requests::{not_made, told};

/// By it, a repeated call for the pod is known. It is made here.
const RENT_KEY: &str = "key of the rent";

/// When it was made.
const RENT_TIME: &str = "time of the rent";

/// What Lium says that it can if a repeated call with the same key makes no second pod.
const KEEPS_KEYS: &str = "rent_idempotency";

/// How long Lium knows the key of a call.
const KEYS_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// By so much the clocks of Lium and of this server may differ.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(60);

/// What a call for a pod is known by, however often it is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rent {
    /// The key of idempotency.
    pub(crate) key: String,
    /// Before the first call.
    pub(crate) since: Time,
}

impl Rent {
    /// Noted, if it is not yet. Builds before this one note, and read, the key alone.
    pub(crate) async fn chosen(key: String, call: &Call<'_>) -> Result<Self, ComputeError> {
        let is_new = call.made::<String>(RENT_KEY)?.is_none();
        let since = if is_new { call.now() } else { Time::from_millis(0) };
        let since = call.choose(RENT_TIME, since).await?;
        let key = call.choose(RENT_KEY, key).await?;
        Ok(Self { key, since })
    }

    /// The one that is noted.
    pub(crate) fn noted(call: &Call<'_>) -> Result<Option<Self>, ComputeError> {
        let Some(key) = call.made(RENT_KEY)? else {
            return Ok(None);
        };
        let since = call.made(RENT_TIME)?.unwrap_or(Time::from_millis(0));
        Ok(Some(Self { key, since }))
    }

    /// The next call has another one.
    pub(crate) async fn forget(call: &Call<'_>) -> Result<(), ComputeError> {
        forget::<String>(RENT_KEY, call).await?;
        forget::<Time>(RENT_TIME, call).await
    }
}

async fn forget<T: Serialize + DeserializeOwned + Send + Sync>(
    piece: &str,
    call: &Call<'_>,
) -> Result<(), ComputeError> {
    let gone = async |_: T| Ok(Removal::Gone);
    let forgotten = call.unmake(piece, None, Duration::ZERO, async || Ok(None), gone);
    forgotten.await.map(drop)
}

impl Lium {
    /// The pod. Where an answer was lost, it is looked for first; only where Lium knows a repeated call, that is made before it is certain
    /// that nothing came of the first.
    pub(crate) async fn rent_once(
        &self,
        node: &str,
        name: &str,
        rent: &Rent,
        body: &Value,
        call: &Call<'_>,
    ) -> Result<Made, ComputeError> {
        let was_asked = call.asked_at(POD).is_some();
        let ask = async || self.rent(node, rent, body, call).await;
        let find = async || self.find_rented(Some(node), name, rent, call).await;
        if was_asked && !self.may_repeat(rent, call).await {
            return call.make(POD, LISTED_WITHIN, ask, find).await;
        }
        let find_or_ask = async || match was_asked {
            true => match find().await? {
                Some(found) => Ok(found),
                None => ask().await,
            },
            false => ask().await,
        };
        call.make_once(POD, find_or_ask).await
    }

    async fn rent(
        &self,
        node: &str,
        rent: &Rent,
        body: &Value,
        call: &Call<'_>,
    ) -> Result<Made, ComputeError> {
        let rented = self.client.rent(node, &rent.key, body).await;
        let rented = rented.map_err(|error| not_made(&error));
        if matches!(rented, Err(ComputeError::NoCapacity(_))) {
            // Somebody else has it now: what is free is asked for again.
            self.nodes.forget();
        }
        Ok(Made::now(rented?, call))
    }

    /// Where Lium does not say that it knows repeated calls, it does not.
    async fn may_repeat(&self, rent: &Rent, call: &Call<'_>) -> bool {
        let fetch = async || match self.client.features().await {
            Err(error) if error.status() == Some(StatusCode::NOT_FOUND) => Ok(Vec::new()),
            answer => told(answer),
        };
        match self.features.get(fetch).await {
            Ok(features) => is_repeatable(&features, rent.since, call.now()),
            Err(error) => {
                tracing::debug!(%error, "Lium does not tell what it can");
                false
            }
        }
    }

    /// A pod that an earlier call has made: in the list, or in what Lium tells of pods, where it may be before.
    pub(crate) async fn find_rented(
        &self,
        node: Option<&str>,
        name: &str,
        rent: &Rent,
        call: &Call<'_>,
    ) -> Result<Option<Made>, ComputeError> {
        if let Some(found) = self.find_pod(name, node, call).await? {
            return Ok(Some(found));
        }
        let since = rent.since - CLOCK_TOLERANCE;
        let events = told(self.client.events_since(since).await)?;
        Ok(rented_pod(&events, name).map(|id| Made::now(id.to_owned(), call)))
    }
}

fn is_repeatable(features: &[String], since: Time, now: Time) -> bool {
    features.iter().any(|feature| feature == KEEPS_KEYS) && now < since + KEYS_LIFETIME
}

/// The pod of this name that was made, and not deleted since. One that is deleted may be that of an attempt before, of the same name: nothing
/// is concluded from it.
fn rented_pod<'a>(events: &'a [Event], name: &str) -> Option<&'a str> {
    let is_of = |event: &Event, what: &str| {
        let kind = event.sub_event_type.as_deref();
        kind.is_some_and(|kind| kind.starts_with(what))
    };
    let is_end = |event: &Event| {
        let status = event.to_status.as_deref().unwrap_or_default();
        let ends = ["DELETING", "DELETED"];
        is_of(event, "pod-delete") || ends.iter().any(|end| status.eq_ignore_ascii_case(end))
    };
    let made = events.iter().filter(|event| {
        event.pod_name.as_deref() == Some(name) && is_of(event, "pod-create") && !is_end(event)
    });
    let mut ids = made.filter_map(|event| event.pod_id.as_deref());
    ids.find(|id| {
        let mut of_pod = events.iter().filter(|event| event.pod_id.as_deref() == Some(*id));
        !of_pod.any(is_end)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_call_is_repeated_as_long_as_its_key_is_known() {
        let (since, now) = (Time::from_millis(0), |hours: u64| {
            Time::from_millis(0) + Duration::from_secs(hours * 60 * 60)
        });
        let keeps = ["workspaces".to_owned(), KEEPS_KEYS.to_owned()];
        assert!(is_repeatable(&keeps, since, now(23)));
        assert!(!is_repeatable(&keeps, since, now(24)));
        assert!(!is_repeatable(&keeps[..1], since, now(0)));
    }

    #[test]
    fn a_pod_that_is_deleted_is_not_found() {
        let event = |id: &str, name: &str, status: &str, kind: &str| -> Event {
            serde_json::from_value(
                json!({"pod_id": id, "pod_name": name, "to_status": status, "sub_event_type": kind}),
            )
            .unwrap()
        };
        let made = |id: &str| event(id, "a", "PENDING", "pod-create.request");
        let deleted = event("1", "a", "DELETED", "pod-delete.success");
        let other = event("3", "b", "PENDING", "pod-create.request");
        assert_eq!(rented_pod(&[other.clone(), made("1")], "a"), Some("1"));
        assert_eq!(
            rented_pod(&[deleted.clone(), made("1"), other.clone()], "a"),
            None
        );
        assert_eq!(rented_pod(&[made("2"), deleted, made("1")], "a"), Some("2"));
        assert_eq!(rented_pod(&[other], "a"), None);
    }
}
