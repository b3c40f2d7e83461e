//! OpenID Connect: discovery, authorization, tokens, keys and user info.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::tokens::{self, Signature};
use crate::{CLIENT_ID, Fault, Grant, Shared, form, is_client};

pub(crate) fn router() -> Router<Arc<Shared>> {
    Router::new()
        .route("/.well-known/openid-configuration", get(describe))
        .route("/authorize", get(authorize))
        .route("/token", post(token))
        .route("/keys", get(keys))
        .route("/userinfo", get(userinfo))
}

async fn describe(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let url = &shared.url;
    Json(json!({
        "issuer": url,
        "authorization_endpoint": format!("{url}/authorize"),
        "token_endpoint": format!("{url}/token"),
        "userinfo_endpoint": format!("{url}/userinfo"),
        "jwks_uri": format!("{url}/keys"),
        "response_types_supported": ["code", "id_token", "code id_token"],
        "subject_types_supported": ["public"],
        // More than anyone should accept.
        "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
        "scopes_supported": ["openid", "email", "profile"],
        "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
        "claims_supported": ["sub", "email", "email_verified", "preferred_username"],
        "code_challenge_methods_supported": ["S256"],
    }))
}

async fn authorize(
    State(shared): State<Arc<Shared>>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let scopes: Vec<&str> = query["scope"].split(' ').collect();
    assert!(
        scopes.contains(&"openid") && query["response_type"] == "code",
        "{query:?}"
    );
    shared.authorize(&query)
}

async fn keys() -> Json<Value> {
    Json(tokens::published())
}

fn refused(status: StatusCode, error: &str) -> Response {
    (
        status,
        Json(json!({"error": error, "error_description": "not so"})),
    )
        .into_response()
}

async fn token(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    let form = form(&body);
    let (id, secret) = credentials(&headers).unwrap_or_default();
    if !is_client(Some(&id), Some(&secret)) || shared.fault() == Some(Fault::UnknownClient) {
        return refused(StatusCode::UNAUTHORIZED, "invalid_client");
    }
    let Some(grant) = shared.redeem(&form) else {
        return refused(StatusCode::BAD_REQUEST, "invalid_grant");
    };
    let id_token = id_token(&shared, &grant);
    Json(json!({
        "access_token": shared.access_token(grant.account), "token_type": "Bearer", "expires_in": 3600,
        "scope": "openid email profile", "id_token": id_token,
    }))
    .into_response()
}

/// Of HTTP Basic, each part percent-encoded (RFC 6749 §2.3.1).
fn credentials(headers: &HeaderMap) -> Option<(String, String)> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let text = String::from_utf8(STANDARD.decode(value.strip_prefix("Basic ")?).ok()?).ok()?;
    let (id, secret) = text.split_once(':')?;
    let unescaped = |part: &str| {
        let pair = format!("x={part}");
        form(pair.as_bytes()).remove("x")
    };
    Some((unescaped(id)?, unescaped(secret)?))
}

fn id_token(shared: &Shared, grant: &Grant) -> String {
    let (fault, now) = (shared.fault(), (shared.now)());
    let mut claims = match shared.lock().thin {
        true => json!({"sub": grant.account["sub"]}),
        false => grant.account.clone(),
    };
    claims["iss"] = json!(if fault == Some(Fault::WrongIssuer) {
        "https://evil.example"
    } else {
        &shared.url
    });
    claims["aud"] = json!(if fault == Some(Fault::WrongAudience) {
        "another-client"
    } else {
        CLIENT_ID
    });
    claims["nonce"] = match fault {
        Some(Fault::WrongNonce) => json!("another"),
        _ => json!(grant.nonce),
    };
    claims["iat"] = json!(now);
    // Long ago, even for a clock that is a little slow.
    claims["exp"] = json!(if fault == Some(Fault::Expired) {
        now - 600
    } else {
        now + 300
    });
    let signed = match fault {
        Some(Fault::ForeignKey) => Signature::Foreign,
        Some(Fault::Unsigned) => Signature::None,
        Some(Fault::SharedSecret) => Signature::SharedSecret,
        _ => Signature::Own,
    };
    tokens::token(&claims, signed)
}

async fn userinfo(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    let Some(mut account) = shared.bearer(&headers) else {
        return refused(StatusCode::UNAUTHORIZED, "invalid_token");
    };
    if shared.fault() == Some(Fault::OtherUserinfo) {
        account["sub"] = json!("somebody-else");
    }
    Json(account).into_response()
}
