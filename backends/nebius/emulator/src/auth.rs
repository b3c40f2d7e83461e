use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rustls::SignatureScheme;
use rustls::crypto::ring::default_provider;
use serde_json::Value;

/// The public half of `key.pem` (PKCS#1).
const PUBLIC_KEY: &str = "\
    3082010a0282010100f01234313ee97cc4c9db4407cede8b8a50b55d7d5ca373260e36d24006a687db5c9e7cb43bf94541934d932addff\
    e0fb5e0cc30abf403431aedea3265fb2400406d249e9aa480322412025e1318498e26710b26fd2d22e549515d8f532f1748aff541002d3\
    cdf6b356112e2d0261a2f0a27dc980a18e8e928e17f805905daa5c74d3a9b39dec4bc301be6cf295273a3d33e916f305174560f11b6384\
    1242b8c2ea87964dacf8a63637a241a69667ebc88facc71ae46978129738afcf9c43eae05b932bf1e1ad77169f8be4787853a15c456bba\
    e634ea88f8dd56407c6a0f21f0802559664137f77c62528faa820f42a98fd1cee4469e9c932767937e7dc1c5930203010001\
    ";

/// For whom the proof is.
const AUDIENCE: &str = "token-service.iam.new.nebiuscloud.net";

/// Whether the text is a JWT of this service account, signed by the key of this id.
pub(crate) fn is_signed(jwt: &str, account: &str, key_id: &str) -> bool {
    let parts: Vec<&str> = jwt.split('.').collect();
    let [header, claims, signature] = parts.as_slice() else {
        return false;
    };
    let read = |part: &str| -> Value {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(part).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    };
    let signed = format!("{header}.{claims}");
    let (header, claims) = (read(header), read(claims));
    let lifetime = claims["exp"].as_i64().unwrap_or(0) - claims["iat"].as_i64().unwrap_or(0);
    let is_right = header["alg"] == "RS256"
        && header["kid"] == key_id
        && claims["iss"] == account
        && claims["sub"] == account
        && claims["aud"] == AUDIENCE
        && (1..=3600).contains(&lifetime);
    if !is_right {
        return false;
    }
    let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).unwrap_or_default();
    let key = hex::decode(PUBLIC_KEY.trim()).unwrap();
    let algorithms = default_provider().signature_verification_algorithms;
    let of_scheme = algorithms
        .mapping
        .iter()
        .find(|(scheme, _)| *scheme == SignatureScheme::RSA_PKCS1_SHA256);
    let (_, algorithms) = of_scheme.unwrap();
    algorithms.iter().any(|algorithm| {
        algorithm
            .verify_signature(&key, signed.as_bytes(), &signature)
            .is_ok()
    })
}
