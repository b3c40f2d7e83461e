//! Exchanges recorded from dstack 0.22.5: what it accepted we accept with the same normal form, what it refused we
//! refuse for the same reasons, and its answers pass through our types unchanged.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::collections::BTreeMap;

use dstack_model::backends::{BackendInfoYaml, BackendType};
use dstack_model::decode::problem::validation_body;
use dstack_model::decode::{Decode, Problem, Value, decode_lenient, decode_strict};
use dstack_model::requests::*;
use dstack_model::*;
use serde::Serialize;
use serde_json::json;

const EXCHANGES: &str = include_str!("data/exchanges.jsonl");

struct Exchange {
    case: String,
    route: String,
    request: Value,
    status: u64,
    answer: Value,
}

fn exchanges() -> impl Iterator<Item = Exchange> {
    EXCHANGES.lines().map(|line| {
        let value: Value = serde_json::from_str(line).unwrap();
        let text = |key: &str| value[key].as_str().unwrap().to_owned();
        Exchange {
            case: text("case"),
            route: text("route"),
            request: value["request"].clone(),
            status: value["status"].as_u64().unwrap(),
            answer: value["answer"].clone(),
        }
    })
}

/// Decodes as a request; answers the normal form.
fn request<T: Decode + Serialize>(value: &Value) -> Result<Value, Vec<Problem>> {
    decode_strict::<T>(value).map(|decoded| json!(decoded))
}

fn decode_request(route: &str, value: &Value) -> Option<Result<Value, Vec<Problem>>> {
    Some(match route {
        "auth/get_next_redirect" => request::<OAuthGetNextRedirectRequest>(value),
        "events/list" => request::<ListEventsRequest>(value),
        "files/get_archive_by_hash" => request::<GetFileArchiveByHashRequest>(value),
        "instances/list" => request::<ListInstancesRequest>(value),
        "projects/add_members" | "projects/set_members" => request::<ProjectMembersRequest>(value),
        "projects/remove_members" => request::<RemoveProjectMembersRequest>(value),
        "projects/update" => request::<UpdateProjectRequest>(value),
        "projects/create" => request::<CreateProjectRequest>(value),
        "projects/delete" => request::<DeleteProjectsRequest>(value),
        "runs/list" => request::<ListRunsRequest>(value),
        "users/create" | "users/update" => request::<CreateUserRequest>(value),
        "users/delete" => request::<DeleteUsersRequest>(value),
        "users/get_user" | "users/refresh_token" | "users/refresh_ssh_key" => {
            request::<UserNameRequest>(value)
        }
        "users/public_keys/add" => request::<AddPublicKeyRequest>(value),
        "users/public_keys/delete" => request::<DeletePublicKeysRequest>(value),
        "backends/create_yaml" | "backends/update_yaml" => request::<BackendYamlRequest>(value),
        "backends/delete" => request::<DeleteBackendsRequest>(value),
        "exports/create" => request::<CreateExportRequest>(value),
        "exports/update" => request::<UpdateExportRequest>(value),
        "exports/delete" | "gateways/get" | "secrets/get" | "volumes/get" => request::<NameRequest>(value),
        "fleets/apply" => request::<ApplyFleetPlanRequest>(value),
        "fleets/get_plan" => request::<GetFleetPlanRequest>(value),
        "fleets/delete" | "gateways/delete" | "volumes/delete" => request::<NamesRequest>(value),
        "fleets/delete_instances" => request::<DeleteFleetInstancesRequest>(value),
        "fleets/get" => request::<GetFleetRequest>(value),
        "gateways/apply" => request::<ApplyGatewayPlanRequest>(value),
        "gateways/get_plan" => request::<GetGatewayPlanRequest>(value),
        "gateways/create" => request::<CreateGatewayRequest>(value),
        "gateways/set_default" => request::<SetDefaultGatewayRequest>(value),
        "gateways/set_wildcard_domain" => request::<SetWildcardDomainRequest>(value),
        "gpus/list" => request::<ListGpusRequest>(value),
        "instances/get" => request::<GetInstanceRequest>(value),
        "instances/get_instance_health_checks" => request::<GetInstanceHealthChecksRequest>(value),
        "logs/poll" => request::<PollLogsRequest>(value),
        "repos/get" => request::<GetRepoRequest>(value),
        "repos/init" => request::<SaveRepoCredsRequest>(value),
        "runs/apply" => request::<ApplyRunPlanRequest>(value),
        "runs/delete" => request::<DeleteRunsRequest>(value),
        "runs/get" => request::<GetRunRequest>(value),
        "runs/get_plan" => request::<GetRunPlanRequest>(value),
        "runs/stop" => request::<StopRunsRequest>(value),
        "secrets/create_or_update" => request::<CreateOrUpdateSecretRequest>(value),
        "secrets/delete" => request::<DeleteSecretsRequest>(value),
        "volumes/create" => request::<CreateVolumeRequest>(value),
        _ => return None,
    })
}

