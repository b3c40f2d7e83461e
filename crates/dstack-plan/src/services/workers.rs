//! What a replica says of itself that a router must know of a worker (dstack 0.22.5: pipelines §14).

use std::collections::BTreeMap;

use dstack_units::JobId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::routers::JOB_LABEL;

/// Most characters of a replica's own words that are shown.
const MAX_SHOWN: usize = 64;

/// What a worker does of the work for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkerType {
    /// All of it.
    Regular,
    /// It reads the prompt.
    Prefill,
    /// It makes the answer.
    Decode,
}

/// How a router speaks to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ConnectionMode {
    /// HTTP/1.1.
    Http,
    /// gRPC, without TLS.
    Grpc,
}

/// What runs the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// SGLang, whose servers are asked over HTTP or gRPC.
    Sglang,
    /// vLLM, whose servers are asked over gRPC only.
    Vllm,
}

/// A worker as a router is told of it: the fields of SMG's `WorkerSpec` (`POST /workers`) that dstack 0.22.5 sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Worker {
    /// Where the router is to reach it.
    pub url: String,
    /// What it does.
    pub worker_type: WorkerType,
    /// How it is spoken to.
    pub connection_mode: ConnectionMode,
    /// What it is.
    pub runtime_type: Runtime,
    /// Port on which it hands over what it has read; only of one that reads prompts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootstrap_port: Option<u16>,
    /// vLLM: how it hands over what it has read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_connector: Option<String>,
    /// vLLM: `kv_producer`, `kv_consumer`, or both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_role: Option<String>,
    /// By which it is known again.
    pub labels: BTreeMap<String, String>,
}

impl Worker {
    /// With the label of its job.
    #[must_use]
    pub fn of_job(mut self, job: JobId) -> Self {
        self.labels.insert(JOB_LABEL.to_owned(), job.to_string());
        self
    }

    fn new(
        url: String,
        worker_type: WorkerType,
        connection_mode: ConnectionMode,
        runtime_type: Runtime,
    ) -> Self {
        Self {
            url,
            worker_type,
            connection_mode,
            runtime_type,
            bootstrap_port: None,
            kv_connector: None,
            kv_role: None,
            labels: BTreeMap::new(),
        }
    }
}

/// Why an answer of a replica makes it no worker; the text speaks of the replica as "it".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Not what such servers answer.
    #[error("its answer to {call} cannot be read: {why}")]
    Unreadable {
        /// What was asked.
        call: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// SMG passes requests on to vLLM over gRPC alone.
    #[error("it is vLLM over HTTP, which gets requests over gRPC only: start it with `--grpc`")]
    VllmOverHttp,
    /// Something else than what is known.
    #[error("its /v1/models says `owned_by: {0}`: workers are SGLang, over HTTP or gRPC, or vLLM, over gRPC")]
    UnknownRuntime(String),
    /// It is still loading, or broken.
    #[error("its status is {0:?}, not \"ready\"")]
    NotReady(String),
    /// A mode that SGLang did not have.
    #[error("its `disaggregation_mode` is {0:?}: \"prefill\", \"decode\" and \"null\" are known")]
    UnknownMode(String),
}

/// The runtime behind an answer to `GET /v1/models`, if its workers are asked further over HTTP.
///
/// # Errors
/// It is none of those.
pub fn runtime_over_http(models: &[u8]) -> Result<Runtime, Unfit> {
    #[derive(Deserialize)]
    struct Models {
        data: Vec<Model>,
    }
    #[derive(Deserialize)]
    struct Model {
        owned_by: String,
    }
    let models: Models = read("GET /v1/models", models)?;
    let Some(first) = models.data.into_iter().next() else {
        return Err(Unfit::Unreadable {
            call: "GET /v1/models",
            why: "it names no model".to_owned(),
        });
    };
    match first.owned_by.as_str() {
        "sglang" => Ok(Runtime::Sglang),
        "vllm" => Err(Unfit::VllmOverHttp),
        other => Err(Unfit::UnknownRuntime(shown(other))),
    }
}

