//! The vendor's descriptions: parameters are read by them, and answers written.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use crate::Problem;

/// Services by the name that signatures have.
#[derive(Debug)]
pub(crate) struct Description(Value);

/// Read once: tests have hundreds of clouds.
pub(crate) static DESCRIPTION: LazyLock<Description> =
    LazyLock::new(|| Description(serde_json::from_str(include_str!("../api.json")).unwrap()));

/// Parameters by the parts of their names.
#[derive(Debug, Default)]
struct Node {
    value: Option<String>,
    children: BTreeMap<String, Self>,
}

impl Description {
    fn operation(&self, service: &str, action: &str) -> Option<&Value> {
        self.0.get(service)?.get("operations")?.get(action)
    }

    pub(crate) fn version(&self, service: &str) -> &str {
        self.0[service]["apiVersion"].as_str().unwrap_or_default()
    }

    /// The parameters of a call by the names of their members. What the description forbids is refused.
    pub(crate) fn read(
        &self,
        service: &str,
        action: &str,
        fields: &[(String, String)],
    ) -> Result<Value, Problem> {
        let operation = self.operation(service, action).ok_or_else(|| {
            Problem::new(
                400,
                "InvalidAction",
                format!("The action {action} is not valid for this web service."),
            )
        })?;
        let mut root = Node::default();
        for (name, value) in fields
            .iter()
            .filter(|(name, _)| name != "Action" && name != "Version")
        {
            let node = name.split('.').fold(&mut root, |node, part| {
                node.children.entry(part.to_owned()).or_default()
            });
            node.value = Some(value.clone());
        }
        match operation["input"].as_str() {
            Some(shape) => self.read_shape(service, shape, &root, ""),
            None => Ok(json!({})),
        }
    }

    fn read_shape(&self, service: &str, shape: &str, node: &Node, path: &str) -> Result<Value, Problem> {
        let described = &self.0[service]["shapes"][shape];
        match described["type"].as_str().unwrap() {
            "structure" => self.read_structure(service, described, node, path),
            "list" => {
                let member = described["member"]["shape"].as_str().unwrap();
                // Beside EC2, lists have a level of their own: `Names.member.1`.
                let node = match service {
                    "ec2" => node,
                    _ => node.children.get("member").ok_or_else(|| unknown(path))?,
                };
                let mut items: Vec<(usize, &Node)> = Vec::new();
                for (number, child) in &node.children {
                    items.push((
                        number.parse().map_err(|_| unknown(&format!("{path}.{number}")))?,
                        child,
                    ));
                }
                items.sort_by_key(|(number, _)| *number);
                let read = |(number, child): &(usize, &Node)| {
                    self.read_shape(service, member, child, &format!("{path}.{number}"))
                };
                items
                    .iter()
                    .map(read)
                    .collect::<Result<Vec<_>, _>>()
                    .map(Value::from)
            }
            kind => {
                let text = node.value.as_deref().filter(|_| node.children.is_empty());
                let text = text.ok_or_else(|| unknown(path))?;
                scalar(kind, described, text).ok_or_else(|| {
                    Problem::new(
                        400,
                        "InvalidParameterValue",
                        format!("Value ({text}) for parameter {path} is invalid."),
                    )
                })
            }
        }
    }

    fn read_structure(
        &self,
        service: &str,
        described: &Value,
        node: &Node,
        path: &str,
    ) -> Result<Value, Problem> {
        let mut read = Map::new();
        let mut known = Vec::new();
        for (member, field) in described["members"].as_object().unwrap() {
            let name = parameter_name(service, member, field);
            if let Some(child) = node.children.get(&name) {
                let path = format!("{path}.{name}");
                let value = self.read_shape(
                    service,
                    field["shape"].as_str().unwrap(),
                    child,
                    path.trim_start_matches('.'),
                )?;
                read.insert(member.clone(), value);
            }
            known.push(name);
        }
        if let Some(name) = node.children.keys().find(|name| !known.contains(name)) {
            return Err(unknown(format!("{path}.{name}").trim_start_matches('.')));
        }
        for required in described["required"].as_array().into_iter().flatten() {
            let required = required.as_str().unwrap();
            if !read.contains_key(required) {
                return Err(Problem::new(
                    400,
                    "MissingParameter",
                    format!("The request must contain the parameter {required}"),
                ));
            }
        }
        Ok(Value::Object(read))
    }

