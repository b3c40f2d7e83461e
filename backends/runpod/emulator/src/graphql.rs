//! The mutation `podFindAndDeployOnDemand`, which creates pods in the community cloud.
//!
//! Its input comes in a variable, or, as dstack 0.22.5 has it, as a literal in the text of the mutation.

use std::iter::Peekable;
use std::str::Chars;

use serde_json::{Map, Value, json};

use crate::calls::{NO_CAPACITY, PodAsk};
use crate::{Answer, Problem, Runpod};

const TEXTS: &[&str] = &[
    "name",
    "imageName",
    "gpuTypeId",
    "cloudType",
    "minCudaVersion",
    "countryCode",
    "dockerArgs",
    "ports",
    "networkVolumeId",
    "volumeMountPath",
    "containerRegistryAuthId",
];

const NUMBERS: &[&str] = &[
    "gpuCount",
    "volumeInGb",
    "containerDiskInGb",
    "minVcpuCount",
    "minMemoryInGb",
];

const FLAGS: &[&str] = &["startSsh", "supportPublicIp"];

const DECLARED: &str = "$input: PodFindAndDeployOnDemandInput!";

impl Runpod {
    pub(crate) fn deploy(&self, body: &Value) -> Answer {
        let input = input(body).map_err(|wrong| Problem::new(400, wrong))?;
        if let Some(wrong) = problem(&input) {
            return Ok((200, failed(&wrong, "BAD_USER_INPUT")));
        }
        let least = |field: &str| input[field].as_i64().unwrap_or_default();
        #[allow(clippy::cast_precision_loss)] // sizes of machines
        let is_there = self.0.sizes.iter().any(|size| {
            input["countryCode"] == size.place
                && input["gpuTypeId"] == size.name
                && least("gpuCount") == size.gpus
                && least("minVcpuCount") <= size.cpus
                && least("minMemoryInGb") as f64 <= size.memory
        });
        if !is_there || self.lock().sold_out || input["cloudType"] != "COMMUNITY" {
            return Ok((200, failed(NO_CAPACITY, "RUNPOD")));
        }
        let environment: Map<String, Value> =
            input["env"].as_array().into_iter().flatten().map(pair).collect();
        let mut config = json!({"image": input["imageName"], "disk": input["containerDiskInGb"],
            "ports": [input["ports"]], "env": environment});
        let command = input["dockerArgs"].as_str().unwrap_or("{}");
        let command: Value = serde_json::from_str(command).unwrap_or_default();
        for field in ["entrypoint", "cmd"] {
            config[field] = command[field].clone();
        }
        if let Some(login) = input.get("containerRegistryAuthId") {
            config["registry"] = login.clone();
        }
        if let Some(volume) = input.get("networkVolumeId") {
            config["mounts"] = json!({"network": [{"volumeId": volume, "path": input["volumeMountPath"]}]});
        }
        let made = self.add_pod(PodAsk {
            name: input["name"].as_str().unwrap().to_owned(),
            config,
            compute: (
                "gpu",
                json!({"id": input["gpuTypeId"], "count": input["gpuCount"]}),
            ),
            cloud: "COMMUNITY",
            data_center: None,
        });
        Ok(match made {
            Ok(id) => {
                let pod = json!({"id": id, "lastStatusChange": "Rented by User: Wed Oct 01 2026",
                    "imageName": input["imageName"], "machine": {"podHostId": format!("{id}-64411eb2")}});
                (200, json!({"data": {"podFindAndDeployOnDemand": pod}}))
            }
            Err(problem) => (200, failed(&problem.detail, "RUNPOD")),
        })
    }
}

fn failed(message: &str, code: &str) -> Value {
    json!({"errors": [{"message": message, "path": ["podFindAndDeployOnDemand"], "extensions": {"code": code}}],
        "data": {"podFindAndDeployOnDemand": null}})
}

fn pair(entry: &Value) -> (String, Value) {
    (entry["key"].as_str().unwrap().to_owned(), entry["value"].clone())
}

/// The input of the mutation, or what is wrong with the request.
fn input(body: &Value) -> Result<Value, String> {
    let query = body["query"].as_str().ok_or("no query")?;
    let call = query
        .split_once("podFindAndDeployOnDemand")
        .ok_or("no such mutation")?;
    let arguments = call.1.trim_start().strip_prefix('(').ok_or("no arguments")?;
    let argument = arguments.trim_start().strip_prefix("input:").ok_or("no input")?;
    if argument.trim_start().starts_with("$input") {
        let is_declared = query.contains(DECLARED);
        let input = body["variables"].get("input").filter(|_| is_declared);
        return input
            .cloned()
            .ok_or_else(|| "the variable is not declared or not given".to_owned());
    }
    literal(&mut argument.chars().peekable()).ok_or_else(|| "a literal that cannot be read".to_owned())
}

