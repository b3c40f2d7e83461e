//! Bodies of calls.

use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// A body in JSON, whatever its type says.
#[derive(Debug)]
pub(super) struct Body<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(IntoResponse::into_response)?;
        let value: Value = serde_json::from_slice(&bytes)
            .map_err(|error| unfit("json_invalid", &format!("JSON decode error: {error}")))?;
        let read = serde_json::from_value(value).map(Self);
        read.map_err(|error| unfit("value_error", &error.to_string()))
    }
}

fn unfit(kind: &str, message: &str) -> Response {
    let problem = json!({ "type": kind, "loc": ["body"], "msg": message });
    (
        StatusCode::UNPROCESSABLE_ENTITY,
        Json(json!({ "detail": [problem] })),
    )
        .into_response()
}
