//! Pages of other origins: models are asked from any.

use dstack_proxy::{ProxyBody, body};
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, HeaderName,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

const ANY: HeaderValue = HeaderValue::from_static("*");
/// `*` alone leaves out the header that has the token.
const HEADERS: HeaderValue = HeaderValue::from_static("*, Authorization");
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, PUT, DELETE, PATCH, OPTIONS, HEAD");
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

const OF_SERVICE: [HeaderName; 6] = [
    ACCESS_CONTROL_ALLOW_CREDENTIALS,
    ACCESS_CONTROL_ALLOW_HEADERS,
    ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS,
    ACCESS_CONTROL_MAX_AGE,
];

/// What a browser is answered that asks whether a page may ask.
pub(super) fn preflight() -> Response<ProxyBody> {
    let mut response = Response::new(body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response.headers_mut().extend([
        (ACCESS_CONTROL_ALLOW_ORIGIN, ANY),
        (ACCESS_CONTROL_ALLOW_METHODS, METHODS),
        (ACCESS_CONTROL_ALLOW_HEADERS, HEADERS),
        (ACCESS_CONTROL_MAX_AGE, MAX_AGE),
    ]);
    response
}

/// Says that any page may read an answer, whatever the service says.
pub(super) fn allow_any(headers: &mut HeaderMap) {
    for name in &OF_SERVICE {
        headers.remove(name);
    }
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, ANY);
}
