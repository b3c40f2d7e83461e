//! `GetServerInfo` of SGLang and vLLM over gRPC (services `SglangScheduler` and `VllmEngine`; numbers of fields as in
//! smg-grpc-proto 0.4.9). What is not read stays out: unknown fields are skipped.

use std::collections::HashMap;

use dstack_agent_api::http::Connector;
use dstack_plan::services::workers::{ServerArguments, Worker, sglang_over_grpc, vllm_over_grpc};
use dstack_proxy::grpc::{self, GrpcError};
use prost::Message;
use serde_json::Value;

use super::inspection::{CALL_TIMEOUT, MAX_ANSWER_BYTES, NotYet};

const SGLANG: &str = "/sglang.grpc.scheduler.SglangScheduler/GetServerInfo";
const VLLM: &str = "/vllm.grpc.engine.VllmEngine/GetServerInfo";

/// CANCELLED, DEADLINE_EXCEEDED, UNIMPLEMENTED, UNAVAILABLE: of a server that is still starting, or another one (dstack 0.22.5's choice).
const EXPECTED: [i32; 4] = [1, 4, 12, 14];

#[derive(Clone, PartialEq, Message)]
struct SglangInfo {
    #[prost(message, optional, tag = "1")]
    server_args: Option<Struct>,
}

#[derive(Clone, PartialEq, Message)]
struct VllmInfo {
    #[prost(string, tag = "6")]
    kv_connector: String,
    #[prost(string, tag = "7")]
    kv_role: String,
}

/// `google.protobuf.Struct`.
#[derive(Clone, PartialEq, Message)]
struct Struct {
    #[prost(map = "string, message", tag = "1")]
    fields: HashMap<String, Field>,
}

/// `google.protobuf.Value`, as far as it is plain.
#[derive(Clone, PartialEq, Message)]
struct Field {
    #[prost(oneof = "Plain", tags = "2, 3")]
    plain: Option<Plain>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Plain {
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(string, tag = "3")]
    Text(String),
}

impl Struct {
    fn get(&self, name: &str) -> Option<Value> {
        match self.fields.get(name)?.plain.as_ref()? {
            Plain::Number(number) => Some((*number).into()),
            Plain::Text(text) => Some(text.as_str().into()),
        }
    }
}

/// The worker, if it is SGLang's gRPC server.
pub(super) async fn sglang(replica: &dyn Connector, address: &str) -> Result<Worker, NotYet> {
    let info: SglangInfo = call(replica, SGLANG).await?;
    let arguments = info.server_args.unwrap_or_default();
    let arguments = ServerArguments {
        disaggregation_mode: arguments.get("disaggregation_mode"),
        disaggregation_bootstrap_port: arguments.get("disaggregation_bootstrap_port"),
    };
    sglang_over_grpc(&arguments, address).map_err(|error| NotYet::known(error.to_string()))
}

/// The worker, if it is vLLM's gRPC server.
pub(super) async fn vllm(replica: &dyn Connector, address: &str) -> Result<Worker, NotYet> {
    let info: VllmInfo = call(replica, VLLM).await?;
    Ok(vllm_over_grpc(info.kv_connector, info.kv_role, address))
}

async fn call<T: Message + Default>(replica: &dyn Connector, path: &str) -> Result<T, NotYet> {
    let answer = grpc::call(replica, path, &[], MAX_ANSWER_BYTES);
    let answer = match tokio::time::timeout(CALL_TIMEOUT, answer).await {
        Ok(answer) => answer,
        Err(_) => return Err(NotYet::expected("no answer over gRPC in time".to_owned())),
    };
    let message = answer.map_err(|error| {
        let text = format!("{path} over gRPC: {error}");
        match error {
            GrpcError::NoAnswer(_) => NotYet::expected(text),
            GrpcError::Status { code, .. } if EXPECTED.contains(&code) => NotYet::expected(text),
            GrpcError::Status { .. } | GrpcError::TooLarge(_) => NotYet::known(text),
        }
    })?;
    T::decode(message).map_err(|error| NotYet::known(format!("{path} over gRPC: {error}")))
}
