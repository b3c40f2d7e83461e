//! Whether a request is signed by the account's key or that of a session (Signature Version 4), and for which service and region.

use axum::http::{HeaderMap, Uri};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

/// What a signature is for, and by which key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scope {
    pub(crate) key_id: String,
    pub(crate) region: String,
    pub(crate) service: String,
}

/// Why a request is not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    Missing,
    Incomplete,
    UnknownKey(Scope),
    WrongSignature(Scope),
    /// The session is over.
    Expired(Scope),
}

/// A key of the account, or of a session.
#[derive(Debug, Clone)]
pub(crate) struct Key {
    pub(crate) id: String,
    pub(crate) secret: String,
    /// Of a session: without it, nobody knows the key.
    pub(crate) session_token: Option<String>,
    pub(crate) is_over: bool,
}

pub(crate) fn check(keys: &[Key], uri: &Uri, headers: &HeaderMap, body: &[u8]) -> Result<Scope, Refusal> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let authorization = header("authorization").ok_or(Refusal::Missing)?;
    let rest = authorization
        .strip_prefix("AWS4-HMAC-SHA256 ")
        .ok_or(Refusal::Incomplete)?;
    let part = |name: &str| {
        let mut parts = rest.split(',').map(str::trim);
        parts.find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
    };
    let parts = (part("Credential"), part("SignedHeaders"), part("Signature"));
    let (Some(credential), Some(signed), Some(signature)) = parts else {
        return Err(Refusal::Incomplete);
    };
    let words: Vec<&str> = credential.split('/').collect();
    let [id, date, region, service, "aws4_request"] = words.as_slice() else {
        return Err(Refusal::Incomplete);
    };
    let scope = Scope {
        key_id: (*id).to_owned(),
        region: (*region).to_owned(),
        service: (*service).to_owned(),
    };
    let Some(key) = keys.iter().find(|key| key.id == *id) else {
        return Err(Refusal::UnknownKey(scope));
    };
    let time = header("x-amz-date").ok_or(Refusal::Incomplete)?;
    let names: Vec<&str> = signed.split(';').collect();
    if let Some(token) = &key.session_token {
        let is_there =
            header("x-amz-security-token") == Some(token) && names.contains(&"x-amz-security-token");
        if !is_there {
            return Err(Refusal::UnknownKey(scope));
        }
    }
    if !names.contains(&"host") || !names.contains(&"x-amz-date") || !time.starts_with(date) {
        return Err(Refusal::Incomplete);
    }
    let mut lines = String::new();
    for name in &names {
        let value = header(name).ok_or(Refusal::Incomplete)?;
        lines.push_str(&format!("{name}:{}\n", value.trim()));
    }
    let canonical = format!(
        "POST\n{}\n{}\n{lines}\n{signed}\n{}",
        uri.path(),
        uri.query().unwrap_or_default(),
        hex::encode(Sha256::digest(body))
    );
    let digest = hex::encode(Sha256::digest(canonical));
    let text = format!("AWS4-HMAC-SHA256\n{time}\n{date}/{region}/{service}/aws4_request\n{digest}");
    let mut made = format!("AWS4{}", key.secret).into_bytes();
    for word in [date, region, service, &"aws4_request", &text.as_str()] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&made).unwrap();
        mac.update(word.as_bytes());
        made = mac.finalize().into_bytes().to_vec();
    }
    match hex::encode(made) == signature {
        false => Err(Refusal::WrongSignature(scope)),
        true if key.is_over => Err(Refusal::Expired(scope)),
        true => Ok(scope),
    }
}
