//! The JSON Schemas that our types give have the same properties as those of dstack 0.22.5.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;

use dstack_model::configurations::AnyConfiguration;
use dstack_model::decode::Value;
use dstack_model::profiles::ProfilesConfig;
use dstack_model::requests::*;
use dstack_model::runs::RunPlan;
use dstack_model::schema::{Schema, Schemas};
use dstack_model::{events, exports, fleets, gateways, projects, users, volumes};

const REFERENCE: &str = include_str!("data/reference_properties.json");

fn definitions() -> BTreeMap<String, Value> {
    let mut schemas = Schemas::default();
    AnyConfiguration::schema(&mut schemas);
    ProfilesConfig::schema(&mut schemas);
    RunPlan::schema(&mut schemas);
    fleets::FleetPlan::schema(&mut schemas);
    gateways::GatewayPlan::schema(&mut schemas);
    volumes::Volume::schema(&mut schemas);
    projects::Project::schema(&mut schemas);
    users::UserWithCreds::schema(&mut schemas);
    events::Event::schema(&mut schemas);
    exports::ListExportsResponse::schema(&mut schemas);
    exports::ListImportsResponse::schema(&mut schemas);
    GetRunPlanRequest::schema(&mut schemas);
    ListRunsRequest::schema(&mut schemas);
    ListEventsRequest::schema(&mut schemas);
    ListUsersRequest::schema(&mut schemas);
    ListProjectsRequest::schema(&mut schemas);
    ListGpusRequest::schema(&mut schemas);
    ListGpusResponse::schema(&mut schemas);
    PollLogsRequest::schema(&mut schemas);
    SaveRepoCredsRequest::schema(&mut schemas);
    UpdateExportRequest::schema(&mut schemas);
    schemas
        .into_definitions()
        .into_iter()
        .map(|(name, schema)| (name.to_lowercase(), schema))
        .collect()
}

fn names(value: &Value) -> Vec<String> {
    let mut names: Vec<String> = match value {
        Value::Object(map) => map.keys().cloned().collect(),
        Value::Array(items) => items
            .iter()
            .map(|item| item.as_str().unwrap().to_owned())
            .collect(),
        _ => Vec::new(),
    };
    names.sort();
    names
}

/// What we say or take beyond dstack 0.22.5, whose clients neither know nor miss it.
const ADDED: [(&str, &[&str]); 11] = [
    ("FleetPlan", &["notices"]),
    ("GetRunPlanRequest", &["explain"]),
    ("Instance", &["waiting_for", "waits_until"]),
    ("InstanceOfferWithAvailability", &["group_size"]),
    ("JobSubmission", &["waiting_for", "waiting_kind", "waits_until"]),
    ("ListGpusResponse", &["notices"]),
    ("Run", &["waiting_for", "waits_until"]),
    ("RunPlan", &["explanations", "notices"]),
    ("ScalingSpec", &["metrics_path", "signals"]),
    ("ServiceConfiguration", &["balancing", "rollout"]),
    ("ServiceSpec", &["notice"]),
];

/// What may be left out here: other fields say it then.
const OPTIONAL: [(&str, &[&str]); 1] = [("ScalingSpec", &["metric", "target"])];

#[test]
fn properties_are_the_reference_s() {
    let ours = definitions();
    let theirs: BTreeMap<String, Value> = serde_json::from_str(REFERENCE).unwrap();
    let mut compared = 0;
    let mut wrong = Vec::new();
    for (name, theirs) in &theirs {
        let Some(ours) = ours.get(&name.to_lowercase()) else {
            continue;
        };
        compared += 1;
        for part in ["properties", "required"] {
            let added = ADDED
                .iter()
                .find(|(of, _)| of == name)
                .map_or(&[][..], |(_, added)| added);
            let optional = OPTIONAL.iter().find(|(of, _)| of == name && part == "required");
            let optional = optional.map_or(&[][..], |(_, optional)| optional);
            let (mut ours, mut theirs) = (names(&ours[part]), names(&theirs[part]));
            theirs.retain(|name| !optional.contains(&name.as_str()));
            ours.retain(|name| !added.contains(&name.as_str()));
            if ours != theirs {
                let ours_only: Vec<_> = ours.iter().filter(|name| !theirs.contains(name)).collect();
                let theirs_only: Vec<_> = theirs.iter().filter(|name| !ours.contains(name)).collect();
                wrong.push(format!(
                    "{name} {part}: only ours {ours_only:?}, only theirs {theirs_only:?}"
                ));
            }
        }
    }
    assert!(compared > 80, "{compared}");
    assert!(
        wrong.is_empty(),
        "{} of {compared}\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
