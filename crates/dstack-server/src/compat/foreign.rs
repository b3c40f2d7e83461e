//! Types of backends that dstack 0.22.5 does not know, in answers to its clients: one of them would cost a whole list. They stand there
//! as `dstack`, a type of which those clients expect anything.

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{Response, header};
use dstack_model::backends::BackendType;
use serde_json::{Map, Value, json};

use crate::error::{ApiError, Result, json_bytes};

/// What stands there instead.
const STAND_IN: BackendType = BackendType::Dstack;

/// An answer as a client reads it that knows the types of dstack 0.22.5 alone. Where there are no others, it is as it was.
///
/// # Errors
/// The answer cannot be read.
pub(crate) async fn answer(answer: Response<Body>) -> Result<Response<Body>> {
    let names = BackendType::foreign();
    let kind = answer.headers().get(header::CONTENT_TYPE);
    let is_json = kind.is_some_and(|kind| kind.as_bytes() == b"application/json");
    if names.is_empty() || !is_json || !answer.status().is_success() {
        return Ok(answer);
    }
    let status = answer.status();
    let whole = to_bytes(answer.into_body(), usize::MAX).await;
    let whole = whole.map_err(ApiError::internal)?;
    Ok(json_bytes(status, rewritten(whole, &names)))
}

fn rewritten(whole: Bytes, names: &[BackendType]) -> Bytes {
    let text = std::str::from_utf8(&whole).unwrap_or_default();
    let has_one = names.iter().any(|name| text.contains(&format!("\"{name}\"")));
    if !has_one {
        return whole;
    }
    let Ok(mut value) = serde_json::from_str(text) else {
        return whole;
    };
    match &mut value {
        // The list of types.
        Value::Array(items) if items.iter().all(Value::is_string) => items.retain(|item| !is_foreign(item)),
        value => rewrite(value),
    }
    serde_json::to_vec(&value).map_or(whole, Bytes::from)
}

fn rewrite(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(rewrite),
        Value::Object(fields) => {
            for name in ["backend", "base_backend"] {
                if let Some(kind) = fields.get_mut(name).filter(|kind| is_foreign(kind)) {
                    *kind = json!(STAND_IN);
                }
            }
            if let Some(Value::Array(backends)) = fields.get_mut("backends") {
                list(backends);
            }
            fields.values_mut().for_each(rewrite);
        }
        _ => {}
    }
}

/// Types, or what a project has configured of them.
fn list(backends: &mut Vec<Value>) {
    for backend in backends.iter_mut() {
        match backend {
            Value::Object(info) if info.get("name").is_some_and(is_foreign) => stand_in(info),
            kind if is_foreign(kind) => *kind = json!(STAND_IN),
            _ => {}
        }
    }
    let mut seen = false;
    backends.retain(|backend| backend != &json!(STAND_IN) || !std::mem::replace(&mut seen, true));
}

/// Of a backend of a project, other fields are of no type that the client knows.
fn stand_in(info: &mut Map<String, Value>) {
    info.insert("name".to_owned(), json!(STAND_IN));
    info.insert(
        "config".to_owned(),
        json!({"type": STAND_IN, "base_backends": []}),
    );
}

fn is_foreign(value: &Value) -> bool {
    let name = value.as_str().and_then(BackendType::of_any_name);
    name.is_some_and(|kind| !kind.is_built_in())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests
mod tests {
    use axum::http::StatusCode;

    use super::*;
    use crate::error::json_response;

    async fn seen(value: &Value) -> Value {
        let response = answer(json_response(StatusCode::OK, value)).await.unwrap();
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    fn of(kind: &str) -> Value {
        json!([{
            "name": kind, "run_spec": {"profile": {"backends": ["aws", kind, "dstack"]}, "configuration": {"env": {"x": kind}}},
            "jobs": [{"job_submissions": [{"job_provisioning_data": {"backend": kind, "base_backend": kind, "region": "a"}}]}],
            "backends": [{"name": kind, "config": {"type": kind, "project": "p"}}, {"name": "aws", "config": {"type": "aws"}}],
            "backend": null,
        }])
    }

    #[tokio::test]
    async fn clients_that_know_the_types_of_0_22_5_alone_are_told_of_no_other() {
        assert_eq!(
            seen(&of("nimbus")).await,
            of("nimbus"),
            "nobody has registered it"
        );
        BackendType::register("nimbus").unwrap();
        let told = seen(&of("nimbus")).await;
        assert_eq!(told[0]["name"], "nimbus", "it is the name of a run");
        assert_eq!(told[0]["run_spec"]["configuration"]["env"]["x"], "nimbus");
        assert_eq!(
            told[0]["run_spec"]["profile"]["backends"],
            json!(["aws", "dstack"])
        );
        let data = &told[0]["jobs"][0]["job_submissions"][0]["job_provisioning_data"];
        assert_eq!(
            data,
            &json!({"backend": "dstack", "base_backend": "dstack", "region": "a"})
        );
        let stand_in = json!({"name": "dstack", "config": {"type": "dstack", "base_backends": []}});
        assert_eq!(told[0]["backends"][0], stand_in);
        assert_eq!(told[0]["backends"][1]["name"], "aws");
        assert_eq!(seen(&json!(["aws", "nimbus"])).await, json!(["aws"]));
        assert_eq!(seen(&of("gcp")).await, of("gcp"));
    }
}
