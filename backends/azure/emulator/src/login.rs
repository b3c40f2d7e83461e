//! Tokens: of Microsoft Entra, and of the metadata service of a machine.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use dstack_backend_kit::CANARY;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{Azure, CLIENT, Refusal, TENANT};

/// How long a token holds.
const LIFETIME: Duration = Duration::from_secs(3599);

/// Calls of a kind that Azure Resource Manager takes of a subscription, and how many more in a second ("Understand how Azure Resource
/// Manager throttles requests").
const BUCKETS: &[(&str, f64, f64)] = &[
    ("GET", 250.0, 25.0),
    ("PUT", 200.0, 10.0),
    ("DELETE", 200.0, 10.0),
];

/// Calls that are left.
#[derive(Debug)]
pub(crate) struct Bucket {
    left: f64,
    at: Instant,
}

impl Azure {
    /// `None`: the call is none for a token.
    pub(crate) fn login(
        &self,
        method: &Method,
        path: &str,
        query: &BTreeMap<String, String>,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Option<Response> {
        let has = |name: &str, value: &str| headers.get(name).is_some_and(|found| found == value);
        if path == "/metadata/identity/oauth2/token" {
            let is_asked = has("metadata", "true")
                && query
                    .get("api-version")
                    .is_some_and(|version| version == "2018-02-01")
                && query
                    .get("resource")
                    .is_some_and(|resource| resource == "https://management.azure.com/");
            if method != Method::GET || !is_asked || self.lock().has_no_identity {
                return Some(refused(
                    StatusCode::BAD_REQUEST,
                    "invalid_request",
                    "Identity not found",
                ));
            }
            let mut told = self.grant();
            told["expires_in"] = told["expires_in"].to_string().into();
            return Some(Json(told).into_response());
        }
        let tenant = path.strip_prefix('/')?.strip_suffix("/oauth2/v2.0/token")?;
        let fields: BTreeMap<String, String> = url::form_urlencoded::parse(body).into_owned().collect();
        let field = |name: &str| fields.get(name).map(String::as_str).unwrap_or_default();
        let is_form = headers
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/x-www-form-urlencoded"));
        if method != Method::POST || !is_form || field("grant_type") != "client_credentials" {
            return Some(refused(
                StatusCode::BAD_REQUEST,
                "invalid_request",
                "AADSTS900144: The request body is wrong.",
            ));
        }
        Some(match () {
            () if tenant != TENANT => refused(
                StatusCode::BAD_REQUEST,
                "invalid_request",
                "AADSTS90002: Tenant not found.\r\nTrace ID: 1",
            ),
            () if field("client_id") != CLIENT => refused(
                StatusCode::BAD_REQUEST,
                "unauthorized_client",
                "AADSTS700016: Application was not found in the directory.",
            ),
            () if field("client_secret") != CANARY => refused(
                StatusCode::UNAUTHORIZED,
                "invalid_client",
                "AADSTS7000215: Invalid client secret provided.",
            ),
            () if field("scope") != "https://management.azure.com/.default" => refused(
                StatusCode::BAD_REQUEST,
                "invalid_scope",
                "AADSTS70011: The scope is not valid.",
            ),
            () => Json(self.grant()).into_response(),
        })
    }

    fn grant(&self) -> Value {
        let mut state = self.lock();
        state.logins += 1;
        let token = format!("{CANARY}.{}", state.logins);
        state.tokens.insert(token.clone(), Instant::now() + LIFETIME);
        json!({"token_type": "Bearer", "access_token": token, "expires_in": LIFETIME.as_secs()})
    }

    pub(crate) fn is_logged_in(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let token = headers
            .get(AUTHORIZATION)
            .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        let state = self.lock();
        let refused = |code: &str| {
            let message = "The access token is not good.".to_owned();
            Err((StatusCode::UNAUTHORIZED, code.to_owned(), message))
        };
        match token.and_then(|token| state.tokens.get(token)) {
            Some(end) if *end > Instant::now() => Ok(()),
            Some(_) => refused("ExpiredAuthenticationToken"),
            None => refused("InvalidAuthenticationToken"),
        }
    }

    /// For how many seconds no call is taken.
    pub(crate) fn is_busy(&self, method: &Method) -> Option<u64> {
        let mut state = self.lock();
        let until = state.busy_until.unwrap_or_else(Instant::now);
        let left = until.saturating_duration_since(Instant::now());
        let kind = BUCKETS.iter().find(|(kind, ..)| *kind == method.as_str());
        let (kind, most, rate) = kind.copied().unwrap_or(BUCKETS[0]);
        let bucket = state.buckets.entry(kind).or_insert_with(|| Bucket {
            left: most,
            at: Instant::now(),
        });
        let refilled = bucket.left + bucket.at.elapsed().as_secs_f64() * rate;
        bucket.left = refilled.min(most);
        bucket.at = Instant::now();
        if left.is_zero() && bucket.left >= 1.0 {
            bucket.left -= 1.0;
            return None;
        }
        state.held_off += 1;
        Some(left.as_secs() + 1)
    }
}

fn refused(status: StatusCode, error: &str, description: &str) -> Response {
    (
        status,
        Json(json!({"error": error, "error_description": description})),
    )
        .into_response()
}
