//! How a server and an agent show each other that they have the same token, without telling it to anybody.
//!
//! A port can be listened to by another program: while the agent restarts, or before it first starts. And who is root in a
//! container that shares the host's network can read what goes over its loopback interface. So a call begins with a question, on
//! the same connection:
//!
//! 1. The client sends a fresh nonce ([`PATH`], [`NONCE`]). The agent answers with a challenge and with an HMAC of both
//!    ([`Challenge`]). Who listens and has not the token gets no further: neither the call nor its body is sent to him.
//! 2. The client sends the call with an HMAC of the challenge, the method, the path with its query, and the hash of the body
//!    ([`Signed`]). The agent takes each challenge once, for a minute, and from this start of its process only: a call that was
//!    listened to is of no use to anybody.
//! 3. A call that brings a nonce of its own is answered with the challenge for the next one in the head of the answer ([`CHALLENGE`],
//!    [`PROOF`]): a call that follows on the same connection takes one round trip. Agents of 0.22.5 and our older ones do not do that.
//!
//! What is sent is not encrypted: who can read the loopback interface of a host reads the calls to its agents.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use dstack_system::{Random, Secret};
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Uri, header};
use hyper::body::{Body, Frame, SizeHint};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tokio::time::Instant;

/// `GET`, with [`NONCE`] → [`Challenge`]. Agents without a token do not have it.
pub const PATH: &str = "/api/proof";
/// What the client has made up for this call.
pub const NONCE: &str = "dstack-nonce";
/// The challenge that the call answers.
pub const CHALLENGE: &str = "dstack-challenge";
/// [`Challenge::proof`] of the challenge in the head of an answer.
pub const PROOF: &str = "dstack-proof";
/// SHA-256 of the call's body, in hexadecimal.
pub const CONTENT: &str = "dstack-content-sha256";
/// What `Authorization` begins with, before the signature in hexadecimal.
const SCHEME: &str = "Dstack ";

/// Tell the two directions apart: what an agent says is never taken for a call.
const OF_AGENT: &str = "dstack agent 1";
const OF_CALL: &str = "dstack call 1";

/// A challenge is good for so long: the call follows it on the same connection.
const GOOD_FOR: Duration = Duration::from_secs(60);
/// Calls that are remembered, of a minute. More are refused until some are older.
const MOST_CALLS: usize = 20_000;
/// Longer nonces are not answered.
const MAX_NONCE_BYTES: usize = 128;

/// What the agent answers to a nonce.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Challenge {
    /// Goes into the signature of one call.
    pub challenge: String,
    /// Shows that the agent has the token: HMAC-SHA256 of nonce and challenge, in hexadecimal.
    pub proof: String,
}

impl Challenge {
    /// The one in the head of an answer, for the next call.
    pub fn of_answer(headers: &HeaderMap) -> Option<Self> {
        let named = |name| text(headers, name).map(str::to_owned);
        Some(Self {
            challenge: named(CHALLENGE)?,
            proof: named(PROOF)?,
        })
    }

    /// Puts it into the head of an answer.
    pub fn into_answer(self, headers: &mut HeaderMap) {
        let values = [self.challenge, self.proof].map(HeaderValue::try_from);
        if let [Ok(challenge), Ok(proof)] = values {
            headers.insert(CHALLENGE, challenge);
            headers.insert(PROOF, proof);
        }
    }

    /// Whether who has made it has the token.
    pub fn is_proven(&self, token: &Secret, nonce: &str) -> bool {
        is_mac(&self.proof, token, &[OF_AGENT, nonce, &self.challenge])
    }
}

/// The headers of a call that answers a challenge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    /// [`CHALLENGE`].
    pub challenge: String,
    /// [`CONTENT`].
    pub content: String,
    /// `Authorization`.
    pub authorization: String,
}

impl Signed {
    /// Signs a call; `path` is with its query.
    pub fn new(token: &Secret, challenge: &str, method: &Method, path: &str, body: &[u8]) -> Self {
        let content = hex::encode(Sha256::digest(body));
        let signature = mac(token, &[OF_CALL, challenge, method.as_str(), path, &content]);
        Self {
            challenge: challenge.to_owned(),
            content,
            authorization: format!("{SCHEME}{}", hex::encode(signature)),
        }
    }

    /// Names and values.
    pub fn headers(&self) -> [(&'static str, &str); 3] {
        [
            (CHALLENGE, &self.challenge),
            (CONTENT, &self.content),
            (header::AUTHORIZATION.as_str(), &self.authorization),
        ]
    }
}

/// Lets those calls to an agent in that are signed with its token.
pub struct Gate {
    token: Secret,
    random: Random,
    /// Of this process: challenges of the one before are none.
    own: Secret,
    began: Instant,
    /// Challenges that were answered, and when they were made, in ms since `began`.
    answered: Mutex<HashMap<String, u64>>,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gate")
    }
}

