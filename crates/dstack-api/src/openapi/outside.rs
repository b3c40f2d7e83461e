//! Routes that are not in the table: those of the in-server proxy, and of metrics.

use serde_json::{Map, Value, json};

use super::errors::definition;
use super::{add as add_operation, json_content, path_parameters};

const SERVICE: &str = "/proxy/services/{project_name}/{run_name}";
const MODELS: &str = "/proxy/models/{project_name}/models";
const OF_MODELS: &str = "/proxy/models/{project_name}";
const MEMBERS: &str = "members of the project";

/// Adds the paths that are not in the route table.
pub(super) fn add(paths: &mut Map<String, Value>) {
    for method in ["get", "post", "put", "delete", "patch", "head"] {
        let to_slash = json!({"308": {"description": "The same path with a slash at its end"}});
        let operation = operation(SERVICE, "To the root of a service", "anyone", to_slash);
        add_operation(paths, SERVICE, method, operation);
    }
    let path = format!("{SERVICE}/{{path}}");
    for method in ["get", "post", "put", "delete", "patch", "head", "options"] {
        let answers = json!({"default": {"description": "Whatever the service answers"}});
        let permission = "members of the project; anyone if the service has `auth: false`";
        let operation = operation(&path, "Passes a request on to a service", permission, answers);
        add_operation(paths, &path, method, operation);
    }
    let answers = answers(
        "Models, as the OpenAI API lists them",
        &[
            ("400", "BadRequest"),
            ("403", "PlainError"),
            ("429", "Busy"),
            ("503", "Busy"),
        ],
    );
    let summary = "Models that services of a project serve (deprecated)";
    add_operation(paths, MODELS, "get", operation(MODELS, summary, MEMBERS, answers));
    for (call, summary) in [
        ("chat/completions", "Completes a chat (deprecated)"),
        ("completions", "Completes a text"),
        ("embeddings", "Makes vectors of texts"),
        ("responses", "Responds as OpenAI's responses do"),
    ] {
        let path = format!("{OF_MODELS}/{call}");
        add_operation(paths, &path, "post", model_call(&path, summary));
    }
    add_operation(paths, "/metrics", "get", metrics());
}

/// Its refusals are those of models as well: `detail`, and `error` as the OpenAI API has it.
fn model_call(path: &str, summary: &str) -> Value {
    let mut answers = answers("What the model answers, as the OpenAI API has it", &[]);
    if let Value::Object(map) = &mut answers {
        let refused = json!({"type": "object"});
        let refused =
            json!({"description": "Refused, by the server or the model", "content": json_content(refused)});
        map.insert("default".to_owned(), refused);
    }
    let mut operation = operation(path, summary, MEMBERS, answers);
    let model = json!({"type": "object", "properties": {"model": {"type": "string"}}, "required": ["model"]});
    if let Value::Object(map) = &mut operation {
        let body = json!({"required": true, "content": json_content(model)});
        map.insert("requestBody".to_owned(), body);
    }
    operation
}

fn metrics() -> Value {
    let refusals = [
        ("400", "BadRequest"),
        ("403", "AccessDenied"),
        ("429", "Busy"),
        ("503", "Busy"),
        // They are switched off.
        ("404", "ProjectNotFound"),
    ];
    let mut answers = answers("", &refusals);
    if let Value::Object(map) = &mut answers {
        let text = json!({
            "description": "Metrics in the text format of Prometheus",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        });
        map.insert("200".to_owned(), text);
    }
    operation(
        "/metrics",
        "Metrics",
        "the token for metrics, if there is one",
        answers,
    )
}

fn answers(success: &str, refusals: &[(&str, &str)]) -> Value {
    let mut answers = Map::new();
    let content = json_content(json!({}));
    answers.insert(
        "200".to_owned(),
        json!({"description": success, "content": content}),
    );
    for (status, name) in refusals {
        let refusal = json!({"description": "Refused", "content": json_content(definition(name))});
        answers.insert((*status).to_owned(), refusal);
    }
    Value::Object(answers)
}

#[allow(clippy::needless_pass_by_value)] // it is moved into the JSON
fn operation(path: &str, summary: &str, permission: &str, responses: Value) -> Value {
    let is_proxy = path.starts_with("/proxy");
    json!({
        "tags": [if is_proxy { "proxy" } else { "metrics" }],
        "summary": summary,
        "x-permission": permission,
        "security": [{"HTTPBearer": []}],
        "parameters": path_parameters(path),
        "responses": responses,
    })
}
