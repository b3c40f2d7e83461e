//! Host agent and job agent together: one binary, a real job.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use dstack_agent_api::http::{CallError, TcpConnector};
use dstack_agent_api::runner::{JobState, SubmitBody};
use dstack_agent_api::runner_client::RunnerClient;
use dstack_agent_api::shim::{
    NetworkMode, RUNNER_HTTP_PORT, TaskConfig, TaskInfo, TaskStatus, TaskTerminate, reason,
};
use dstack_agent_api::stream::StreamLine;

use crate::docker::engine;
use crate::support::{AGENT, Agent, Machine, config, status};

fn runner(info: &TaskInfo) -> RunnerClient {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, info.host_port(RUNNER_HTTP_PORT).unwrap()));
    RunnerClient::new(Arc::new(TcpConnector { address }))
}

fn with_token(id: &str, token: &str) -> TaskConfig {
    TaskConfig {
        runner_token: token.into(),
        ..config(id)
    }
}

/// There is no event for a server inside of a container that begins to listen.
async fn ready(client: &RunnerClient) {
    for _ in 0..2000 {
        if client.healthcheck().await.is_ok() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("the runner does not answer");
}

pub(crate) async fn submit(client: &RunnerClient, script: &str) {
    ready(client).await;
    let mut body = SubmitBody::default();
    body.run.run_spec.run_name = "run".into();
    body.run_spec = body.run.run_spec.clone();
    body.job_spec.commands = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    client.submit(&body).await.unwrap();
    client.run().await.unwrap();
}

/// Follows the job to its end; returns its output, last state and exit code.
pub(crate) async fn follow(client: &RunnerClient) -> (String, JobState, Option<i64>) {
    let (mut output, mut state, mut code) = (Vec::new(), JobState::default(), None);
    let mut stream = client.stream(0).await.unwrap();
    while let Some(line) = stream.next().await.unwrap() {
        match line {
            StreamLine::Log(log) => output.extend(log.message),
            StreamLine::State(event) => (state, code) = (event.state, event.exit_status.map(i64::from)),
            StreamLine::End(end) => {
                client.ack(end.timestamp).await.unwrap();
                break;
            }
            _ => {}
        }
    }
    (String::from_utf8_lossy(&output).into_owned(), state, code)
}

/// What the server does once it has the job's last line.
async fn end(agent: &Agent, id: &str) {
    let order = TaskTerminate {
        termination_reason: "done_by_runner".into(),
        ..TaskTerminate::default()
    };
    let ended = agent.client.terminate(id, &order).await.unwrap();
    assert_eq!(
        (ended.status, ended.termination_reason.as_str()),
        (TaskStatus::Terminated, reason::DONE_BY_RUNNER)
    );
    agent.client.remove(id).await.unwrap();
}

#[tokio::test]
async fn a_job_as_a_process() {
    let machine = Machine::new("process", None);
    let agent = machine.agent_with(None, &[]).await;
    agent.client.submit(&config("1")).await.unwrap();
    let running = agent.until_status("1", TaskStatus::Running).await;
    let client = runner(&running);
    submit(&client, "echo hello; exit 3").await;
    let (output, state, code) = follow(&client).await;
    assert!(output.contains("hello"), "{output}");
    assert!(
        output.contains("no container engine"),
        "the notice comes first: {output}"
    );
    assert_eq!((state, code), (JobState::Failed, Some(3)));
    end(&agent, "1").await;
    machine.until_no_task_dirs().await;
}

#[tokio::test]
async fn the_directory_of_a_job_is_its_own() {
    let machine = Machine::new("process", None);
    let agent = machine.agent_with(None, &[]).await;
    agent.client.submit(&config("1")).await.unwrap();
    let running = agent.until_status("1", TaskStatus::Running).await;
    let client = runner(&running);
    submit(
        &client,
        "echo [$(ls -A)]; touch mine; rm -rf \"$PWD\"; echo still here; exit 3",
    )
    .await;
    let (output, state, code) = follow(&client).await;
    assert!(output.contains("[]"), "no file of the agents is there: {output}");
    assert!(output.contains("still here"), "{output}");
    assert_eq!((state, code), (JobState::Failed, Some(3)));
    agent.kill();
    let agent = machine.agent_with(None, &[]).await;
    end(&agent, "1").await;
    machine.until_no_task_dirs().await;
}

#[tokio::test]
async fn a_job_outlives_the_host_agent() {
    let machine = Machine::new("process", None);
    let agent = machine.agent_with(None, &[]).await;
    agent.client.submit(&config("1")).await.unwrap();
    let running = agent.until_status("1", TaskStatus::Running).await;
    let client = runner(&running);
    let go = machine.path("go");
    rustix_fifo(&go);
    submit(
        &client,
        &format!("echo before; read x < {}; echo after", go.display()),
    )
    .await;
    agent.kill();
    fs_err::write(&go, "x\n").unwrap();
    let (output, state, code) = follow(&client).await;
    assert!(output.contains("before") && output.contains("after"), "{output}");
    assert_eq!((state, code), (JobState::Done, Some(0)));
    let agent = machine.agent_with(None, &[]).await;
    end(&agent, "1").await;
}

/// What a server of ours asks for. The token is handed over again when the start of a task is begun anew.
#[tokio::test]
async fn only_who_has_the_token_of_a_task_reaches_its_runner() {
    let machine = Machine::new("process", None);
    let agent = machine.agent_with(Some("submitted"), &[]).await;
    // Dies before it answers.
    agent.client.submit(&with_token("1", "one")).await.unwrap_err();
    agent.died().await;
    let agent = machine.agent_with(None, &[]).await;
    agent.client.submit(&with_token("2", "two")).await.unwrap();
    agent.client.submit(&config("3")).await.unwrap();
    for (id, token) in [("1", "one"), ("2", "two")] {
        let client = runner(&agent.until_status(id, TaskStatus::Running).await);
        let refused = [
            status(client.job().await),
            status(client.stop().await),
            status(client.pull(9_000_000_000_000_000_000).await),
            status(client.stream(0).await),
            status(client.submit(&SubmitBody::default()).await),
        ];
        assert_eq!(refused, [Some(401); 5]);
        let other = client.clone().with_token("other".into());
        assert!(matches!(other.stop().await, Err(CallError::Unproven { .. })));
        let client = client.with_token(token.into());
        submit(&client, "env").await;
        let (output, state, _) = follow(&client).await;
        assert_eq!(state, JobState::Done);
        assert!(output.contains("DSTACK_JOB_ID="), "{output}");
        assert!(
            !output.contains("DSTACK_RUNNER_TOKEN") && !output.contains(token),
            "{output}"
        );
        end(&agent, id).await;
    }
    // As servers of dstack 0.22.5 submit tasks: they have no token to send.
    let open = runner(&agent.until_status("3", TaskStatus::Running).await);
    submit(&open, "true").await;
    assert_eq!(follow(&open).await.1, JobState::Done);
    end(&agent, "3").await;
}

fn rustix_fifo(path: &std::path::Path) {
    assert!(
        std::process::Command::new("mkfifo")
            .arg(path)
            .status()
            .unwrap()
            .success()
    );
}

/// The agent that runs in containers must be static; a test build is not, so this needs one that was built before.
fn static_agent() -> Option<String> {
    let built = dstack_system::env::var("DSTACK_TEST_STATIC_AGENT");
    let linked = |path: &str| {
        let output = std::process::Command::new("ldd").arg(path).output().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let found = [built, Some(AGENT.to_owned())]
        .into_iter()
        .flatten()
        .find(|path| {
            let text = linked(path);
            text.contains("statically linked") || text.contains("not a dynamic executable")
        });
    if found.is_none() {
        eprintln!("skipped: no static agent; build one and name it in DSTACK_TEST_STATIC_AGENT");
    }
    found
}

#[tokio::test]
async fn a_job_in_a_container() {
    let (Some(engine), Some(binary)) = (engine(), static_agent()) else {
        return;
    };
    let machine = Machine::new("docker", Some(engine));
    let agent = machine.agent_with(None, &["--runner-binary-path", &binary]).await;
    let task = TaskConfig {
        network_mode: NetworkMode::Bridge,
        ..config("real-1")
    };
    agent.client.submit(&task).await.unwrap();
    let running = agent.until_status("real-1", TaskStatus::Running).await;
    let client = runner(&running);
    submit(&client, "echo from $(cat /proc/1/comm); (sleep 0 &) ; echo hello").await;
    let (output, state, code) = follow(&client).await;
    assert!(output.contains("hello"), "{output}");
    assert_eq!((state, code), (JobState::Done, Some(0)));
    end(&agent, "real-1").await;
}

#[tokio::test]
async fn a_job_cannot_use_the_runner_of_another_container() {
    let (Some(engine), Some(binary)) = (engine(), static_agent()) else {
        return;
    };
    let machine = Machine::new("docker", Some(engine.clone()));
    let agent = machine.agent_with(None, &["--runner-binary-path", &binary]).await;
    let task = |id: &str, token: &str| TaskConfig {
        network_mode: NetworkMode::Bridge,
        ..with_token(id, token)
    };
    agent.client.submit(&task("victim-1", "one")).await.unwrap();
    agent.client.submit(&task("curious-1", "two")).await.unwrap();
    let victim = agent.until_status("victim-1", TaskStatus::Running).await;
    let curious = agent.until_status("curious-1", TaskStatus::Running).await;
    let victims = runner(&victim).with_token("one".into());
    ready(&victims).await;
    let address = crate::docker::address(&engine, &victim.container_id);
    // Its own token is all that a job can find.
    let attempts = [
        "wget -qO- http://V:10999/api/pull?timestamp=9000000000000000000",
        "wget -qO- http://V:10999/api/stream?timestamp=0",
        "wget -qO- --post-data= http://V:10999/api/stop",
        "wget -qO- --header 'Authorization: Bearer two' --post-data={} http://V:10999/api/submit",
    ];
    let script = attempts.join(" 2>&1; ").replace('V', &address) + " 2>&1; true";
    let client = runner(&curious).with_token("two".into());
    submit(&client, &script).await;
    let (output, state, _) = follow(&client).await;
    assert_eq!(
        output.matches("401 Unauthorized").count(),
        attempts.len(),
        "{output}"
    );
    assert_eq!(state, JobState::Done);
    assert_eq!(victims.job().await.unwrap().job_id, "");
    end(&agent, "curious-1").await;
    end(&agent, "victim-1").await;
}

#[tokio::test]
async fn an_image_without_any_program() {
    let (Some(engine), Some(binary)) = (engine(), static_agent()) else {
        return;
    };
    let machine = Machine::new("docker", Some(engine));
    let agent = machine.agent_with(None, &["--runner-binary-path", &binary]).await;
    let image_name = "dstack-test/empty:2".to_owned();
    let task = TaskConfig {
        network_mode: NetworkMode::Bridge,
        image_name,
        ..config("real-2")
    };
    agent.client.submit(&task).await.unwrap();
    let running = agent.until_status("real-2", TaskStatus::Running).await;
    ready(&runner(&running)).await;
    agent.end("real-2").await;
}
