//! Object stores: S3 with paths for buckets, and the XML API of Google Cloud Storage. Put, get, head.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use sha2::{Digest, Sha256};

use crate::{Fault, Faults, serve};

/// How requests say who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Signed, with Signature Version 4.
    S3,
    /// Not at all: as an emulator.
    Gcs,
}

/// The emulator of an object store.
#[derive(Debug, Clone)]
pub struct Objects {
    /// Base URL at which it is reached.
    pub url: String,
    /// Faults of the next calls, in order.
    pub faults: Faults,
    state: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    kind: Kind,
    bucket: String,
    faults: Faults,
    objects: Mutex<BTreeMap<String, Bytes>>,
}

impl Objects {
    /// With one bucket.
    pub async fn start(kind: Kind, bucket: &str) -> Self {
        let faults = Faults::default();
        let state = Arc::new(Shared {
            kind,
            bucket: bucket.to_owned(),
            faults: faults.clone(),
            objects: Mutex::default(),
        });
        let router = Router::new()
            .route("/{bucket}/{*key}", any(answer))
            .layer(axum::extract::DefaultBodyLimit::disable())
            .with_state(Arc::clone(&state));
        Self {
            url: format!("http://{}", serve(router).await),
            faults,
            state,
        }
    }

    /// Keys and contents.
    pub fn all(&self) -> BTreeMap<String, Bytes> {
        self.state.objects.lock().unwrap().clone()
    }

    /// Deletes all objects.
    pub fn clear(&self) {
        self.state.objects.lock().unwrap().clear();
    }
}

fn refusal(status: StatusCode, code: &str) -> Response {
    let body = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>{code}</Message></Error>"
    );
    (status, [(header::CONTENT_TYPE, "application/xml")], body).into_response()
}

impl Kind {
    fn accepts(self, headers: &HeaderMap, body: &[u8]) -> bool {
        let text = |name: &str| {
            headers
                .get(name)
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
        };
        match self {
            Self::Gcs => ["", "Bearer", "Bearer "].contains(&text("authorization")),
            Self::S3 => {
                let digest = text("x-amz-content-sha256");
                text("authorization").starts_with("AWS4-HMAC-SHA256 Credential=")
                    && text("authorization").contains("/s3/aws4_request")
                    && (digest == "UNSIGNED-PAYLOAD" || digest == hex::encode(Sha256::digest(body)))
            }
        }
    }
}

async fn answer(
    State(state): State<Arc<Shared>>,
    method: Method,
    Path((bucket, key)): Path<(String, String)>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if !state.kind.accepts(&headers, &body) {
        return refusal(StatusCode::FORBIDDEN, "AccessDenied");
    }
    let fault = state.faults.next();
    match fault {
        Some(Fault::Throttled) => return refusal(StatusCode::SERVICE_UNAVAILABLE, "SlowDown"),
        Some(Fault::Unavailable) => return refusal(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable"),
        Some(Fault::Denied) => return refusal(StatusCode::FORBIDDEN, "AccessDenied"),
        Some(Fault::AnswerLost) | None => {}
    }
    if bucket != state.bucket {
        return refusal(StatusCode::NOT_FOUND, "NoSuchBucket");
    }
    let mut objects = state.objects.lock().unwrap();
    let tag = |content: &Bytes| format!("\"{}\"", hex::encode(Sha256::digest(content)));
    if method == Method::PUT {
        let tag = tag(&body);
        objects.insert(key, body);
        return match fault {
            Some(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            None => [(header::ETAG, tag)].into_response(),
        };
    }
    let Some(content) = objects.get(&key) else {
        return refusal(StatusCode::NOT_FOUND, "NoSuchKey");
    };
    let head = [
        (header::ETAG, tag(content)),
        (header::LAST_MODIFIED, "Sat, 21 Nov 2026 12:00:00 GMT".to_owned()),
    ];
    match method {
        Method::GET => (head, content.clone()).into_response(),
        Method::HEAD => (head, [(header::CONTENT_LENGTH, content.len())]).into_response(),
        _ => refusal(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
    }
}
