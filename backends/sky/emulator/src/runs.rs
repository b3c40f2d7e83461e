//! Runs, each with one job.

use std::time::Duration;

use dstack_units::Time;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{Answer, Sky, error, template, text};

/// When the server began, as it tells it.
const EPOCH: i64 = 1_790_000_000_000;

#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) id: String,
    name: String,
    spec: Value,
    /// What it was placed on; `None`: nothing was to be had.
    offer: Option<Value>,
    made_at: Instant,
    listed_at: Instant,
    aborted_at: Option<Instant>,
    pub(crate) is_lost: bool,
    pub(crate) deleted: bool,
    /// The ledger has its end.
    pub(crate) is_settled: bool,
}

/// Whether an offer is one for a configuration, as far as backends ask.
pub(crate) fn fits(offer: &Value, wanted: &Value) -> bool {
    let among = |field: &str, value: &Value| {
        let named = wanted[field].as_array();
        named.is_none_or(|named| named.contains(value))
    };
    let resources = &offer["instance"]["resources"];
    let spot = match text(&wanted["spot_policy"]) {
        "spot" => resources["spot"] == true,
        "auto" => true,
        _ => resources["spot"] == false,
    };
    let at_least = |value: f64, range: &Value| {
        value >= range["min"].as_f64().unwrap_or(0.0) && value <= range["max"].as_f64().unwrap_or(f64::MAX)
    };
    let wanted_resources = &wanted["resources"];
    let cpus = resources["cpus"].as_f64().unwrap();
    let memory = resources["memory_mib"].as_f64().unwrap() / 1024.0;
    #[allow(clippy::cast_precision_loss)]
    let gpus = resources["gpus"].as_array().unwrap().len() as f64;
    among("backends", &offer["backend"])
        && among("regions", &offer["region"])
        && among("instance_types", &offer["instance"]["name"])
        && spot
        && at_least(cpus, &wanted_resources["cpu"]["count"])
        && at_least(memory, &wanted_resources["memory"])
        && (wanted_resources["gpu"].is_null() || at_least(gpus, &wanted_resources["gpu"]["count"]))
        && wanted["max_price"]
            .as_f64()
            .is_none_or(|most| offer["price"].as_f64().unwrap() <= most)
}

/// How far the job of a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Submitted,
    Provisioning,
    Pulling,
    Running,
    NotPlaced,
    Lost,
    Terminating,
    Terminated,
}

impl Run {
    fn stage(&self, pace: Duration) -> Stage {
        let passed = self.made_at.elapsed().as_millis() / pace.as_millis().max(1);
        match (self.aborted_at, &self.offer, passed) {
            (Some(at), ..) if at.elapsed() >= pace => Stage::Terminated,
            (Some(_), ..) => Stage::Terminating,
            _ if self.is_lost => Stage::Lost,
            (None, _, 0) => Stage::Submitted,
            (None, None, _) => Stage::NotPlaced,
            (None, Some(_), 1) => Stage::Provisioning,
            (None, Some(_), 2) => Stage::Pulling,
            _ => Stage::Running,
        }
    }

    pub(crate) fn is_finished(&self, pace: Duration) -> bool {
        matches!(
            self.stage(pace),
            Stage::NotPlaced | Stage::Lost | Stage::Terminated
        )
    }

    fn is_listed(&self) -> bool {
        self.listed_at <= Instant::now()
    }
}

impl Sky {
    pub(crate) fn apply(&self, spec: Value) -> Answer {
        let name = text(&spec["run_name"]).to_owned();
        let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let is_name = name.starts_with(|c: char| c.is_ascii_lowercase())
            && (2..=41).contains(&name.len())
            && name.chars().all(is_part);
        if !is_name {
            let regex = "Resource name should match regex '^[a-z][a-z0-9-]{1,40}$'";
            return Err(error(regex, "error"));
        }
        let pace = self.0.pace;
        let mut state = self.lock();
        let before = state.runs.iter_mut().find(|run| run.name == name && !run.deleted);
        if let Some(before) = before {
            if !before.is_finished(pace) {
                let refused = match before.spec == spec {
                    true => "Failed to apply plan. Resource has been changed. Try again or use force apply.",
                    false => "Cannot override active run. Stop the run first.",
                };
                return Err(error(refused, "error"));
            }
            before.deleted = true;
            let id = before.id.clone();
            self.0.ledger.removed(&id);
        }
        let mut offers = state.offers.iter();
        let offer = offers.find(|offer| fits(offer, &spec["configuration"])).cloned();
        let offer = offer.filter(|_| !state.sold_out && !state.fleets.is_empty());
        state.ids += 1;
        let id = format!("5d05d4df-6bcc-4733-b9f2-{:012x}", state.ids);
        self.0.ledger.made("run", id.clone(), name.clone());
        let run = Run {
            id,
            name,
            spec: spec.clone(),
            offer,
            made_at: Instant::now(),
            listed_at: Instant::now() + state.lag,
            aborted_at: None,
            is_lost: false,
            deleted: false,
            is_settled: false,
        };
        state.runs.push(run.clone());
        state.applied.push(spec);
        drop(state);
        Ok(self.run_json(&run))
    }

