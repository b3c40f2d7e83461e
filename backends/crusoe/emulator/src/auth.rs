use axum::http::{HeaderMap, Method};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Whether the account's key has signed the request: path, sorted query, method and time.
pub(crate) fn is_signed(
    access_key: &str,
    secret_key: &str,
    method: &Method,
    path: &str,
    query: &[(String, String)],
    headers: &HeaderMap,
) -> bool {
    let text = |name: &str| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    };
    let time = text("x-crusoe-timestamp");
    // `2026-10-01T12:00:00+00:00`
    let is_time = time.len() == 25 && time.ends_with("+00:00") && time.as_bytes()[10] == b'T';
    let mut query = query.to_vec();
    query.sort();
    let query: Vec<String> = query
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let signed = format!("{path}\n{}\n{method}\n{time}\n", query.join("&"));
    let secret = BASE64_URL_SAFE_NO_PAD.decode(secret_key).unwrap();
    let mut mac = Hmac::<Sha256>::new_from_slice(&secret).unwrap();
    mac.update(signed.as_bytes());
    let signature = BASE64_URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes());
    is_time && text("authorization") == format!("Bearer 1.0:{access_key}:{signature}")
}
