//! One call of the control plane to a backend, and what the backend notes in it.
//!
//! A thing in a cloud may consist of several pieces (an address, a disk, a registry record, the machine itself), each made by a
//! call of its own. [`Call::make`] makes a piece at most once, wherever the server is killed and whichever answers are lost:
//! it notes that the piece is asked for before it asks, and what was made afterwards. [`Call::unmake`] removes a piece, also one
//! of which only is known that it was asked for.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use dstack_system::clock::SharedClock;
use dstack_units::Time;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{ComputeError, Removal};

/// How long a call of the control plane to a backend may take. What it has begun to ask a cloud for may take effect until then.
pub const CALL_LIMIT: Duration = Duration::from_secs(120);

/// How long clouds may take to list what they have made, unless a backend knows better.
pub const LISTED_WITHIN: Duration = Duration::from_secs(60);

/// Calls for a piece that may come to nothing, before that is taken for an answer.
const MAX_LOST_CALLS: u32 = 2;

/// Pause before a cloud is asked again what it lists.
const LISTED_INTERVAL: Duration = Duration::from_secs(5);

/// Where notes are kept.
#[async_trait]
pub trait Journal: Send + Sync {
    /// Keeps the notes instead of those before. When it returns, they survive this process.
    ///
    /// # Errors
    /// They are not kept; why. Then nothing may be asked of a cloud.
    async fn keep(&self, notes: &Value) -> Result<(), String>;
}

/// One call to a backend: how long it may take, and what was noted in those before it.
pub struct Call<'a> {
    clock: SharedClock,
    journal: &'a dyn Journal,
    pieces: Mutex<BTreeMap<String, Piece>>,
}

/// What is noted of a piece.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
enum Piece {
    /// The cloud is or was asked for it.
    Asked {
        /// When it was asked for last.
        at: Time,
        /// How many calls before that came to nothing.
        #[serde(default)]
        lost: u32,
        /// It was asked for before, and nobody knows what came of that: both may take effect, one after the other.
        #[serde(default)]
        again: bool,
    },
    /// It is not there, as nothing came of asking for it.
    Lost {
        /// How many calls for it came to nothing.
        lost: u32,
    },
    /// It was made.
    Made {
        /// By what it is known, as the backend has it.
        made: Value,
        /// Until when another call for it, which had no answer, may take effect.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        late: Option<Time>,
    },
    /// It was removed.
    Gone,
}

impl Debug for Call<'_> {
    /// Without the notes, which may be secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").finish_non_exhaustive()
    }
}

impl<'a> Call<'a> {
    /// A call that goes on from these notes; `Null`: nothing was noted yet.
    ///
    /// # Errors
    /// The notes cannot be read, as they are of a later version: nothing may be asked, as something may be there.
    pub fn new(clock: SharedClock, journal: &'a dyn Journal, notes: &Value) -> Result<Self, ComputeError> {
        let pieces = read_pieces(notes).map_err(|error| {
            let text =
                format!("what was made so far is noted in a form that this version cannot read: {error}");
            ComputeError::NotWritten(text)
        })?;
        Ok(Self {
            clock,
            journal,
            pieces: Mutex::new(pieces),
        })
    }

    /// Whether [`Call::new`] can read these notes.
    pub fn can_read(notes: &Value) -> bool {
        read_pieces(notes).is_ok()
    }

    /// Returns how long the call may take.
    pub const fn limit(&self) -> Duration {
        CALL_LIMIT
    }

    /// Returns the time now.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// What is noted, in the form that [`Call::new`] takes.
    pub fn notes(&self) -> Value {
        let pieces = self.lock();
        match pieces.is_empty() {
            true => Value::Null,
            false => serde_json::to_value(&*pieces).unwrap_or_default(),
        }
    }

