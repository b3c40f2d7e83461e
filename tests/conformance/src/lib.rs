//! Checks requests and answers against an OpenAPI document: parameters of the query must be documented for the route, bodies must
//! be of the schema that is documented, and so must the status of an answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use jsonschema::{Registry, RegistryBuilder, Validator};
use serde_json::{Value, json};

const ADDRESS: &str = "urn:openapi";

/// A document, and the schemas that were needed so far.
#[derive(Debug)]
pub struct Document {
    registry: Registry<'static>,
    routes: Vec<Route>,
    validators: Mutex<HashMap<String, Arc<Validator>>>,
}

#[derive(Debug)]
struct Route {
    method: String,
    template: String,
    /// Names of parameters in the query.
    query: Vec<String>,
    request: Value,
    responses: Value,
}

/// A request as it came.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// HTTP method.
    pub method: &'a str,
    /// Path without the query.
    pub path: &'a str,
    /// Names of the parameters in the query.
    pub query: &'a [String],
    /// The body.
    pub body: &'a [u8],
}

/// An answer as it came.
#[derive(Debug, Clone, Copy)]
pub struct Exchange<'a> {
    /// HTTP method of the request.
    pub method: &'a str,
    /// Path without the query.
    pub path: &'a str,
    /// Status.
    pub status: u16,
    /// The answer's body.
    pub body: &'a [u8],
}

impl Document {
    /// # Errors
    /// It is no OpenAPI document, or its references do not lead anywhere.
    pub fn new(document: &Value) -> Result<Self, String> {
        let paths = document.get("paths").and_then(Value::as_object);
        let paths = paths.ok_or("the document has no paths")?;
        let routes = paths.iter().flat_map(|(template, item)| {
            item.as_object()
                .into_iter()
                .flatten()
                .map(|(method, operation)| Route {
                    method: method.to_uppercase(),
                    template: template.clone(),
                    query: query_names(operation),
                    request: operation.get("requestBody").cloned().unwrap_or_default(),
                    responses: operation.get("responses").cloned().unwrap_or_default(),
                })
        });
        let routes = routes.collect();
        let registry = Registry::new().add(ADDRESS, document.clone());
        let registry = registry.and_then(RegistryBuilder::prepare);
        Ok(Self {
            registry: registry.map_err(|error| error.to_string())?,
            routes,
            validators: Mutex::default(),
        })
    }

    /// Checks an answer; those of paths that are not documented are not looked at.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self, exchange: Exchange<'_>) -> Result<(), String> {
        let Some(route) = self.route(exchange.method, exchange.path) else {
            return Ok(());
        };
        let what = format!("{} {} -> {}", exchange.method, exchange.path, exchange.status);
        let status = exchange.status.to_string();
        let Some(status) = [status.as_str(), "default"]
            .into_iter()
            .find(|key| route.responses.get(key).is_some())
        else {
            return Err(format!(
                "{what}: this status is not documented; the answer: {}",
                String::from_utf8_lossy(exchange.body)
            ));
        };
        let Some(media) = route.responses.get(status).and_then(json_media) else {
            return Ok(());
        };
        let body: Value =
            serde_json::from_slice(exchange.body).map_err(|error| format!("{what}: no JSON: {error}"))?;
        let problems = self.problems(route, &format!("responses/{status}"), media, &body)?;
        if problems.is_empty() {
            return Ok(());
        }
        Err(format!(
            "{what}: not as documented:\n{}\n{}",
            problems.join("\n"),
            short(&body.to_string())
        ))
    }

    /// Checks a request; those of paths that are not documented are not looked at.
    ///
    /// # Errors
    /// What is wrong with it, one text for each thing.
    pub fn check_request(&self, asked: Asked<'_>) -> Result<(), Vec<String>> {
        let Some(route) = self.route(asked.method, asked.path) else {
            return Ok(());
        };
        let mut problems: Vec<String> = asked
            .query
            .iter()
            .filter(|name| !route.query.contains(name))
            .map(|name| format!("{name}: no parameter of this call"))
            .collect();
        match json_media(&route.request) {
            Some(media) => match serde_json::from_slice(asked.body) {
                Ok(body) => match self.problems(route, "requestBody", media, &body) {
                    Ok(found) => problems.extend(found),
                    Err(problem) => problems.push(problem),
                },
                Err(error) => problems.push(format!("no JSON: {error}")),
            },
            None if route.request.is_null() && !asked.body.is_empty() => {
                problems.push("this call takes no body".to_owned());
            }
            None => {}
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(problems)
        }
    }

    /// What is wrong with a body, of a part of the route such as `requestBody`.
    fn problems(&self, route: &Route, part: &str, media: &str, body: &Value) -> Result<Vec<String>, String> {
        let validator = self.validator(route, part, media)?;
        let errors = validator.iter_errors(body).take(5);
        Ok(errors
            .map(|error| format!("{}: {}", error.instance_path(), short(&error.to_string())))
            .collect())
    }

    /// The route that takes a path; fixed parts are preferred to parameters.
    fn route(&self, method: &str, path: &str) -> Option<&Route> {
        let fitting = self
            .routes
            .iter()
            .filter(|route| route.method == method && fits(&route.template, path));
        fitting.min_by_key(|route| route.template.matches('{').count())
    }

    fn validator(&self, route: &Route, part: &str, media: &str) -> Result<Arc<Validator>, String> {
        let escaped = |text: &str| encoded(&text.replace('~', "~0").replace('/', "~1"));
        let pointer = format!(
            "/paths/{}/{}/{part}/content/{}/schema",
            escaped(&route.template),
            route.method.to_lowercase(),
            escaped(media),
        );
        let mut validators = self.validators.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(validator) = validators.get(&pointer) {
            return Ok(Arc::clone(validator));
        }
        let schema = json!({"$ref": format!("{ADDRESS}#{pointer}")});
        let validator = jsonschema::options().with_registry(&self.registry).build(&schema);
        let validator = Arc::new(validator.map_err(|error| format!("{pointer}: {error}"))?);
        validators.insert(pointer, Arc::clone(&validator));
        Ok(validator)
    }
}

