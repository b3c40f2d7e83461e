//! What the other server's refusals mean.

use dstack_backend::{compute_error, configure_error};
use dstack_compute::{ComputeError, ConfigureError};

use crate::client::Failure;

/// Why a job of the other server is over because nothing was to be had.
const NO_CAPACITY: &str = "failed_to_start_due_to_no_capacity";

/// An answer, or what it means that there is none.
pub(crate) fn told<T>(answer: Result<T, Failure>) -> Result<T, ComputeError> {
    answer.map_err(|failure| {
        if failure.is_of_project() {
            return ComputeError::Configuration(
                "the other server does not have the project any more that `project` of the backend names"
                    .to_owned(),
            );
        }
        compute_error(&failure.error)
    })
}

/// What the same means when the backend is configured.
pub(crate) fn not_configured(failure: &Failure, project: &str) -> ConfigureError {
    if failure.is_of_project() {
        return ConfigureError::Invalid(format!(
            "project: the server at `url` has no project {project}. Name one of which the user of the token is a member"
        ));
    }
    if failure.is_of_rights() {
        return ConfigureError::Invalid(format!(
            "project: the user of the token is no member of the project {project} at `url`"
        ));
    }
    if failure.is_of_version() {
        return ConfigureError::Invalid(format!(
            "url: the server there is too old: {}. It has to be of version 0.22 or later",
            failure.error.body()
        ));
    }
    configure_error(&failure.error, &[&["creds", "api_token"]])
}

/// What it means that a run is over whose job never ran.
pub(crate) fn ended(reason: Option<&str>, why: String) -> ComputeError {
    match reason {
        Some(NO_CAPACITY) => ComputeError::NoCapacity(why),
        _ => ComputeError::Broken(why),
    }
}
