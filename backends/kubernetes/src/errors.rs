//! What the API means by its errors. See
//! <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/>.

use std::time::Duration;

use dstack_backend::compute_error;
use dstack_compute::ComputeError;
use dstack_http::ApiError;
use http::StatusCode;
use serde::Deserialize;

/// Pause before something is made again that was refused only because others were made at the same moment.
const CONFLICT_PAUSE: Duration = Duration::from_secs(2);

/// What the API answers instead of an object.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    message: String,
    reason: String,
}

impl Status {
    fn of(error: &ApiError) -> Self {
        serde_json::from_str(error.body()).unwrap_or_default()
    }
}

/// With the message of the answer instead of its JSON.
pub(crate) fn readable(error: &ApiError) -> ApiError {
    let status = Status::of(error);
    let mut readable = error.clone();
    if let ApiError::Status { body, .. } = &mut readable {
        if !status.message.is_empty() {
            *body = status.message;
        } else if body.trim_start().starts_with('{') {
            *body = status.reason;
        }
    }
    readable
}

/// What an error means for whoever asked.
pub(crate) fn told(error: &ApiError) -> ComputeError {
    let status = Status::of(error);
    let readable = readable(error);
    match error.status() {
        Some(StatusCode::FORBIDDEN) if is_of_admission(&status.message) => {
            match status.message.contains("exceeded quota") {
                true => ComputeError::NoQuota(readable.to_string()),
                false => ComputeError::Refused(readable.to_string()),
            }
        }
        // A list that has changed too much while it was read.
        Some(StatusCode::GONE) => ComputeError::Unclear(readable.to_string()),
        _ => compute_error(&readable),
    }
}

/// The same, of something that was to be made: a ResourceQuota that several objects are counted in at once refuses all but one of
/// them (409), see <https://kubernetes.io/docs/concepts/policy/resource-quotas/>.
pub(crate) fn not_made(error: &ApiError) -> ComputeError {
    match error.status() {
        Some(StatusCode::CONFLICT) if Status::of(error).reason == "Conflict" => ComputeError::Throttled {
            after: CONFLICT_PAUSE,
            details: readable(error).to_string(),
        },
        _ => told(error),
    }
}

/// Whether an object of this name is there.
pub(crate) fn is_taken(error: &ApiError) -> bool {
    error.status() == Some(StatusCode::CONFLICT) && Status::of(error).reason == "AlreadyExists"
}

/// Whether a 403 is about what was to be made (quotas, limits, pod security, a namespace that ends), and not about who asks:
/// RBAC says `User "…" cannot create resource "pods"`.
fn is_of_admission(message: &str) -> bool {
    let is_of_rbac = message.contains("forbidden: User \"") && message.contains(" cannot ");
    !message.is_empty() && !is_of_rbac
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: u16, reason: &str, message: &str) -> ApiError {
        let body = serde_json::json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": code});
        ApiError::Status {
            api: "192.0.2.1".to_owned(),
            status: StatusCode::from_u16(code).unwrap(),
            body: body.to_string(),
            retry_after: None,
        }
    }

    #[test]
    fn only_what_rbac_refuses_is_about_the_credentials() {
        let rbac = r#"pods is forbidden: User "system:serviceaccount:team:dstack" cannot create resource "pods" in API group "" in the namespace "team""#;
        let security =
            r#"pods "p" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true"#;
        let limits = r#"pods "p" is forbidden: maximum cpu usage per Container is 1, but limit is 2"#;
        let quota =
            r#"pods "p" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"#;
        let text = |message: &str| format!("192.0.2.1 answered 403 Forbidden: {message}");
        for (message, expected) in [
            (rbac, ComputeError::Credentials(text(rbac))),
            (security, ComputeError::Refused(text(security))),
            (limits, ComputeError::Refused(text(limits))),
            (quota, ComputeError::NoQuota(text(quota))),
        ] {
            assert_eq!(told(&error(403, "Forbidden", message)), expected);
        }
        let unauthorized = told(&error(401, "Unauthorized", "Unauthorized"));
        assert!(
            matches!(unauthorized, ComputeError::Credentials(_)),
            "{unauthorized:?}"
        );
    }

    #[test]
    fn a_race_for_a_quota_is_tried_again() {
        let race = r#"Operation cannot be fulfilled on resourcequotas "q": the object has been modified; please apply your changes to the latest version and try again"#;
        let told = not_made(&error(409, "Conflict", race));
        assert!(told.is_definite() && told.is_transient(), "{told:?}");
        assert_eq!(told.details(), format!("192.0.2.1 answered 409 Conflict: {race}"));
        assert!(is_taken(&error(
            409,
            "AlreadyExists",
            "pods \"p\" already exists"
        )));
        assert!(!is_taken(&error(409, "Conflict", "AlreadyExists")));
    }

    #[test]
    fn nobody_sees_the_json_of_an_answer() {
        for (code, reason, message) in [(422, "Invalid", "spec: required"), (500, "InternalError", "")] {
            let shown = told(&error(code, reason, message)).to_string();
            assert!(!shown.contains('{') && !shown.contains("apiVersion"), "{shown}");
        }
    }
}
