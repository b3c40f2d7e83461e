//! Which headers go on.

use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, EXPECT,
    PROXY_AUTHORIZATION, RETRY_AFTER, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::media_type::is_of_type;

/// Never for models: what lets the client in here, what is about this connection, and what is about a body that may be
/// another one. Answers are not compressed on the way here, since their tokens are counted.
const KEPT_BACK: [HeaderName; 12] = [
    AUTHORIZATION,
    PROXY_AUTHORIZATION,
    COOKIE,
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    CONTENT_LENGTH,
    TRANSFER_ENCODING,
    TE,
    TRAILER,
    UPGRADE,
    EXPECT,
    ACCEPT_ENCODING,
];

/// Tells nginx in front to pass a stream on as it comes.
pub(super) const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// The headers with which a model gets a JSON body of so many bytes.
pub(super) fn for_model(headers: &HeaderMap, body_bytes: usize) -> HeaderMap {
    let mut kept = headers.clone();
    for name in named_by_connection(headers).iter().chain(&KEPT_BACK) {
        kept.remove(name);
    }
    kept.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    kept.insert(CONTENT_LENGTH, HeaderValue::from(body_bytes));
    kept
}

/// Headers that the client wants to go no further.
fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(CONNECTION).iter();
    let texts = values.filter_map(|value| value.to_str().ok());
    let names = texts.flat_map(|text| text.split(','));
    names.filter_map(|name| name.trim().parse().ok()).collect()
}

/// The headers of an answer that is passed on as it is. A model sets no cookies for the server's domain.
pub(super) fn for_client(headers: &mut HeaderMap) {
    headers.remove(SET_COOKIE);
    if is_of_type(headers, "text/event-stream") {
        // An event may be added.
        headers.remove(CONTENT_LENGTH);
        headers.insert(X_ACCEL_BUFFERING, HeaderValue::from_static("no"));
    }
}

/// Of an error, what says when to ask again, and what it may be looked up by.
const OF_ERROR: [HeaderName; 4] = [
    RETRY_AFTER,
    HeaderName::from_static("retry-after-ms"),
    HeaderName::from_static("x-should-retry"),
    HeaderName::from_static("x-request-id"),
];
/// How headers begin that say how much may be asked for.
const X_RATELIMIT: &str = "x-ratelimit-";

/// The headers of an error whose body is another one for the client.
pub(super) fn of_error(mut headers: HeaderMap) -> HeaderMap {
    let names: Vec<HeaderName> = headers.keys().cloned().collect();
    for name in names {
        if !(OF_ERROR.contains(&name) || name.as_str().starts_with(X_RATELIMIT)) {
            headers.remove(name);
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_and_what_is_about_the_connection_stay_here() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer secret"),
            ("cookie", "session=secret"),
            ("host", "dstack.example.com"),
            ("content-length", "7"),
            ("transfer-encoding", "chunked"),
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("accept-encoding", "gzip"),
            ("content-type", "application/x-www-form-urlencoded"),
            ("x-request-id", "r1"),
            ("openai-organization", "o"),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        let kept = for_model(&headers, 12);
        let mut kept: Vec<(&str, &str)> = kept
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        kept.sort_unstable();
        let expected = [
            ("content-length", "12"),
            ("content-type", "application/json"),
            ("host", "dstack.example.com"),
            ("openai-organization", "o"),
            ("x-request-id", "r1"),
        ];
        assert_eq!(kept, expected);
    }

    #[test]
    fn a_stream_has_no_length_and_is_not_held_back() {
        for (kind, names) in [
            (
                "Text/Event-Stream; charset=utf-8",
                vec!["content-type", "x-accel-buffering"],
            ),
            ("application/json", vec!["content-length", "content-type"]),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in [
                ("content-type", kind),
                ("content-length", "3"),
                ("set-cookie", "a=b"),
            ] {
                headers.insert(name, value.parse().unwrap());
            }
            for_client(&mut headers);
            let mut kept: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
            kept.sort_unstable();
            assert_eq!(kept, names);
        }
    }
}
