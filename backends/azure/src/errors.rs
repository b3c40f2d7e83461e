//! What errors of Azure mean: their codes tell, and not the HTTP status ("Common deployment errors", "Allocation failures",
//! Azure documentation).

use std::fmt;
use std::time::Duration;

use dstack_backend::one_line;
use dstack_compute::ComputeError;
use dstack_http::ApiError;
use http::StatusCode;
use serde::Deserialize;

/// Nothing of a size is free where it is asked for.
const NO_CAPACITY: &[&str] = &[
    "AllocationFailed",
    "OverconstrainedAllocationRequest",
    "OverconstrainedZonalAllocationRequest",
    "SkuNotAvailable",
    "ZonalAllocationFailed",
];

/// Something else goes on with the same thing, or with what it needs.
const NOT_NOW: &[&str] = &[
    "AnotherOperationInProgress",
    "Conflict",
    "ConflictingConcurrentWriteNotAllowed",
    "OperationPreempted",
    "ReferencedResourceNotProvisioned",
    "RetryableError",
];

const IN_USE: &[&str] = &[
    "AttachDiskWhileBeingDetached",
    "NicInUse",
    "NicReservedForAnotherVm",
    "PublicIPAddressCannotBeDeleted",
];

/// The credentials are good, and may not do this.
const FORBIDDEN: &[&str] = &["AuthorizationFailed", "LinkedAuthorizationFailed"];

/// Tokens that were good a moment ago are not any more.
const STALE_TOKEN: &[&str] = &["ExpiredAuthenticationToken", "InvalidAuthenticationToken"];

/// The thing itself, or the resource group in which it would be, is not there.
const MISSING: &[&str] = &["NotFound", "ResourceGroupNotFound", "ResourceNotFound"];

/// A call without an answer that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AzureError {
    /// As Azure names it, of logins as Entra does (`AADSTS7000215`); empty: the answer has none.
    pub(crate) code: String,
    pub(crate) message: String,
    cause: Cause,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Cause {
    Answer(ApiError),
    /// Of the request for a token: Azure itself was not asked.
    Login(ApiError),
    /// There is nothing to ask for a token with.
    NoCredentials,
    /// Azure wants a pause, and was not asked again.
    Pause(Duration),
    /// What was begun has failed afterwards.
    Operation,
}

#[derive(Deserialize, Default)]
struct Body {
    #[serde(default)]
    error: Problem,
}

/// Azure's own form of errors, in answers and in the states of operations.
#[derive(Debug, Deserialize, Default)]
pub(crate) struct Problem {
    #[serde(default)]
    pub(crate) code: String,
    #[serde(default)]
    pub(crate) message: String,
}

impl AzureError {
    pub(crate) fn of_answer(cause: ApiError) -> Self {
        let body: Body = serde_json::from_str(cause.body()).unwrap_or_default();
        Self {
            code: body.error.code,
            message: body.error.message,
            cause: Cause::Answer(cause),
        }
    }

    /// Entra says what is wrong in a number at the beginning of a text.
    pub(crate) fn of_login(cause: ApiError) -> Self {
        #[derive(Deserialize, Default)]
        struct Login {
            #[serde(default)]
            error: String,
            #[serde(default)]
            error_description: String,
        }
        let body: Login = serde_json::from_str(cause.body()).unwrap_or_default();
        let number = body.error_description.split(':').next().unwrap_or_default();
        let code = match number.starts_with("AADSTS") {
            true => number.to_owned(),
            false => body.error,
        };
        Self {
            code,
            message: body.error_description,
            cause: Cause::Login(cause),
        }
    }

    pub(crate) const fn without_credentials(message: String) -> Self {
        Self {
            code: String::new(),
            message,
            cause: Cause::NoCredentials,
        }
    }

    pub(crate) fn of_pause(after: Duration) -> Self {
        Self {
            code: String::new(),
            message: "Azure has asked for a pause".to_owned(),
            cause: Cause::Pause(after),
        }
    }