    pub(crate) fn add_run_of_somebody(&self, name: &str) {
        let mut state = self.lock();
        state.ids += 1;
        let mut spec = template(include_str!("../data/run.json"))["run_spec"].take();
        spec["run_name"] = json!(name);
        spec["configuration"]["name"] = json!(name);
        let run = Run {
            id: format!("5d05d4df-6bcc-4733-b9f2-{:012x}", state.ids),
            name: name.to_owned(),
            spec,
            offer: state.offers.first().cloned(),
            made_at: Instant::now(),
            listed_at: Instant::now(),
            aborted_at: None,
            is_lost: false,
            deleted: false,
            is_settled: false,
        };
        state.runs.push(run);
    }

    pub(crate) fn get_run(&self, asked: &Value) -> Answer {
        let state = self.lock();
        let mut listed = state.runs.iter().filter(|run| run.is_listed());
        let found = match (asked["id"].as_str(), asked["run_name"].as_str()) {
            (Some(id), _) => listed.find(|run| run.id == id),
            (None, Some(name)) => listed.find(|run| run.name == name && !run.deleted),
            (None, None) => None,
        };
        let found = found.cloned();
        drop(state);
        found
            .map(|run| self.run_json(&run))
            .ok_or_else(|| error("Run not found", "resource_not_exists"))
    }

    /// Answers `runs/list`: those that were submitted last come first, `limit` of them after `prev_run_id`.
    pub(crate) fn list_runs(&self, asked: &Value) -> Value {
        let state = self.lock();
        let mut runs: Vec<&Run> = state.runs.iter().collect();
        runs.sort_by(|a, b| b.made_at.cmp(&a.made_at).then_with(|| a.id.cmp(&b.id)));
        let after = asked["prev_run_id"].as_str();
        let position = after.and_then(|id| runs.iter().position(|run| run.id == id));
        let page = runs.iter().skip(position.map_or(0, |at| at + 1)).filter(|run| {
            run.is_listed()
                && !(asked["only_active"] == true && (run.deleted || run.is_finished(self.0.pace)))
        });
        let limit = usize::try_from(asked["limit"].as_u64().unwrap_or(100)).unwrap();
        let page: Vec<Run> = page.take(limit).copied().cloned().collect();
        drop(state);
        json!(page.iter().map(|run| self.run_json(run)).collect::<Vec<_>>())
    }

    pub(crate) fn stop_runs(&self, names: &[String]) {
        let pace = self.0.pace;
        for run in &mut self.lock().runs {
            let is_meant = names.contains(&run.name) && run.is_listed() && !run.deleted;
            if is_meant && !run.is_finished(pace) && run.aborted_at.is_none() {
                run.aborted_at = Some(Instant::now());
            }
        }
    }

    pub(crate) fn delete_runs(&self, names: &[String]) -> Result<(), (u16, Value)> {
        let pace = self.0.pace;
        let mut state = self.lock();
        let is_meant = |run: &Run| names.contains(&run.name) && run.is_listed() && !run.deleted;
        let active: Vec<String> = state
            .runs
            .iter()
            .filter(|run| is_meant(run) && !run.is_finished(pace))
            .map(|run| format!("'{}'", run.name))
            .collect();
        if !active.is_empty() {
            return Err(error(
                &format!("Cannot delete active runs: [{}]", active.join(", ")),
                "error",
            ));
        }
        for run in &mut state.runs {
            run.deleted |= is_meant(run);
        }
        Ok(())
    }

