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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::io;

    use async_trait::async_trait;
    use dstack_agent_api::http::Wire;
    use dstack_system::task;
    use futures_util::stream;
    use http::{HeaderMap, HeaderValue, Request, Response};
    use http_body_util::StreamBody;
    use hyper::body::{Bytes, Frame, Incoming};
    use hyper::server::conn::http2;
    use hyper::service::service_fn;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use serde_json::json;

    use super::super::inspection::inspect;
    use super::*;

    /// A gRPC server with one method.
    #[derive(Debug, Clone)]
    struct Server {
        path: &'static str,
        status: &'static str,
        message: Vec<u8>,
    }

    type Frames = stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>;

    impl Server {
        fn answer(&self, request: &Request<Incoming>) -> Response<StreamBody<Frames>> {
            let (status, message) = match request.uri().path() == self.path {
                true => (self.status, self.message.as_slice()),
                false => ("12", &[][..]),
            };
            let mut frame = vec![0];
            frame.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
            frame.extend(message);
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static(status));
            trailers.insert("grpc-message", HeaderValue::from_static("what%20it%20says"));
            let frames = vec![Ok(Frame::data(Bytes::from(frame))), Ok(Frame::trailers(trailers))];
            Response::new(StreamBody::new(stream::iter(frames)))
        }
    }

    #[async_trait]
    impl Connector for Server {
        async fn connect(&self) -> io::Result<Box<dyn Wire>> {
            let (ours, theirs) = tokio::io::duplex(4096);
            let server = self.clone();
            task::spawn("gRPC server", async move {
                let service = service_fn(|request| {
                    let answer = server.answer(&request);
                    async move { Ok::<_, Infallible>(answer) }
                });
                let serving = http2::Builder::new(TokioExecutor::new());
                serving.serve_connection(TokioIo::new(theirs), service).await.ok();
            });
            Ok(Box::new(ours))
        }
    }

    async fn inspected(server: Server) -> Result<Value, String> {
        let worker = inspect(&server, "10.0.0.1:8000")
            .await
            .map_err(|failure| failure.why)?;
        Ok(serde_json::to_value(worker).unwrap())
    }

    #[tokio::test]
    async fn workers_over_grpc_are_found_without_being_told_of() {
        let text = |text: &str| Field {
            plain: Some(Plain::Text(text.to_owned())),
        };
        let port = Field {
            plain: Some(Plain::Number(8998.0)),
        };
        let fields = [
            ("disaggregation_mode".to_owned(), text("prefill")),
            ("disaggregation_bootstrap_port".to_owned(), port),
            ("model_path".to_owned(), text("org/m")),
        ];
        let info = SglangInfo {
            server_args: Some(Struct {
                fields: fields.into(),
            }),
        };
        let sglang = Server {
            path: SGLANG,
            status: "0",
            message: info.encode_to_vec(),
        };
        let expected = json!({"url": "grpc://10.0.0.1:8000", "worker_type": "prefill", "connection_mode": "grpc",
            "runtime_type": "sglang", "bootstrap_port": 8998, "labels": {}});
        assert_eq!(inspected(sglang).await, Ok(expected));
        let info = VllmInfo {
            kv_connector: "NixlConnector".to_owned(),
            kv_role: "kv_consumer".to_owned(),
        };
        let vllm = Server {
            path: VLLM,
            status: "0",
            message: info.encode_to_vec(),
        };
        let expected = json!({"url": "grpc://10.0.0.1:8000", "worker_type": "decode", "connection_mode": "grpc",
            "runtime_type": "vllm", "kv_connector": "NixlConnector", "kv_role": "kv_consumer", "labels": {}});
        assert_eq!(inspected(vllm).await, Ok(expected));
    }

    #[tokio::test]
    async fn what_a_server_says_instead_is_told() {
        let refuses = |status| Server {
            path: VLLM,
            status,
            message: vec![0xff],
        };
        let refused = inspected(refuses("7")).await.unwrap_err();
        assert!(refused.ends_with("status 7: what it says"), "{refused}");
        let garbage = inspected(refuses("0")).await.unwrap_err();
        assert!(garbage.starts_with(VLLM), "{garbage}");
        // Nothing there is known: what HTTP brought is told.
        let starting = inspected(refuses("14")).await.unwrap_err();
        assert!(
            starting.starts_with("GET /v1/models is not answered"),
            "{starting}"
        );
    }
}
