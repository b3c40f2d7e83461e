//! What Google's refusals mean, of calls and of operations.

use std::time::Duration;

use dstack_backend::{compute_error, one_line};
use dstack_compute::ComputeError;
use dstack_http::ApiError;
use serde::Deserialize;
use serde_json::Value;

use crate::client::Operation;

/// Pause where Google wants fewer calls: its bounds are by the minute.
const THROTTLED: Duration = Duration::from_secs(15);

/// Of an account whose zone has no room ("Troubleshooting resource availability").
const NO_CAPACITY: &[&str] = &[
    "ZONE_RESOURCE_POOL_EXHAUSTED",
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
    "RESOURCE_POOL_EXHAUSTED",
    "STOCKOUT",
];

const NO_QUOTA: &[&str] = &[
    "QUOTA_EXCEEDED",
    "quotaExceeded",
    "LIMIT_EXCEEDED",
    "limitExceeded",
];

const TOO_MANY: &[&str] = &[
    "rateLimitExceeded",
    "userRateLimitExceeded",
    "RATE_LIMIT_EXCEEDED",
    "RESOURCE_OPERATION_RATE_EXCEEDED",
    "resourceOperationRateExceeded",
];

/// Something else is under way with it.
const NOT_READY: &[&str] = &[
    "resourceNotReady",
    "RESOURCE_NOT_READY",
    "FAILED_PRECONDITION",
    "ABORTED",
];

const NOT_ENABLED: &[&str] = &["accessNotConfigured", "SERVICE_DISABLED"];

/// Why Google did not do something.
#[derive(Debug)]
pub(crate) enum GcpError {
    /// There was no token, or nothing that could be asked.
    NotAsked(ComputeError),
    /// The API itself says why, or the operation does.
    Told(Told),
    /// Anything else: networks, proxies.
    Other(ApiError),
}

/// What Google says of an error.
#[derive(Debug, Clone, Default)]
pub(crate) struct Told {
    pub(crate) status: u16,
    /// Reasons and codes.
    codes: Vec<String>,
    pub(crate) message: String,
}

impl Told {
    /// `None`: the body is not one of Google's APIs.
    fn read(body: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct Body {
            error: Error,
        }
        #[derive(Deserialize)]
        struct Error {
            code: u16,
            #[serde(default)]
            message: String,
            #[serde(default)]
            status: String,
            #[serde(default)]
            errors: Vec<Value>,
            #[serde(default)]
            details: Vec<Value>,
        }
        let error = serde_json::from_str::<Body>(body).ok()?.error;
        let reasons = error.errors.iter().chain(&error.details);
        let reasons = reasons.filter_map(|one| one.get("reason")?.as_str());
        let exhausted = exhausted(&error.message).filter(|_| error.code == 429);
        let codes = reasons.chain(exhausted).map(str::to_owned);
        Some(Self {
            status: error.code,
            codes: codes.chain([error.status.clone()]).collect(),
            message: error.message,
        })
    }

    /// Of an operation that has failed.
    pub(crate) fn of_operation(operation: &Operation) -> Option<Self> {
        let error = operation.error.as_ref()?;
        if let Some(code) = error.code {
            return Some(Self::of_code(code, &error.message));
        }
        let errors = &error.errors;
        let first = errors.first().map(|one| one.message.clone());
        Some(Self {
            status: operation.http_error_status_code.unwrap_or_default(),
            codes: errors.iter().map(|one| one.code.clone()).collect(),
            message: first
                .or_else(|| operation.http_error_message.clone())
                .unwrap_or_default(),
        })
    }

    /// Of an operation of Cloud TPU (`google.rpc.Code`).
    fn of_code(code: i64, message: &str) -> Self {
        let (status, code) = match code {
            3 => (400, "INVALID_ARGUMENT"),
            5 => (404, "NOT_FOUND"),
            6 => (409, "ALREADY_EXISTS"),
            7 => (403, "PERMISSION_DENIED"),
            8 => (429, exhausted(message).unwrap_or("RESOURCE_POOL_EXHAUSTED")),
            9 => (400, "FAILED_PRECONDITION"),
            _ => (503, ""),
        };
        Self {
            status,
            codes: vec![code.to_owned()],
            message: message.to_owned(),
        }
    }

    pub(crate) fn is(&self, codes: &[&str]) -> bool {
        self.codes.iter().any(|code| codes.contains(&code.as_str()))
    }

