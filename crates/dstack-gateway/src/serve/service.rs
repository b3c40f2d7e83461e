//! A request to a service: what is checked, in nginx's order, before a replica gets it.

use std::sync::Arc;

use dstack_proxy::{Paths, ProxyBody, refusal};
use http::header::{AUTHORIZATION, CONTENT_LENGTH};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};

use super::{Front, Peer, origin, path};
use crate::bounded::{TooLong, bounded};
use crate::refusals::{too_long, too_many};
use crate::sites::ServiceSite;

/// The answer of a service.
pub(super) async fn answer(
    front: &Front,
    peer: Peer,
    site: &Arc<ServiceSite>,
    request: Request<ProxyBody>,
) -> Response<ProxyBody> {
    if !site.any_origin {
        return checked(front, peer, site, request).await;
    }
    if request.method() == Method::OPTIONS {
        return origin::preflight();
    }
    let mut response = checked(front, peer, site, request).await;
    origin::allow_any(response.headers_mut());
    response
}

async fn checked(
    front: &Front,
    peer: Peer,
    site: &ServiceSite,
    request: Request<ProxyBody>,
) -> Response<ProxyBody> {
    let client = front.client(peer);
    let (mut head, body) = request.into_parts();
    let path = path::normal(head.uri.path());
    if !site.admits(&path, front.address(peer, &head.headers), &head.headers) {
        return too_many();
    }
    if site.service.auth {
        let verdict = front.auth.check(&site.service.project, &head.headers).await;
        if let Err((status, said)) = verdict.admit() {
            return refusal(status, said);
        }
        // The token let its bearer in here, and is nobody else's affair.
        head.headers.remove(AUTHORIZATION);
    }
    if announced(&head).is_some_and(|length| site.is_too_long(length)) {
        return too_long();
    }
    if site.service.paths == Paths::OfRouter && !path::is_of_router(&path) {
        return refusal(StatusCode::FORBIDDEN, "Path is not allowed for this service");
    }
    head.extensions.insert(client);
    let is_too_long = TooLong::default();
    let body = match site.max_body {
        Some(limit) => bounded(body, limit, is_too_long.clone()),
        None => body,
    };
    let request = Request::from_parts(head, body);
    // Its replicas may have changed while it was asked who may.
    let Some(service) = front.present(&site.service) else {
        return refusal(StatusCode::NOT_FOUND, "Not Found");
    };
    let response = front.forward.forward(&service, request).await;
    match is_too_long.is_so() && response.status().is_client_error() {
        true => too_long(),
        false => response,
    }
}

/// As long as the body is said to be.
fn announced(head: &Parts) -> Option<u64> {
    head.headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}
