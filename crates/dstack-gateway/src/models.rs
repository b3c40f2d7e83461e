//! Models of a project: who may ask them, and which path is which call.

use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use dstack_proxy::models::{Call, Endpoint, ModelApi, list};
use dstack_proxy::{ProxyBody, refusal};
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;

use crate::auth::Auth;
use crate::bounded::{TooLong, bounded};
use crate::sites::Sites;

/// Bytes of a call of a model, which is read as a whole.
const MAX_BODY: u64 = 64 * 1024 * 1024;

/// Answers calls of models.
#[derive(Debug, Clone)]
pub struct Models {
    /// Passes them on.
    pub api: ModelApi,
    /// Who may ask.
    pub auth: Arc<Auth>,
    /// The services with their models.
    pub sites: Arc<ArcSwap<Sites>>,
}

/// What is asked for.
enum Asked {
    List,
    Model(Endpoint),
}

impl Models {
    /// The answer to a call of a model of this project, at this path.
    pub async fn answer(
        &self,
        project: &str,
        path: &str,
        request: Request<ProxyBody>,
    ) -> Response<ProxyBody> {
        let asked = match asked(request.method(), path) {
            Ok(asked) => asked,
            Err(status) => return refusal(status, status.canonical_reason().unwrap_or_default()),
        };
        let verdict = self.auth.check(project, request.headers()).await;
        if let Err((status, said)) = verdict.admit() {
            return refusal(status, said);
        }
        match asked {
            Asked::List => list(&self.sites.load().routes, project),
            Asked::Model(endpoint) => self.ask(project, endpoint, request).await,
        }
    }

    async fn ask(
        &self,
        project: &str,
        endpoint: Endpoint,
        request: Request<ProxyBody>,
    ) -> Response<ProxyBody> {
        let (head, body) = request.into_parts();
        let body = match whole(body).await {
            Ok(body) => body,
            Err(status) => return refusal(status, status.canonical_reason().unwrap_or_default()),
        };
        let call = Call {
            project,
            endpoint,
            headers: &head.headers,
            body,
        };
        let routes = || Arc::clone(&self.sites.load().routes);
        self.api.answer(&routes, call).await
    }
}

async fn whole(body: ProxyBody) -> Result<Bytes, StatusCode> {
    let too_long = TooLong::default();
    match bounded(body, MAX_BODY, too_long.clone()).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(_) if too_long.is_so() => Err(StatusCode::PAYLOAD_TOO_LARGE),
        Err(_) => Err(StatusCode::BAD_REQUEST),
    }
}

fn asked(method: &Method, path: &str) -> Result<Asked, StatusCode> {
    let (wanted, asked) = if path == "/models" {
        (Method::GET, Asked::List)
    } else {
        let endpoint = Endpoint::ALL.into_iter().find(|endpoint| endpoint.path() == path);
        (Method::POST, Asked::Model(endpoint.ok_or(StatusCode::NOT_FOUND)?))
    };
    match *method == wanted {
        true => Ok(asked),
        false => Err(StatusCode::METHOD_NOT_ALLOWED),
    }
}
