//! Who may call an agent that was started with a token.

use dstack_system::Secret;
use http::{HeaderMap, HeaderValue, header};
use subtle::ConstantTimeEq;

/// Whether a request brings the token (`Authorization: Bearer`). How long it takes tells nothing about the token but its length.
pub fn has_token(headers: &HeaderMap, token: &Secret) -> bool {
    let given = headers
        .get(header::AUTHORIZATION)
        .map(HeaderValue::as_bytes)
        .unwrap_or_default();
    let given = given.strip_prefix(b"Bearer ").unwrap_or_default();
    bool::from(given.ct_eq(token.expose().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_taken() {
        let token = Secret::new("s3cret");
        let is_taken = |value: &'static str| {
            let value = HeaderValue::from_static(value);
            has_token(&HeaderMap::from_iter([(header::AUTHORIZATION, value)]), &token)
        };
        assert!(is_taken("Bearer s3cret"));
        for other in [
            "",
            "s3cret",
            "Bearer ",
            "Bearer s3cre",
            "Bearer s3cret2",
            "Basic s3cret",
        ] {
            assert!(!is_taken(other), "{other}");
        }
        assert!(!has_token(&HeaderMap::new(), &token));
    }
}