/// What is wrong with an input.
fn problem(input: &Value) -> Option<String> {
    let fields = input.as_object()?;
    for (field, value) in fields {
        let name = field.as_str();
        let fits = match () {
            () if TEXTS.contains(&name) => value.is_string(),
            () if NUMBERS.contains(&name) => value.is_i64(),
            () if FLAGS.contains(&name) => value.is_boolean(),
            () if name == "env" => value.as_array().is_some_and(|env| env.iter().all(is_pair)),
            () => false,
        };
        if !fits {
            return Some(format!(
                "Field {name} is not defined, or {value} is not of its type"
            ));
        }
    }
    let needed = [
        "name",
        "imageName",
        "gpuTypeId",
        "cloudType",
        "gpuCount",
        "containerDiskInGb",
    ];
    if let Some(missing) = needed.iter().find(|field| !fields.contains_key(**field)) {
        return Some(format!("Field {missing} is required"));
    }
    let arguments: Value = serde_json::from_str(input["dockerArgs"].as_str()?).unwrap_or_default();
    let is_command = arguments["cmd"].is_array() && arguments["entrypoint"].is_array();
    (!is_command).then(|| "dockerArgs is no command".to_owned())
}

fn is_pair(entry: &Value) -> bool {
    let fields = entry.as_object();
    fields.is_some_and(|fields| fields.len() == 2) && entry["key"].is_string() && entry["value"].is_string()
}

/// Commas are spaces in GraphQL.
fn skip_spaces(chars: &mut Peekable<Chars<'_>>) {
    while chars
        .next_if(|char| char.is_whitespace() || *char == ',')
        .is_some()
    {}
}

/// A value as JSON; names of enumerations are texts.
fn literal(chars: &mut Peekable<Chars<'_>>) -> Option<Value> {
    skip_spaces(chars);
    match chars.peek()? {
        '{' => {
            chars.next();
            let mut fields = Map::new();
            loop {
                skip_spaces(chars);
                if chars.next_if_eq(&'}').is_some() {
                    return Some(Value::Object(fields));
                }
                let name = word(chars);
                skip_spaces(chars);
                chars.next_if_eq(&':')?;
                fields.insert(name, literal(chars)?);
            }
        }
        '[' => {
            chars.next();
            let mut items = Vec::new();
            loop {
                skip_spaces(chars);
                if chars.next_if_eq(&']').is_some() {
                    return Some(Value::Array(items));
                }
                items.push(literal(chars)?);
            }
        }
        '"' => text(chars),
        _ => {
            let word = word(chars);
            let is_word = !word.is_empty();
            is_word.then(|| serde_json::from_str(&word).unwrap_or(Value::String(word)))
        }
    }
}

/// Texts of GraphQL are escaped as those of JSON.
fn text(chars: &mut Peekable<Chars<'_>>) -> Option<Value> {
    let mut raw = String::from(chars.next()?);
    loop {
        let char = chars.next()?;
        raw.push(char);
        match char {
            '"' => return serde_json::from_str(&raw).ok(),
            '\\' => raw.push(chars.next()?),
            _ => {}
        }
    }
}

fn word(chars: &mut Peekable<Chars<'_>>) -> String {
    let mut word = String::new();
    while let Some(char) = chars.next_if(|char| char.is_ascii_alphanumeric() || "_-.".contains(*char)) {
        word.push(char);
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_read_from_literals_and_variables() {
        let literal = r#"mutation { podFindAndDeployOnDemand( input: { name: "a \"b\"", cloudType: COMMUNITY,
            startSsh: true, gpuCount: 2, env: [{ key: "K", value: "v" }] } ) { id } }"#;
        let expected = json!({"name": "a \"b\"", "cloudType": "COMMUNITY", "startSsh": true, "gpuCount": 2,
            "env": [{"key": "K", "value": "v"}]});
        assert_eq!(input(&json!({"query": literal})), Ok(expected.clone()));
        let variable = "mutation ($input: PodFindAndDeployOnDemandInput!) { podFindAndDeployOnDemand(input: $input) { id } }";
        let given = json!({"query": variable, "variables": {"input": expected}});
        assert_eq!(input(&given), Ok(expected));
        for query in [
            "query { gpuTypes { id } }",
            "mutation { podFindAndDeployOnDemand(input: $input) { id } }",
            "mutation { podFindAndDeployOnDemand(input: { name \"a\" }) { id } }",
        ] {
            input(&json!({"query": query, "variables": {"input": {}}})).unwrap_err();
        }
    }
}
