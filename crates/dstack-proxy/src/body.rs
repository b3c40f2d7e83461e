//! Bodies on their way through, and answers of the proxy itself.

mod answer;
mod request;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};

pub(crate) use answer::{AnswerBody, Lease};
pub(crate) use request::{RequestBody, Sendable};

/// Why a body broke off.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A body of a request or an answer, of any origin.
pub type ProxyBody = UnsyncBoxBody<Bytes, BoxError>;

/// A body that is there as a whole.
pub fn full(bytes: impl Into<Bytes>) -> ProxyBody {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// A body of no bytes, which has ended.
pub fn empty() -> ProxyBody {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// An answer of the proxy itself: `{"detail": …}`, as dstack 0.22.5 has it.
pub fn refusal(status: StatusCode, detail: &str) -> Response<ProxyBody> {
    let text = serde_json::json!({ "detail": detail }).to_string();
    let mut response = Response::new(full(text));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
