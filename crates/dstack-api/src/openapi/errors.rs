//! Which statuses a route answers with, and the shapes of refusals.

use serde_json::{Map, Value, json};

use super::{COMPONENTS, json_content};
use crate::endpoint::{Body, Guard, RouteInfo};

const SLOW: &str = "The body did not arrive in time";

/// All answers of a route.
pub(super) fn responses(route: &RouteInfo, success: Value) -> Value {
    let mut responses = Map::new();
    let succeeds = match route.is_stream() {
        true => json!({
            "description": "Events, whose data is of this shape, or `{}`",
            "content": {"text/event-stream": {"schema": success}},
        }),
        false => json!({"description": "Success", "content": json_content(success)}),
    };
    responses.insert("200".to_owned(), succeeds);
    let mut add = |status: &str, description: &str, schema: Value| {
        let response = json!({"description": description, "content": json_content(schema)});
        responses.insert(status.to_owned(), response);
    };
    add(
        "400",
        "Refused: by what is asked for, or the client's version",
        definition("BadRequest"),
    );
    if route.guard != Guard::Anyone {
        let owner = !matches!(route.guard, Guard::SshProxyToken | Guard::MetricsToken);
        if owner {
            add("401", "No token", definition("NotAuthenticated"));
        }
        add(
            "403",
            "The token is not known, or may not do this",
            definition("AccessDenied"),
        );
    }
    if route.path.contains("{project_name}") {
        add("404", "There is no such project", definition("ProjectNotFound"));
    }
    if takes_input(route) {
        add("422", "The request is not valid", definition("ValidationError"));
    }
    match route.body {
        Body::Json | Body::OptionalJson => {
            let description = format!("The body has more than {} bytes", route.max_body);
            add("413", &description, definition("PlainError"));
            add("408", SLOW, definition("PlainError"));
        }
        Body::Upload => {
            add("413", "The upload is too large", definition("PlainError"));
            add("408", SLOW, definition("PlainError"));
        }
        Body::None | Body::Query => {}
    }
    add("429", "Too many requests: see `Retry-After`", definition("Busy"));
    add("503", "Busy: see `Retry-After`", definition("Busy"));
    responses.sort_keys();
    Value::Object(responses)
}

fn takes_input(route: &RouteInfo) -> bool {
    route.body != Body::None || route.path.contains("{backend_name}")
}

pub(super) fn definition(name: &str) -> Value {
    json!({"$ref": format!("{COMPONENTS}{name}")})
}

/// Returns the schemas of error answers by name.
pub(super) fn definitions() -> Map<String, Value> {
    let object = |properties: Value| {
        let names: Vec<&String> = properties
            .as_object()
            .map(|map| map.keys().collect())
            .unwrap_or_default();
        json!({"type": "object", "properties": properties, "required": names, "additionalProperties": false})
    };
    let text = json!({"type": "string"});
    let code = json!({"anyOf": [{"type": "null"}, {"type": "string", "enum": [
        "error", "resource_exists", "resource_not_exists", "invalid_credentials", "backend_not_available",
        "repo_does_not_exist", "gateway_error",
    ]}]});
    let message = object(json!({"msg": text, "code": {"type": "null"}}));
    let item = json!({
        "type": "object",
        "properties": {"msg": text, "code": code, "fields": {"type": "array", "items": text}},
        "required": ["msg", "code"],
        "additionalProperties": false,
    });
    let problem = json!({
        "type": "object",
        "properties": {
            "type": text,
            "loc": {"type": "array", "items": {"type": ["string", "integer"]}},
            "msg": text,
            "input": {},
            "ctx": {"type": "object"},
        },
        "required": ["type", "loc", "msg", "input"],
        "additionalProperties": false,
    });
    let plain = object(json!({"detail": text}));
    let definitions = json!({
        "BadRequest": object(json!({"detail": {"anyOf": [{"type": "array", "items": item}, text]}})),
        "NotAuthenticated": plain,
        // By the route's guard, or by the handler.
        "AccessDenied": {"anyOf": [object(json!({"detail": message})), message]},
        "ProjectNotFound": object(json!({"detail": message})),
        "ValidationError": object(json!({"detail": {"type": "array", "items": problem}})),
        "PlainError": plain,
        "Busy": object(json!({"detail": {"anyOf": [text, message]}})),
    });
    match definitions {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
