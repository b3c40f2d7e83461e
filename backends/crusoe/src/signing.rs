//! Signatures of requests, version 1.0 (Crusoe's documentation, "API authentication"): an HMAC over path, query, method and time. The body
//! is not signed.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use dstack_http::Signer;
use dstack_system::Secret;
use dstack_system::clock::SharedClock;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue, Request};
use sha2::Sha256;

/// Secrets are handed out without padding; some tools keep it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The bytes of a secret key; `None`: it is none.
pub(crate) fn secret_bytes(secret_key: &str) -> Option<Vec<u8>> {
    let bytes = BASE64.decode(secret_key).ok();
    bytes.filter(|bytes| !bytes.is_empty())
}

/// Signs requests as one user.
#[derive(Debug)]
pub(crate) struct Signature {
    pub(crate) clock: SharedClock,
    pub(crate) access_key: String,
    pub(crate) secret_key: Secret,
}

impl Signer for Signature {
    fn sign(&self, request: &mut Request<Bytes>) -> Result<(), String> {
        let now = self.clock.now().to_jiff();
        let now = now.strftime("%Y-%m-%dT%H:%M:%S+00:00").to_string();
        let (path, query) = (request.uri().path(), query_text(request));
        let text = format!("{path}\n{query}\n{}\n{now}\n", request.method());
        let key = secret_bytes(self.secret_key.expose()).ok_or("the secret key is not one of Crusoe")?;
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).map_err(|error| error.to_string())?;
        mac.update(text.as_bytes());
        let signature = BASE64.encode(mac.finalize().into_bytes());
        let authorization = format!("Bearer 1.0:{}:{signature}", self.access_key);
        let value = |text: &str| {
            let mut value = HeaderValue::from_str(text)
                .map_err(|_| "the access key has characters that no key has".to_owned())?;
            value.set_sensitive(true);
            Ok::<_, String>(value)
        };
        let headers = request.headers_mut();
        headers.insert(HeaderName::from_static("x-crusoe-timestamp"), value(&now)?);
        headers.insert(AUTHORIZATION, value(&authorization)?);
        Ok(())
    }
}

/// The parameters by their names, as they were before they were escaped.
fn query_text(request: &Request<Bytes>) -> String {
    let query = request.uri().query().unwrap_or_default();
    let parameters: BTreeMap<_, _> = url::form_urlencoded::parse(query.as_bytes()).collect();
    let texts: Vec<String> = parameters
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    texts.join("&")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dstack_system::clock::VirtualClock;
    use dstack_units::Time;

    use super::*;

    /// The expected signatures are those of dstack 0.22.5's client for the same key and time.
    #[tokio::test(start_paused = true)]
    async fn requests_are_signed_as_by_others() {
        let signer = Signature {
            clock: Arc::new(VirtualClock::starting_at(Time::from_millis(1_767_323_045_678))),
            access_key: "AKEXAMPLE".to_owned(),
            secret_key: Secret::new("c2VjcmV0LWtleS1vZi1hLXRlc3Q"),
        };
        for (method, address, signature) in [
            (
                "GET",
                "https://api.example/v1alpha5/locations",
                "YiAyYlnZAHFWmJEafGFxlio9RnVACOfHloKgxPc7W74",
            ),
            (
                "POST",
                "https://api.example/v1alpha5/projects/p/x?b=1%2B2%3D&a=x+y",
                "kc00JsYGtSANt5mf9dkkdPfuJ7lTXdIQmhNm89oRu3o",
            ),
        ] {
            let mut request = Request::builder()
                .method(method)
                .uri(address)
                .body(Bytes::new())
                .unwrap();
            signer.sign(&mut request).unwrap();
            assert_eq!(
                request.headers()["x-crusoe-timestamp"],
                "2026-01-02T03:04:05+00:00"
            );
            let expected = format!("Bearer 1.0:AKEXAMPLE:{signature}");
            assert_eq!(request.headers()[AUTHORIZATION], expected.as_str());
            let shown = format!("{request:?} {signer:?}");
            assert!(
                !shown.contains(signature) && !shown.contains("c2VjcmV0"),
                "{shown}"
            );
        }
    }

    #[test]
    fn secrets_are_read_with_and_without_padding() {
        assert_eq!(secret_bytes("YWI"), Some(b"ab".to_vec()));
        assert_eq!(secret_bytes("YWI="), Some(b"ab".to_vec()));
        assert_eq!(secret_bytes("a b"), None);
        assert_eq!(secret_bytes(""), None);
    }
}
