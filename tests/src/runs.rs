//! Tasks on a server under test, through its API.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::server::{Server, eventually};

/// How long anything may take that is expected to happen.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(90);

/// What every test machine has.
pub fn small() -> Value {
    json!({"cpu": "1..", "memory": "0.1GB..", "disk": "1GB.."})
}

/// The same, for a YAML file.
pub const SMALL_YAML: &str = "resources: {cpu: 1.., memory: 0.1GB.., disk: 1GB..}\n";

/// The project that servers have from the start.
pub const MAIN: &str = "main";

/// A submitted run.
pub struct Run<'a> {
    server: &'a Server,
    project: String,
    pub name: String,
}

/// Submits a task of project `main` that runs `commands`; `more` holds further fields of its configuration; `null` takes
/// one out.
pub fn submit<'a>(server: &'a Server, name: &str, commands: &[&str], more: &Value) -> Result<Run<'a>> {
    submit_in(server, MAIN, name, commands, more)
}

/// As [`submit`], in another project.
pub fn submit_in<'a>(
    server: &'a Server,
    project: &str,
    name: &str,
    commands: &[&str],
    more: &Value,
) -> Result<Run<'a>> {
    let mut configuration = json!({"type": "task", "name": name, "commands": commands, "resources": small()});
    if let (Value::Object(all), Value::Object(more)) = (&mut configuration, more) {
        all.extend(more.clone());
        all.retain(|_, value| !value.is_null());
    }
    let spec = json!({"run_name": name, "configuration": configuration, "profile": {"name": "default"}});
    server.get(
        &format!("/api/project/{project}/runs/apply"),
        &json!({"plan": {"run_spec": spec}, "force": false}),
    )?;
    Ok(Run {
        project: project.into(),
        ..attach(server, name)
    })
}

/// How each submission of the run's jobs went, a line each: what is to be read first, and what is left where output is cut.
fn in_short(run: &Value) -> String {
    let jobs = run["jobs"].as_array().into_iter().flatten();
    let submissions = jobs.flat_map(|job| job["job_submissions"].as_array().into_iter().flatten());
    let lines = submissions.map(|one| {
        format!(
            "submission {}: {} {} {} from {} to {}",
            one["submission_num"],
            one["status"],
            one["termination_reason"],
            one["termination_reason_message"],
            one["submitted_at"],
            one["finished_at"]
        )
    });
    let head = format!("run {}: {}", run["status"], run["status_message"]);
    std::iter::once(head).chain(lines).collect::<Vec<_>>().join("\n")
}

/// The output of a job without what the process runtime says first.
pub fn without_notice(logs: &str) -> String {
    let notice = [
        "This machine has no container engine: ",
        "Ignored without a container engine: ",
    ];
    let is_notice = |line: &&str| notice.iter().any(|start| line.starts_with(start));
    logs.split_inclusive('\n').skip_while(is_notice).collect()
}

/// A run of project `main` that was submitted before.
pub fn attach<'a>(server: &'a Server, name: &str) -> Run<'a> {
    Run {
        server,
        project: MAIN.into(),
        name: name.into(),
    }
}

impl Run<'_> {
    /// The run as the API shows it.
    pub fn get(&self) -> Result<Value> {
        self.call("runs/get", &json!({"run_name": self.name}))
    }

    fn call(&self, route: &str, body: &Value) -> Result<Value> {
        self.server
            .get(&format!("/api/project/{}/{route}", self.project), body)
    }

    pub fn status(&self) -> Result<String> {
        Ok(self.get()?["status"].as_str().unwrap_or_default().to_owned())
    }

    pub fn stop(&self, abort: bool) -> Result<()> {
        let body = json!({"runs_names": [self.name], "abort": abort});
        self.call("runs/stop", &body).map(drop)
    }

    /// Waits until the status is one of these; an end that is none of them is an error.
    pub fn wait_for(&self, statuses: &[&str]) -> Result<String> {
        let what = format!("run {} is one of {statuses:?}", self.name);
        eventually(&what, TEST_TIMEOUT, || {
            let run = self.get()?;
            let status = run["status"].as_str().unwrap_or_default();
            if statuses.contains(&status) {
                return Ok(Some(status.to_owned()));
            }
            if ["done", "failed", "terminated"].contains(&status) {
                bail!("run {} is {status}, not one of {statuses:?}", self.name);
            }
            Ok(None)
        })
        .with_context(|| self.story())
    }

    /// What there is to know of a run that does not end: itself, its fleet, and what the server said last.
    fn story(&self) -> String {
        let run = self.get().unwrap_or_default();
        let fleets = self.call("fleets/list", &json!({}));
        let output = self.server.output();
        let lines: Vec<&str> = output.lines().collect();
        let last = lines.get(lines.len().saturating_sub(150)..).unwrap_or_default();
        format!(
            "{}\n{run:#}\n{:#}\nthe server said last:\n{}",
            in_short(&run),
            fleets.unwrap_or_default(),
            last.join("\n")
        )
    }

    /// Waits for the end of the run, whatever it is.
    pub fn wait_until_finished(&self) -> Result<String> {
        self.wait_for(&["done", "failed", "terminated"])
    }

    /// The latest submission of the first job.
    pub fn submission(&self) -> Result<Value> {
        self.submission_of(0)
    }

    /// The latest submission of a job, by its place among those of the run: the number of a node.
    pub fn submission_of(&self, job: usize) -> Result<Value> {
        let run = self.get()?;
        let submissions = run
            .pointer(&format!("/jobs/{job}/job_submissions"))
            .and_then(Value::as_array)
            .cloned();
        submissions
            .and_then(|mut all| all.pop())
            .context("the run has no submission")
    }

    /// Everything the job has printed so far, without the notice that images and limits are ignored where there is
    /// no container engine.
    pub fn logs(&self) -> Result<String> {
        self.logs_of(0)
    }

    /// The same of another job: the number of a node.
    pub fn logs_of(&self, job: usize) -> Result<String> {
        Ok(without_notice(&self.raw_logs(job)?))
    }

    fn raw_logs(&self, job: usize) -> Result<String> {
        let id = self.submission_of(job)?["id"].clone();
        let mut text = Vec::new();
        let mut token = Value::Null;
        loop {
            let body = json!({
                "run_name": self.name, "job_submission_id": id, "limit": 1000, "next_token": token,
            });
            let page = self.call("logs/poll", &body)?;
            let events = page["logs"].as_array().cloned().unwrap_or_default();
            for event in &events {
                text.extend(STANDARD.decode(event["message"].as_str().unwrap_or_default())?);
            }
            token = page["next_token"].clone();
            if token.is_null() || events.is_empty() {
                return Ok(String::from_utf8_lossy(&text).replace("\r\n", "\n"));
            }
        }
    }

    /// Waits until the job has printed a text.
    pub fn wait_for_log(&self, text: &str) -> Result<()> {
        eventually(
            &format!("{text:?} in the logs of {}", self.name),
            TEST_TIMEOUT,
            || Ok(self.logs()?.contains(text).then_some(())),
        )
    }
}