/// Decodes as an answer; answers what we would send.
fn answer<T: Decode + Serialize>(value: &Value) -> Result<Value, Vec<Problem>> {
    decode_lenient::<T>(value).map(|decoded| json!(decoded))
}

fn decode_answer(route: &str, value: &Value) -> Option<Result<Value, Vec<Problem>>> {
    if value.is_null() {
        return None;
    }
    Some(match route {
        "auth/get_next_redirect" => answer::<OAuthGetNextRedirectResponse>(value),
        "events/list" => answer::<Vec<events::Event>>(value),
        "exports/list" => answer::<exports::ListExportsResponse>(value),
        "exports/create" | "exports/update" => answer::<exports::Export>(value),
        "imports/list" => answer::<exports::ListImportsResponse>(value),
        "files/get_archive_by_hash" | "files/upload_archive" => answer::<files::FileArchive>(value),
        "fleets/list" => answer::<Vec<fleets::Fleet>>(value),
        "fleets/apply" | "fleets/get" => answer::<fleets::Fleet>(value),
        "fleets/get_plan" => answer::<fleets::FleetPlan>(value),
        "instances/list" => answer::<Vec<instances::Instance>>(value),
        "instances/get" => answer::<instances::Instance>(value),
        "instances/get_instance_health_checks" => answer::<GetInstanceHealthChecksResponse>(value),
        "projects/list" if value.is_object() => answer::<projects::ProjectsInfoList>(value),
        "projects/list" | "projects/list_only_no_fleets" => answer::<Vec<projects::Project>>(value),
        "projects/create"
        | "projects/get"
        | "projects/add_members"
        | "projects/set_members"
        | "projects/update" => answer::<projects::Project>(value),
        "runs/list" => answer::<Vec<runs::Run>>(value),
        "runs/get" | "runs/apply" => answer::<runs::Run>(value),
        "runs/get_plan" => answer::<runs::RunPlan>(value),
        "server/get_info" => answer::<ServerInfo>(value),
        "users/create" | "users/update" => answer::<users::User>(value),
        "users/list" if value.is_object() => answer::<users::UsersInfoList>(value),
        "users/list" => answer::<Vec<users::User>>(value),
        "users/get_my_user" | "users/get_user" | "users/refresh_token" | "users/refresh_ssh_key" => {
            answer::<users::UserWithCreds>(value)
        }
        "users/public_keys/list" => answer::<Vec<public_keys::PublicKeyInfo>>(value),
        "users/public_keys/add" => answer::<public_keys::PublicKeyInfo>(value),
        "volumes/list" => answer::<Vec<volumes::Volume>>(value),
        "volumes/create" | "volumes/get" => answer::<volumes::Volume>(value),
        "gateways/list" => answer::<Vec<gateways::Gateway>>(value),
        "gateways/apply" | "gateways/create" | "gateways/get" | "gateways/set_wildcard_domain" => {
            answer::<gateways::Gateway>(value)
        }
        "gateways/get_plan" => answer::<gateways::GatewayPlan>(value),
        "gpus/list" => answer::<ListGpusResponse>(value),
        "logs/poll" => answer::<logs::JobSubmissionLogs>(value),
        "metrics/job" => answer::<metrics::JobMetrics>(value),
        "repos/get" => answer::<repos::RepoHeadWithCreds>(value),
        "repos/list" => answer::<Vec<repos::RepoHead>>(value),
        "secrets/create_or_update" | "secrets/get" => answer::<secrets::Secret>(value),
        "secrets/list" => answer::<Vec<secrets::Secret>>(value),
        "templates/list" => answer::<Vec<templates::UiTemplate>>(value),
        "backends/runpod/get_yaml" => answer::<BackendInfoYaml>(value),
        "backends/list_types" => answer::<Vec<backends::BackendType>>(value),
        _ => return None,
    })
}

/// Equal, with numbers compared by value and the order of keys left aside.
fn difference(path: &str, ours: &Value, theirs: &Value) -> Option<String> {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            keys.into_iter().find_map(|key| match (a.get(key), b.get(key)) {
                (Some(a), Some(b)) => difference(&format!("{path}.{key}"), a, b),
                (a, b) => Some(format!("{path}.{key}: ours {a:?}, theirs {b:?}")),
            })
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => a
            .iter()
            .zip(b)
            .enumerate()
            .find_map(|(i, (a, b))| difference(&format!("{path}[{i}]"), a, b)),
        (Value::Number(a), Value::Number(b)) if a.as_f64() == b.as_f64() => None,
        (a, b) if a == b => None,
        (a, b) => Some(format!("{path}: ours {a}, theirs {b}")),
    }
}

/// The keys of all objects, in order.
fn keys(value: &Value, path: &str, found: &mut BTreeMap<String, Vec<String>>) {
    match value {
        Value::Object(map) => {
            found.insert(path.to_owned(), map.keys().cloned().collect());
            for (key, value) in map {
                keys(value, &format!("{path}.{key}"), found);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                keys(item, &format!("{path}[{index}]"), found);
            }
        }
        _ => {}
    }
}

