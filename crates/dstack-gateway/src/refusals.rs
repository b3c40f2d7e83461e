//! What those are answered whose requests are too many or too long.

use dstack_proxy::{ProxyBody, refusal};
use http::{Response, StatusCode};

/// The client asks too often.
pub(crate) fn too_many() -> Response<ProxyBody> {
    refusal(StatusCode::TOO_MANY_REQUESTS, "Too Many Requests")
}

/// The body of the request is longer than the service allows.
pub(crate) fn too_long() -> Response<ProxyBody> {
    refusal(StatusCode::PAYLOAD_TOO_LARGE, "Payload Too Large")
}
