//! Which virtual machine is whose. They are made without a name, and described afterwards: one whose making was not answered is told from
//! others as the only one without a description that was not there before.

use std::collections::BTreeSet;
use std::sync::{Mutex as StdMutex, PoisonError};
use std::time::Duration;

use dstack_backend::{Made, compute_error};
use dstack_compute::{Call, ComputeError};
use dstack_http::ApiError;
use serde_json::Value;
use tokio::sync::{Mutex, MutexGuard};

use crate::HotAisle;
use crate::client::Kind;

/// The note of what was there before a machine was asked for.
const BEFORE: &str = "machines before";

/// What keeps makings apart.
#[derive(Debug, Default)]
pub(crate) struct Naming {
    /// One is made at a time, so that there is mostly one without a description.
    turn: Mutex<()>,
    /// Those that were made and could not be described yet.
    made: StdMutex<BTreeSet<String>>,
}

impl Naming {
    /// `None`: another machine is being made.
    pub(crate) fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        self.turn.try_lock().ok()
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
        self.note_others(call).await?;
        let machine = self.client.make_virtual(specs).await;
        let machine = machine.map_err(|error| refusal(&error))?;
        self.naming.set_made(&machine.name, true);
        // It may not be known yet, and is described when it is.
        if let Err(error) = self.describe(&machine.name, mark).await {
            tracing::debug!(%error, machine = machine.name, "a machine is not described yet");
        }
        Ok(Made::now(machine.name, call))
    }

    /// Notes which there are, anew for each attempt.
    async fn note_others(&self, call: &Call<'_>) -> Result<(), ComputeError> {
        let names = async || {
            let hosts = self.client.hosts(Kind::Virtual).await;
            // Nothing was asked for yet.
            let hosts = hosts.map_err(|error| not_asked(compute_error(&error)))?;
            Ok(hosts.into_iter().map(|host| host.name).collect())
        };
        let forget = async |_: Vec<String>| Ok(dstack_compute::Removal::Gone);
        let nothing = async || Ok(None);
        call.unmake(BEFORE, None, Duration::ZERO, nothing, forget).await?;
        call.make(BEFORE, Duration::ZERO, names, nothing).await.map(drop)
    }

    /// The virtual machine with this description, or that which was made for it, in its turn.
    pub(crate) async fn find_virtual(
        &self,
        mark: &str,
        call: &Call<'_>,
    ) -> Result<Option<Made>, ComputeError> {
        let hosts = self.client.hosts(Kind::Virtual).await;
        let hosts = hosts.map_err(|error| compute_error(&error))?;
        if let Some(host) = hosts.iter().find(|host| host.description == mark) {
            return Ok(Some(Made::now(host.name.clone(), call)));
        }
        let Some(before) = call.made::<Vec<String>>(BEFORE)? else {
            return Ok(None);
        };
        let is_new = |name: &String| !before.contains(name) && !self.naming.is_made(name);
        let nameless = hosts.into_iter().filter(|host| host.description.is_empty());
        let mut new: Vec<String> = nameless.map(|host| host.name).filter(is_new).collect();
        match (new.pop(), new.is_empty()) {
            (None, _) => Ok(None),
            (Some(name), true) => {
                self.describe(&name, mark).await?;
                Ok(Some(Made::now(name, call)))
            }
            (Some(name), false) => Err(ComputeError::Unclear(format!(
                "one of the virtual machines {name}, {} of Hot Aisle is this one, and nobody knows which: delete those that are not \
                 wanted, or give a description to those of others",
                new.join(", ")
            ))),
        }
    }

    pub(crate) async fn describe(&self, name: &str, mark: &str) -> Result<(), ComputeError> {
        let described = self.client.describe(name, mark).await;
        described.map_err(|error| compute_error(&error))?;
        self.naming.set_made(name, false);
        Ok(())
    }

    /// Its name may be given to another one.
    pub(crate) fn forget_virtual(&self, name: &str) {
        self.naming.set_made(name, false);
    }
}

/// Of what precedes a making: whatever became of it, nothing was made.
pub(crate) fn not_asked(error: ComputeError) -> ComputeError {
    match error {
        ComputeError::Unclear(text) => ComputeError::NotReady(text),
        definite => definite,
    }
}
