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

async fn healthcheck(_: Call, _: Nothing) -> Result<ServerStatus> {
    Ok(ServerStatus {
        status: "running".to_owned(),
    })
}