/// The worker at this address (host and port) whose answer to `GET /server_info` this is: arguments of SGLang's server, and its status.
///
/// # Errors
/// It is not ready, or no such worker.
pub fn sglang_over_http(server_info: &[u8], address: &str) -> Result<Worker, Unfit> {
    #[derive(Deserialize)]
    struct Info {
        status: String,
        #[serde(flatten)]
        arguments: ServerArguments,
    }
    let info: Info = read("GET /server_info", server_info)?;
    if info.status != "ready" {
        return Err(Unfit::NotReady(shown(&info.status)));
    }
    sglang(&info.arguments, format!("http://{address}"), ConnectionMode::Http)
}

/// The worker at this address that SGLang's gRPC server is.
///
/// # Errors
/// It works in a mode that is not known.
pub fn sglang_over_grpc(arguments: &ServerArguments, address: &str) -> Result<Worker, Unfit> {
    sglang(arguments, format!("grpc://{address}"), ConnectionMode::Grpc)
}

/// The worker at this address that vLLM's gRPC server is, by how it hands over what it has read; empty: not at all.
pub fn vllm_over_grpc(kv_connector: String, kv_role: String, address: &str) -> Worker {
    let kind = match kv_role.as_str() {
        "kv_producer" => WorkerType::Prefill,
        "kv_consumer" => WorkerType::Decode,
        _ => WorkerType::Regular,
    };
    let given = |text: String| Some(text).filter(|text| !text.is_empty());
    Worker {
        kv_connector: given(kv_connector),
        kv_role: given(kv_role),
        ..Worker::new(
            format!("grpc://{address}"),
            kind,
            ConnectionMode::Grpc,
            Runtime::Vllm,
        )
    }
}

/// The arguments of SGLang's server that say what it does.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct ServerArguments {
    /// `null` (a text), `prefill` or `decode`.
    #[serde(default)]
    pub disaggregation_mode: Option<Value>,
    /// A whole number; over gRPC it comes as a floating-point one.
    #[serde(default)]
    pub disaggregation_bootstrap_port: Option<Value>,
}

fn sglang(arguments: &ServerArguments, url: String, mode: ConnectionMode) -> Result<Worker, Unfit> {
    let kind = match arguments.disaggregation_mode.as_ref() {
        None | Some(Value::Null) => WorkerType::Regular,
        Some(Value::String(text)) if text == "null" => WorkerType::Regular,
        Some(Value::String(text)) if text == "prefill" => WorkerType::Prefill,
        Some(Value::String(text)) if text == "decode" => WorkerType::Decode,
        Some(Value::String(other)) => return Err(Unfit::UnknownMode(shown(other))),
        Some(other) => return Err(Unfit::UnknownMode(shown(&other.to_string()))),
    };
    let mut worker = Worker::new(url, kind, mode, Runtime::Sglang);
    if kind == WorkerType::Prefill {
        worker.bootstrap_port = port(arguments.disaggregation_bootstrap_port.as_ref())?;
    }
    Ok(worker)
}

fn port(value: Option<&Value>) -> Result<Option<u16>, Unfit> {
    let Some(value) = value.filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    // A floating-point number of gRPC prints as `8998.0`.
    let text = value.to_string();
    let number = text.strip_suffix(".0").unwrap_or(&text).parse();
    number.map(Some).map_err(|_| Unfit::Unreadable {
        call: "GET /server_info",
        why: format!(
            "`disaggregation_bootstrap_port` is {}, which is no port",
            shown(&text)
        ),
    })
}

fn read<'a, T: Deserialize<'a>>(call: &'static str, body: &'a [u8]) -> Result<T, Unfit> {
    serde_json::from_slice(body).map_err(|error| Unfit::Unreadable {
        call,
        why: error.to_string(),
    })
}

