//! The OpenAPI document as one HTML page, without scripts and without anything from elsewhere.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::COMPONENTS;

/// The page's style, which a content security policy allows by its hash.
pub const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;\
    color:#1b1b1b;background:#fff}h1,h2{line-height:1.2}code{font:13px ui-monospace,monospace}\
    details{border:1px solid #ddd;border-radius:6px;margin:.4rem 0;padding:.4rem .8rem}summary{cursor:pointer}\
    summary b{display:inline-block;width:3.6rem;color:#06c}summary i{color:#666;font-style:normal;float:right}\
    table{border-collapse:collapse;width:100%;margin:.3rem 0 .8rem}td{border-top:1px solid #eee;padding:.2rem .6rem \
    .2rem 0;vertical-align:top}nav a{margin-right:.8rem}p.facts{color:#444;margin:.4rem 0}\
    @media(prefers-color-scheme:dark){body{color:#ddd;background:#161616}details{border-color:#333}\
    td{border-color:#2a2a2a}a,summary b{color:#6af}p.facts,summary i{color:#999}}";

/// Renders the document as one HTML page that needs nothing from elsewhere.
pub fn html(document: &Value) -> String {
    let mut page = String::new();
    write_page(&mut page, document).ok(); // writing to a text does not fail
    page
}

fn write_page(page: &mut String, document: &Value) -> std::fmt::Result {
    let info = |key: &str| escaped(text(document.get("info").and_then(|info| info.get(key))));
    write!(
        page,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title} API</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head><body>\
         <h1>{title} API {version}</h1><p>{description}</p><p><a href=\"/openapi.json\">openapi.json</a></p><nav>",
        title = info("title"),
        version = info("version"),
        description = info("description"),
    )?;
    let operations = operations(document);
    let mut areas: Vec<&str> = operations.iter().map(Operation::area).collect();
    areas.sort_unstable();
    areas.dedup();
    for area in &areas {
        write!(page, "<a href=\"#{0}\">{0}</a>", escaped(area))?;
    }
    page.push_str("</nav>");
    for area in areas {
        write!(page, "<h2 id=\"{0}\">{0}</h2>", escaped(area))?;
        for operation in operations.iter().filter(|operation| operation.area() == area) {
            operation.write(page)?;
        }
    }
    page.push_str("<h2 id=\"types\">Types</h2>");
    let schemas = document.pointer("/components/schemas").and_then(Value::as_object);
    for (name, schema) in schemas.into_iter().flatten() {
        write!(
            page,
            "<details id=\"type-{0}\"><summary>{0}</summary>",
            escaped(name)
        )?;
        write_schema(page, schema)?;
        page.push_str("</details>");
    }
    page.push_str("</body></html>\n");
    Ok(())
}

struct Operation<'d> {
    path: &'d str,
    method: &'d str,
    facts: &'d Map<String, Value>,
}

fn operations(document: &Value) -> Vec<Operation<'_>> {
    let mut found = Vec::new();
    for (path, item) in document
        .get("paths")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        for (method, facts) in item.as_object().into_iter().flatten() {
            if let Value::Object(facts) = facts {
                found.push(Operation { path, method, facts });
            }
        }
    }
    found
}

impl<'d> Operation<'d> {
    fn area(&self) -> &'d str {
        text(self.facts.get("tags").and_then(|tags| tags.get(0)))
    }

    fn write(&self, page: &mut String) -> std::fmt::Result {
        write!(
            page,
            "<details><summary><b>{}</b> <code>{}</code> <i>{}</i></summary><p class=\"facts\">For {}.",
            self.method.to_uppercase(),
            escaped(self.path),
            escaped(text(self.facts.get("summary"))),
            escaped(text(self.facts.get("x-permission"))),
        )?;
        if let Some(Value::String(since)) = self.facts.get("x-since") {
            write!(page, " Since {}.", escaped(since))?;
        }
        if let Some(Value::Array(events)) = self.facts.get("x-events") {
            let events: Vec<String> = events.iter().map(|event| escaped(text(Some(event)))).collect();
            write!(page, " Events: {}.", events.join("; "))?;
        }
        page.push_str("</p>");
        self.write_request(page)?;
        page.push_str("<table>");
        let responses = self.facts.get("responses").and_then(Value::as_object);
        for (status, response) in responses.into_iter().flatten() {
            write!(
                page,
                "<tr><td>{}</td><td>{}</td><td>{}</td></tr>",
                escaped(status),
                escaped(text(response.get("description"))),
                content_type(response),
            )?;
        }
        page.push_str("</table></details>");
        Ok(())
    }

    fn write_request(&self, page: &mut String) -> std::fmt::Result {
        page.push_str("<table>");
        let parameters = self.facts.get("parameters").and_then(Value::as_array);
        for parameter in parameters.into_iter().flatten() {
            write!(
                page,
                "<tr><td><code>{}</code></td><td>in the {}</td><td>{}</td></tr>",
                escaped(text(parameter.get("name"))),
                escaped(text(parameter.get("in"))),
                parameter.get("schema").map(type_of).unwrap_or_default(),
            )?;
        }
        if let Some(body) = self.facts.get("requestBody") {
            write!(
                page,
                "<tr><td>body</td><td></td><td>{}</td></tr>",
                content_type(body)
            )?;
        }
        page.push_str("</table>");
        Ok(())
    }
}

/// The type in the first content of a body or response.
fn content_type(body: &Value) -> String {
    let content = body.get("content").and_then(Value::as_object);
    let first = content.and_then(|content| content.values().next());
    first
        .and_then(|content| content.get("schema"))
        .map(type_of)
        .unwrap_or_default()
}

fn write_schema(page: &mut String, schema: &Value) -> std::fmt::Result {
    write!(page, "<p>{}</p>", escaped(text(schema.get("description"))))?;
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
        return write!(page, "<p>{}</p>", type_of(schema));
    };
    let required = schema.get("required").and_then(Value::as_array);
    page.push_str("<table>");
    for (name, property) in properties {
        let is_required = required.is_some_and(|names| names.iter().any(|required| required == name));
        write!(
            page,
            "<tr><td><code>{}</code>{}</td><td>{}</td><td>{}</td></tr>",
            escaped(name),
            if is_required { " *" } else { "" },
            type_of(property),
            escaped(text(property.get("description"))),
        )?;
    }
    page.push_str("</table>");
    Ok(())
}

