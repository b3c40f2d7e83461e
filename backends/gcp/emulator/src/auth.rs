//! Who asks: tokens for keys of service accounts and for logins, and those of the metadata server.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, StatusCode};
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use rustls::SignatureScheme;
use rustls::crypto::ring::default_provider;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{AUDIENCE, CLIENT_SECRET, EMAIL, Gcp, KEY_ID, LIFETIME, REFRESH_TOKEN, SUBJECT_TOKEN};

/// The public half of `key.pem` (PKCS#1).
const PUBLIC_KEY: &str = include_str!("../public_key.txt");

const TOKEN_URL: &str = "https://oauth2.googleapis.com/token";

const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";

/// A token that is good for nothing but getting that of a service account.
const FEDERATED: &str = "federated-canary-0f1e2d3c";

/// The clocks of tests begin an hour before it.
const AN_HOUR_LATER: &str = "2023-11-14T23:13:20Z";

impl Gcp {
    /// The token endpoint.
    pub(crate) fn exchange(&self, form: &BTreeMap<String, String>) -> (StatusCode, Value) {
        let field = |name: &str| form.get(name).map_or("", String::as_str);
        let told = match field("grant_type") {
            "urn:ietf:params:oauth:grant-type:jwt-bearer" => is_assertion(field("assertion")),
            "refresh_token" => match (field("client_secret"), field("refresh_token")) {
                (CLIENT_SECRET, REFRESH_TOKEN) => Ok(()),
                (CLIENT_SECRET, _) => Err(("invalid_grant", "Bad Request")),
                _ => Err(("invalid_client", "Unauthorized")),
            },
            _ => Err(("unsupported_grant_type", "Invalid grant_type")),
        };
        match told {
            Ok(()) => (StatusCode::OK, self.issue()),
            Err((error, description)) => {
                let status = match error {
                    "invalid_client" => StatusCode::UNAUTHORIZED,
                    _ => StatusCode::BAD_REQUEST,
                };
                (status, json!({"error": error, "error_description": description}))
            }
        }
    }

    /// The Security Token Service ("Method: token", v1): a token of somebody else for one of Google's.
    pub(crate) fn exchange_foreign(&self, form: &BTreeMap<String, String>) -> (StatusCode, Value) {
        let field = |name: &str| form.get(name).map_or("", String::as_str);
        let refused = |error: &str, description: &str| {
            let told = json!({"error": error, "error_description": description});
            (StatusCode::BAD_REQUEST, told)
        };
        if field("grant_type") != "urn:ietf:params:oauth:grant-type:token-exchange"
            || field("requested_token_type") != "urn:ietf:params:oauth:token-type:access_token"
        {
            return refused("invalid_request", "Invalid grant_type or requested_token_type");
        }
        if field("audience") != AUDIENCE {
            return refused(
                "invalid_target",
                "The target service indicated by the \"audience\" parameters is invalid.",
            );
        }
        if field("subject_token_type") != "urn:ietf:params:oauth:token-type:jwt"
            || field("subject_token") != SUBJECT_TOKEN
        {
            return refused("invalid_grant", "The subject token is not valid.");
        }
        let mut told = self.issue();
        told["issued_token_type"] = "urn:ietf:params:oauth:token-type:access_token".into();
        // It is good for nothing else.
        match field("scope") {
            SCOPE => {}
            "https://www.googleapis.com/auth/iam" => {
                let token = told["access_token"].as_str().unwrap();
                self.lock().tokens.remove(token);
                told["access_token"] = FEDERATED.into();
            }
            _ => return refused("invalid_scope", "Invalid scope"),
        }
        (StatusCode::OK, told)
    }

