//! Signature Version 4 of requests whose parameters are all in the body ("AWS Signature Version 4 for API requests", IAM User Guide).
//!
//! Signed here and not by `reqsign`, which finds credentials elsewhere in this project: that takes the time from the machine, and
//! tests of this backend have a time of their own.

use bytes::Bytes;
use dstack_http::Signer;
use dstack_system::Secret;
use dstack_system::clock::SharedClock;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderName, HeaderValue, Request};
use sha2::{Digest as _, Sha256};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// What a request is signed with.
#[derive(Debug, Clone)]
pub(crate) struct AccessKey {
    pub(crate) id: String,
    pub(crate) secret: Secret,
    /// Of keys that end.
    pub(crate) session_token: Option<Secret>,
}

/// Signs requests to one service in one region.
#[derive(Debug)]
pub(crate) struct SigV4 {
    pub(crate) clock: SharedClock,
    pub(crate) region: String,
    pub(crate) service: &'static str,
    pub(crate) key: AccessKey,
}

impl Signer for SigV4 {
    fn sign(&self, request: &mut Request<Bytes>) -> Result<(), String> {
        if request.uri().query().is_some() {
            return Err("requests to AWS have their parameters in the body".to_owned());
        }
        let authority = request.uri().authority().ok_or("the address has no host")?;
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| "the host is no name")?;
        // `20150830T123600Z`.
        let now = self.clock.now().to_jiff().strftime("%Y%m%dT%H%M%SZ").to_string();
        let headers = request.headers_mut();
        headers.insert(HOST, host);
        headers.insert(HeaderName::from_static("x-amz-date"), hidden(&now)?);
        if let Some(token) = &self.key.session_token {
            headers.insert(
                HeaderName::from_static("x-amz-security-token"),
                hidden(token.expose())?,
            );
        }
        let authorization = self.authorization(request, &now)?;
        request
            .headers_mut()
            .insert(AUTHORIZATION, hidden(&authorization)?);
        Ok(())
    }
}

impl SigV4 {
    fn authorization(&self, request: &Request<Bytes>, now: &str) -> Result<String, String> {
        let (signed, canonical) = canonical_request(request)?;
        let date = now.get(..8).unwrap_or_default();
        let scope = format!("{date}/{}/{}/aws4_request", self.region, self.service);
        let digest = hex::encode(Sha256::digest(canonical));
        let text = format!("{ALGORITHM}\n{now}\n{scope}\n{digest}");
        let secret = format!("AWS4{}", self.key.secret.expose());
        let parts = [date, self.region.as_str(), self.service, "aws4_request", &text];
        let signature = parts
            .iter()
            .fold(secret.into_bytes(), |key, part| hmac_sha256(&key, part));
        let (id, signature) = (&self.key.id, hex::encode(signature));
        Ok(format!(
            "{ALGORITHM} Credential={id}/{scope}, SignedHeaders={signed}, Signature={signature}"
        ))
    }
}

/// The names of the headers that are signed, and the text that stands for the request.
fn canonical_request(request: &Request<Bytes>) -> Result<(String, String), String> {
    let is_signed =
        |name: &HeaderName| *name == HOST || *name == CONTENT_TYPE || name.as_str().starts_with("x-amz-");
    let mut headers = Vec::new();
    for (name, value) in request.headers().iter().filter(|(name, _)| is_signed(name)) {
        let value = value
            .to_str()
            .map_err(|_| format!("the header {name} is no text"))?;
        headers.push((name.as_str(), value.trim()));
    }
    headers.sort_unstable();
    let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
    let names = names.join(";");
    let lines: String = headers
        .iter()
        .map(|(name, value)| format!("{name}:{value}\n"))
        .collect();
    let (method, path) = (request.method(), request.uri().path());
    let digest = hex::encode(Sha256::digest(request.body()));
    let text = format!("{method}\n{path}\n\n{lines}\n{names}\n{digest}");
    Ok((names, text))
}

fn hmac_sha256(key: &[u8], text: &str) -> Vec<u8> {
    // Keys of any length are taken.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        return Vec::new();
    };
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

/// The value of a header that is not shown.
fn hidden(text: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_str(text)
        .map_err(|_| "the credentials have characters that no credentials have".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dstack_system::clock::VirtualClock;
    use http::Method;

    use super::*;

    /// The key and the time of the public test suite for Signature Version 4.
    fn signer(session_token: Option<&str>) -> SigV4 {
        let at = "2015-08-30T12:36:00Z".parse().unwrap();
        SigV4 {
            clock: Arc::new(VirtualClock::starting_at(at)),
            region: "us-east-1".to_owned(),
            service: "service",
            key: AccessKey {
                id: "AKIDEXAMPLE".to_owned(),
                secret: Secret::new("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"),
                session_token: session_token.map(Secret::new),
            },
        }
    }

    fn signed(signer: &SigV4, method: Method, content_type: Option<&str>, body: &'static str) -> String {
        let mut request = Request::new(Bytes::from_static(body.as_bytes()));
        *request.method_mut() = method;
        *request.uri_mut() = "https://example.amazonaws.com/".parse().unwrap();
        if let Some(content_type) = content_type {
            request
                .headers_mut()
                .insert(CONTENT_TYPE, content_type.parse().unwrap());
        }
        signer.sign(&mut request).unwrap();
        request.headers()[AUTHORIZATION].to_str().unwrap().to_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_signed_as_in_the_public_test_suite() {
        let form = Some("application/x-www-form-urlencoded");
        // `get-vanilla`, `post-vanilla`, `post-x-www-form-urlencoded`, `post-sts-header-before`.
        let token = "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPfIeoIYRqTflfKD8YUuwthAx7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7WZ0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVXAkiY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8FDrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA==";
        for (token, method, content_type, body, names, signature) in [
            (
                None,
                Method::GET,
                None,
                "",
                "host;x-amz-date",
                "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
            ),
            (
                None,
                Method::POST,
                None,
                "",
                "host;x-amz-date",
                "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
            ),
            (
                None,
                Method::POST,
                form,
                "Param1=value1",
                "content-type;host;x-amz-date",
                "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
            ),
            (
                Some(token),
                Method::POST,
                None,
                "",
                "host;x-amz-date;x-amz-security-token",
                "85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead",
            ),
        ] {
            let expected = format!(
                "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
                 SignedHeaders={names}, Signature={signature}"
            );
            assert_eq!(signed(&signer(token), method, content_type, body), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_signed_shows_no_secret() {
        let mut request = Request::new(Bytes::new());
        *request.uri_mut() = "https://example.amazonaws.com/".parse().unwrap();
        let mut signer = signer(Some("canary"));
        signer.sign(&mut request).unwrap();
        assert!(!format!("{request:?}{signer:?}").contains("canary"));
        assert!(!format!("{request:?}").contains("AKIDEXAMPLE"));
        signer.key.session_token = Some(Secret::new("a\nb"));
        let refusal = signer.sign(&mut request).unwrap_err();
        assert_eq!(
            refusal,
            "the credentials have characters that no credentials have"
        );
    }
}