    fn run_json(&self, run: &Run) -> Value {
        let stage = run.stage(self.0.pace);
        let (status, message) = match stage {
            Stage::Submitted => ("submitted", "submitted"),
            Stage::Provisioning => ("provisioning", "provisioning"),
            Stage::Pulling => ("provisioning", "pulling"),
            Stage::Running => ("running", "running"),
            Stage::NotPlaced | Stage::Lost => ("failed", "failed"),
            Stage::Terminating => ("terminating", "terminating"),
            Stage::Terminated => ("terminated", "terminated"),
        };
        let reason = match stage {
            Stage::NotPlaced | Stage::Lost => json!("job_failed"),
            Stage::Terminating | Stage::Terminated => json!("aborted_by_user"),
            _ => Value::Null,
        };
        let passed = run.made_at.saturating_duration_since(self.0.started).as_millis();
        let at = json!(Time::from_millis(EPOCH + i64::try_from(passed).unwrap()));
        let mut shown = template(include_str!("../data/run.json"));
        let submission = self.submission_json(run, stage, &at);
        shown["jobs"][0]["job_submissions"] = json!([submission]);
        shown["latest_job_submission"] = submission;
        shown["id"] = json!(run.id);
        shown["project_name"] = json!(self.0.project);
        shown["submitted_at"] = at;
        shown["status"] = json!(status);
        shown["status_message"] = json!(message);
        shown["termination_reason"] = reason;
        shown["run_spec"] = run.spec.clone();
        // No secret is shown.
        if !shown["run_spec"]["configuration"]["registry_auth"].is_null() {
            shown["run_spec"]["configuration"]["registry_auth"]["password"] = json!("*");
        }
        shown["deleted"] = json!(run.deleted);
        shown
    }

    fn submission_json(&self, run: &Run, stage: Stage, at: &Value) -> Value {
        let (status, reason, message) = match stage {
            Stage::Submitted => ("submitted", Value::Null, Value::Null),
            Stage::Provisioning => ("provisioning", Value::Null, Value::Null),
            Stage::Pulling => ("pulling", Value::Null, Value::Null),
            Stage::Running => ("running", Value::Null, Value::Null),
            Stage::NotPlaced => (
                "failed",
                json!("failed_to_start_due_to_no_capacity"),
                json!("Failed to provision in fleet 'cloud': tried 1 of 1 offers, all failed."),
            ),
            Stage::Lost => ("failed", json!("instance_unreachable"), Value::Null),
            Stage::Terminating => ("terminating", json!("aborted_by_user"), Value::Null),
            Stage::Terminated => ("aborted", json!("aborted_by_user"), Value::Null),
        };
        let mut shown = template(include_str!("../data/run.json"))["latest_job_submission"].take();
        shown["id"] = json!(run.id.replacen("5d05d4df", "4d708f33", 1));
        shown["submitted_at"] = at.clone();
        shown["last_processed_at"] = at.clone();
        shown["status"] = json!(status);
        shown["status_message"] = json!(status);
        shown["termination_reason"] = reason;
        shown["termination_reason_message"] = message;
        let is_placed = !matches!(stage, Stage::Submitted | Stage::NotPlaced);
        if let Some(offer) = run.offer.as_ref().filter(|_| is_placed) {
            let placed = self.placed(offer, stage != Stage::Provisioning);
            shown["job_provisioning_data"] = placed["job_provisioning_data"].clone();
            shown["job_runtime_data"] = placed["job_runtime_data"].clone();
        }
        shown
    }

    fn placed(&self, offer: &Value, has_address: bool) -> Value {
        let mut placed = template(include_str!("../data/placed.json"));
        let instance = &mut placed["job_provisioning_data"];
        for (field, value) in [
            ("backend", &offer["backend"]),
            ("region", &offer["region"]),
            ("price", &offer["price"]),
            ("instance_type", &offer["instance"]),
        ] {
            instance[field] = value.clone();
        }
        if offer["instance_runtime"] == "runner" {
            instance["dockerized"] = json!(false);
            instance["username"] = json!("root");
            instance["ssh_port"] = json!(20_022);
        }
        if !has_address {
            instance["hostname"] = Value::Null;
        }
        placed["job_runtime_data"]["offer"] = offer.clone();
        if self.lock().gives_own_networks {
            placed["job_runtime_data"]["network_mode"] = json!("bridge");
            placed["job_runtime_data"]["ports"] = json!({"10999": 32_768, "10022": 32_769});
        }
        placed
    }
}
