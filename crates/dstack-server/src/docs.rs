//! The OpenAPI document, and a page that shows it.

use std::sync::LazyLock;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use axum::routing::get;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dstack_api::openapi;
use dstack_compute::config::BackendConfig;
use dstack_model::schema::Schema;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::error::{json_bytes, text_response};
use crate::version::ClientVersion;

static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| document().to_string().into());
static PAGE: LazyLock<Bytes> = LazyLock::new(|| openapi::page::html(&document()).into());
/// Nothing but the page's own style.
static POLICY: LazyLock<Option<HeaderValue>> = LazyLock::new(|| {
    let hash = STANDARD.encode(Sha256::digest(openapi::page::STYLE));
    let policy =
        format!("default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; frame-ancestors 'self'");
    HeaderValue::from_str(&policy).ok()
});

/// The OpenAPI document of this server.
pub fn document() -> Value {
    openapi::document(BackendConfig::schema)
}

/// `/openapi.json`, `/api/docs`, `/redoc`.
pub(crate) fn router() -> Router {
    Router::new()
        .route("/openapi.json", get(json))
        .route("/api/docs", get(page))
        .route("/redoc", get(page))
}

async fn json(headers: HeaderMap) -> Response<Body> {
    match ClientVersion::from_headers(&headers) {
        Ok(_) => json_bytes(StatusCode::OK, DOCUMENT.clone()),
        Err(refused) => *refused,
    }
}

async fn page(headers: HeaderMap) -> Response<Body> {
    if let Err(refused) = ClientVersion::from_headers(&headers) {
        return *refused;
    }
    let mut response = text_response(StatusCode::OK, "text/html; charset=utf-8", PAGE.clone());
    if let Some(policy) = POLICY.clone() {
        response
            .headers_mut()
            .insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    response
}
