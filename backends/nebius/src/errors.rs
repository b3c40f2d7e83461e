//! From what the API answers to what the control plane makes of it.

use std::time::Duration;

use dstack_compute::ComputeError;

use crate::grpc::{Code, Error, Refusal};
use crate::messages::Status;

/// Pause where the API wants fewer calls.
const PAUSE: Duration = Duration::from_secs(10);

/// What a call was answered that makes nothing.
pub(crate) fn told<T>(answer: Result<T, Error>) -> Result<T, ComputeError> {
    answer.map_err(|error| match &error {
        Error::Http(below) => dstack_backend::compute_error(below),
        Error::Status(refusal) => match refusal.code {
            Code::ResourceExhausted => throttled(error.to_string()),
            _ => meaning(refusal, error.to_string()),
        },
    })
}

/// What it means that something was not made. Quota, capacity and too many calls have one code: the details tell which it is, or else
/// the text.
pub(crate) fn not_made(error: &Error) -> ComputeError {
    match error {
        Error::Http(below) => dstack_backend::compute_error(below),
        Error::Status(refusal) => lacking(refusal, error.to_string()).unwrap_or_else(|| match refusal.code {
            // Of our names nobody else has any: an earlier call has made it, and it is looked for.
            Code::AlreadyExists => ComputeError::Unclear(error.to_string()),
            _ => meaning(refusal, error.to_string()),
        }),
    }
}

/// Why an operation came to nothing; `None`: it did not.
pub(crate) fn failure(outcome: &Status) -> Option<ComputeError> {
    let refusal = Refusal::of(outcome);
    let text = format!("Nebius could not make it: {refusal}");
    (outcome.code != 0).then(|| lacking(&refusal, text.clone()).unwrap_or(ComputeError::Broken(text)))
}

/// By which a text is known that speaks of too many calls.
const RATE_WORDS: &[&str] = &[
    "too many requests",
    "too many calls",
    "rate limit",
    "rate-limit",
    "ratelimit",
    "rate exceeded",
    "request rate",
    "throttl",
];

fn lacking(refusal: &Refusal, text: String) -> Option<ComputeError> {
    let service = &refusal.service;
    let said = refusal.message.to_ascii_lowercase();
    let is_quota = said.contains("quota");
    let is_rate = RATE_WORDS.iter().any(|word| said.contains(word));
    match () {
        () if service.too_many_requests.is_some() => Some(throttled(text)),
        () if service.quota_failure.is_some() => Some(ComputeError::NoQuota(text)),
        () if service.not_enough_resources.is_some() => Some(ComputeError::NoCapacity(text)),
        // dstack 0.22.5 looks for this text, whatever the code.
        () if said.contains("quota limit exceeded") => Some(ComputeError::NoQuota(text)),
        () if refusal.code != Code::ResourceExhausted => None,
        () if is_rate => Some(throttled(text)),
        () if is_quota => Some(ComputeError::NoQuota(text)),
        () => Some(ComputeError::NoCapacity(text)),
    }
}

const fn throttled(details: String) -> ComputeError {
    ComputeError::Throttled {
        after: PAUSE,
        details,
    }
}

fn meaning(refusal: &Refusal, text: String) -> ComputeError {
    match refusal.code {
        Code::Unauthenticated | Code::PermissionDenied => ComputeError::Credentials(text),
        // Something else is done to the same thing.
        Code::Aborted => ComputeError::NotReady(text),
        Code::Unavailable | Code::Other(_) => ComputeError::Unclear(text),
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented => ComputeError::Refused(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{Empty, ServiceError, Violations};

    fn refusal(code: i32, message: &str, service: ServiceError) -> Error {
        Error::Status(Refusal {
            code: Code::of(code),
            message: message.to_owned(),
            service,
        })
    }

    #[test]
    fn quota_capacity_and_too_many_calls_are_told_apart() {
        let plain = ServiceError::default;
        let quota = ServiceError {
            quota_failure: Some(Violations::default()),
            ..plain()
        };
        let resources = ServiceError {
            not_enough_resources: Some(Violations::default()),
            ..plain()
        };
        let requests = ServiceError {
            too_many_requests: Some(Empty {}),
            ..plain()
        };
        for (code, message, service, expected) in [
            (8, "no", quota.clone(), "over the quota: Nebius says: no"),
            (9, "no", quota, "over the quota: Nebius says: no"),
            (8, "no", resources, "no capacity: Nebius says: no"),
            (8, "no", requests, "the cloud wants fewer calls: Nebius says: no"),
            (
                3,
                "Quota limit exceeded",
                plain(),
                "over the quota: Nebius says: Quota limit exceeded",
            ),
            (
                8,
                "rate limit",
                plain(),
                "the cloud wants fewer calls: Nebius says: rate limit",
            ),
            (
                8,
                "Request was throttled",
                plain(),
                "the cloud wants fewer calls: Nebius says: Request was throttled",
            ),
            (
                8,
                "Rate exceeded",
                plain(),
                "the cloud wants fewer calls: Nebius says: Rate exceeded",
            ),
            (8, "none left", plain(), "no capacity: Nebius says: none left"),
            (
                7,
                "no",
                plain(),
                "the cloud refuses the credentials: Nebius says: no",
            ),
            (10, "busy", plain(), "not ready yet: Nebius says: busy"),
            (9, "no", plain(), "Nebius says: no"),
            (
                6,
                "is there",
                plain(),
                "the cloud does not answer as it should: Nebius says: is there",
            ),
            (
                13,
                "",
                plain(),
                "the cloud does not answer as it should: Nebius says: Other(13)",
            ),
        ] {
            let error = not_made(&refusal(code, message, service));
            assert_eq!(error.to_string(), expected);
            assert_eq!(error.is_definite(), !matches!(code, 6 | 13));
        }
    }

    #[test]
    fn what_is_only_read_has_no_quota() {
        let error = told::<()>(Err(refusal(8, "no", ServiceError::default()))).unwrap_err();
        assert_eq!(error.to_string(), "the cloud wants fewer calls: Nebius says: no");
        assert_eq!(failure(&Status::default()), None);
        let outcome = Status {
            code: 13,
            message: "no".to_owned(),
            ..Status::default()
        };
        let error = failure(&outcome).unwrap();
        assert_eq!(
            error,
            ComputeError::Broken("Nebius could not make it: no".to_owned())
        );
    }
}
