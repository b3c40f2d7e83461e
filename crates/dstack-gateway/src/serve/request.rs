//! Which site a request is for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use dstack_proxy::{ProxyBody, Scheme, body, refusal};
use dstack_units::path::GATEWAY_HEALTH_PATH;
use http::header::{CONTENT_TYPE, HeaderName, LOCATION};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode};

use super::{Front, Peer, head, origin, service};
use crate::sites::{ModelsSite, Site};

/// Where certificate authorities ask whether a host name leads here.
const CHALLENGES: &str = "/.well-known/acme-challenge/";

const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

impl Front {
    /// The answer to a request.
    pub(super) async fn answer(&self, peer: Peer, request: Request<ProxyBody>) -> Response<ProxyBody> {
        let (mut head, body) = request.into_parts();
        let balancer = self.balancer.as_ref();
        let peer = balancer.map_or(peer, |balancer| balancer.client(peer, &head.headers));
        if let Some(answer) = self.challenge(&head) {
            return answer;
        }
        if head.uri.path() == GATEWAY_HEALTH_PATH {
            return health();
        }
        let Some(host) = head::host(&head) else {
            return refusal(StatusCode::BAD_REQUEST, "One host name is needed");
        };
        let Some(site) = self.sites.load().find(&host).cloned() else {
            return refusal(StatusCode::NOT_FOUND, "Not Found");
        };
        if let Some(moved) = self.to_https(peer, &site, &host, &head) {
            return moved;
        }
        head::to_http1(&mut head);
        match site {
            Site::Service(site) => service::answer(self, peer, &site, Request::from_parts(head, body)).await,
            Site::Models(site) => self.of_models(peer, &site, Request::from_parts(head, body)).await,
        }
    }

    fn challenge(&self, head: &Parts) -> Option<Response<ProxyBody>> {
        let token = head.uri.path().strip_prefix(CHALLENGES)?;
        let answer = self.challenges.answer(token)?;
        let mut response = Response::new(body::full(answer));
        let kind = HeaderValue::from_static("application/octet-stream");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        Some(response)
    }

    /// Where the site is over TLS, unless it is spoken already, or somebody on this machine asks.
    fn to_https(&self, peer: Peer, site: &Site, host: &str, head: &Parts) -> Option<Response<ProxyBody>> {
        if !site.https() || self.is_encrypted(peer, head) || is_here(peer) {
            return None;
        }
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let port = match self.https_port {
            443 => String::new(),
            port => format!(":{port}"),
        };
        let location = HeaderValue::try_from(format!("https://{host}{port}{path}")).ok()?;
        let mut response = refusal(StatusCode::MOVED_PERMANENTLY, "Moved Permanently");
        response.headers_mut().insert(LOCATION, location);
        Some(response)
    }

    /// Whether the client speaks TLS, with the gateway or with a trusted proxy before it.
    fn is_encrypted(&self, peer: Peer, head: &Parts) -> bool {
        let says_so = || {
            head.headers
                .get(X_FORWARDED_PROTO)
                .is_some_and(|scheme| scheme == "https")
        };
        peer.scheme == Scheme::Https || (self.trusts(peer.address.to_canonical()) && says_so())
    }

    async fn of_models(
        &self,
        peer: Peer,
        site: &Arc<ModelsSite>,
        request: Request<ProxyBody>,
    ) -> Response<ProxyBody> {
        if request.method() == Method::OPTIONS {
            return origin::preflight();
        }
        let path = request.uri().path().to_owned();
        let address = self.address(peer, request.headers());
        let answered = self.models.answer(address, &site.project, &path, request);
        let mut response = answered.await;
        origin::allow_any(response.headers_mut());
        response
    }
}

/// That the gateway lives. A service cannot have this path.
fn health() -> Response<ProxyBody> {
    let mut response = Response::new(body::full("ok\n"));
    let kind = HeaderValue::from_static("text/plain");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Whether somebody on this machine asks.
fn is_here(peer: Peer) -> bool {
    let here = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    here.contains(&peer.address.to_canonical())
}
