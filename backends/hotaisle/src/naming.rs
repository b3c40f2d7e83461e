//! Which virtual machine is whose. They are made without a name, and described afterwards: one whose making was not answered is told from
//! others as the only one of its size without a description that was not there before.

use std::collections::BTreeSet;
use std::sync::{Mutex as StdMutex, PoisonError};
use std::time::Duration;

use dstack_backend::{Made, compute_error, not_asked};
use dstack_compute::{CALL_LIMIT, Call, ComputeError, LISTED_WITHIN, Removal};
use dstack_http::ApiError;
use dstack_units::Time;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::{Mutex, MutexGuard};

use crate::HotAisle;
use crate::client::{Host, Kind};

/// The piece under which a virtual machine is noted.
pub(crate) const MACHINE: &str = "machine";

/// The note of what was there before a machine was asked for.
const BEFORE: &str = "before the machine";

/// The note that a virtual machine is described.
pub(crate) const DESCRIBED: &str = "description of the machine";

/// How long others are waited for: less than a call may take, by what making a machine takes.
const TURN_LIMIT: Duration = Duration::from_secs(45);

/// What is noted before a machine is asked for.
#[derive(Debug, Serialize, Deserialize)]
struct Before {
    /// Of those that are there.
    names: Vec<String>,
    /// What is asked for.
    specs: Value,
}

/// A machine that may be there.
#[derive(Debug)]
struct Unanswered {
    mark: String,
    /// Until when it may appear.
    until: Time,
}

/// The turn of one machine.
pub(crate) struct Turn<'a>(MutexGuard<'a, Option<Unanswered>>);

impl Turn<'_> {
    /// Whether it is over: nobody has to ask any more what came of it.
    pub(crate) fn end(mut self, is_over: bool) {
        if is_over {
            *self.0 = None;
        }
    }
}

/// What keeps makings apart.
#[derive(Debug, Default)]
pub(crate) struct Naming {
    /// One is made at a time, so that there is mostly one without a description: also while nobody knows what came of asking for it.
    turn: Mutex<Option<Unanswered>>,
    /// Those that were made and could not be described yet.
    made: StdMutex<BTreeSet<String>>,
}

impl Naming {
    /// In the order in which it is asked for; `None`: another machine is still being made.
    pub(crate) async fn turn(&self, mark: &str, call: &Call<'_>) -> Option<Turn<'_>> {
        let turn = tokio::time::timeout(TURN_LIMIT, self.turn.lock()).await;
        let mut turn = turn.ok()?;
        let is_of_other = |one: &Unanswered| one.mark != mark && call.now() < one.until;
        if turn.as_ref().is_some_and(is_of_other) {
            return None;
        }
        *turn = Some(Unanswered {
            mark: mark.to_owned(),
            until: call.asked_at(MACHINE).unwrap_or_else(|| call.now()) + CALL_LIMIT + LISTED_WITHIN,
        });
        Some(Turn(turn))
    }

    /// Its name may be given to another one.
    pub(crate) fn forget(&self, name: &str) {
        self.set_made(name, false);
    }

    fn is_made(&self, name: &str) -> bool {
        self.made
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(name)
    }

    fn set_made(&self, name: &str, is_made: bool) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        match is_made {
            true => made.insert(name.to_owned()),
            false => made.remove(name),
        };
    }
}

impl HotAisle {
    /// Makes a virtual machine, in its turn.
    pub(crate) async fn make_virtual(
        &self,
        specs: &Value,
        mark: &str,
        call: &Call<'_>,
        refusal: fn(&ApiError) -> ComputeError,
    ) -> Result<Made, ComputeError> {
        self.note_others(specs, call).await?;
        let machine = self.client.make_virtual(specs).await;
        let machine = machine.map_err(|error| refusal(&error))?;
        self.naming.set_made(&machine.name, true);
        // It may not be known yet, and is described when it is.
        if let Err(error) = self.describe(&machine.name, mark, call).await {
            tracing::debug!(%error, machine = machine.name, "a machine is not described yet");
        }
        Ok(Made::now(machine.name, call))
    }

    /// Notes which there are, anew for each attempt.
    async fn note_others(&self, specs: &Value, call: &Call<'_>) -> Result<(), ComputeError> {
        let before = async || {
            let hosts = self.client.hosts(Kind::Virtual).await;
            // Nothing was asked for yet.
            let hosts = hosts.map_err(|error| not_asked(compute_error(&error)))?;
            let names = hosts.into_iter().map(|host| host.name).collect();
            let specs = specs.clone();
            Ok(Before { names, specs })
        };
        let nothing = async || Ok(None);
        for piece in [BEFORE, DESCRIBED] {
            let forget = async |_: Value| Ok(Removal::Gone);
            let found = async || Ok(Some(Value::Null));
            call.unmake(piece, None, Duration::ZERO, found, forget).await?;
        }
        call.make(BEFORE, Duration::ZERO, before, nothing).await.map(drop)
    }

    /// The virtual machine with this description, or that which was made for it, in its turn.
    pub(crate) async fn find_virtual(
        &self,
        mark: &str,
        call: &Call<'_>,
    ) -> Result<Option<Made>, ComputeError> {
        let hosts = self.client.hosts(Kind::Virtual).await;
        let hosts = hosts.map_err(|error| compute_error(&error))?;
        if let Some(host) = hosts.iter().find(|host| host.description() == mark) {
            return Ok(Some(Made::now(host.name.clone(), call)));
        }
        let Some(before) = call.made::<Before>(BEFORE)? else {
            return Ok(None);
        };
        let is_new = |host: &Host| {
            host.description().is_empty()
                && !before.names.contains(&host.name)
                && !self.naming.is_made(&host.name)
                && host.is_of(&before.specs)
        };
        let new = hosts.into_iter().filter(is_new);
        let mut new: Vec<String> = new.map(|host| host.name).collect();
        match (new.pop(), new.is_empty()) {
            (None, _) => Ok(None),
            (Some(name), true) => {
                self.describe(&name, mark, call).await?;
                Ok(Some(Made::now(name, call)))
            }
            (Some(name), false) => Err(ComputeError::Unclear(format!(
                "one of the virtual machines {name}, {} of Hot Aisle is this one, and nobody knows which: delete those that are not \
                 wanted, or give a description to those of others",
                new.join(", ")
            ))),
        }
    }

    /// Describes it, and notes that: from then on, one without a description is of somebody else.
    pub(crate) async fn describe(&self, name: &str, mark: &str, call: &Call<'_>) -> Result<(), ComputeError> {
        let describe = async || {
            let described = self.client.describe(name, mark).await;
            described.map(|()| true).map_err(|error| compute_error(&error))
        };
        // To describe it twice is as good.
        let again = async || describe().await.map(Some);
        let described: bool = call.make(DESCRIBED, Duration::ZERO, describe, again).await?;
        self.naming.set_made(name, !described);
        Ok(())
    }
}