    /// Writes an answer, whose fields have the names of the description's members.
    ///
    /// # Panics
    /// The description has no such member.
    pub(crate) fn write(&self, service: &str, action: &str, answer: &Value, request_id: &str) -> String {
        let operation = self.operation(service, action).unwrap();
        let namespace = self.0[service]["xmlNamespace"].as_str().unwrap();
        let mut body = String::new();
        if let Some(shape) = operation["output"].as_str() {
            self.write_members(service, shape, answer, &mut body);
        }
        let declaration = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
        let namespace = namespace.trim_end_matches('/');
        if service == "ec2" {
            if body.is_empty() {
                body.push_str("<return>true</return>");
            }
            return format!(
                "{declaration}<{action}Response xmlns=\"{namespace}/\"><requestId>{request_id}</requestId>{body}</{action}Response>"
            );
        }
        let wrapper = operation["resultWrapper"].as_str().unwrap();
        format!(
            "{declaration}<{action}Response xmlns=\"{namespace}\"><{wrapper}>{body}</{wrapper}><ResponseMetadata><RequestId>\
             {request_id}</RequestId></ResponseMetadata></{action}Response>"
        )
    }

    fn write_members(&self, service: &str, shape: &str, value: &Value, out: &mut String) {
        let described = &self.0[service]["shapes"][shape]["members"];
        let members = value.as_object().into_iter().flatten();
        for (member, value) in members.filter(|(_, value)| !value.is_null()) {
            let field = described.get(member);
            let field = field.unwrap_or_else(|| panic!("{shape} has no {member}"));
            let name = field["locationName"].as_str().unwrap_or(member);
            self.write_element(service, name, field["shape"].as_str().unwrap(), value, out);
        }
    }

    fn write_element(&self, service: &str, name: &str, shape: &str, value: &Value, out: &mut String) {
        let described = &self.0[service]["shapes"][shape];
        out.push_str(&format!("<{name}>"));
        match described["type"].as_str().unwrap() {
            "structure" => self.write_members(service, shape, value, out),
            "list" => {
                let usual = if service == "ec2" { "item" } else { "member" };
                let item = described["member"]["locationName"].as_str().unwrap_or(usual);
                let shape = described["member"]["shape"].as_str().unwrap();
                for value in value.as_array().unwrap() {
                    self.write_element(service, item, shape, value, out);
                }
            }
            _ => out.push_str(&escaped(value)),
        }
        out.push_str(&format!("</{name}>"));
    }
}

/// EC2 has names of its own for parameters ("Amazon EC2 query protocol").
fn parameter_name(service: &str, member: &str, field: &Value) -> String {
    if let Some(name) = field["queryName"].as_str().filter(|_| service == "ec2") {
        return name.to_owned();
    }
    match field["locationName"].as_str() {
        Some(name) if service == "ec2" => {
            let (first, rest) = name.split_at(1);
            format!("{}{rest}", first.to_ascii_uppercase())
        }
        Some(name) => name.to_owned(),
        None => member.to_owned(),
    }
}

fn scalar(kind: &str, described: &Value, text: &str) -> Option<Value> {
    match kind {
        "boolean" => text.parse::<bool>().ok().map(Value::from),
        "integer" | "long" => {
            let number = text.parse::<i64>().ok()?;
            let is_within = |bound: &str, is_wrong: fn(i64, i64) -> bool| {
                described[bound]
                    .as_i64()
                    .is_none_or(|bound| !is_wrong(number, bound))
            };
            let fits = is_within("min", |number, least| number < least)
                && is_within("max", |number, most| number > most);
            fits.then(|| Value::from(number))
        }
        "double" | "float" => text.parse::<f64>().ok().map(Value::from),
        _ => {
            let is_one = described["enum"]
                .as_array()
                .is_none_or(|values| values.iter().any(|value| value == text));
            is_one.then(|| Value::from(text))
        }
    }
}

fn unknown(path: &str) -> Problem {
    Problem::new(
        400,
        "UnknownParameter",
        format!("The parameter {path} is not recognized"),
    )
}

fn escaped(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
