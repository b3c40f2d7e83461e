//! What the vendor's refusals mean: it tells in words only that nothing is free.

use dstack_backend::compute_error;
use dstack_compute::ComputeError;
use dstack_http::ApiError;
use reqwest::StatusCode;
use serde::Deserialize;

use crate::client::{Deployed, GraphqlError};

/// Longest part of an answer that is no JSON, in characters: that of a proxy in front of the API.
const SHOWN_LENGTH: usize = 200;

/// Parts of texts that say that nothing is free. `createPod` answers 400 for that, as for what it would never make.
const NO_CAPACITY: &[&str] = &[
    "no longer any instances",
    "no instances currently available",
    "no instances available",
    "not have the resources",
    "no capacity",
    "not enough capacity",
    "out of capacity",
    "insufficient capacity",
    "out of stock",
];

/// An error with what people can read of it instead of JSON (`ErrorResponse`) or a page of HTML.
pub(crate) fn readable(error: ApiError) -> ApiError {
    match error {
        ApiError::Status {
            api,
            status,
            body,
            retry_after,
        } => ApiError::Status {
            api,
            status,
            body: problem_text(&body),
            retry_after,
        },
        other => other,
    }
}

fn problem_text(body: &str) -> String {
    #[derive(Deserialize)]
    struct Problem {
        detail: String,
        #[serde(default)]
        errors: Vec<String>,
    }
    match serde_json::from_str::<Problem>(body) {
        Ok(problem) => {
            let detail = problem.detail.trim_end_matches('.');
            match problem.errors.is_empty() {
                true => detail.to_owned(),
                false => format!("{detail}: {}", problem.errors.join("; ")),
            }
        }
        Err(_) => {
            let words: Vec<&str> = body.split_whitespace().collect();
            words.join(" ").chars().take(SHOWN_LENGTH).collect()
        }
    }
}

/// What it means that something was not made, by what `createPod` says of its answers.
pub(crate) fn not_made(error: &ApiError) -> ComputeError {
    match error.status() {
        Some(StatusCode::PAYMENT_REQUIRED) => {
            ComputeError::NoQuota(format!("{error}. Add credits to the Runpod account"))
        }
        Some(StatusCode::FORBIDDEN) => ComputeError::NoQuota(format!(
            "{error}. The account may not use this, or its API key may not create anything: see its permissions"
        )),
        Some(_) if error.is_definite() && tells_no_capacity(error.body()) => {
            ComputeError::NoCapacity(error.body().to_owned())
        }
        _ => compute_error(error),
    }
}

fn tells_no_capacity(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    NO_CAPACITY.iter().any(|part| text.contains(part))
}

/// Whether a removal was refused because something uses the thing (`deleteRegistry`: "in use by a pod").
pub(crate) fn is_in_use(error: &ApiError) -> bool {
    let refused = matches!(
        error.status(),
        Some(StatusCode::BAD_REQUEST | StatusCode::CONFLICT)
    );
    let text = error.body().to_ascii_lowercase();
    refused
        && ["in use", "being used", "attached"]
            .iter()
            .any(|part| text.contains(part))
}

/// Whether a removal was refused because there is no such thing: `deleteRegistry` answers 400 "Registry auth not found" for that.
pub(crate) fn is_missing(error: &ApiError) -> bool {
    error.status() == Some(StatusCode::BAD_REQUEST) && error.body().to_ascii_lowercase().contains("not found")
}

