//! Runs, without an engine: nothing changes but by requests.

use dstack_store::raw;
use serde_json::{Value, json};

use super::{ADMIN, HandClock, Server, TestServer, redacted, request};

fn spec(name: Option<&str>) -> Value {
    json!({"run_name": name, "configuration": {"type": "task", "commands": ["echo hello"]}})
}

async fn submit(server: &Server, name: Option<&str>) -> Value {
    server
        .main(
            "runs/apply",
            json!({"plan": {"run_spec": spec(name)}, "force": false}),
        )
        .await
        .ok()
}

async fn messages(server: &Server) -> Vec<String> {
    let found = server
        .post(
            ADMIN,
            "/api/events/list",
            json!({"include_target_types": ["run", "job"]}),
        )
        .await
        .ok();
    found
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["message"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn a_plan_shows_what_would_be_run() {
    let server = Server::new().await;
    let plan = server
        .main("runs/get_plan", json!({"run_spec": spec(None)}))
        .await
        .ok();
    insta::assert_json_snapshot!(redacted(&plan));
}

#[tokio::test]
async fn a_run_is_submitted_with_its_jobs_and_events() {
    let server = Server::new().await;
    let run = submit(&server, Some("hello")).await;
    insta::assert_json_snapshot!(redacted(&run));
    assert_eq!(run["latest_job_submission"], run["jobs"][0]["job_submissions"][0]);
    assert_eq!(
        server.main("runs/get", json!({"run_name": "hello"})).await.ok(),
        run
    );
    assert_eq!(server.main("runs/get", json!({"id": run["id"]})).await.ok(), run);
    let mut seen = messages(&server).await;
    seen.sort();
    assert_eq!(
        seen,
        [
            "Job created on run submission. Status: SUBMITTED",
            "Run submitted. Status: SUBMITTED"
        ]
    );
    let generated = submit(&server, None).await;
    let name = generated["run_spec"]["run_name"].as_str().unwrap();
    assert!(name.ends_with("-1") && name.split('-').count() == 3, "{name}");
}

#[tokio::test]
async fn an_active_run_is_not_replaced() {
    let server = Server::new().await;
    let run = submit(&server, Some("hello")).await;
    let mut other = spec(Some("hello"));
    other["configuration"]["commands"] = json!(["echo other"]);
    let apply = |spec: Value, current: Value, force: bool| {
        server.main(
            "runs/apply",
            json!({"plan": {"run_spec": spec, "current_resource": current}, "force": force}),
        )
    };
    assert_eq!(
        apply(other, run.clone(), true).await.refused().0,
        "Cannot override active run. Stop the run first."
    );
    let mut priority = spec(Some("hello"));
    priority["configuration"]["priority"] = json!(7);
    let answer = apply(priority.clone(), json!(null), false).await;
    assert_eq!(
        answer.refused().0,
        "Failed to apply plan. Resource has been changed. Try again or use force apply."
    );
    let updated = apply(priority, run, false).await.ok();
    assert_eq!(
        (
            &updated["deployment_num"],
            &updated["run_spec"]["configuration"]["priority"]
        ),
        (&json!(1), &json!(7))
    );
    assert!(
        messages(&server)
            .await
            .contains(&"Run updated. Deployment: 1. Changed fields: configuration.priority".to_owned())
    );
}

#[tokio::test]
async fn stopping_and_deleting() {
    let server = Server::new().await;
    submit(&server, Some("hello")).await;
    let names = json!({"runs_names": ["hello", "unknown"]});
    assert_eq!(
        server.main("runs/delete", names.clone()).await.refused().0,
        "Cannot delete active runs: ['hello']"
    );
    server
        .main(
            "runs/stop",
            json!({"runs_names": ["hello", "unknown"], "abort": false}),
        )
        .await
        .ok();
    let run = server.main("runs/get", json!({"run_name": "hello"})).await.ok();
    assert_eq!(
        (&run["status"], &run["termination_reason"]),
        (&json!("terminating"), &json!("stopped_by_user"))
    );
    server
        .main("runs/stop", json!({"runs_names": ["hello"], "abort": true}))
        .await
        .ok();
    let run = server.main("runs/get", json!({"run_name": "hello"})).await.ok();
    assert_eq!(run["termination_reason"], "aborted_by_user");
    let text = "Run status changed SUBMITTED -> TERMINATING. Termination reason: STOPPED_BY_USER";
    assert!(messages(&server).await.contains(&text.to_owned()));
}

#[tokio::test]
async fn lists_show_what_the_caller_may_see() {
    let server = Server::new().await;
    let alice = server.user("alice").await;
    for name in ["one", "two", "three"] {
        submit(&server, Some(name)).await;
    }
    let list = |token: &str, body: Value| {
        let token = token.to_owned();
        let server = &server;
        async move { server.post(&token, "/api/runs/list", body).await }
    };
    let all = list(ADMIN, json!({})).await.ok();
    let names = |list: &Value| -> Vec<String> {
        list.as_array()
            .unwrap()
            .iter()
            .map(|run| run["run_spec"]["run_name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&all), ["three", "two", "one"]);
    assert_eq!(list(ADMIN, json!({})).await.ok(), all, "the same from the cache");
    assert_eq!(
        names(&list(ADMIN, json!({"ascending": true, "limit": 2})).await.ok()),
        ["one", "two"]
    );
    let next = json!({"limit": 2, "prev_submitted_at": all[0]["submitted_at"], "prev_run_id": all[0]["id"]});
    assert_eq!(names(&list(ADMIN, next).await.ok()), ["two", "one"]);
    assert_eq!(
        list(ADMIN, json!({"only_active": true})).await.ok(),
        all,
        "none is finished"
    );
    let bare = list(ADMIN, json!({"include_jobs": false, "limit": 1})).await.ok();
    assert_eq!(
        (&bare[0]["jobs"], &bare[0]["latest_job_submission"]),
        (&json!([]), &json!(null))
    );
    let none = list(ADMIN, json!({"job_submissions_limit": 0, "limit": 1}))
        .await
        .ok();
    assert_eq!(none[0]["jobs"][0]["job_submissions"], json!([]));
    assert_eq!(list(&alice, json!({})).await.ok(), json!([]));
    assert_eq!(
        list(&alice, json!({"project_name": "main"})).await.ok(),
        json!([])
    );
    assert_eq!(list(ADMIN, json!({"repo_id": "x"})).await.ok(), json!([]));
    let unknown = list(ADMIN, json!({"project_name": "main", "repo_id": "x"})).await;
    assert_eq!(unknown.refused().1, Some("repo_does_not_exist"));
    assert_eq!(
        list(ADMIN, json!({"username": "nobody"})).await.refused().0,
        "User not found"
    );
    assert_eq!(list(ADMIN, json!({"limit": 101})).await.status, 422);
}

#[tokio::test]
async fn short_pages_are_in_the_order_of_long_ones() {
    let server = Server::new().await;
    for number in 0..6 {
        submit(&server, Some(&format!("run-{number}"))).await;
    }
    let same_time = "UPDATE runs SET submitted_at = (SELECT MIN(submitted_at) FROM runs) \
                     WHERE run_name IN ('run-1', 'run-2', 'run-3', 'run-4')";
    raw::execute(&server.state.data.database, same_time)
        .await
        .unwrap();
    for filter in [
        json!({}),
        json!({"only_active": true}),
        json!({"project_name": "main"}),
    ] {
        for ascending in [true, false] {
            let list = async |limit: usize| {
                let mut body = filter.clone();
                body["ascending"] = json!(ascending);
                body["limit"] = json!(limit);
                server.post(ADMIN, "/api/runs/list", body).await.ok()
            };
            let (long, short) = (list(21).await, list(20).await);
            assert_eq!(long.as_array().unwrap().len(), 6);
            assert_eq!(long, short, "{filter} {ascending}");
            let few = list(4).await;
            assert_eq!(few.as_array().unwrap(), &long.as_array().unwrap()[..4]);
        }
    }
}

#[tokio::test]
async fn a_cached_run_changes_with_its_version() {
    let server = Server::new().await;
    submit(&server, Some("hello")).await;
    let status = || async { server.post(ADMIN, "/api/runs/list", json!({})).await.ok()[0]["status"].clone() };
    assert_eq!(status().await, "submitted");
    server
        .main("runs/stop", json!({"runs_names": ["hello"], "abort": false}))
        .await
        .ok();
    assert_eq!(status().await, "terminating");
}

#[tokio::test]
async fn what_runs_are_made_of_is_encrypted_in_the_database() {
    let server = Server::new().await;
    let mut with_secrets = spec(Some("hello"));
    with_secrets["configuration"]["env"] = json!({"TOKEN": "canary-of-env"});
    with_secrets["configuration"]["image"] = json!("private/image");
    with_secrets["configuration"]["registry_auth"] =
        json!({"username": "me", "password": "canary-of-registry"});
    let plan = json!({"plan": {"run_spec": with_secrets}, "force": false});
    let run = server.main("runs/apply", plan).await.ok();
    assert_eq!(run["run_spec"]["configuration"]["env"]["TOKEN"], "canary-of-env");
    let again = server.main("runs/get", json!({"run_name": "hello"})).await.ok();
    assert_eq!(again, run);
    for file in ["t.db", "t.db-wal"] {
        let bytes = fs_err::read(server.state.edge.settings.dir.join(file)).unwrap_or_default();
        for canary in ["canary-of-env", "canary-of-registry"] {
            let found = bytes.windows(canary.len()).any(|part| part == canary.as_bytes());
            assert!(!found, "{canary} is in {file}");
        }
    }
}

#[tokio::test]
async fn clients_before_0_19_27_start_in_workflow() {
    let server = Server::new().await;
    let plan = async |version: &str, more: Value| {
        let mut run_spec = spec(None);
        let configuration = run_spec["configuration"].as_object_mut().unwrap();
        configuration.extend(more.as_object().unwrap().clone());
        let body = json!({"run_spec": run_spec});
        let mut asked = request(
            "POST",
            "/api/project/main/runs/get_plan",
            Some(ADMIN),
            Some(&body),
        );
        asked
            .headers_mut()
            .insert("x-api-version", version.parse().unwrap());
        let plan = server.send(asked).await.ok();
        let dir = |run: &Value| run["configuration"]["working_dir"].clone();
        (
            dir(&plan["run_spec"]),
            dir(&plan["effective_run_spec"]),
            plan["job_plans"][0]["job_spec"]["working_dir"].clone(),
        )
    };
    let (unset, old) = (Value::Null, json!("/workflow"));
    assert_eq!(
        plan("0.19.26", json!({})).await,
        (unset.clone(), old.clone(), old.clone())
    );
    assert_eq!(
        plan("0.19.27", json!({})).await,
        (unset.clone(), unset.clone(), unset.clone())
    );
    assert_eq!(
        plan("latest", json!({})).await,
        (unset.clone(), unset.clone(), unset)
    );
    let own = json!("/own");
    assert_eq!(
        plan("0.19.26", json!({"working_dir": "/own"})).await,
        (own.clone(), own.clone(), own)
    );

    let body = json!({"plan": {"run_spec": spec(Some("old"))}, "force": false});
    let mut asked = request("POST", "/api/project/main/runs/apply", Some(ADMIN), Some(&body));
    asked
        .headers_mut()
        .insert("x-api-version", "0.19.26".parse().unwrap());
    let run = server.send(asked).await.ok();
    assert_eq!(run["run_spec"]["configuration"]["working_dir"], old);
}

#[tokio::test]
async fn a_run_that_is_stopped_and_then_aborted_changes_its_status_once() {
    let server = Server::new().await;
    submit(&server, Some("hello")).await;
    for abort in [false, true, true, false] {
        let stop = json!({"runs_names": ["hello"], "abort": abort});
        server.main("runs/stop", stop).await.ok();
    }
    let changes: Vec<String> = messages(&server).await;
    let changes: Vec<&String> = changes
        .iter()
        .filter(|text| text.contains("status changed"))
        .collect();
    assert_eq!(
        changes,
        ["Run status changed SUBMITTED -> TERMINATING. Termination reason: STOPPED_BY_USER"]
    );
}

/// Nodes of a run reach each other with a key of their own, which is nobody else's business.
#[tokio::test]
async fn keys_of_jobs_are_in_no_answer() {
    let server = Server::new().await;
    let mut nodes = spec(Some("hello"));
    nodes["configuration"]["nodes"] = json!(2);
    let plan = json!({"plan": {"run_spec": nodes}, "force": false});
    let applied = server.main("runs/apply", plan).await.ok();
    let planned = server
        .main("runs/get_plan", json!({"run_spec": nodes}))
        .await
        .ok();
    let listed = server.post(ADMIN, "/api/runs/list", json!({})).await.ok();
    let jobs = |run: &Value| run["jobs"].as_array().unwrap().clone();
    let mut all = jobs(&applied);
    all.extend(jobs(&listed[0]));
    all.extend(jobs(&planned["current_resource"]));
    all.extend(planned["job_plans"].as_array().unwrap().clone());
    assert_eq!(all.len(), 8);
    for job in all {
        assert_eq!(job["job_spec"]["ssh_key"], Value::Null);
    }
}

#[tokio::test]
async fn a_job_without_a_place_is_shown_by_what_is_missing() {
    use dstack_model::runs::{JobStatus, JobTerminationReason};

    use dstack_store::{Commit, EngineStore, Put};
    let server = Server::new().await;
    let now = server.state.data.clock.now();
    for (name, message, shown) in [
        (
            "reuse",
            "Could not reuse any instance for this job",
            "no capacity",
        ),
        ("named", "Failed to use specified fleets", "no capacity"),
        (
            "none",
            "No matching fleet found. Possible reasons: https://x",
            "no fleets",
        ),
    ] {
        let run = submit(&server, Some(name)).await;
        let id = run["id"].as_str().unwrap().parse().unwrap();
        let mut job = server
            .state
            .data
            .database
            .views()
            .jobs(&[id])
            .await
            .unwrap()
            .remove(0);
        let reason = JobTerminationReason::FailedToStartDueToNoCapacity;
        job.terminate(reason, Some(message.to_owned()), now).unwrap();
        job.finish(JobStatus::Failed, now).unwrap();
        let commit = Commit::unchecked(vec![Put::Job(job)], Vec::new());
        server.state.data.store().commit(commit).await.unwrap();
        let run = server.main("runs/get", json!({"run_name": name})).await.ok();
        let last = &run["latest_job_submission"];
        assert_eq!(
            (&last["status_message"], &last["termination_reason_message"]),
            (&json!(shown), &json!(message))
        );
    }
}

#[tokio::test]
async fn a_scheduled_run_tells_when_it_starts_next_also_while_it_runs() {
    let clock = HandClock::stopped();
    let server = TestServer::new().clock(&clock).start().await;
    let mut spec = spec(Some("nightly"));
    spec["configuration"]["schedule"] = json!({"cron": "0 * * * *"});
    let plan = json!({"plan": {"run_spec": spec}, "force": false});
    let next = |run: &Value| run["next_triggered_at"].as_str().unwrap().to_owned();
    let first = next(&server.main("runs/apply", plan).await.ok());
    // Nobody has started it meanwhile.
    clock.advance(2 * 3600);
    let one = server.main("runs/get", json!({"run_name": "nightly"})).await.ok();
    let listed = async || server.post(ADMIN, "/api/runs/list", json!({})).await.ok()[0].clone();
    let later = next(&one);
    assert!(later > first, "{later} after {first}");
    assert_eq!(next(&listed().await), later);
    clock.advance(3600);
    assert!(next(&listed().await) > later);
}
