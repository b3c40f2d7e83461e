//! What refusals mean.

use std::time::Duration;

use dstack_backend::{compute_error, one_line};
use dstack_compute::ComputeError;
use dstack_http::ApiError;
use serde_json::Value as Json;

use crate::manifest::{Meaning, Missing, Pattern, Rule};
use crate::template::{Item, Reader, Scope, text_of};

/// Pause where too many requests were made and the vendor names none.
const RATE_PAUSE: Duration = Duration::from_secs(10);

/// What the first rule that fits says; otherwise what the HTTP status says. Of what may have been carried out all the same, no rule says
/// that it was not.
pub(crate) fn refusal(error: &ApiError, rules: &[Rule]) -> ComputeError {
    let usual = compute_error(error);
    let answer = Answer::of(error);
    match rules.iter().find(|rule| answer.fits(rule)) {
        Some(rule) if error.is_definite() || rule.is == Meaning::Unclear => answer.meaning(rule, usual),
        _ => usual,
    }
}

/// Whether the vendor says that it does not have something.
pub(crate) fn is_missing(error: &ApiError, missing: &Missing) -> bool {
    let answer = Answer::of(error);
    answer.has_status(&missing.status) && answer.says(missing.at.as_ref(), missing.says.as_ref())
}

/// An answer with an error.
struct Answer<'a> {
    error: &'a ApiError,
    body: Json,
}

impl<'a> Answer<'a> {
    fn of(error: &'a ApiError) -> Self {
        Self {
            error,
            body: serde_json::from_str(error.body()).unwrap_or_default(),
        }
    }

    fn fits(&self, rule: &Rule) -> bool {
        let has_status = match rule.status.is_empty() {
            true => self.error.status().is_some(),
            false => self.has_status(&rule.status),
        };
        has_status && self.says(rule.at.as_ref(), rule.says.as_ref())
    }

    fn has_status(&self, statuses: &[i64]) -> bool {
        let status = self.error.status().map(|status| i64::from(status.as_u16()));
        status.is_some_and(|status| statuses.contains(&status))
    }

    fn says(&self, at: Option<&Reader>, says: Option<&Pattern>) -> bool {
        let text = match at {
            None => Some(self.error.body().to_owned()),
            Some(reader) => self.read(reader),
        };
        let fits = |text: &str| says.is_none_or(|pattern| pattern.0.is_match(text));
        text.is_some_and(|text| fits(&text))
    }

    fn read(&self, reader: &Reader) -> Option<String> {
        let found = reader.find(&Item::new(&self.body, &Scope::default()))?;
        Some(text_of(&found).unwrap_or_else(|| found.to_string()))
    }

    fn meaning(&self, rule: &Rule, usual: ComputeError) -> ComputeError {
        let told = rule.message.as_ref().and_then(|reader| self.read(reader));
        let text = told.map_or_else(|| self.error.to_string(), |told| one_line(&told));
        match rule.is {
            Meaning::NoCapacity => ComputeError::NoCapacity(text),
            Meaning::NoQuota => ComputeError::NoQuota(text),
            Meaning::Credentials => ComputeError::Credentials(text),
            Meaning::Refused => ComputeError::Refused(text),
            Meaning::InUse => ComputeError::InUse(text),
            Meaning::Unclear => ComputeError::Unclear(text),
            Meaning::RateLimited => match usual {
                throttled @ ComputeError::Throttled { .. } => throttled,
                _ => ComputeError::Throttled {
                    after: RATE_PAUSE,
                    details: text,
                },
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use dstack_decode::decode_strict;
    use http::StatusCode;
    use serde_json::json;

    use super::*;

    fn told(status: u16, body: &str) -> ApiError {
        ApiError::Status {
            api: "api.example".to_owned(),
            status: StatusCode::from_u16(status).unwrap(),
            body: body.to_owned(),
            retry_after: None,
        }
    }

    #[test]
    fn the_first_rule_that_fits_says_what_a_refusal_means() {
        let rules: Vec<Rule> = decode_strict(&json!([
            {"status": [400], "at": "/code", "says": "^full$", "is": "no-capacity", "message": "/why"},
            {"says": "(?i)quota", "is": "no-quota"},
            {"status": [409], "is": "unclear"},
            {"status": [420], "is": "rate-limited"},
        ]))
        .unwrap();
        let meaning = |status: u16, body: &str| refusal(&told(status, body), &rules);
        let full = r#"{"code": "full", "why": "no room"}"#;
        assert_eq!(meaning(400, full), ComputeError::NoCapacity("no room".to_owned()));
        assert!(matches!(meaning(422, full), ComputeError::Refused(_)));
        assert!(matches!(meaning(403, "Over the Quota"), ComputeError::NoQuota(_)));
        assert!(matches!(meaning(409, ""), ComputeError::Unclear(_)));
        assert!(matches!(meaning(420, ""), ComputeError::Throttled { .. }));
        assert!(
            !meaning(500, "quota").is_definite(),
            "it may have been done all the same"
        );
        let lost = ApiError::Lost {
            api: String::new(),
            details: String::new(),
        };
        assert!(!refusal(&lost, &rules).is_definite());
    }

    #[test]
    fn only_the_vendor_says_that_something_is_missing() {
        let missing: Missing = decode_strict(&json!({"at": "/id", "says": "^not_found$"})).unwrap();
        assert!(is_missing(&told(404, r#"{"id": "not_found"}"#), &missing));
        for (status, body) in [
            (404, "<html>"),
            (404, ""),
            (410, r#"{"id": "not_found"}"#),
            (404, r#"{"id": "x"}"#),
        ] {
            assert!(!is_missing(&told(status, body), &missing), "{body}");
        }
        decode_strict::<Missing>(&json!({"status": [404]})).unwrap_err();
    }
}
