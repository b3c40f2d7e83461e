//! Signed tokens (JWT, RFC 7519) and the keys that prove them (RFC 7517).

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use dstack_system::{Clock, SystemClock};
use ring::rand::SystemRandom;
use ring::rsa::PublicKeyComponents;
use ring::signature::{KeyPair, RSA_PKCS1_SHA256, RsaKeyPair};
use ring::{hmac, signature};
use serde_json::{Value, json};

use crate::CLIENT_SECRET;

/// Made for this file, and good for nothing else.
const OWN: &[u8] = include_bytes!("signing-key.der");
const FOREIGN: &[u8] = include_bytes!("foreign-key.der");

/// The name of the provider's key.
const KEY_ID: &str = "k1";

/// How a token is signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signature {
    Own,
    Foreign,
    None,
    SharedSecret,
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    u64::try_from(SystemClock.now().as_millis() / 1000).unwrap()
}

fn key(der: &[u8]) -> RsaKeyPair {
    RsaKeyPair::from_pkcs8(der).unwrap()
}

/// The keys that the provider publishes.
pub(crate) fn published() -> Value {
    let key = key(OWN);
    let parts: PublicKeyComponents<Vec<u8>> = key.public_key().into();
    json!({"keys": [{
        "kty": "RSA", "use": "sig", "alg": "RS256", "kid": KEY_ID,
        "n": URL_SAFE_NO_PAD.encode(parts.n), "e": URL_SAFE_NO_PAD.encode(parts.e),
    }]})
}

/// A token with these claims.
pub(crate) fn token(claims: &Value, signed: Signature) -> String {
    let algorithm = match signed {
        Signature::Own | Signature::Foreign => "RS256",
        Signature::None => "none",
        Signature::SharedSecret => "HS256",
    };
    let header = json!({"typ": "JWT", "alg": algorithm, "kid": KEY_ID});
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!("{}.{}", part(&header), part(claims));
    let proof = match signed {
        Signature::Own => rsa(OWN, &text),
        Signature::Foreign => rsa(FOREIGN, &text),
        Signature::None => Vec::new(),
        Signature::SharedSecret => {
            let key = hmac::Key::new(hmac::HMAC_SHA256, CLIENT_SECRET.as_bytes());
            hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
        }
    };
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(proof))
}

fn rsa(der: &[u8], text: &str) -> Vec<u8> {
    let key = key(der);
    let mut proof = vec![0; key.public().modulus_len()];
    let padding: &dyn signature::RsaEncoding = &RSA_PKCS1_SHA256;
    key.sign(padding, &SystemRandom::new(), text.as_bytes(), &mut proof)
        .unwrap();
    proof
}
