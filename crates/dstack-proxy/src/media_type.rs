//! What kind of content a body is.

use http::HeaderMap;
use http::header::CONTENT_TYPE;

/// Whether a body is of this type, whatever its parameters.
pub(crate) fn is_of_type(headers: &HeaderMap, wanted: &str) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = value.and_then(|value| value.split(';').next());
    essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case(wanted))
}
