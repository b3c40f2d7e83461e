//! Services: their replicas run and are replaced; with the unmodified Python command line 0.22.5, and with ours.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use dstack_tests::cli::Cli;
use dstack_tests::need;
use dstack_tests::runs::{SMALL_YAML, TEST_TIMEOUT, attach};
use dstack_tests::server::{Setup, eventually};
use serde_json::Value;

mod python {
    use dstack_tests::{cli::Cli, need};
    #[test]
    fn a_service_is_applied_updated_and_stopped() {
        super::a_service_is_applied_updated_and_stopped(&need!(Cli::python()));
    }
}

mod ours {
    use dstack_tests::{cli::Cli, need};
    #[test]
    fn a_service_is_applied_updated_and_stopped() {
        super::a_service_is_applied_updated_and_stopped(&need!(Cli::ours()));
    }
}

fn write(cli: &Cli, says: &str) {
    let service = format!(
        "type: service\nname: web\nport: 8000\ncommands:\n  - echo {says}\n  - sleep 1000\n{SMALL_YAML}"
    );
    cli.write("service.yml", &service).unwrap();
}

/// The submissions of all replicas, newest last.
fn submissions(run: &Value) -> Vec<Value> {
    let jobs = run["jobs"].as_array().unwrap();
    let of_job = |job: &Value| job["job_submissions"].as_array().unwrap().clone();
    let mut all: Vec<Value> = jobs.iter().flat_map(of_job).collect();
    all.sort_by_key(|submission| submission["submitted_at"].as_str().map(str::to_owned));
    all
}

fn a_service_is_applied_updated_and_stopped(cli: &Cli) {
    let server = need!(Setup::local()).start().unwrap();
    cli.knows(&server);
    write(cli, "first");
    cli.succeeds(&["apply", "-f", "service.yml", "-y", "-d"]);
    let run = attach(&server, "web");
    run.wait_for(&["running"]).unwrap();
    run.wait_for_log("first").unwrap();
    let shown = run.get().unwrap();
    assert_eq!(shown["service"]["url"], "/proxy/services/main/web/");
    let listed = cli.succeeds(&["ps"]);
    assert!(listed.contains("web") && listed.contains("running"), "{listed}");

    // Another command: the replica is replaced by one that runs it, and ends only then.
    write(cli, "second");
    cli.succeeds(&["apply", "-f", "service.yml", "-y", "-d"]);
    let replaced = eventually("the first replica is replaced", TEST_TIMEOUT, || {
        let all = submissions(&run.get()?);
        let ended = all[0]["status"] == "terminated";
        Ok((ended && all.len() == 2).then_some(all))
    })
    .unwrap();
    assert_eq!(replaced[0]["termination_reason"], "scaled_down");
    assert_eq!(replaced[1]["status"], "running");
    assert_eq!(replaced[1]["deployment_num"], 1);
    assert_eq!(run.status().unwrap(), "running");

    cli.succeeds(&["stop", "web", "-y"]);
    assert_eq!(run.wait_until_finished().unwrap(), "terminated");
}
