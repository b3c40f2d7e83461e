use std::sync::Arc;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use dstack_http::{Trailers, Transport, TransportError};
use dstack_system::task;
use http::header::RETRY_AFTER;
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::BodyExt as _;
use tower::ServiceExt as _;

use crate::faults::die;
use crate::{Fault, Faults};

/// Carries requests to an emulated cloud in this process.
#[derive(Debug, Clone)]
pub struct EmulatedTransport {
    router: Router,
    faults: Arc<Faults>,
}

impl EmulatedTransport {
    /// To this API.
    pub fn new(router: Router) -> Self {
        Self {
            router,
            faults: Arc::default(),
        }
    }

    /// What happens to requests.
    pub fn faults(&self) -> &Arc<Faults> {
        &self.faults
    }

    async fn carry(router: Router, request: Request<Bytes>) -> Response<Bytes> {
        let (mut parts, body) = request.into_parts();
        // The host is that of the vendor.
        parts.uri = parts
            .uri
            .path_and_query()
            .map_or_else(Uri::default, |path| Uri::from(path.clone()));
        let request = Request::from_parts(parts, Body::from(body));
        // A router has no errors of its own.
        let answer = router.oneshot(request).await.unwrap();
        let (mut parts, body) = answer.into_parts();
        let body = body.collect().await.unwrap();
        if let Some(trailers) = body.trailers() {
            parts.extensions.insert(Trailers(trailers.clone()));
        }
        Response::from_parts(parts, body.to_bytes())
    }
}

#[async_trait]
impl Transport for EmulatedTransport {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, TransportError> {
        if self.faults.is_away(&request.uri().to_string()) {
            return Err(TransportError::Lost("timed out".to_owned()));
        }
        let fault = self.faults.next();
        match fault {
            Some(Fault::NotSent) => return Err(TransportError::NotSent("refused".to_owned())),
            Some(Fault::Lost) => return Err(TransportError::Lost("reset".to_owned())),
            Some(Fault::Refused(status)) => return Ok(answer(status, Bytes::from_static(b"no"))),
            Some(Fault::KilledBefore) => return die().await,
            _ => {}
        }
        let router = self.router.clone();
        if let Some(Fault::Late(late)) = fault {
            // It is on its way, whatever becomes of its caller.
            task::spawn("late request", async move {
                tokio::time::sleep(late).await;
                Self::carry(router, request).await;
            });
            return Err(TransportError::Lost("timed out".to_owned()));
        }
        let carried = Self::carry(router, request).await;
        match fault {
            Some(Fault::AnswerLost) => Err(TransportError::Lost("reset".to_owned())),
            Some(Fault::DoneAndRefused(status)) => Ok(answer(status, Bytes::from_static(b"no"))),
            Some(Fault::SlowAnswer(pause)) => {
                tokio::time::sleep(pause).await;
                Ok(carried)
            }
            Some(Fault::DoneAndBusy) => {
                let text = Bytes::from_static(b"The service is not available: no nodes, no capacity");
                let mut busy = answer(503, text);
                let pause = HeaderValue::from_static("7");
                busy.headers_mut().insert(RETRY_AFTER, pause);
                Ok(busy)
            }
            Some(Fault::Malformed) => {
                let body = carried.body();
                let half = body.slice(..body.len() / 2);
                Ok(answer(carried.status().as_u16(), half))
            }
            Some(Fault::KilledAfter) => die().await,
            _ => Ok(carried),
        }
    }
}

fn answer(status: u16, body: Bytes) -> Response<Bytes> {
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::from_u16(status).unwrap();
    answer
}
