//! Calls of models are requests to services, and have their limits.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use dstack_proxy::{Forward, ProxyBody, Service};
use http::{HeaderMap, Request, Response};
use hyper::body::Body as _;

use crate::refusals::{too_long, too_many};
use crate::sites::Sites;

/// Passes on what one client asks, as often and as much as each service allows.
#[derive(Debug)]
pub(super) struct Limited {
    pub(super) forward: Arc<dyn Forward>,
    pub(super) sites: Arc<ArcSwap<Sites>>,
    /// The client's address.
    pub(super) address: IpAddr,
    /// The client's headers: what a model gets of them is less.
    pub(super) headers: HeaderMap,
}

#[async_trait]
impl Forward for Limited {
    async fn forward(&self, service: &Service, request: Request<ProxyBody>) -> Response<ProxyBody> {
        let site = self.sites.load().of_run(service.run_id).cloned();
        if let Some(site) = site {
            if !site.admits(request.uri().path(), self.address, &self.headers) {
                return too_many();
            }
            if site.is_too_long(request.body().size_hint().lower()) {
                return too_long();
            }
        }
        self.forward.forward(service, request).await
    }
}
