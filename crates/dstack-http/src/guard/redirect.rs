//! Redirects: which are followed, and with what.

use http::HeaderMap;
use http::header::{AUTHORIZATION, COOKIE, LOCATION, PROXY_AUTHORIZATION};
use reqwest::{Response, StatusCode, Url};

use super::{GuardedRedirects, OutboundError};

/// Returns where an answer leads, if that is followed.
///
/// # Errors
/// It leads where it must not be followed to.
pub(super) fn target(
    from: &Url,
    answer: &Response,
    redirects: GuardedRedirects,
) -> Result<Option<Url>, OutboundError> {
    if redirects == GuardedRedirects::Never || !is_redirect(answer.status()) {
        return Ok(None);
    }
    let Some(location) = answer.headers().get(LOCATION) else {
        return Ok(None);
    };
    let location = location.to_str().ok();
    let target = location.and_then(|location| from.join(location).ok());
    let target = target.ok_or(OutboundError::Redirect("its address cannot be read"))?;
    match (from.scheme(), target.scheme()) {
        ("https", "http") => Err(OutboundError::Redirect("it leads from https to http")),
        (_, "http" | "https") if redirects == GuardedRedirects::SameHost && from.host() != target.host() => {
            Err(OutboundError::Redirect("it leads to another host"))
        }
        (_, "http" | "https") => Ok(Some(target)),
        _ => Err(OutboundError::NotHttp),
    }
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// Whether credentials for one are for the other as well.
pub(super) fn is_same_origin(one: &Url, other: &Url) -> bool {
    one.origin() == other.origin()
}

pub(super) fn forget_credentials(headers: &mut HeaderMap) {
    for name in [AUTHORIZATION, PROXY_AUTHORIZATION, COOKIE] {
        headers.remove(name);
    }
}

/// A user in an address would be sent as credentials.
pub(super) fn forget_user(url: &mut Url) {
    // Both fail for URLs without a host only, which have neither.
    url.set_username("").ok();
    url.set_password(None).ok();
}
