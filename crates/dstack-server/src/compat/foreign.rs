//! Types of backends that dstack 0.22.5 does not know, in answers to its clients: one of them would cost a whole list. They stand there
//! as `dstack`, a type of which those clients expect anything.

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{Response, header};
use dstack_model::backends::BackendType;
use serde_json::{Map, Value, json};

use crate::error::{ApiError, Result};

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
    let (mut head, body) = answer.into_parts();
    let whole = to_bytes(body, usize::MAX).await;
    let whole = whole.map_err(ApiError::internal)?;
    let told = rewritten(whole, &names);
    if head.headers.contains_key(header::CONTENT_LENGTH) {
        head.headers.insert(header::CONTENT_LENGTH, told.len().into());
    }
    Ok(Response::from_parts(head, Body::from(told)))
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
        Value::Array(items) if items.iter().all(Value::is_string) => {
            items.retain(|item| !is_foreign(item, names));
        }
        value => rewrite(value, names),
    }
    serde_json::to_vec(&value).map_or(whole, Bytes::from)
}

/// Fields whose names are chosen by users.
const OF_USERS: [&str; 2] = ["env", "tags"];

fn rewrite(value: &mut Value, names: &[BackendType]) {
    match value {
        Value::Array(items) => {
            for item in items {
                rewrite(item, names);
            }
        }
        Value::Object(fields) => {
            for name in ["backend", "base_backend"] {
                if let Some(kind) = fields.get_mut(name).filter(|kind| is_foreign(kind, names)) {
                    *kind = json!(STAND_IN);
                }
            }
            if let Some(Value::Array(backends)) = fields.get_mut("backends") {
                list(backends, names);
            }
            let of_dstack = fields
                .iter_mut()
                .filter(|(name, _)| !OF_USERS.contains(&name.as_str()));
            for (_, field) in of_dstack {
                rewrite(field, names);
            }
        }
        _ => {}
    }
}

/// Types, or what a project has configured of them.
fn list(backends: &mut Vec<Value>, names: &[BackendType]) {
    for backend in backends.iter_mut() {
        match backend {
            Value::Object(info) if info.get("name").is_some_and(|name| is_foreign(name, names)) => {
                stand_in(info);
            }
            kind if is_foreign(kind, names) => *kind = json!(STAND_IN),
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

/// Words of users that could be names are none: only those that are kept count, and none is kept for this.
fn is_foreign(value: &Value, names: &[BackendType]) -> bool {
    value
        .as_str()
        .is_some_and(|text| names.iter().any(|name| name.as_str() == text))
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
            "name": kind, "run_spec": {"profile": {"backends": ["aws", kind, "dstack"]}, "configuration": {"env": {"x": kind, "backend": kind}, "tags": {"backend": kind}}},
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
        let untouched = &of("nimbus")[0]["run_spec"]["configuration"];
        assert_eq!(&told[0]["run_spec"]["configuration"], untouched);
        let words = json!({"backend": "nccl", "backends": ["nimbus", "gloo"]});
        assert_eq!(
            seen(&words).await,
            json!({"backend": "nccl", "backends": ["dstack", "gloo"]})
        );
        assert!(!BackendType::foreign().iter().any(|kind| kind.as_str() == "nccl"));
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
        let mut with_header = json_response(StatusCode::OK, &of("nimbus"));
        with_header
            .headers_mut()
            .insert(header::ETAG, "a".parse().unwrap());
        assert_eq!(answer(with_header).await.unwrap().headers()[header::ETAG], "a");
    }
}