    /// What it means. `None`: nobody knows whether it was done all the same.
    fn meaning(&self) -> Option<ComputeError> {
        let text = one_line(&self.message);
        Some(match self.status {
            _ if self.is(NO_CAPACITY) => ComputeError::NoCapacity(text),
            _ if self.is(TOO_MANY) => throttled(text),
            _ if self.is(NO_QUOTA) => ComputeError::NoQuota(text),
            _ if self.is(NOT_ENABLED) => ComputeError::Configuration(text),
            _ if self.is(&[
                "resourceInUseByAnotherResource",
                "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE",
            ]) =>
            {
                ComputeError::InUse(text)
            }
            _ if self.is(NOT_READY) => ComputeError::NotReady(text),
            429 => throttled(text),
            401 => ComputeError::Credentials(text),
            403 => ComputeError::Credentials(match permission(&self.message) {
                Some(permission) => {
                    format!("Google does not allow `{permission}`: add it to a role of the account ({text})")
                }
                None => text,
            }),
            400..=499 => ComputeError::Refused(text),
            _ => return None,
        })
    }

    /// Of an operation that is over: nothing was made, whatever the reason.
    pub(crate) fn over(&self) -> ComputeError {
        self.meaning().unwrap_or_else(|| {
            let code = self.codes.first().map_or("", String::as_str);
            ComputeError::NoCapacity(one_line(&format!("{code}: {}", self.message)))
        })
    }
}

/// What of a `RESOURCE_EXHAUSTED` is exhausted, which only its words tell: calls of a minute, a quota, or a zone.
fn exhausted(message: &str) -> Option<&'static str> {
    let message = message.to_ascii_lowercase();
    let has = |part: &str| message.contains(part);
    match () {
        () if has("per minute") || has("rate limit") => Some("RATE_LIMIT_EXCEEDED"),
        () if has("no more capacity") => Some("RESOURCE_POOL_EXHAUSTED"),
        () if has("quota") => Some("QUOTA_EXCEEDED"),
        () => None,
    }
}

const fn throttled(details: String) -> ComputeError {
    ComputeError::Throttled {
        after: THROTTLED,
        details,
    }
}

/// `Required 'compute.instances.create' permission for '...'`, and `Permission 'tpu.nodes.create' denied on '...'`.
fn permission(message: &str) -> Option<&str> {
    let (_, rest) = message
        .split_once("Required '")
        .or_else(|| message.split_once("Permission '"))?;
    let (permission, _) = rest.split_once('\'')?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '.';
    (permission.contains('.') && permission.chars().all(is_plain)).then_some(permission)
}

impl From<ApiError> for GcpError {
    fn from(error: ApiError) -> Self {
        // An answer 404 of a proxy is not one of Google's.
        match Told::read(error.body()) {
            Some(told) if Some(told.status) == error.status().map(|status| status.as_u16()) => {
                Self::Told(told)
            }
            _ => Self::Other(error),
        }
    }
}

impl From<ComputeError> for GcpError {
    fn from(error: ComputeError) -> Self {
        Self::NotAsked(error)
    }
}

impl GcpError {
    pub(crate) fn told(&self) -> Option<&Told> {
        match self {
            Self::Told(told) => Some(told),
            _ => None,
        }
    }

    fn status(&self) -> Option<u16> {
        self.told().map(|told| told.status)
    }

    /// Google itself says that it does not have it.
    pub(crate) fn is_missing(&self) -> bool {
        self.status() == Some(404)
    }

    /// Google does not take the token, and has done nothing.
    pub(crate) fn is_unauthorized(&self) -> bool {
        self.status() == Some(401)
    }

    /// The account may not.
    pub(crate) fn is_forbidden(&self) -> bool {
        self.status() == Some(403)
    }

    /// The API is not enabled in the project.
    pub(crate) fn is_not_enabled(&self) -> bool {
        self.told().is_some_and(|told| told.is(NOT_ENABLED))
    }

    /// There is one of this name.
    pub(crate) fn is_conflict(&self) -> bool {
        self.status() == Some(409)
    }

    /// What is named is not known yet, or has something else begun with it.
    pub(crate) fn is_not_ready(&self) -> bool {
        self.told().is_some_and(|told| told.is(NOT_READY))
    }

