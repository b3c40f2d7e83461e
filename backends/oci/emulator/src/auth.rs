use axum::http::{HeaderMap, Method};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rustls::SignatureScheme;
use rustls::crypto::ring::default_provider;
use sha2::{Digest as _, Sha256};

/// The public half of `key.pem` (PKCS#1).
const PUBLIC_KEY: &str = "\
    3082010a0282010100c86ee0b3ccabb5b106806492d9ebbe8e8f578275afa351d74ce28578c2c62eb03f02fd9f8033adbce2e9eb12d813\
    1b266a9303ddbe1c1e792935037ee2e47a21db62ed2e8a17c24ee1b3f569592ad753f7542b1cb7b083a5b4a2015ff8ce3af0a0cb444577\
    fbf4bca0269ff00f9126a77035e6d232cec6928aa008c39d9f42e2c115609ddc52e10cb346b613b7c5619dd99fcca0d391d5e5b804a5d5\
    65d88453a098542ba88466fe1540f292050ff7d209cd6e8eb48795f12a2a8d1d9c4f0b83267c573f5b6ee969cc93d07bfd52d5e5fad295\
    9a1759d195ea23b917d3a9e03c6baed964055cea6497f0135355c6b129ee75cea572000c36326fa21cc943c98f0203010001\
    ";

/// Whether the request is signed as the documentation says, by the user of this id (`tenancy/user/fingerprint`).
pub(crate) fn is_signed(
    key_id: &str,
    method: &Method,
    target: &str,
    headers: &HeaderMap,
    body: &[u8],
) -> bool {
    let text = |name: &str| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    };
    let authorization = text("authorization")
        .strip_prefix("Signature ")
        .unwrap_or_default();
    let field = |name: &str| {
        let fields = authorization
            .split(',')
            .map(|field| field.split_once('=').unwrap_or_default());
        let mut found = fields.filter(|(field, _)| *field == name);
        found.next().map_or("", |(_, value)| value.trim_matches('"'))
    };
    let names: Vec<&str> = field("headers").split(' ').collect();
    let has_body = matches!(*method, Method::POST | Method::PUT);
    let required: &[&str] = match has_body {
        true => &[
            "date",
            "(request-target)",
            "host",
            "content-length",
            "content-type",
            "x-content-sha256",
        ],
        false => &["date", "(request-target)", "host"],
    };
    let digest = BASE64_STANDARD.encode(Sha256::digest(body));
    let is_body =
        !has_body || (text("x-content-sha256") == digest && text("content-length") == body.len().to_string());
    if field("keyId") != key_id || field("algorithm") != "rsa-sha256" || field("version") != "1" || !is_body {
        return false;
    }
    if !required.iter().all(|name| names.contains(name)) || !text("date").ends_with(" GMT") {
        return false;
    }
    let lines: Vec<String> = names
        .iter()
        .map(|name| match *name {
            "(request-target)" => format!("{name}: {} {target}", method.as_str().to_ascii_lowercase()),
            name => format!("{name}: {}", text(name)),
        })
        .collect();
    let signature = BASE64_STANDARD.decode(field("signature")).unwrap_or_default();
    let key = hex::decode(PUBLIC_KEY.trim()).unwrap();
    let algorithms = default_provider().signature_verification_algorithms;
    let of_scheme = algorithms
        .mapping
        .iter()
        .find(|(scheme, _)| *scheme == SignatureScheme::RSA_PKCS1_SHA256);
    let (_, algorithms) = of_scheme.unwrap();
    let is_right = |algorithm: &&dyn rustls::pki_types::SignatureVerificationAlgorithm| {
        algorithm
            .verify_signature(&key, lines.join("\n").as_bytes(), &signature)
            .is_ok()
    };
    algorithms.iter().any(is_right)
}
