//! Models of a project: who may ask them, and which path is which call. `limited` holds calls to the limits of their services.

mod limited;

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use dstack_proxy::models::{Call, Endpoint, ModelApi, Renderer, list};
use dstack_proxy::stats::StatsRegistry;
use dstack_proxy::{Forward, ProxyBody, refusal};
use dstack_system::Random;
use dstack_system::clock::SharedClock;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;

use limited::Limited;

use crate::auth::Auth;
use crate::bounded::{TooLong, bounded};
use crate::sites::Sites;

/// Bytes of a call of a model, which is read as a whole.
const MAX_BODY: u64 = 64 * 1024 * 1024;

/// Answers calls of models.
#[derive(Debug, Clone)]
pub struct Models {
    /// Passes them on.
    pub forward: Arc<dyn Forward>,
    /// Where tokens of answers are counted.
    pub stats: Arc<StatsRegistry>,
    /// Makes prompts of chat templates.
    pub renderer: Renderer,
    /// Tells when an answer was made.
    pub clock: SharedClock,
    /// Chooses among services.
    pub random: Random,
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
    /// The answer to a call of a model of this project, at this path, by whoever is at this address.
    pub async fn answer(
        &self,
        address: IpAddr,
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
            Asked::Model(endpoint) => self.ask(address, project, endpoint, request).await,
        }
    }

    async fn ask(
        &self,
        address: IpAddr,
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
        self.api(address, &head.headers).answer(&routes, call).await
    }

    /// The API of models for whoever is at this address and has sent these headers.
    fn api(&self, address: IpAddr, headers: &HeaderMap) -> ModelApi {
        let limited = Limited {
            forward: Arc::clone(&self.forward),
            sites: Arc::clone(&self.sites),
            address,
            headers: headers.clone(),
        };
        ModelApi::new(
            Arc::new(limited),
            Arc::clone(&self.stats) as _,
            self.renderer.clone(),
            Arc::clone(&self.clock),
            self.random.clone(),
        )
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