impl Gate {
    /// For this token.
    pub fn new(token: Secret, random: Random) -> Self {
        Self {
            token,
            own: Secret::new(hex::encode(random.bytes::<32>())),
            random,
            began: Instant::now(),
            answered: Mutex::default(),
        }
    }

    /// The answer to a request that asks for a challenge; `None`: it is none, or brings no nonce.
    pub fn challenge(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<Challenge> {
        let is_question = method == Method::GET && uri.path() == PATH;
        let nonce = nonce(headers).filter(|_| is_question)?;
        Some(self.next_challenge(&nonce))
    }

    /// The challenge for the call after one that brought this nonce.
    pub fn next_challenge(&self, nonce: &str) -> Challenge {
        let made = format!("{}-{}", self.now(), hex::encode(self.random.bytes::<16>()));
        let challenge = format!("{made}-{}", hex::encode(mac(&self.own, &[&made])));
        let proof = hex::encode(mac(&self.token, &[OF_AGENT, nonce, &challenge]));
        Challenge { challenge, proof }
    }

    /// Whether a call is signed: its body as [`checked`] lets it through. Each is let in once.
    pub fn admits(&self, call: &Parts) -> bool {
        let path = call.uri.path_and_query().map_or("/", |path| path.as_str());
        let named = |name| text(&call.headers, name);
        let signature = named(header::AUTHORIZATION.as_str()).and_then(|value| value.strip_prefix(SCHEME));
        let (Some(challenge), Some(content), Some(signature)) = (named(CHALLENGE), named(CONTENT), signature)
        else {
            return false;
        };
        let signed = [OF_CALL, challenge, call.method.as_str(), path, content];
        is_mac(signature, &self.token, &signed) && self.is_new(challenge)
    }

    fn is_new(&self, challenge: &str) -> bool {
        let Some((made, own)) = challenge.rsplit_once('-') else {
            return false;
        };
        let at = made.split_once('-').and_then(|(at, _)| at.parse::<u64>().ok());
        let Some(at) = at.filter(|_| is_mac(own, &self.own, &[made])) else {
            return false;
        };
        let now = self.now();
        let is_good = |at: u64| now.saturating_sub(at) <= millis(GOOD_FOR);
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        if answered.len() >= MOST_CALLS {
            answered.retain(|_, at| is_good(*at));
        }
        is_good(at) && answered.len() < MOST_CALLS && answered.insert(challenge.to_owned(), at).is_none()
    }

    /// Milliseconds since the start.
    fn now(&self) -> u64 {
        millis(self.began.elapsed())
    }
}

/// What a client has made up for its call; `None`: nothing, or too much.
pub fn nonce(headers: &HeaderMap) -> Option<String> {
    let nonce = text(headers, NONCE)?;
    (1..=MAX_NONCE_BYTES)
        .contains(&nonce.len())
        .then(|| nonce.to_owned())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(HeaderValue::to_str)?.ok()
}

/// HMAC-SHA256 of parts, each with its length.
fn mac(key: &Secret, parts: &[&str]) -> [u8; 32] {
    // Keys of every length do.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key.expose().as_bytes()) else {
        return [0; 32];
    };
    for part in parts {
        mac.update(format!("{}:", part.len()).as_bytes());
        mac.update(part.as_bytes());
    }
    mac.finalize().into_bytes().into()
}

/// How long it takes tells nothing of the right one.
fn is_mac(given: &str, key: &Secret, parts: &[&str]) -> bool {
    let wanted = hex::encode(mac(key, parts));
    !key.expose().is_empty() && bool::from(given.as_bytes().ct_eq(wanted.as_bytes()))
}

/// The body of a call that was let in. It ends with an error if it is not the one that was signed; of a body of known length before
/// its last bytes are given. Who does not read a body to its end does not hear of it.
pub fn checked<B>(headers: &HeaderMap, body: B) -> Checked<B> {
    Checked {
        body,
        wanted: text(headers, CONTENT).unwrap_or_default().to_owned(),
        hash: Some(Sha256::new()),
    }
}

/// See [`checked`].
#[derive(Debug)]
pub struct Checked<B> {
    body: B,
    wanted: String,
    /// `None`: it was compared.
    hash: Option<Sha256>,
}

/// Why a body is not given.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

impl<B> Checked<B> {
    /// Once the whole body is known.
    fn compare(&mut self) -> Result<(), BodyError> {
        match self.hash.take().map(|hash| hex::encode(hash.finalize())) {
            Some(found) if found != self.wanted => Err("the body is not the one that was signed".into()),
            _ => Ok(()),
        }
    }
}

