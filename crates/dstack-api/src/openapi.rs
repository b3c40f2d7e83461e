//! The OpenAPI document (3.1), made from the route table and the types that decode and make the bodies.
//!
//! A type that is both read and answered has two schemas where these differ: `Name-Input` and `Name-Output`.

mod errors;
mod names;
mod outside;
pub mod page;

use dstack_model::schema::Schemas;
use serde_json::{Map, Value, json};

use crate::endpoint::{Body, Described, Guard, Method, Trail};
use crate::responses::BackendConfigBody;
use crate::{DESCRIPTIONS, VERSION};

/// Where definitions stand.
const COMPONENTS: &str = "#/components/schemas/";

/// The document. `backend_config` gives the schema of a backend's configuration, which this crate does not know.
pub fn document(backend_config: impl Fn(&mut Schemas) -> Value) -> Value {
    let mut requests = Schemas::of_requests(COMPONENTS);
    let mut answers = Schemas::of_answers(COMPONENTS);
    for schemas in [&mut requests, &mut answers] {
        let schema = backend_config(schemas);
        schemas.define(BackendConfigBody::SCHEMA, schema);
    }
    let mut paths = Map::new();
    for described in DESCRIPTIONS {
        let operation = operation(described, &mut requests, &mut answers);
        add(
            &mut paths,
            described.route.path,
            method(described.route.method),
            operation,
        );
    }
    outside::add(&mut paths);
    let mut paths = Value::Object(paths);
    let mut schemas = names::joined(
        requests.into_definitions(),
        answers.into_definitions(),
        &mut paths,
    );
    schemas.extend(errors::definitions());
    schemas.sort_keys();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "dstack",
            "version": VERSION,
            "description": "The API of the dstack server. Clients send their version in the header `X-API-VERSION`; \
                 older clients get the shapes that they know.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"HTTPBearer": {"type": "http", "scheme": "bearer"}},
        },
    })
}

fn add(paths: &mut Map<String, Value>, path: &str, method: &str, operation: Value) {
    let item = paths.entry(path).or_insert_with(|| json!({}));
    if let Value::Object(item) = item {
        item.insert(method.to_owned(), operation);
    }
}

const fn method(method: Method) -> &'static str {
    match method {
        Method::Get => "get",
        Method::Post => "post",
    }
}

fn operation(described: &Described, requests: &mut Schemas, answers: &mut Schemas) -> Value {
    let route = &described.route;
    let mut operation = Map::new();
    let mut set = |key: &str, value: Value| operation.insert(key.to_owned(), value);
    set("tags", json!([area(route.path)]));
    set("summary", json!(described.summary.trim()));
    set("operationId", json!(snake_case(route.name)));
    set("x-permission", json!(permission(route.guard)));
    if let Some(since) = route.since {
        set("x-since", json!(since));
    }
    match route.trail {
        Trail::Reads => None,
        Trail::Writes(texts) => set("x-events", json!(texts)),
        Trail::Silent(reason) => set("x-no-events", json!(reason)),
    };
    if route.guard != Guard::Anyone {
        set("security", json!([{"HTTPBearer": []}]));
    }
    let mut parameters = path_parameters(route.path);
    let request = (described.request)(requests);
    match route.body {
        Body::None => {}
        Body::Json => {
            set(
                "requestBody",
                json!({"required": true, "content": json_content(request)}),
            );
        }
        Body::OptionalJson => {
            let schema = json!({"anyOf": [request, {"type": "null"}]});
            set(
                "requestBody",
                json!({"required": false, "content": json_content(schema)}),
            );
        }
        Body::Query => parameters.extend(query_parameters(&request, requests)),
        Body::Upload => {
            parameters.extend(query_parameters(&request, requests));
            set(
                "requestBody",
                json!({"required": true, "content": {"multipart/form-data": {"schema": upload()}}}),
            );
        }
    }
    if !parameters.is_empty() {
        set("parameters", json!(parameters));
    }
    set(
        "responses",
        errors::responses(route, (described.response)(answers)),
    );
    Value::Object(operation)
}

/// Returns the `content` of a body that is JSON of this schema.
#[allow(clippy::needless_pass_by_value)] // it is moved into the JSON
fn json_content(schema: Value) -> Value {
    json!({"application/json": {"schema": schema}})
}

fn upload() -> Value {
    json!({
        "type": "object",
        "properties": {"file": {
            "type": "string",
            "contentMediaType": "application/octet-stream",
            "description": "The content. The part's file name is the hash of the content.",
        }},
        "required": ["file"],
    })
}

/// The part of the API: the first fixed part of the path.
fn area(path: &str) -> &str {
    let parts = path
        .trim_start_matches("/api/")
        .trim_start_matches("project/{project_name}/");
    parts.trim_start_matches('/').split('/').next().unwrap_or(path)
}

fn snake_case(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

const fn permission(guard: Guard) -> &'static str {
    match guard {
        Guard::Anyone => "anyone",
        Guard::User => "any user",
        Guard::GlobalAdmin => "global admins",
        Guard::Member => "members of the project",
        Guard::MemberOrPublic => "members; any user if the project is public",
        Guard::Manager => "managers and admins of the project",
        Guard::ManagerOrPublic => "managers and admins of the project; users may join public projects",
        Guard::MemberSelf => "managers and admins of the project; members may leave",
        Guard::Admin => "admins of the project",
        Guard::Importer => "members of the project, and of projects that import it",
        Guard::ImporterOrPublic => {
            "members of the project, and of projects that import it; any user if it is public"
        }
        Guard::SshProxyToken => "the SSH proxy's token",
        Guard::MetricsToken => "the token for metrics",
    }
}

fn path_parameters(path: &str) -> Vec<Value> {
    path.split('{')
        .skip(1)
        .filter_map(|part| part.split('}').next())
        .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
        .collect()
}

/// The fields of the object that a schema points to.
fn query_parameters(schema: &Value, requests: &mut Schemas) -> Vec<Value> {
    let name = schema.get("$ref").and_then(Value::as_str).unwrap_or_default();
    let Some(object) = requests.take(name.trim_start_matches(COMPONENTS)) else {
        return Vec::new();
    };
    let is_required = |name: &str| {
        let required = object.get("required").and_then(Value::as_array);
        required.is_some_and(|names| names.iter().any(|required| required == name))
    };
    let properties = object.get("properties").and_then(Value::as_object);
    let parameters = properties.into_iter().flatten().map(|(name, schema)| {
        json!({"name": name, "in": "query", "required": is_required(name), "schema": schema})
    });
    parameters.collect()
}