    pub(crate) fn of_operation(problem: Problem) -> Self {
        Self {
            code: problem.code,
            message: problem.message,
            cause: Cause::Operation,
        }
    }

    pub(crate) fn malformed(details: String) -> Self {
        Self::of_answer(ApiError::Malformed {
            api: "Azure".to_owned(),
            details,
        })
    }

    pub(crate) fn is(&self, codes: &[&str]) -> bool {
        codes.contains(&self.code.as_str())
    }

    fn status(&self) -> Option<StatusCode> {
        match &self.cause {
            Cause::Answer(error) | Cause::Login(error) => error.status(),
            _ => None,
        }
    }

    /// How long Azure wants not to be asked, if it says so.
    pub(crate) fn wanted_pause(&self) -> Option<Duration> {
        match &self.cause {
            Cause::Answer(ApiError::Status {
                status: StatusCode::TOO_MANY_REQUESTS,
                retry_after,
                ..
            }) => *retry_after,
            _ => None,
        }
    }

    /// Azure itself says so, and not a proxy before it, whose 404 has no code of Azure.
    pub(crate) fn is_missing(&self) -> bool {
        self.status() == Some(StatusCode::NOT_FOUND) && self.is(MISSING)
    }

    pub(crate) fn is_stale_token(&self) -> bool {
        self.status() == Some(StatusCode::UNAUTHORIZED) && self.is(STALE_TOKEN)
    }