    /// What was asked for makes no sense now.
    pub(crate) fn is_invalid(&self) -> bool {
        self.told()
            .is_some_and(|told| told.status == 400 && told.is(&["invalid"]))
    }

    pub(crate) fn compute_error(self) -> ComputeError {
        match self {
            Self::NotAsked(error) => error,
            Self::Told(told) => told.meaning().unwrap_or_else(|| {
                ComputeError::Unclear(one_line(&format!("{}: {}", told.status, told.message)))
            }),
            Self::Other(error) => match compute_error(&error) {
                // What is not one of Google's answers says nothing of the account.
                ComputeError::Refused(text) | ComputeError::Credentials(text) if error.status().is_some() => {
                    ComputeError::Unclear(text)
                }
                other => other,
            },
        }
    }
}

/// `None`: Google says that it is not there.
pub(crate) fn known<T>(answer: Result<T, GcpError>) -> Result<Option<T>, ComputeError> {
    match answer {
        Err(error) if error.is_missing() => Ok(None),
        answer => answer.map(Some).map_err(GcpError::compute_error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(code: u16, reason: &str, message: &str) -> GcpError {
        let body =
            serde_json::json!({"error": {"code": code, "message": message, "errors": [{"reason": reason}]}});
        ApiError::Status {
            api: "compute.googleapis.com".to_owned(),
            status: http::StatusCode::from_u16(code).unwrap(),
            body: body.to_string(),
            retry_after: None,
        }
        .into()
    }

    #[test]
    fn refusals_are_told_apart() {
        let of = |code, reason| told(code, reason, "m").compute_error();
        assert_eq!(of(403, "quotaExceeded"), ComputeError::NoQuota("m".to_owned()));
        assert_eq!(
            of(503, "ZONE_RESOURCE_POOL_EXHAUSTED"),
            ComputeError::NoCapacity("m".to_owned())
        );
        assert!(matches!(
            of(403, "rateLimitExceeded"),
            ComputeError::Throttled { .. }
        ));
        assert_eq!(
            of(403, "accessNotConfigured"),
            ComputeError::Configuration("m".to_owned())
        );
        assert_eq!(
            of(400, "resourceInUseByAnotherResource"),
            ComputeError::InUse("m".to_owned())
        );
        assert_eq!(
            of(400, "resourceNotReady"),
            ComputeError::NotReady("m".to_owned())
        );
        assert_eq!(of(401, "authError"), ComputeError::Credentials("m".to_owned()));
        assert_eq!(of(400, "invalid"), ComputeError::Refused("m".to_owned()));
        assert!(matches!(of(503, "backendError"), ComputeError::Unclear(_)));
        let denied = told(
            403,
            "forbidden",
            "Required 'compute.instances.create' permission for 'projects/p'",
        );
        let ComputeError::Credentials(text) = denied.compute_error() else {
            panic!("it is one of the account");
        };
        assert!(
            text.starts_with("Google does not allow `compute.instances.create`: "),
            "{text}"
        );
    }

    #[test]
    fn of_an_answer_429_the_words_tell_what_is_exhausted() {
        let of = |message| told(429, "RESOURCE_EXHAUSTED", message).compute_error();
        let quota = "Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded. Limit: 0 in region r.";
        assert_eq!(of(quota), ComputeError::NoQuota(quota.to_owned()));
        let full = "There is no more capacity in the zone \"z\"; you can try in another zone.";
        assert_eq!(of(full), ComputeError::NoCapacity(full.to_owned()));
        for calls in [
            "m",
            "Quota exceeded for quota metric 'Requests' and limit 'Requests per minute'",
        ] {
            assert!(matches!(of(calls), ComputeError::Throttled { .. }), "{calls}");
        }
    }

    #[test]
    fn what_a_proxy_says_is_not_what_google_says() {
        for (status, body) in [
            (404, "no"),
            (404, "{}"),
            (403, "<html>"),
            (404, r#"{"error": {"code": 403}}"#),
        ] {
            let error: GcpError = ApiError::Status {
                api: "a".to_owned(),
                status: http::StatusCode::from_u16(status).unwrap(),
                body: body.to_owned(),
                retry_after: None,
            }
            .into();
            assert!(
                !error.is_missing() && matches!(error.compute_error(), ComputeError::Unclear(_)),
                "{body}"
            );
        }
    }
}