    /// Makes a piece, unless it is made already; by what it is known.
    ///
    /// `ask` asks the cloud for it. `find` looks whether an earlier call has made it, and is only called when the answer to that was
    /// lost; what it does not find may still appear until `listed_within` after the call had to be over.
    ///
    /// # Errors
    /// Those of `ask` and `find`. [`ComputeError::Unclear`] as long as nobody knows whether it was made.
    pub async fn make<T, A, F>(
        &self,
        piece: &str,
        listed_within: Duration,
        ask: impl FnOnce() -> A + Send,
        find: impl FnOnce() -> F + Send,
    ) -> Result<T, ComputeError>
    where
        T: Serialize + DeserializeOwned + Send + Sync,
        A: Future<Output = Result<T, ComputeError>> + Send,
        F: Future<Output = Result<Option<T>, ComputeError>> + Send,
    {
        let lost = match self.noted(piece) {
            Some(Piece::Made { made, .. }) => return read(piece, made),
            Some(Piece::Asked { at, lost, .. }) => {
                if let Some(found) = find().await? {
                    return self.is_made(piece, found, None).await;
                }
                self.came_to_nothing(piece, at, lost, listed_within).await?
            }
            Some(Piece::Lost { lost }) => lost,
            None | Some(Piece::Gone) => 0,
        };
        let at = self.now();
        let asked = Piece::Asked {
            at,
            lost,
            again: false,
        };
        self.note(piece, asked).await?;
        match ask().await {
            Ok(made) => self.is_made(piece, made, None).await,
            Err(error) if error.is_definite() => {
                self.forget(piece).await?;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// As [`Call::make`], of a cloud that makes nothing twice for the same token: it is asked again until it answers. As calls without
    /// an answer may take effect late, [`Call::unmake`] removes the piece until they cannot any more.
    ///
    /// # Errors
    /// Those of `ask`.
    pub async fn make_once<T, A>(
        &self,
        piece: &str,
        ask: impl FnOnce() -> A + Send,
    ) -> Result<T, ComputeError>
    where
        T: Serialize + DeserializeOwned + Send + Sync,
        A: Future<Output = Result<T, ComputeError>> + Send,
    {
        let before = match self.noted(piece) {
            Some(Piece::Made { made, .. }) => return read(piece, made),
            noted => noted,
        };
        let asked_before = match &before {
            Some(Piece::Asked { at, .. }) => Some(*at),
            _ => None,
        };
        // What the last call makes may be listed late, however long ago the first one was.
        let asked = Piece::Asked {
            at: self.now(),
            lost: 0,
            again: asked_before.is_some(),
        };
        self.note(piece, asked).await?;
        match ask().await {
            Ok(made) => {
                let late = asked_before.map(|at| at + CALL_LIMIT);
                self.is_made(piece, made, late).await
            }
            Err(error) if error.is_definite() => {
                // It speaks of this call only: one before it, whose answer was lost, may have made the piece.
                match before.filter(|_| asked_before.is_some()) {
                    Some(before) => self.note(piece, before).await?,
                    None => self.forget(piece).await?,
                }
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Notes a choice for all further calls, such as a zone or a token: nothing that a cloud makes. One that is noted already stays.
    ///
    /// # Errors
    /// It is not kept, or the note is of another form.
    pub async fn choose<T>(&self, piece: &str, choice: T) -> Result<T, ComputeError>
    where
        T: Serialize + DeserializeOwned + Sync,
    {
        match self.made(piece)? {
            Some(noted) => Ok(noted),
            None => self.is_made(piece, choice, None).await,
        }
    }

    /// By what a piece is known that was made and not removed.
    ///
    /// # Errors
    /// The note is of another form.
    pub fn made<T: DeserializeOwned>(&self, piece: &str) -> Result<Option<T>, ComputeError> {
        match self.noted(piece) {
            Some(Piece::Made { made, .. }) => read(piece, made).map(Some),
            _ => Ok(None),
        }
    }

    /// When a piece was asked for last, if nobody knows since then whether it was made.
    pub fn asked_at(&self, piece: &str) -> Option<Time> {
        match self.noted(piece) {
            Some(Piece::Asked { at, .. }) => Some(at),
            _ => None,
        }
    }

    /// Removes a piece, if there is one.
    ///
    /// `known`: by what it is known otherwise, where nothing was ever noted of it (dstack 0.22.5 makes no notes). `find` looks for
    /// what an earlier call may have made, as in [`Call::make`]. `delete` removes it.
    ///
    /// # Errors
    /// Those of `find` and `delete`; [`ComputeError::Unclear`] as long as nobody knows whether there is something to be removed.
    pub async fn unmake<T, F, D>(
        &self,
        piece: &str,
        known: Option<T>,
        listed_within: Duration,
        find: impl FnOnce() -> F + Send,
        delete: impl FnOnce(T) -> D + Send,
    ) -> Result<Removal, ComputeError>
    where
        T: Serialize + DeserializeOwned + Send + Sync,
        F: Future<Output = Result<Option<T>, ComputeError>> + Send,
        D: Future<Output = Result<Removal, ComputeError>> + Send,
    {
        let (made, late) = match self.noted(piece) {
            Some(Piece::Gone | Piece::Lost { .. }) => return Ok(Removal::Gone),
            Some(Piece::Made { made, late }) => (read(piece, made)?, late),
            Some(Piece::Asked { at, again, .. }) => match find().await? {
                Some(found) => (found, again.then_some(at + CALL_LIMIT)),
                None if self.now() >= at + CALL_LIMIT + listed_within => {
                    self.note(piece, Piece::Gone).await?;
                    return Ok(Removal::Gone);
                }
                None => {
                    let again = LISTED_INTERVAL;
                    return Ok(Removal::Underway { again });
                }
            },
            None => match known {
                Some(known) => (known, None),
                None => return Ok(Removal::Gone),
            },
        };
        let removal = delete(made).await?;
        if removal != Removal::Gone {
            return Ok(removal);
        }
        // A call that is still on its way would make it again, and what it has made may not be listed yet.
        if late.is_some_and(|late| self.now() < late + listed_within) {
            let again = LISTED_INTERVAL;
            return Ok(Removal::Underway { again });
        }
        self.note(piece, Piece::Gone).await?;
        Ok(Removal::Gone)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Piece>> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn noted(&self, piece: &str) -> Option<Piece> {
        self.lock().get(piece).cloned()
    }

    async fn note(&self, piece: &str, noted: Piece) -> Result<(), ComputeError> {
        self.lock().insert(piece.to_owned(), noted);
        self.keep().await
    }

    /// The cloud has refused to make it.
    async fn forget(&self, piece: &str) -> Result<(), ComputeError> {
        self.lock().remove(piece);
        self.keep().await
    }

    async fn keep(&self) -> Result<(), ComputeError> {
        let notes = self.notes();
        self.journal.keep(&notes).await.map_err(ComputeError::NotWritten)
    }

    /// `late`: until when another call for it may take effect.
    async fn is_made<T: Serialize + Sync>(
        &self,
        piece: &str,
        made: T,
        late: Option<Time>,
    ) -> Result<T, ComputeError> {
        let value = serde_json::to_value(&made).unwrap_or_default();
        self.note(piece, Piece::Made { made: value, late }).await?;
        Ok(made)
    }

    /// A call that was made `at` has made nothing that can be found; how often that has happened. An error as long as it may
    /// still, or when it has happened too often.
    async fn came_to_nothing(
        &self,
        piece: &str,
        at: Time,
        lost: u32,
        listed_within: Duration,
    ) -> Result<u32, ComputeError> {
        if self.now() < at + CALL_LIMIT + listed_within {
            let text = format!("the cloud does not list {piece} yet, which it may have made");
            return Err(ComputeError::Unclear(text));
        }
        let lost = lost + 1;
        self.note(piece, Piece::Lost { lost }).await?;
        match lost > MAX_LOST_CALLS {
            true => Err(ComputeError::Broken(format!(
                "the cloud did not say whether it made {piece}, and did not make it"
            ))),
            false => Ok(lost),
        }
    }
}

fn read_pieces(notes: &Value) -> Result<BTreeMap<String, Piece>, serde_json::Error> {
    match notes {
        Value::Null => Ok(BTreeMap::new()),
        notes => serde_json::from_value(notes.clone()),
    }
}

fn read<T: DeserializeOwned>(piece: &str, made: Value) -> Result<T, ComputeError> {
    serde_json::from_value(made).map_err(|error| {
        let text = format!("{piece} is noted in a form that this version cannot read: {error}");
        ComputeError::NotWritten(text)
    })
}

#[cfg(test)]
mod tests;