    /// Whether Entra has refused the credentials themselves.
    pub(crate) fn is_refused_login(&self) -> bool {
        match &self.cause {
            Cause::Login(error) => {
                let is_about_them = matches!(
                    error.status(),
                    Some(StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
                );
                is_about_them && !self.code.is_empty()
            }
            Cause::NoCredentials => true,
            _ => false,
        }
    }

    /// Whether something may have been made all the same, which has failed then: of conflicts and limits.
    pub(crate) fn may_have_begun(&self) -> bool {
        let is_conflict = self.status() == Some(StatusCode::CONFLICT);
        self.is_of_this_call() && (is_conflict || self.is(NO_CAPACITY) || self.is_no_quota())
    }

    /// The credentials are good, and may not do this.
    pub(crate) fn is_forbidden(&self) -> bool {
        self.is(FORBIDDEN)
    }

    fn is_no_capacity(&self) -> bool {
        self.is(NO_CAPACITY) && self.is_of_this_call()
    }

    /// Whether the code speaks of what was asked for: an answer 5xx may have come after it was done.
    fn is_of_this_call(&self) -> bool {
        match &self.cause {
            Cause::Answer(error) => error.is_definite(),
            Cause::Operation => true,
            _ => false,
        }
    }

    /// Limits have codes of their own, and one that they share with others.
    fn is_no_quota(&self) -> bool {
        let message = self.message.to_ascii_lowercase();
        let is_limit = ["QuotaExceeded", "LimitReached", "LimitExceeded", "CountExceeded"];
        match self.code.as_str() {
            "OperationNotAllowed" => message.contains("quota") || message.contains("limit"),
            code => is_limit.iter().any(|end| code.ends_with(end)),
        }
    }

    /// What it means to the control plane.
    pub(crate) fn compute_error(&self) -> ComputeError {
        let text = self.to_string();
        let cause = match &self.cause {
            Cause::Answer(cause) => cause,
            Cause::Login(cause) => return of_login(self, cause, text),
            Cause::NoCredentials => return ComputeError::NoKeysNow(text),
            Cause::Pause(after) => {
                return ComputeError::Throttled {
                    after: *after,
                    details: text,
                };
            }
            Cause::Operation => {
                return match () {
                    () if self.is_no_capacity() => ComputeError::NoCapacity(text),
                    () if self.is_no_quota() => ComputeError::NoQuota(text),
                    () => ComputeError::Broken(text),
                };
            }
        };
        if !self.is_of_this_call() || cause.throttled().is_some() {
            return dstack_backend::compute_error(cause);
        }
        match self.code.as_str() {
            // Of a proxy, which says nothing of what Azure has.
            "" if self.status() == Some(StatusCode::NOT_FOUND) => ComputeError::Unclear(text),
            "" => dstack_backend::compute_error(cause),
            _ if self.is(NO_CAPACITY) => ComputeError::NoCapacity(text),
            _ if self.is_no_quota() => ComputeError::NoQuota(text),
            _ if self.is(NOT_NOW) => ComputeError::NotReady(text),
            _ if self.is(IN_USE) => ComputeError::InUse(text),
            _ if self.is(FORBIDDEN) => ComputeError::Credentials(self.missing_permission()),
            "ExpiredAuthenticationToken" => ComputeError::NoKeysNow(text),
            // Of what is to be made: what is only looked for is not there either.
            "ResourceGroupNotFound" => ComputeError::Configuration(format!(
                "the resource group is gone: make it, or apply the backend's configuration again ({text})"
            )),
            // These forbid what is asked for, to whomever.
            "RequestDisallowedByPolicy" | "ReadOnlyDisabledSubscription" | "ScopeLocked" => {
                ComputeError::Refused(text)
            }
            "MissingSubscriptionRegistration" | "SubscriptionNotRegistered" => {
                ComputeError::Refused(format!(
                    "register the resource providers Microsoft.Compute and Microsoft.Network in the subscription: {text}"
                ))
            }
            _ => match dstack_backend::compute_error(cause) {
                ComputeError::Refused(_) => ComputeError::Refused(text),
                ComputeError::Credentials(_) => ComputeError::Credentials(text),
                other => other,
            },
        }
    }

    fn missing_permission(&self) -> String {
        let action = permission(&self.message).unwrap_or("this");
        format!("Azure does not allow `{action}`: add it to the role of these credentials ({self})")
    }
}

/// Without a token, Azure was not asked: nothing is unclear.
fn of_login(error: &AzureError, cause: &ApiError, text: String) -> ComputeError {
    if let Some(after) = cause.throttled() {
        return ComputeError::Throttled { after, details: text };
    }
    match error.is_refused_login() {
        true => ComputeError::Credentials(text),
        false => ComputeError::NoKeysNow(text),
    }
}

/// `Microsoft.Compute/virtualMachines/write` of `... does not have authorization to perform action '...' over scope ...`.
fn permission(message: &str) -> Option<&str> {
    let rest = message.split_once("to perform action '")?.1;
    Some(rest.split_once('\'')?.0).filter(|action| action.contains('/'))
}

impl fmt::Display for AzureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::Answer(cause) | Cause::Login(cause) if self.code.is_empty() => cause.fmt(f),
            _ if self.code.is_empty() => f.write_str(&one_line(&self.message)),
            _ if self.message.starts_with(&self.code) => f.write_str(&one_line(&self.message)),
            _ => write!(f, "{}: {}", self.code, one_line(&self.message)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(status: u16, body: &str) -> ApiError {
        ApiError::Status {
            api: "management.azure.com".to_owned(),
            status: StatusCode::from_u16(status).unwrap(),
            body: body.to_owned(),
            retry_after: None,
        }
    }

    fn answer(number: u16, code: &str, message: &str) -> AzureError {
        let body = format!(r#"{{"error":{{"code":"{code}","message":"{message}"}}}}"#);
        AzureError::of_answer(status(number, &body))
    }

    #[test]
    fn codes_tell_what_an_error_is_about() {
        let quota = "Operation could not be completed as it results in exceeding approved standardDSv6Family Cores quota.";
        for (number, code, message, expected) in [
            (409, "SkuNotAvailable", "m", "no capacity: SkuNotAvailable: m"),
            (
                409,
                "ZonalAllocationFailed",
                "m",
                "no capacity: ZonalAllocationFailed: m",
            ),
            (409, "QuotaExceeded", "m", "over the quota: QuotaExceeded: m"),
            (
                400,
                "PublicIPCountLimitReached",
                "m",
                "over the quota: PublicIPCountLimitReached: m",
            ),
            (
                409,
                "OperationNotAllowed",
                "The subscription does not support spot",
                "OperationNotAllowed: The subscription does not support spot",
            ),
            (409, "Conflict", "m", "not ready yet: Conflict: m"),
            (400, "NicInUse", "m", "still in use: NicInUse: m"),
            (
                403,
                "RequestDisallowedByPolicy",
                "m",
                "RequestDisallowedByPolicy: m",
            ),
            (400, "InvalidParameter", "m", "InvalidParameter: m"),
            (
                401,
                "InvalidAuthenticationToken",
                "m",
                "the cloud refuses the credentials: InvalidAuthenticationToken: m",
            ),
            (
                403,
                "AuthorizationFailed",
                "The client 'c' does not have authorization to perform action 'Microsoft.Compute/virtualMachines/write' over scope 's'",
                "the cloud refuses the credentials: Azure does not allow `Microsoft.Compute/virtualMachines/write`: add it to the role \
                 of these credentials (AuthorizationFailed: The client 'c' does not have authorization to perform action \
                 'Microsoft.Compute/virtualMachines/write' over scope 's')",
            ),
        ] {
            let error = answer(number, code, message).compute_error();
            assert_eq!(error.to_string(), expected);
            assert!(error.is_definite(), "{code}");
        }
        let error = answer(409, "OperationNotAllowed", quota).compute_error();
        assert!(matches!(error, ComputeError::NoQuota(_)), "{error:?}");
        // Whatever it says, it may have been done.
        for (number, code) in [
            (500, "AllocationFailed"),
            (503, "ServerTimeout"),
            (504, "GatewayTimeout"),
        ] {
            let error = answer(number, code, "m").compute_error();
            assert!(matches!(error, ComputeError::Unclear(_)), "{code}: {error:?}");
        }
    }

    #[test]
    fn only_azure_itself_says_that_something_is_not_there() {
        assert!(answer(404, "ResourceNotFound", "m").is_missing());
        for other in [
            answer(404, "SubscriptionNotFound", "m"),
            answer(404, "GalleryImageNotFound", "m"),
            AzureError::of_answer(status(404, "<html>404</html>")),
        ] {
            assert!(!other.is_missing(), "{other:?}");
        }
        let proxy = AzureError::of_answer(status(404, "no")).compute_error();
        assert!(matches!(proxy, ComputeError::Unclear(_)), "{proxy:?}");
    }

    #[test]
    fn what_has_failed_afterwards_is_told_apart() {
        let failed = |code: &str| {
            let problem = Problem {
                code: code.to_owned(),
                message: "m".to_owned(),
            };
            AzureError::of_operation(problem).compute_error()
        };
        assert!(matches!(failed("AllocationFailed"), ComputeError::NoCapacity(_)));
        assert!(matches!(failed("QuotaExceeded"), ComputeError::NoQuota(_)));
        assert!(matches!(
            failed("OSProvisioningTimedOut"),
            ComputeError::Broken(_)
        ));
    }

    #[test]
    fn logins_that_are_refused_are_told_from_those_that_cannot_be_made() {
        let body = r#"{"error":"invalid_client","error_description":"AADSTS7000215: Invalid client secret provided.\r\nTrace ID: 1"}"#;
        let refused = AzureError::of_login(status(401, body));
        assert_eq!(refused.code, "AADSTS7000215");
        assert!(matches!(refused.compute_error(), ComputeError::Credentials(_)));
        for away in [status(500, body), status(404, "no"), status(400, "<html>")] {
            let error = AzureError::of_login(away).compute_error();
            assert!(matches!(error, ComputeError::NoKeysNow(_)), "{error:?}");
        }
    }
}
