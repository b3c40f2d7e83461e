//! GitHub's OAuth for applications, and the part of its REST API that says who somebody is.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::{Fault, Shared, form, is_client};

pub(crate) fn router() -> Router<Arc<Shared>> {
    Router::new()
        .route("/login/oauth/authorize", get(authorize))
        .route("/login/oauth/access_token", post(access_token))
        .route("/api/v3/user", get(user))
        .route("/api/v3/user/emails", get(emails))
        .route("/api/v3/user/memberships/orgs/{org}", get(membership))
}

async fn authorize(
    State(shared): State<Arc<Shared>>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let scopes: Vec<&str> = query["scope"].split(' ').collect();
    assert!(scopes.contains(&"user:email"), "{query:?}");
    shared.authorize(&query)
}

/// Refusals come with status 200.
async fn access_token(State(shared): State<Arc<Shared>>, body: Bytes) -> Json<Value> {
    let form = form(&body);
    let text = |name: &str| form.get(name).map(String::as_str);
    let refused = |error: &str| {
        Json(json!({"error": error, "error_description": "not so", "error_uri": "https://docs"}))
    };
    if !is_client(text("client_id"), text("client_secret")) || shared.fault() == Some(Fault::UnknownClient) {
        return refused("incorrect_client_credentials");
    }
    match shared.redeem(&form) {
        None => refused("bad_verification_code"),
        Some(grant) => Json(json!({
            "access_token": shared.access_token(grant.account), "token_type": "bearer",
            "scope": "read:org,read:user,user:email",
        })),
    }
}

fn account(shared: &Shared, headers: &HeaderMap) -> Result<Value, Response> {
    // The real one refuses programs without a name.
    assert!(headers.contains_key("user-agent"));
    let denied = || {
        (
            StatusCode::UNAUTHORIZED,
            Json(json!({"message": "Bad credentials"})),
        )
            .into_response()
    };
    shared.bearer(headers).ok_or_else(denied)
}

async fn user(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Result<Json<Value>, Response> {
    let account = account(&shared, &headers)?;
    Ok(Json(json!({
        "id": account["id"], "login": account["login"], "type": "User", "email": null, "name": null,
    })))
}

async fn emails(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Result<Json<Value>, Response> {
    let account = account(&shared, &headers)?;
    Ok(Json(account["emails"].clone()))
}

async fn membership(
    State(shared): State<Arc<Shared>>,
    Path(org): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Response> {
    let account = account(&shared, &headers)?;
    Ok(match &account["orgs"][&org] {
        Value::Null => (StatusCode::NOT_FOUND, Json(json!({"message": "Not Found"}))).into_response(),
        state => Json(json!({
            "state": state, "role": "member", "organization": {"login": org, "id": 1},
        }))
        .into_response(),
    })
}
