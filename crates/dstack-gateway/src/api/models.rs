//! Models of services, below a path of this API.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use http_body_util::BodyExt as _;

use super::Api;

pub(super) async fn answer(
    State(api): State<Arc<Api>>,
    Path((project, path)): Path<(String, String)>,
    request: Request,
) -> Response {
    let (head, body) = request.into_parts();
    let body = body.map_err(Into::into).boxed_unsync();
    let request = http::Request::from_parts(head, body);
    // Whoever asks here is on this machine, or comes through its SSH server.
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let (project, path) = (project.to_lowercase(), format!("/{path}"));
    let answered = api.models.answer(address, &project, &path, request).await;
    answered.map(Body::new)
}
