//! What has changed, as it changes.

use axum::body::Body;
use axum::http::Response;
use dstack_api::routes;
use dstack_model::changes::FollowChangesQuery;

use crate::api::{Api, Call};
use crate::error::Result;
use crate::live;

pub(super) fn routes(api: Api) -> Api {
    api.on_raw::<routes::ChangesFollow, _, _>(follow)
}

async fn follow(call: Call, query: FollowChangesQuery) -> Result<Response<Body>> {
    live::follow(&call, query).await
}