/// In one line of bounded length.
fn shown(text: &str) -> String {
    let line = text
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter });
    line.take(MAX_SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    fn info(more: &Value) -> Result<Value, Unfit> {
        let mut info = json!({"status": "ready", "model_path": "m", "tp_size": 1});
        info.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let worker = sglang_over_http(&serde_json::to_vec(&info).unwrap(), "10.0.0.1:8000")?;
        Ok(serde_json::to_value(worker.of_job(Uuid::from_u128(1).into())).unwrap())
    }

    #[test]
    fn sglang_over_http_says_what_it_does() {
        let labels = json!({"dstack.ai/job-id": "00000000-0000-0000-0000-000000000001"});
        let worker = |kind: &str| {
            json!({"url": "http://10.0.0.1:8000", "worker_type": kind, "connection_mode": "http", "runtime_type": "sglang",
                "labels": labels})
        };
        for (said, kind) in [
            (json!({}), "regular"),
            (
                json!({"disaggregation_mode": "null", "disaggregation_bootstrap_port": 8998}),
                "regular",
            ),
            (json!({"disaggregation_mode": null}), "regular"),
            (
                json!({"disaggregation_mode": "decode", "disaggregation_bootstrap_port": 8998}),
                "decode",
            ),
            (json!({"disaggregation_mode": "prefill"}), "prefill"),
        ] {
            assert_eq!(info(&said), Ok(worker(kind)), "{said}");
        }
        for port in [json!(8998), json!(8998.0)] {
            let prefill =
                info(&json!({"disaggregation_mode": "prefill", "disaggregation_bootstrap_port": port}));
            assert_eq!(prefill.unwrap()["bootstrap_port"], 8998);
        }
    }

    #[test]
    fn workers_over_grpc_are_told_by_their_arguments() {
        let prefill = ServerArguments {
            disaggregation_mode: Some(json!("prefill")),
            disaggregation_bootstrap_port: Some(json!(8998.0)),
        };
        let worker = sglang_over_grpc(&prefill, "10.0.0.1:8000").unwrap();
        let expected = json!({"url": "grpc://10.0.0.1:8000", "worker_type": "prefill", "connection_mode": "grpc",
            "runtime_type": "sglang", "bootstrap_port": 8998, "labels": {}});
        assert_eq!(serde_json::to_value(worker).unwrap(), expected);
        let vllm = |connector: &str, role: &str| {
            let worker = vllm_over_grpc(connector.to_owned(), role.to_owned(), "10.0.0.1:8000");
            serde_json::to_value(worker).unwrap()
        };
        let plain = json!({"url": "grpc://10.0.0.1:8000", "worker_type": "regular", "connection_mode": "grpc",
            "runtime_type": "vllm", "labels": {}});
        assert_eq!(vllm("", ""), plain);
        for (role, kind) in [
            ("kv_producer", "prefill"),
            ("kv_consumer", "decode"),
            ("kv_both", "regular"),
        ] {
            let worker = vllm("NixlConnector", role);
            assert_eq!(
                (&worker["worker_type"], &worker["kv_role"]),
                (&json!(kind), &json!(role))
            );
            assert_eq!(worker["kv_connector"], "NixlConnector");
        }
    }

    #[test]
    fn what_is_no_worker_says_why() {
        let refusal = |said: &Value| info(said).unwrap_err().to_string();
        assert_eq!(
            refusal(&json!({"status": "starting\u{7}"})),
            "its status is \"starting \", not \"ready\""
        );
        assert!(refusal(&json!({"disaggregation_mode": "both"})).contains("is \"both\""));
        let port = json!({"disaggregation_mode": "prefill", "disaggregation_bootstrap_port": 123_456});
        assert!(refusal(&port).contains("123456, which is no port"));
        assert!(
            sglang_over_http(b"{\"model_path\": \"m\"}", "x:1").is_err(),
            "no status"
        );

        let models = |models: &[u8]| runtime_over_http(models);
        assert_eq!(
            models(br#"{"object": "list", "data": [{"id": "m", "owned_by": "sglang"}]}"#),
            Ok(Runtime::Sglang)
        );
        assert_eq!(
            models(br#"{"data": [{"owned_by": "vllm"}]}"#),
            Err(Unfit::VllmOverHttp)
        );
        let other = models(br#"{"data": [{"owned_by": "me"}]}"#).unwrap_err();
        assert!(other.to_string().contains("`owned_by: me`"), "{other}");
        for garbage in [
            &b"<html>"[..],
            b"{}",
            br#"{"data": []}"#,
            br#"{"data": [{}]}"#,
            br#"{"data": 1}"#,
            b"\xff",
        ] {
            assert!(
                matches!(models(garbage), Err(Unfit::Unreadable { .. })),
                "{garbage:?}"
            );
        }
        let long = format!(r#"{{"data": [{{"owned_by": "{}"}}]}}"#, "x".repeat(10_000));
        assert!(models(long.as_bytes()).unwrap_err().to_string().len() < 300);
    }
}
