//! One module per area of the API.

pub(crate) mod backends;
mod changes;
mod events;
mod exports;
mod files;
mod fleets;
pub(crate) mod gateways;
mod gpus;
mod instances;
mod login;
mod logs;
mod metrics;
pub(crate) mod projects;
mod public_keys;
pub(crate) mod repos;
pub(crate) mod runs;
mod secrets;
mod server;
mod sshproxy;
mod templates;
mod tokens;
pub(crate) mod users;
pub(crate) mod volumes;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use axum::middleware::map_response;
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{And, NotForContentType, Predicate, SizeAbove};

use crate::api::Api;
use crate::state::AppState;

/// All routes that this version serves.
pub fn api(state: Arc<AppState>) -> Api {
    let api = Api::new(state);
    let api = server::routes(api);
    let api = changes::routes(api);
    let api = login::routes(api);
    let api = users::routes(api);
    let api = tokens::routes(api);
    let api = public_keys::routes(api);
    let api = projects::routes(api);
    let api = repos::routes(api);
    let api = files::routes(api);
    let api = backends::routes(api);
    let api = runs::routes(api);
    let api = gpus::routes(api);
    let api = fleets::routes(api);
    let api = instances::routes(api);
    let api = secrets::routes(api);
    let api = events::routes(api);
    let api = logs::routes(api);
    let api = metrics::routes(api);
    let api = volumes::routes(api);
    let api = gateways::routes(api);
    let api = templates::routes(api);
    let api = sshproxy::routes(api);
    exports::routes(api)
}

/// The router of the whole server.
pub fn router(state: Arc<AppState>) -> Router {
    let watched = state.edge.telemetry.http();
    let router = api(Arc::clone(&state))
        .into_router()
        .merge(crate::docs::router(Arc::clone(&state)))
        .merge(crate::login::page::router(Arc::clone(&state)))
        .layer(compression())
        .merge(crate::proxy::router(Arc::clone(&state)))
        .layer(map_response(guarded))
        .merge(crate::proxy::passing_on(state));
    match watched {
        Some(http) => http.watch(router),
        None => router,
    }
}

/// gzip for clients that ask for it, where it is worth the time; events are not held back until there are more of them.
fn compression() -> CompressionLayer<And<SizeAbove, NotForContentType>> {
    const WORTHWHILE: u64 = 1024;
    CompressionLayer::new()
        .quality(CompressionLevel::Fastest)
        .compress_when(SizeAbove::new(WORTHWHILE).and(NotForContentType::SSE))
}

/// Headers that keep browsers from taking an answer for something else. There are none for other origins: their scripts
/// cannot read answers.
async fn guarded(mut response: Response<Body>) -> Response<Body> {
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "SAMEORIGIN"),
        (header::REFERRER_POLICY, "same-origin"),
    ] {
        let headers = response.headers_mut();
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}
