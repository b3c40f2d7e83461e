//! From what APIs answer to what the control plane makes of it.

use dstack_compute::{ComputeError, ConfigureError};
use dstack_http::ApiError;
use reqwest::StatusCode;

/// What an error of an API means by its HTTP status alone.
///
/// Answers 401 and 403 are about the credentials, 429 about too many calls, 404 and 409 and all other 4xx refuse what was asked for.
/// Whatever may have been carried out all the same is [`ComputeError::Unclear`].
pub fn compute_error(error: &ApiError) -> ComputeError {
    let details = error.to_string();
    // An error of the API itself, such as 503, may come after the request was carried out, also where it asks for a pause.
    if let Some(after) = error.throttled().filter(|_| error.is_definite()) {
        return ComputeError::Throttled { after, details };
    }
    match (error, error.status()) {
        (_, Some(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)) => ComputeError::Credentials(details),
        (_, Some(status)) if status.is_client_error() && error.is_definite() => {
            ComputeError::Refused(details)
        }
        (ApiError::NotSent { .. }, _) => ComputeError::Unreachable(details),
        _ => ComputeError::Unclear(details),
    }
}

/// What an error means of a call that prepares another one: whatever became of it, nothing was asked for yet that costs money.
pub fn not_asked(error: ComputeError) -> ComputeError {
    match error {
        ComputeError::Unclear(text) => ComputeError::NotReady(text),
        definite => definite,
    }
}

/// What the same means when a backend is configured; `fields` are the paths of the credentials.
pub fn configure_error(error: &ApiError, fields: &[&[&str]]) -> ConfigureError {
    match compute_error(error) {
        ComputeError::Credentials(details) => ConfigureError::Credentials {
            fields: fields
                .iter()
                .map(|path| path.iter().map(|part| (*part).to_owned()).collect())
                .collect(),
            details: Some(details),
        },
        other => ConfigureError::Invalid(format!(
            "The credentials could not be checked: {other}. Try again later"
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn status(status: u16) -> ApiError {
        ApiError::Status {
            api: "api.example".to_owned(),
            status: StatusCode::from_u16(status).unwrap(),
            body: "why".to_owned(),
            retry_after: None,
        }
    }

    #[test]
    fn only_what_was_certainly_not_done_is_definite() {
        for (answer, definite) in [
            (400, true),
            (401, true),
            (404, true),
            (408, false),
            (500, false),
            (503, false),
        ] {
            assert_eq!(compute_error(&status(answer)).is_definite(), definite, "{answer}");
        }
        let lost = ApiError::Lost {
            api: "api.example".to_owned(),
            details: "reset".to_owned(),
        };
        assert_eq!(
            compute_error(&lost),
            ComputeError::Unclear("api.example did not answer: reset".to_owned())
        );
        let busy = ApiError::Status {
            api: "api.example".to_owned(),
            status: StatusCode::SERVICE_UNAVAILABLE,
            body: "why".to_owned(),
            retry_after: Some(Duration::from_secs(5)),
        };
        assert!(!compute_error(&busy).is_definite());
        let not_sent = ApiError::NotSent {
            api: "api.example".to_owned(),
            details: "refused".to_owned(),
        };
        let away = compute_error(&not_sent);
        assert!(away.is_definite() && away.is_transient(), "{away:?}");
        let throttled = ComputeError::Throttled {
            after: Duration::from_secs(10),
            details: "api.example answered 429 Too Many Requests: why".to_owned(),
        };
        assert_eq!(compute_error(&status(429)), throttled);
    }

    #[test]
    fn wrong_credentials_name_their_fields() {
        let ConfigureError::Credentials { fields, details } =
            configure_error(&status(403), &[&["creds", "api_key"]])
        else {
            panic!("they are wrong");
        };
        assert_eq!(fields, [["creds", "api_key"]]);
        assert_eq!(details.unwrap(), "api.example answered 403 Forbidden: why");
        assert!(matches!(
            configure_error(&status(500), &[]),
            ConfigureError::Invalid(_)
        ));
    }
}
