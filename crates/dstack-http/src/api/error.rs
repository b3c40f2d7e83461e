use std::time::Duration;

use http::StatusCode;

/// Longest part of an answer that is shown.
const SHOWN: usize = 600;

/// Why a request has no answer that can be used. Its texts name no header and no query.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The request never left this machine: nothing was done.
    #[error("{api} cannot be reached: {details}")]
    NotSent {
        /// Host of the API.
        api: String,
        /// What stood in the way.
        details: String,
    },
    /// The request was sent, and there is no answer: nobody knows whether it was carried out.
    #[error("{api} did not answer: {details}")]
    Lost {
        /// Host of the API.
        api: String,
        /// What happened to the answer.
        details: String,
    },
    /// The API answered with an error.
    #[error("{api} answered {status}{}", shown(.body))]
    Status {
        /// Host of the API.
        api: String,
        /// HTTP status.
        status: StatusCode,
        /// The answer.
        body: String,
        /// When the API wants to be asked again, if it says so.
        retry_after: Option<Duration>,
    },
    /// The API says that it did what it was asked for, in a form that is not understood.
    #[error("{api} answered in a form that is not understood: {details}")]
    Malformed {
        /// Host of the API.
        api: String,
        /// What is wrong with it.
        details: String,
    },
}

impl ApiError {
    /// HTTP status of the answer, if there was one with an error.
    pub const fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// What the API answered; empty: nothing.
    pub fn body(&self) -> &str {
        match self {
            Self::Status { body, .. } => body,
            _ => "",
        }
    }

    /// Whether the request has certainly not been carried out. An API that answers with an error of its own (5xx) may have
    /// carried it out before.
    pub fn is_definite(&self) -> bool {
        match self {
            Self::NotSent { .. } => true,
            Self::Status { status, .. } => {
                !status.is_server_error() && *status != StatusCode::REQUEST_TIMEOUT
            }
            Self::Lost { .. } | Self::Malformed { .. } => false,
        }
    }

    /// Whether it says only that this attempt was not carried out, whatever became of one before: it was not sent, or turned away at the
    /// door.
    pub fn is_of_this_attempt_alone(&self) -> bool {
        let at_the_door = |status| {
            matches!(
                status,
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS
            )
        };
        matches!(self, Self::NotSent { .. }) || self.status().is_some_and(at_the_door)
    }

    /// The pause that the API wants before the next request; `None`: it does not complain of too many.
    pub fn throttled(&self) -> Option<Duration> {
        match self {
            Self::Status {
                status: StatusCode::TOO_MANY_REQUESTS,
                retry_after,
                ..
            } => Some(retry_after.unwrap_or(Duration::from_secs(10))),
            Self::Status {
                status: StatusCode::SERVICE_UNAVAILABLE,
                retry_after,
                ..
            } => *retry_after,
            _ => None,
        }
    }
}

/// What an API said, in one line of bounded length. Of a web page, which gateways and proxies answer with, its title.
fn shown(body: &str) -> String {
    let text = match title_of_page(body) {
        None => body.split_whitespace().collect::<Vec<_>>().join(" "),
        Some("") => "a web page".to_owned(),
        Some(title) => format!("a web page ({title})"),
    };
    if text.is_empty() {
        return String::new();
    }
    let cut = text.floor_char_boundary(SHOWN);
    let (shown, rest) = text.split_at(cut);
    format!(": {shown}{}", if rest.is_empty() { "" } else { "…" })
}

/// `None`: it is no page. Empty: it has no title.
fn title_of_page(body: &str) -> Option<&str> {
    let body = body.trim_start();
    // Letters outside of ASCII stay as they are, so that places in both are the same.
    let lower = body.to_ascii_lowercase();
    let is_page = ["<!doctype html", "<html"]
        .iter()
        .any(|begin| lower.starts_with(begin));
    let title = || -> Option<&str> {
        let begin = lower.find("<title>")? + "<title>".len();
        let end = begin + lower.get(begin..)?.find("</title>")?;
        Some(body.get(begin..end)?.trim())
    };
    is_page.then(|| title().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_api_said_is_one_line() {
        let page = "<!DOCTYPE html>\n<html lang=en>\n<TITLE> 502 Bad Gateway — ü </TITLE>\n<h1>Sorry</h1>";
        for (body, line) in [
            ("", ""),
            (" \n", ""),
            ("{\n  \"error\": \"no\"\n}", ": { \"error\": \"no\" }"),
            (page, ": a web page (502 Bad Gateway — ü)"),
            ("<html><body>no</body></html>", ": a web page"),
            ("<Error><Code>X</Code></Error>", ": <Error><Code>X</Code></Error>"),
        ] {
            assert_eq!(shown(body), line, "{body}");
        }
        let long = shown(&"é".repeat(SHOWN));
        assert!(long.ends_with('…') && long.len() <= SHOWN + 10, "{}", long.len());
    }
}