/// The names of an operation's parameters in the query.
fn query_names(operation: &Value) -> Vec<String> {
    let parameters = operation.get("parameters").and_then(Value::as_array);
    let in_query = parameters
        .into_iter()
        .flatten()
        .filter(|parameter| parameter.get("in").and_then(Value::as_str) == Some("query"));
    in_query
        .filter_map(|parameter| parameter.get("name")?.as_str().map(str::to_owned))
        .collect()
}

/// The media type of JSON that a body is documented with.
fn json_media(body: &Value) -> Option<&'static str> {
    let content = body.get("content")?;
    ["application/json", "application/problem+json"]
        .into_iter()
        .find(|media| content.get(media).is_some())
}

/// Braces may not stand in a reference as they are.
fn encoded(text: &str) -> String {
    text.replace('{', "%7B").replace('}', "%7D")
}

fn fits(template: &str, path: &str) -> bool {
    let (mut left, mut right) = (template.split('/'), path.split('/'));
    loop {
        match (left.next(), right.next()) {
            (None, None) => return true,
            (Some(part), Some(given)) if part == given || (part.starts_with('{') && !given.is_empty()) => {}
            _ => return false,
        }
    }
}

fn short(text: &str) -> String {
    let shown: String = text.chars().take(600).collect();
    if shown.len() < text.len() {
        format!("{shown}...")
    } else {
        shown
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn document() -> Document {
        let answer =
            |schema: Value| json!({"description": "", "content": {"application/json": {"schema": schema}}});
        let thing = json!({"$ref": "#/components/schemas/Thing"});
        let body = json!({"content": {"application/json": {"schema": thing}}});
        let problem = json!({"content": {"application/problem+json": {"schema": thing}}});
        let document = json!({
            "paths": {
                "/things/{name}": {
                    "get": {"responses": {"200": answer(thing), "default": answer(json!(true))}},
                    "post": {"requestBody": body, "responses": {"201": {}, "default": problem}},
                },
                "/things/list": {"get": {
                    "parameters": [{"name": "large", "in": "query"}, {"name": "name", "in": "path"}],
                    "responses": {"200": answer(json!({"type": "array"}))},
                }},
            },
            "components": {"schemas": {"Thing": {
                "type": "object", "properties": {"size": {"type": "integer"}}, "additionalProperties": false,
            }}},
        });
        Document::new(&document).unwrap()
    }

    fn check(path: &str, status: u16, body: &str) -> Result<(), String> {
        document().check(Exchange {
            method: "GET",
            path,
            status,
            body: body.as_bytes(),
        })
    }

    #[test]
    fn bodies_are_held_to_their_schemas() {
        check("/things/a", 200, r#"{"size": 1}"#).unwrap();
        assert!(
            check("/things/a", 200, r#"{"size": "big"}"#)
                .unwrap_err()
                .contains("/size")
        );
        assert!(check("/things/a", 200, r#"{"weight": 1}"#).is_err());
        assert!(check("/things/a", 200, "no JSON").is_err());
    }

    #[test]
    fn requests_are_held_to_their_schemas() {
        let ask = |method: &str, path: &str, query: &[&str], body: &str| {
            let query: Vec<String> = query.iter().map(|name| (*name).to_owned()).collect();
            document().check_request(Asked {
                method,
                path,
                query: &query,
                body: body.as_bytes(),
            })
        };
        ask("POST", "/things/a", &[], r#"{"size": 1}"#).unwrap();
        for body in [r#"{"size": "big"}"#, r#"{"weight": 1}"#, "no JSON", ""] {
            assert_eq!(
                ask("POST", "/things/a", &[], body).unwrap_err().len(),
                1,
                "{body}"
            );
        }
        ask("GET", "/things/list", &["large"], "").unwrap();
        ask("GET", "/things/list", &["small"], "").unwrap_err();
        ask("GET", "/things/list", &[], "{}").unwrap_err();
        ask("GET", "/other", &["any"], "thing").unwrap();
    }

    #[test]
    fn errors_are_held_to_their_schema_as_well() {
        let problem = |body: &str| {
            document().check(Exchange {
                method: "POST",
                path: "/things/a",
                status: 400,
                body: body.as_bytes(),
            })
        };
        problem(r#"{"size": 1}"#).unwrap();
        problem(r#"{"weight": 1}"#).unwrap_err();
    }

    #[test]
    fn statuses_are_documented_or_wrong() {
        check("/things/a", 418, "{}").unwrap();
        assert!(
            check("/things/list", 418, "[]")
                .unwrap_err()
                .contains("not documented")
        );
    }

    #[test]
    fn fixed_parts_win_and_unknown_paths_are_left_alone() {
        check("/things/list", 200, "[]").unwrap();
        check("/other", 500, "").unwrap();
        check("/things/a/b", 500, "").unwrap();
    }
}
