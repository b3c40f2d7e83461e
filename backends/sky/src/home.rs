//! Where a run is: the configuration may name another server or project while it is there.

use std::time::Duration;

use dstack_compute::{Call, ComputeError, Removal};
use dstack_model::runs::JobProvisioningData;
use serde::{Deserialize, Serialize};

use crate::Sky;

/// What is noted of a run before it is asked for. It is nothing at the other server.
const HOME: &str = "server and project of the run";

/// A project of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Home {
    url: String,
    project: String,
}

impl Home {
    pub(crate) fn new(url: &str, project: &str) -> Self {
        Self {
            url: url.trim_end_matches('/').to_owned(),
            project: project.to_owned(),
        }
    }

    /// That of a place, which has it as its `backend_data`.
    pub(crate) fn of(place: &JobProvisioningData) -> Option<Self> {
        serde_json::from_str(place.backend_data.as_deref()?).ok()
    }

    pub(crate) fn backend_data(&self) -> Option<String> {
        serde_json::to_string(self).ok()
    }

    fn elsewhere(self) -> ComputeError {
        let Self { url, project } = self;
        ComputeError::Configuration(format!(
            "its run is in the project {project} at {url}, and the backend is configured for another one: it is not known how it is, and it \
             is not ended, until the backend is configured as it was, or somebody ends it there and the backend is configured for that again"
        ))
    }
}

impl Sky {
    /// Notes where the run is.
    ///
    /// # Errors
    /// It is not where the configuration says.
    pub(crate) async fn note_home(&self, call: &Call<'_>) -> Result<(), ComputeError> {
        let noted = call.choose(HOME, self.home.clone()).await?;
        match noted == self.home {
            true => Ok(()),
            false => Err(noted.elsewhere()),
        }
    }

    /// # Errors
    /// The run is not where the configuration says.
    pub(crate) fn check_home(
        &self,
        place: Option<&JobProvisioningData>,
        call: &Call<'_>,
    ) -> Result<(), ComputeError> {
        let noted = match place.and_then(Home::of) {
            Some(home) => Some(home),
            None => call.made(HOME)?,
        };
        match noted.filter(|home| *home != self.home) {
            Some(elsewhere) => Err(elsewhere.elsewhere()),
            None => Ok(()),
        }
    }

    /// The next attempt may be elsewhere.
    pub(crate) async fn forget_home(&self, call: &Call<'_>) -> Result<(), ComputeError> {
        let gone = async |_: Home| Ok(Removal::Gone);
        call.unmake(HOME, None, Duration::ZERO, async || Ok(None), gone)
            .await
            .map(drop)
    }
}
