//! The three verbs of everything that costs money, the same for machines, volumes and all else.
//!
//! They are level-triggered: each says what shall be so, may be cut off anywhere, and is made again until it is so. What a
//! backend is about to make it notes first, see [`Call`].

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use dstack_units::Time;

use crate::{Call, ComputeError, Marks};

/// A kind of things that a cloud makes.
pub trait Resource: Send + Sync + 'static {
    /// What is asked for.
    type Want: Debug + Send + Sync;
    /// What has to be known to find it, besides its marks: mostly a region.
    type Site: Debug + Clone + PartialEq + Send + Sync;
    /// What was made: where it is, and how it is reached.
    type Place: Debug + Clone + PartialEq + Send + Sync;
}

/// Makes, looks after and removes things of one kind.
#[async_trait]
pub trait Lifecycle<R: Resource>: Send + Sync {
    /// Sees to it that there is one such thing under the marks of the request: uses what exists, makes the next piece, and
    /// returns soon, within [`Call::limit`].
    ///
    /// # Errors
    /// Of definite ones ([`ComputeError::is_definite`]), what was made before is removed by [`Lifecycle::remove`], and something
    /// else may be tried. After all others the same is asked again.
    async fn ensure(&self, want: &R::Want, call: &Call<'_>) -> Result<Step<R::Place>, ComputeError>;

    /// How those are that were made, in the same order. A cloud that lists many at once is asked once.
    ///
    /// `None`: it could not be asked, as its region or cluster does not answer, or it has no place. That says nothing of it, and of
    /// the others what is so.
    ///
    /// # Errors
    /// The cloud does not tell of any: nothing is concluded from that.
    async fn look(&self, known: &[Known<R>]) -> Result<Vec<Option<Sign<R::Place>>>, ComputeError> {
        Ok(known.iter().map(|_| Some(Sign::Well)).collect())
    }

    /// Removes it with all its pieces; asked again until it is gone. What does not exist is gone.
    ///
    /// # Errors
    /// It may still be there: asked again later, for ever.
    async fn remove(&self, known: &Known<R>, call: &Call<'_>) -> Result<Removal, ComputeError>;
}

/// What is known of a thing that was asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Known<R: Resource> {
    /// Under which it was asked for.
    pub marks: Marks,
    /// Where it was asked for.
    pub site: R::Site,
    /// What was made; `None`: it never got that far. The pieces that were noted tell.
    pub place: Option<R::Place>,
}

/// How far a thing is that is being made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step<P> {
    /// It is there, as it shall be.
    Ready(P),
    /// The cloud is at it, or the next piece follows.
    Underway {
        /// What is known of the place so far, if anything.
        seen: Option<P>,
        /// What is waited for, for people, such as `an address`.
        doing: String,
        /// Pause before the next call.
        again: Duration,
    },
}

/// How a thing is that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sign<P> {
    /// As it was.
    Well,
    /// It is reached elsewhere now.
    Moved(P),
    /// The cloud will take it away.
    Ending {
        /// When, if the cloud says so.
        at: Option<Time>,
        /// Why, for people.
        why: String,
    },
    /// It is gone, or will never work (again); why, for people.
    Lost(String),
}

/// How far a removal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// The cloud says that it is not there.
    Gone,
    /// The cloud is at it.
    Underway {
        /// Pause before the next call.
        again: Duration,
    },
}
