//! Server info, health, and what is wrong.

use dstack_api::responses::ServerStatus;
use dstack_api::{Nothing, VERSION, routes};
use dstack_model::diagnosis::{Diagnosis, ListAccountRequest, ListAccountResponse};
use dstack_model::requests::ServerInfo;

use crate::api::{Api, Call};
use crate::doctor;
use crate::error::Result;

pub(super) fn routes(api: Api) -> Api {
    api.on::<routes::ServerGetInfo, _, _>(get_info)
        .on::<routes::Healthcheck, _, _>(healthcheck)
        .on::<routes::ServerGetDiagnosis, _, _>(get_diagnosis)
        .on::<routes::ServerListAccount, _, _>(list_account)
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

async fn get_diagnosis(call: Call, _: Nothing) -> Result<Diagnosis> {
    Ok(doctor::diagnose(&call.state).await)
}

async fn list_account(call: Call, request: ListAccountRequest) -> Result<ListAccountResponse> {
    doctor::list_account(&call.state, &request).await
}
