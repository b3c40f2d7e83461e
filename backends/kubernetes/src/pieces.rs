//! Objects that are made for a request, each noted before it is asked for and known by its uid afterwards: names may be taken
//! over by somebody else.

use std::time::Duration;

use dstack_compute::{Call, ComputeError, INSTALLATION_TAG, Marks, Removal};
use dstack_units::Time;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::client::{Cluster, Kind};
use crate::labels::{MANAGED_BY, is_for};
use crate::objects::{Metadata, Object};

/// A read without a version sees all that was written before it.
pub(crate) const VISIBLE_WITHIN: Duration = Duration::from_secs(5);

/// An object that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Noted")]
pub(crate) struct Piece {
    pub(crate) name: String,
    /// Unset where it is not known: earlier builds noted the name alone.
    pub(crate) uid: Option<String>,
    /// When it was made or found, by our clock.
    pub(crate) at: Time,
}

/// As it is read.
#[derive(Deserialize)]
#[serde(untagged)]
enum Noted {
    Name(String),
    Whole {
        name: String,
        uid: Option<String>,
        at: Time,
    },
}

impl From<Noted> for Piece {
    fn from(noted: Noted) -> Self {
        match noted {
            Noted::Name(name) => Self::long_ago(name, None),
            Noted::Whole { name, uid, at } => Self { name, uid, at },
        }
    }
}

impl Piece {
    /// Of which no time is known.
    pub(crate) const fn long_ago(name: String, uid: Option<String>) -> Self {
        let at = Time::EPOCH;
        Self { name, uid, at }
    }

    /// Whether an object is this one.
    pub(crate) fn is(&self, found: &Metadata) -> bool {
        self.name == found.name && self.uid.as_ref().is_none_or(|uid| *uid == found.uid)
    }
}

/// What is made for one request in a cluster.
#[derive(Debug)]
pub(crate) struct Pieces<'a, 'c> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) marks: &'a Marks,
    pub(crate) call: &'a Call<'c>,
}

impl Pieces<'_, '_> {
    /// Makes a piece, unless it is made. `object` says what, and is asked only when it is about to be made.
    pub(crate) async fn make<O>(
        &self,
        piece: &str,
        kind: Kind,
        name: &str,
        object: impl FnOnce() -> O + Send,
    ) -> Result<Piece, ComputeError>
    where
        O: Future<Output = Result<Value, ComputeError>> + Send,
    {
        let ask = || async move {
            let object = object().await.map_err(not_asked)?;
            let made = self.cluster.create(kind, &object, self.marks).await?;
            Ok(self.made(made))
        };
        self.call
            .make(piece, VISIBLE_WITHIN, ask, || self.find(kind, name))
            .await
    }

    /// Removes a piece. `known`: what is known of it where nothing was noted.
    pub(crate) async fn remove(
        &self,
        piece: &str,
        kind: Kind,
        name: &str,
        known: Option<Piece>,
    ) -> Result<Removal, ComputeError> {
        let find = || self.find(kind, name);
        let delete = |made: Piece| self.delete(kind, made);
        self.call.unmake(piece, known, VISIBLE_WITHIN, find, delete).await
    }

    /// Removes pieces in this order: by what each is noted, its kind, its name, and of which uid it is, if that is known. `is_placed`: they
    /// are known to have been made, whatever is noted.
    pub(crate) async fn remove_all<const COUNT: usize>(
        &self,
        all: [(&str, Kind, String, Option<String>); COUNT],
        is_placed: bool,
    ) -> Result<Removal, ComputeError> {
        let mut whole = Removal::Gone;
        for (piece, kind, name, uid) in all {
            let known = is_placed.then(|| Piece::long_ago(name.clone(), uid));
            let removal = self.remove(piece, kind, &name, known).await?;
            if let Removal::Underway { .. } = removal {
                whole = removal;
            }
        }
        Ok(whole)
    }

    /// What an earlier call has made.
    pub(crate) async fn find(&self, kind: Kind, name: &str) -> Result<Option<Piece>, ComputeError> {
        let found: Option<Object> = self.cluster.get(kind, name).await?;
        let own = found.filter(|found| is_for(self.marks, &found.metadata));
        Ok(own.map(|own| self.made(own.metadata)))
    }

    fn made(&self, made: Metadata) -> Piece {
        Piece {
            name: made.name,
            uid: Some(made.uid),
            at: self.call.now(),
        }
    }

    async fn delete(&self, kind: Kind, made: Piece) -> Result<Removal, ComputeError> {
        let uid = match made.uid {
            Some(uid) => Some(uid),
            None => self.uid_of_own(kind, &made.name).await?,
        };
        match uid {
            Some(uid) => self.cluster.delete(kind, &made.name, &uid).await,
            None => Ok(Removal::Gone),
        }
    }

    /// The uid of what has this name and is of this request, as far as can be told: dstack 0.22.5 gives no installation.
    async fn uid_of_own(&self, kind: Kind, name: &str) -> Result<Option<String>, ComputeError> {
        let found: Option<Object> = self.cluster.get(kind, name).await?;
        let is_of_earlier = |found: &Metadata| {
            let by = found.labels.get(MANAGED_BY);
            by.is_some_and(|by| by == "dstack") && !found.labels.contains_key(INSTALLATION_TAG)
        };
        let own = found.filter(|one| is_for(self.marks, &one.metadata) || is_of_earlier(&one.metadata));
        Ok(own.map(|own| own.metadata.uid))
    }
}

/// What went wrong before the piece was asked for has certainly made nothing.
fn not_asked(error: ComputeError) -> ComputeError {
    match error {
        ComputeError::Unclear(text) => ComputeError::Unreachable(text),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_of_earlier_builds_are_read() {
        let old: Piece = serde_json::from_value("p".into()).unwrap();
        assert_eq!(old, Piece::long_ago("p".to_owned(), None));
        let made = Piece {
            uid: Some("u".to_owned()),
            at: Time::from_millis(7),
            ..old
        };
        let noted = serde_json::to_value(&made).unwrap();
        assert_eq!(serde_json::from_value::<Piece>(noted).unwrap(), made);
    }
}
