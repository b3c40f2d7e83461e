//! How the SSH proxy reaches a job. No host of this version is reached over SSH, so no job is known to it.

use dstack_api::routes;
use dstack_model::requests::{GetUpstreamRequest, GetUpstreamResponse};

use crate::api::{Api, Call};
use crate::error::{ApiError, Result};

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::SshProxyGetUpstream, _, _>(get_upstream)
}

async fn get_upstream(_: Call, _: GetUpstreamRequest) -> Result<GetUpstreamResponse> {
    Err(ApiError::not_exists())
}
