//! `/`, the OpenAPI document, and a page that shows it.

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use axum::routing::get;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dstack_api::openapi;
use dstack_compute::config::BackendConfig;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::error::{json_bytes, text_response};
use crate::state::AppState;
use crate::version::ClientVersion;

static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| document().to_string().into());
static PAGE: LazyLock<Bytes> = LazyLock::new(|| openapi::page::html(&document()).into());
static ROOT: LazyLock<Bytes> = LazyLock::new(|| root_page().into());
/// Nothing but the page's own style.
static POLICY: LazyLock<Option<HeaderValue>> = LazyLock::new(|| {
    let hash = STANDARD.encode(Sha256::digest(openapi::page::STYLE));
    let policy =
        format!("default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; frame-ancestors 'self'");
    HeaderValue::from_str(&policy).ok()
});

/// What stands at `/` in a build without the web page.
fn root_page() -> String {
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>dstack</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{}</style></head><body>\
         <h1>dstack server {}</h1><p>The server runs. It was built without its web page: <code>cargo xtask ui</code> builds that (it needs \
         node), then build the server again. The command line <code>dstack</code> shows the same.</p><ul>\
         <li><code>dstack project add --name main --url URL --token TOKEN</code> connects your command line to it</li>\
         <li><code>dstack apply</code> runs what the <code>.dstack.yml</code> in a folder describes</li>\
         <li><code>dstack ps</code>, <code>dstack logs NAME</code> and <code>dstack fleet</code> show what runs, and where</li>\
         </ul><p><a href=\"/api/docs\">Its API</a></p></body></html>",
        openapi::page::STYLE,
        dstack_api::VERSION,
    )
}

/// The OpenAPI document of this server.
pub fn document() -> Value {
    openapi::document(BackendConfig::documented)
}

/// `/`, `/openapi.json`, `/api/docs`, `/redoc`.
pub(crate) fn router(state: Arc<AppState>) -> Router {
    Router::new()
        .route("/", get(root))
        .route("/openapi.json", get(json))
        .route("/api/docs", get(page))
        .route("/redoc", get(page))
        .with_state(state)
}

async fn json(headers: HeaderMap) -> Response<Body> {
    match ClientVersion::from_headers(&headers) {
        Ok(_) => json_bytes(StatusCode::OK, DOCUMENT.clone()),
        Err(refused) => *refused,
    }
}

/// What this is, and where to go from here: a page for browsers, JSON for programs.
async fn root(State(state): State<Arc<AppState>>, headers: HeaderMap) -> Response<Body> {
    let accepts = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    if accepts.is_some_and(|kinds| kinds.contains("text/html")) {
        return state.edge.site.page("/").unwrap_or_else(|| html(ROOT.clone()));
    }
    let places = serde_json::json!({
        "server": "dstack", "version": dstack_api::VERSION, "docs": "/api/docs", "openapi": "/openapi.json",
        "healthcheck": "/healthcheck",
    });
    json_bytes(StatusCode::OK, places.to_string())
}

async fn page(headers: HeaderMap) -> Response<Body> {
    match ClientVersion::from_headers(&headers) {
        Ok(_) => html(PAGE.clone()),
        Err(refused) => *refused,
    }
}

fn html(page: Bytes) -> Response<Body> {
    let mut response = text_response(StatusCode::OK, "text/html; charset=utf-8", page);
    if let Some(policy) = POLICY.clone() {
        response
            .headers_mut()
            .insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    response
}