    /// `generateAccessToken` of IAM credentials.
    pub(crate) fn impersonate(&self, email: &str, headers: &HeaderMap, body: &Value) -> (StatusCode, Value) {
        let bearer = headers.get("authorization").and_then(|value| value.to_str().ok());
        if bearer != Some(&format!("Bearer {FEDERATED}")) {
            let told = json!({"error": {"code": 401, "message": "Request had invalid authentication credentials.", "status": "UNAUTHENTICATED"}});
            return (StatusCode::UNAUTHORIZED, told);
        }
        if email != EMAIL {
            let text =
                "Permission 'iam.serviceAccounts.getAccessToken' denied on resource (or it may not exist).";
            let told = json!({"error": {"code": 403, "message": text, "status": "PERMISSION_DENIED"}});
            return (StatusCode::FORBIDDEN, told);
        }
        if body["scope"] != json!([SCOPE]) || body["lifetime"] != "3600s" {
            let told =
                json!({"error": {"code": 400, "message": "Invalid value.", "status": "INVALID_ARGUMENT"}});
            return (StatusCode::BAD_REQUEST, told);
        }
        (
            StatusCode::OK,
            json!({"accessToken": self.issue()["access_token"], "expireTime": AN_HOUR_LATER}),
        )
    }

    /// A new token, as endpoints for them answer.
    pub(crate) fn issue(&self) -> Value {
        let mut state = self.lock();
        let token = format!("ya29.{}.{}", dstack_backend_kit::CANARY, state.tokens.len());
        state.tokens.insert(token.clone(), Instant::now());
        json!({"access_token": token, "expires_in": LIFETIME.as_secs() - 1, "token_type": "Bearer"})
    }

    pub(crate) fn is_known(&self, headers: &HeaderMap) -> bool {
        let state = self.lock();
        let header = headers.get("authorization").and_then(|value| value.to_str().ok());
        match header.and_then(|value| value.strip_prefix("Bearer ")) {
            Some(token) => state.tokens.get(token).is_some_and(|at| at.elapsed() < LIFETIME),
            None => state.is_open,
        }
    }
}

/// ("Using OAuth 2.0 for Server to Server Applications".)
fn is_assertion(assertion: &str) -> Result<(), (&'static str, &'static str)> {
    const INVALID: (&str, &str) = ("invalid_grant", "Invalid JWT Signature.");
    let parts: Vec<&str> = assertion.split('.').collect();
    let [header, claims, signature] = parts.as_slice() else {
        return Err(INVALID);
    };
    let read = |part: &str| -> Option<Value> {
        serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(part).ok()?).ok()
    };
    let (Some(head), Some(told)) = (read(header), read(claims)) else {
        return Err(INVALID);
    };
    if head["alg"] != "RS256" || head["typ"] != "JWT" || head["kid"] != KEY_ID {
        return Err(INVALID);
    }
    if told["iss"] != EMAIL {
        return Err(("invalid_grant", "Invalid grant: account not found"));
    }
    let (iat, exp) = (told["iat"].as_i64(), told["exp"].as_i64());
    let is_short = iat
        .zip(exp)
        .is_some_and(|(iat, exp)| (1..=3600).contains(&(exp - iat)));
    if told["aud"] != TOKEN_URL || told["scope"] != SCOPE || !is_short {
        return Err((
            "invalid_grant",
            "Invalid JWT: Token must be a short-lived token (60 minutes)",
        ));
    }
    let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).unwrap_or_default();
    let key = BASE64_STANDARD.decode(PUBLIC_KEY.trim()).unwrap();
    let algorithms = default_provider().signature_verification_algorithms;
    let mut of_scheme = algorithms.mapping.iter();
    let of_scheme = of_scheme.find(|(scheme, _)| *scheme == SignatureScheme::RSA_PKCS1_SHA256);
    let text = format!("{header}.{claims}");
    let is_right = |algorithm: &&dyn rustls::pki_types::SignatureVerificationAlgorithm| {
        algorithm
            .verify_signature(&key, text.as_bytes(), &signature)
            .is_ok()
    };
    match of_scheme.unwrap().1.iter().any(is_right) {
        true => Ok(()),
        false => Err(INVALID),
    }
}