/// The id of the pod that GraphQL has made, or what its errors mean.
pub(crate) fn deployed(answer: Deployed) -> Result<String, ComputeError> {
    if let Some(pod) = answer.data.and_then(|data| data.pod) {
        return Ok(pod.id);
    }
    let errors = answer.errors.unwrap_or_default();
    let texts: Vec<&str> = errors.iter().map(|error| error.message.as_str()).collect();
    let text = texts.join("; ");
    let has_code = |codes: &[&str]| {
        let code = |error: &GraphqlError| error.extensions.as_ref()?.code.clone();
        errors
            .iter()
            .filter_map(code)
            .any(|code| codes.contains(&code.as_str()))
    };
    let lower = text.to_ascii_lowercase();
    Err(match () {
        () if errors.is_empty() => {
            ComputeError::Unclear("Runpod names neither a pod that it created nor an error".to_owned())
        }
        () if has_code(&["UNAUTHENTICATED", "FORBIDDEN"]) => ComputeError::Credentials(text),
        () if tells_no_capacity(&text) => ComputeError::NoCapacity(text),
        () if has_code(&["INTERNAL_SERVER_ERROR"]) || lower.contains("something went wrong") => {
            ComputeError::Unclear(text)
        }
        () if lower.contains("balance") || lower.contains("funds") => ComputeError::NoQuota(text),
        () => ComputeError::Refused(text),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn answered(status: u16, body: &str) -> ApiError {
        readable(ApiError::Status {
            api: "api.runpod.io".to_owned(),
            status: StatusCode::from_u16(status).unwrap(),
            body: body.to_owned(),
            retry_after: None,
        })
    }

    fn problem(status: u16, detail: &str) -> ApiError {
        answered(
            status,
            &json!({"title": "Title", "status": status, "detail": detail}).to_string(),
        )
    }

    #[test]
    fn people_read_what_the_vendor_says() {
        let invalid = json!({"title": "Unprocessable Entity", "status": 422, "detail": "Request validation failed.",
            "errors": ["/disk: is too small", "/image: is missing"]});
        for (body, text) in [
            (
                invalid.to_string(),
                "Request validation failed: /disk: is too small; /image: is missing",
            ),
            (
                "<html>\n <body>Request Entity\n Too Large</body></html>".to_owned(),
                "<html> <body>Request Entity Too Large</body></html>",
            ),
            (String::new(), ""),
        ] {
            assert_eq!(answered(422, &body).body(), text);
        }
        assert_eq!(
            answered(502, &"x ".repeat(300)).body().chars().count(),
            SHOWN_LENGTH
        );
    }

    #[test]
    fn what_was_not_made_says_whether_something_else_may_be() {
        let full = "There are no longer any instances available with the requested specifications.";
        let meaning = |status: u16, detail: &str| not_made(&problem(status, detail));
        assert_eq!(
            meaning(400, full),
            ComputeError::NoCapacity(full.trim_end_matches('.').to_owned())
        );
        assert!(matches!(meaning(400, "no such image"), ComputeError::Refused(_)));
        assert!(matches!(
            meaning(401, "invalid api key"),
            ComputeError::Credentials(_)
        ));
        assert!(matches!(meaning(402, "low balance"), ComputeError::NoQuota(_)));
        assert!(matches!(meaning(403, "no such pool"), ComputeError::NoQuota(_)));
        assert!(matches!(meaning(422, "bad body"), ComputeError::Refused(_)));
        assert!(matches!(meaning(429, "slower"), ComputeError::Throttled { .. }));
        // It may have been made all the same.
        assert!(matches!(meaning(500, full), ComputeError::Unclear(_)));
    }

    #[test]
    fn removals_are_refused_for_several_reasons() {
        let used = problem(400, "registry is in use by a pod");
        let missing = problem(400, "Registry auth not found");
        assert!(is_in_use(&used) && !is_missing(&used));
        assert!(!is_in_use(&missing) && is_missing(&missing));
        assert!(!is_in_use(&problem(500, "in use")) && !is_missing(&problem(500, "not found")));
    }

    #[test]
    fn errors_of_graphql_come_with_status_200() {
        let read = |answer: Value| deployed(serde_json::from_value(answer).unwrap());
        let failed = |message: &str, code: &str| {
            read(json!({"data": {"podFindAndDeployOnDemand": null},
                "errors": [{"message": message, "path": ["podFindAndDeployOnDemand"], "extensions": {"code": code}}]}))
            .unwrap_err()
        };
        let made = json!({"data": {"podFindAndDeployOnDemand": {"id": "hx5w2k1m4n6p"}}});
        assert_eq!(read(made).unwrap(), "hx5w2k1m4n6p");
        let full = "There are no longer any instances available with the requested specifications.";
        assert_eq!(failed(full, "RUNPOD"), ComputeError::NoCapacity(full.to_owned()));
        assert!(matches!(
            failed("who?", "UNAUTHENTICATED"),
            ComputeError::Credentials(_)
        ));
        assert!(matches!(
            failed("Your balance is low", "RUNPOD"),
            ComputeError::NoQuota(_)
        ));
        assert!(matches!(
            failed("no such GPU", "BAD_USER_INPUT"),
            ComputeError::Refused(_)
        ));
        assert!(matches!(
            failed("Something went wrong. Please try again later", "RUNPOD"),
            ComputeError::Unclear(_)
        ));
        assert!(matches!(
            failed("oops", "INTERNAL_SERVER_ERROR"),
            ComputeError::Unclear(_)
        ));
        assert!(matches!(
            read(json!({"data": null})).unwrap_err(),
            ComputeError::Unclear(_)
        ));
    }
}
