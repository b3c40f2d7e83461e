//! Routes of servers with single sign-on, which the open-source server does not serve.

use dstack_api::endpoint::{Body, Effect, Endpoint, Guard, Method, RouteInfo, Trail};
use dstack_model::requests::{OAuthAuthorizeRequest, OAuthAuthorizeResponse, OAuthCallbackRequest};
use dstack_model::users::UserWithCreds;

/// Where the browser must go.
pub(super) struct AuthAuthorize;

impl Endpoint for AuthAuthorize {
    const ROUTE: RouteInfo = route("AuthAuthorize", "/api/auth/{provider}/authorize");
    type Request = OAuthAuthorizeRequest;
    type Response = OAuthAuthorizeResponse;
}

/// The user for the code with which the browser came back.
pub(super) struct AuthCallback;

impl Endpoint for AuthCallback {
    const ROUTE: RouteInfo = route("AuthCallback", "/api/auth/{provider}/callback");
    type Request = OAuthCallbackRequest;
    type Response = UserWithCreds;
}

const fn route(name: &'static str, path: &'static str) -> RouteInfo {
    RouteInfo {
        name,
        method: Method::Post,
        path,
        guard: Guard::Anyone,
        effect: Effect::Reads,
        body: Body::Json,
        trail: Trail::Reads,
        since: None,
    }
}