#[test]
fn answers_pass_unchanged() {
    let mut checked = 0;
    let mut wrong = Vec::new();
    for exchange in exchanges().filter(|exchange| exchange.status == 200) {
        let Some(ours) = decode_answer(&exchange.route, &exchange.answer) else {
            continue;
        };
        checked += 1;
        match ours {
            Err(problems) => wrong.push(format!("{}: {}", exchange.case, problems[0])),
            Ok(ours) => {
                let order = |value: &Value| {
                    let mut found = BTreeMap::new();
                    keys(value, "", &mut found);
                    found
                };
                if let Some(difference) = difference("", &ours, &exchange.answer) {
                    wrong.push(format!("{}: {difference}", exchange.case));
                } else if order(&ours) != order(&exchange.answer) {
                    wrong.push(format!("{}: order of keys", exchange.case));
                }
            }
        }
    }
    assert!(checked > 300, "{checked}");
    assert!(
        wrong.is_empty(),
        "{} of {checked}\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn accepted_requests_are_accepted() {
    let mut checked = 0;
    let mut wrong = Vec::new();
    for exchange in exchanges().filter(|exchange| exchange.status == 200 && !exchange.request.is_null()) {
        let Some(ours) = decode_request(&exchange.route, &exchange.request) else {
            continue;
        };
        checked += 1;
        if let Err(problems) = ours {
            wrong.push(format!("{}: {}", exchange.case, problems[0]));
        }
    }
    assert!(checked > 300, "{checked}");
    assert!(
        wrong.is_empty(),
        "{} of {checked}\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// A plan echoes the run or fleet that was sent, in normal form.
#[test]
fn plans_echo_the_normal_form() {
    let mut checked = 0;
    let mut wrong = Vec::new();
    for exchange in exchanges().filter(|exchange| exchange.status == 200) {
        let (spec, theirs) = match exchange.route.as_str() {
            "runs/get_plan" => ("run_spec", exchange.answer["run_spec"].clone()),
            "fleets/get_plan" => ("spec", exchange.answer["spec"].clone()),
            "gateways/get_plan" => ("spec", exchange.answer["spec"].clone()),
            _ => continue,
        };
        checked += 1;
        let mut ours = match decode_request(&exchange.route, &exchange.request).unwrap() {
            Ok(request) => request[spec].clone(),
            Err(problems) => {
                wrong.push(format!("{}: {}", exchange.case, problems[0]));
                continue;
            }
        };
        // The server shows one node where a task says nothing, and its own id of the repo.
        if let Some(configuration) = ours.get_mut("configuration")
            && configuration["type"] == "task"
            && configuration["groups"].is_null()
            && configuration["nodes"].is_null()
        {
            configuration["nodes"] = json!(1);
        }
        if let Some(difference) = difference("", &ours, &theirs) {
            wrong.push(format!("{}: {difference}", exchange.case));
        }
    }
    assert!(checked > 150, "{checked}");
    assert!(
        wrong.is_empty(),
        "{} of {checked}\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Refusals list the types of backends: without those that dstack 0.22.5 does not have.
fn without_other_backends(ours: &Value, theirs: &Value) -> Value {
    let (mut ours, theirs) = (ours.to_string(), theirs.to_string());
    if theirs.contains("'cloudrift', ") {
        let types = BackendType::ALL.iter().map(|kind| format!("'{kind}', "));
        for kind in types.filter(|kind| !theirs.contains(kind.trim_end_matches(", "))) {
            ours = ours.replace(&kind, "");
        }
    }
    serde_json::from_str(&ours).unwrap()
}

#[test]
fn refusals_are_the_same() {
    let mut checked = 0;
    let mut wrong = Vec::new();
    for exchange in exchanges().filter(|exchange| exchange.status == 422) {
        let kind = &exchange.answer["detail"][0]["type"];
        // Decided before there is a body to decode.
        if kind == "json_invalid" || exchange.request.is_null() || exchange.request.is_string() {
            continue;
        }
        let Some(ours) = decode_request(&exchange.route, &exchange.request) else {
            continue;
        };
        checked += 1;
        match ours {
            Ok(_) => wrong.push(format!(
                "{}: accepted; theirs {}",
                exchange.case, exchange.answer["detail"]
            )),
            Err(problems) => {
                let ours = validation_body("body", &problems);
                let essence = |body: &Value| -> Vec<Value> {
                    body["detail"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .map(|detail| json!({"type": detail["type"], "loc": detail["loc"], "msg": detail["msg"], "ctx": detail.get("ctx")}))
                        .collect()
                };
                let (ours, theirs) = (essence(&ours), essence(&exchange.answer));
                let ours = without_other_backends(&json!(ours), &json!(theirs));
                if let Some(difference) = difference("", &ours, &json!(theirs)) {
                    wrong.push(format!("{}: {difference}", exchange.case));
                }
            }
        }
    }
    assert!(checked > 60, "{checked}");
    assert!(
        wrong.is_empty(),
        "{} of {checked}\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