/// A schema in a few words; definitions are links.
fn type_of(schema: &Value) -> String {
    if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
        let name = escaped(name.trim_start_matches(COMPONENTS));
        return format!("<a href=\"#type-{name}\">{name}</a>");
    }
    for union in ["anyOf", "oneOf"] {
        if let Some(Value::Array(members)) = schema.get(union) {
            let members: Vec<String> = members.iter().map(type_of).collect();
            return members.join(" or ");
        }
    }
    if let Some(constant) = schema.get("const") {
        return format!("<code>{}</code>", escaped(&constant.to_string()));
    }
    if let Some(Value::Array(values)) = schema.get("enum") {
        let values: Vec<String> = values.iter().map(|value| escaped(text(Some(value)))).collect();
        return values.join(", ");
    }
    let items = || schema.get("items").map(type_of).unwrap_or_default();
    match schema.get("type") {
        Some(Value::String(kind)) if kind == "array" => format!("list of {}", items()),
        Some(Value::String(kind)) => escaped(kind),
        Some(Value::Array(kinds)) => {
            let kinds: Vec<String> = kinds.iter().map(|kind| escaped(text(Some(kind)))).collect();
            kinds.join(" or ")
        }
        _ => "anything".to_owned(),
    }
}

fn text(value: Option<&Value>) -> &str {
    value.and_then(Value::as_str).unwrap_or_default()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_are_escaped_and_types_are_links() {
        let page = html(&json!({
            "info": {"title": "<script>", "version": "1"},
            "paths": {"/a": {"post": {
                "tags": ["things"], "summary": "a & b", "x-since": "0.18.0",
                "responses": {"200": {"description": "Success", "content": {
                    "application/json": {"schema": {"$ref": "#/components/schemas/Thing"}},
                }}},
            }}},
            "components": {"schemas": {"Thing": {"properties": {"size": {"type": "integer"}}, "required": ["size"]}}},
        }));
        for part in [
            "&lt;script&gt; API 1",
            "<b>POST</b> <code>/a</code> <i>a &amp; b</i>",
            "Since 0.18.0.",
            "<a href=\"#type-Thing\">Thing</a>",
            "<code>size</code> *</td><td>integer",
        ] {
            assert!(page.contains(part), "{part}\n{page}");
        }
        assert!(!page.contains("<script"), "{page}");
    }
}
