//! Whose logs are shown.

use axum::body::Bytes;
use dstack_engine::{Batch, Output, Piece};
use dstack_logs::{LogEntry, LogStream, Producer, Source};
use dstack_model::runs::{RunStatus, RunTerminationReason};
use dstack_server::access::Freshness;
use dstack_server::wiring::LogOutput;
use dstack_store::{Commit, EngineStore, Put};
use dstack_units::Time;
use serde_json::{Value, json};

use super::{ADMIN, Server};

async fn create(server: &Server) {
    let project = json!({"project_name": "team"});
    server.post(ADMIN, "/api/projects/create", project).await.ok();
}

/// Submits a run of project `team`; the id of its job.
async fn submit(server: &Server) -> String {
    let spec = json!({"run_name": "hello", "configuration": {"type": "task", "commands": ["echo hello"]}});
    let plan = json!({"plan": {"run_spec": spec}, "force": true});
    let run = server
        .post(ADMIN, "/api/project/team/runs/apply", plan)
        .await
        .ok();
    let job = &run["jobs"][0]["job_submissions"][0]["id"];
    job.as_str().unwrap().to_owned()
}

async fn print(server: &Server, job: &str) {
    let stream = LogStream {
        project: "team".to_owned(),
        run: "hello".to_owned(),
        job: job.parse().unwrap(),
        producer: Producer::Job,
    };
    let entry = LogEntry {
        timestamp: Time::from_millis(1),
        source: Source::Stdout,
        message: Bytes::from_static(b"a secret\n"),
    };
    server.state.data.logs.append(&stream, vec![entry]).await.unwrap();
}

async fn lines(server: &Server, job: &str) -> usize {
    let body = json!({"run_name": "hello", "job_submission_id": job});
    let page = server.post(ADMIN, "/api/project/team/logs/poll", body).await.ok();
    page["logs"].as_array().map(Vec::len).unwrap()
}

/// The run ends, as an engine would end it, and the project is deleted.
async fn delete(server: &Server) {
    let project = server
        .state
        .auth
        .access
        .project("team", Freshness::Current)
        .await
        .unwrap();
    let project = project.unwrap().row.id;
    let found = server
        .state
        .data
        .database
        .run_by_name(project, "hello")
        .await
        .unwrap();
    let mut run = found.unwrap().run;
    run.terminate(RunTerminationReason::StoppedByUser, Time::from_millis(1))
        .unwrap();
    run.finish(RunStatus::Terminated).unwrap();
    let commit = Commit::unchecked(vec![Put::Run(run)], Vec::new());
    server.state.data.store().commit(commit).await.unwrap();
    let projects = json!({"projects_names": ["team"]});
    let deleted = server.post(ADMIN, "/api/projects/delete", projects).await;
    assert_eq!(deleted.ok(), Value::Null);
}

#[tokio::test]
async fn a_project_does_not_show_the_logs_of_an_earlier_one_of_its_name() {
    let server = Server::new().await;
    create(&server).await;
    let old = submit(&server).await;
    print(&server, &old).await;
    assert_eq!(lines(&server, &old).await, 1);
    delete(&server).await;
    create(&server).await;
    assert_eq!(lines(&server, &old).await, 0);
    let new = submit(&server).await;
    print(&server, &new).await;
    assert_eq!((lines(&server, &old).await, lines(&server, &new).await), (0, 1));
}

/// The runner's own quota is in the container, where the job may have done away with it.
#[tokio::test]
async fn no_more_is_stored_than_the_quota_of_the_job() {
    let server = Server::new().await;
    create(&server).await;
    let job = submit(&server).await;
    let row = server.state.data.store().job(job.parse().unwrap()).await.unwrap();
    let row = row.unwrap().job;
    let (state, quota) = (&server.state, 100);
    let output = LogOutput::new(&state.data, quota);
    let piece = |timestamp| Piece {
        timestamp,
        bytes: vec![b'x'; 50],
    };
    for from in [1, 6, 11] {
        let batch = Batch {
            job: (from..from + 5).map(piece).collect(),
            runner: Vec::new(),
        };
        output.append(&row, batch).await.unwrap();
    }
    // Two hours' worth, and the line that says so.
    assert_eq!(lines(&server, &job).await, 5);
}