impl<B> Body for Checked<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BodyError>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        let frame = match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
            None => return Poll::Ready(this.compare().err().map(Err)),
            Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            Some(Ok(frame)) => frame,
        };
        if let (Some(data), Some(hash)) = (frame.data_ref(), &mut this.hash) {
            hash.update(data);
        }
        let whole = match this.body.is_end_stream() {
            true => this.compare(),
            false => Ok(()),
        };
        Poll::Ready(Some(whole.map(|()| frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.hash.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use http_body_util::{BodyExt as _, Full};

    use super::*;

    fn gate(token: &str) -> Gate {
        Gate::new(token.into(), Random::system())
    }

    fn challenge(gate: &Gate, nonce: &str) -> Challenge {
        let request = Request::get(PATH).header(NONCE, nonce).body(()).unwrap();
        let (parts, ()) = request.into_parts();
        gate.challenge(&parts.method, &parts.uri, &parts.headers).unwrap()
    }

    fn call(signed: &Signed, method: &str, path: &str) -> Parts {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in signed.headers() {
            request = request.header(name, value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn sign(token: &str, challenge: &str) -> Signed {
        Signed::new(&token.into(), challenge, &Method::POST, "/api/x?y=1", b"body")
    }

    #[tokio::test]
    async fn an_agent_shows_that_it_has_the_token() {
        let told = challenge(&gate("s3cret"), "nonce");
        assert!(told.is_proven(&"s3cret".into(), "nonce"));
        assert!(!told.is_proven(&"other".into(), "nonce"));
        assert!(!told.is_proven(&"s3cret".into(), "another nonce"));
        let other = challenge(&gate("other"), "nonce");
        assert!(!other.is_proven(&"s3cret".into(), "nonce"));
        // Nobody can have the token that is none.
        assert!(!challenge(&gate(""), "nonce").is_proven(&"".into(), "nonce"));
    }

    #[tokio::test]
    async fn only_the_very_call_that_was_signed_is_let_in_and_once() {
        let gate = gate("s3cret");
        let signed = sign("s3cret", &challenge(&gate, "n").challenge);
        assert!(!gate.admits(&call(&signed, "GET", "/api/x?y=1")));
        assert!(!gate.admits(&call(&signed, "POST", "/api/x?y=2")));
        assert!(!gate.admits(&call(
            &sign("other", &challenge(&gate, "n").challenge),
            "POST",
            "/api/x?y=1"
        )));
        let other_body = Signed {
            content: hex::encode(Sha256::digest(b"other")),
            ..signed.clone()
        };
        assert!(!gate.admits(&call(&other_body, "POST", "/api/x?y=1")));
        assert!(gate.admits(&call(&signed, "POST", "/api/x?y=1")));
        assert!(
            !gate.admits(&call(&signed, "POST", "/api/x?y=1")),
            "a second time"
        );
        let unsigned = Request::post("/api/x?y=1")
            .header(header::AUTHORIZATION, "Bearer s3cret")
            .body(())
            .unwrap();
        assert!(!gate.admits(&unsigned.into_parts().0));
    }

    #[tokio::test(start_paused = true)]
    async fn challenges_of_others_of_before_a_restart_and_of_long_ago_are_none() {
        let (before, gate) = (gate("s3cret"), gate("s3cret"));
        for made_up in ["", "1", "1-2-3", &challenge(&before, "n").challenge] {
            let signed = sign("s3cret", made_up);
            assert!(!gate.admits(&call(&signed, "POST", "/api/x?y=1")), "{made_up}");
        }
        let signed = sign("s3cret", &challenge(&gate, "n").challenge);
        tokio::time::advance(GOOD_FOR + Duration::from_secs(1)).await;
        assert!(!gate.admits(&call(&signed, "POST", "/api/x?y=1")));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_remembered_of_calls_is_bounded() {
        let gate = gate("s3cret");
        for n in 0..MOST_CALLS {
            let is_let_in = gate.is_new(&challenge(&gate, "n").challenge);
            assert!(is_let_in, "{n}");
        }
        assert!(!gate.is_new(&challenge(&gate, "n").challenge));
        tokio::time::advance(GOOD_FOR + Duration::from_secs(1)).await;
        assert!(gate.is_new(&challenge(&gate, "n").challenge));
        assert_eq!(gate.answered.lock().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_body_that_was_not_signed_is_not_given() {
        let parts = call(&sign("s3cret", "c"), "POST", "/api/x?y=1");
        let body = |text: &'static str| Full::new(Bytes::from_static(text.as_bytes()));
        let given = checked(&parts.headers, body("body")).collect().await.unwrap();
        assert_eq!(given.to_bytes(), "body");
        for other in ["", "Body", "body and more"] {
            let mut other = checked(&parts.headers, body(other));
            assert!(other.frame().await.unwrap().is_err());
        }
    }
}
