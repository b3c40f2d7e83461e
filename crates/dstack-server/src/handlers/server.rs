//! Server info, health.

use dstack_api::responses::ServerStatus;
use dstack_api::{Nothing, VERSION, routes};
use dstack_model::requests::ServerInfo;

use crate::api::{Api, Call};
use crate::error::Result;

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::ServerGetInfo, _, _>(get_info)
        .on::<routes::Healthcheck, _, _>(healthcheck)
}

async fn get_info(_: Call, _: Nothing) -> Result<ServerInfo> {
    Ok(ServerInfo {
        server_version: Some(VERSION.to_owned()),
    })
}

/// 503 when nothing can be written any more: then the process is to be started again.
async fn healthcheck(call: Call, _: Nothing) -> Result<ServerStatus> {
    call.state.data.database.check_writers()?;
    Ok(ServerStatus {
        status: "running".to_owned(),
    })
}
