//! The process runtime.

use dstack_agent_api::shim::{TaskStatus, TaskTerminate, reason};

use crate::support::{AGENT, Machine, alive, config, status};

fn orphan(machine: &Machine, name: &str) -> String {
    fs_err::read_to_string(machine.path("runners").join(name).join("runner/orphan")).unwrap()
}

#[tokio::test]
async fn a_task_from_start_to_end() {
    let machine = Machine::new("process", None);
    let agent = machine.agent(None).await;
    let host = agent.client.host().await.unwrap();
    assert_eq!(
        (host.runtime.as_str(), host.version.as_str()),
        ("process", "0.22.5")
    );
    assert!(host.host_info.cpus > 0 && !host.notices.is_empty());
    let started_from = dstack_system::file::id(AGENT.as_ref()).unwrap();
    assert_eq!(host.executable, started_from);
    agent.client.submit(&config("1")).await.unwrap();
    let running = agent.until_status("1", TaskStatus::Running).await;
    assert_eq!(
        (running.host_port(10999), running.host_port(10022)),
        (Some(40001), Some(40002))
    );
    machine.finish(&running, 0).await;
    let ended = agent.until_status("1", TaskStatus::Terminated).await;
    assert_eq!(ended.termination_reason, reason::DONE_BY_RUNNER);
    assert!(
        !alive(&orphan(&machine, &running.container_name)),
        "what the task left behind is gone too"
    );
    agent.client.remove("1").await.unwrap();
    machine.until_no_task_dirs().await;
}

#[tokio::test]
async fn a_failing_runner_says_its_last_lines() {
    let machine = Machine::new("process", None);
    let agent = machine.agent(None).await;
    agent.client.submit(&config("1")).await.unwrap();
    let running = agent.until_status("1", TaskStatus::Running).await;
    machine.finish(&running, 3).await;
    let ended = agent.until_status("1", TaskStatus::Terminated).await;
    assert_eq!(ended.termination_reason, reason::CONTAINER_EXITED_WITH_ERROR);
    assert_eq!(ended.termination_message, "the runner is up");
}

#[tokio::test]
async fn ending_a_task_ends_all_its_processes() {
    let machine = Machine::new("process", None);
    let agent = machine.agent(None).await;
    for (id, timeout) in [("1", 0), ("2", 30)] {
        agent.client.submit(&config(id)).await.unwrap();
        let running = agent.until_status(id, TaskStatus::Running).await;
        let order = TaskTerminate {
            termination_reason: "terminated_by_user".into(),
            timeout,
            ..TaskTerminate::default()
        };
        let ended = agent.client.terminate(id, &order).await.unwrap();
        assert_eq!(
            (ended.status, ended.termination_reason.as_str()),
            (TaskStatus::Terminated, "terminated_by_user")
        );
        assert!(!alive(&orphan(&machine, &running.container_name)));
        let output = fs_err::read_to_string(
            machine
                .path("runners")
                .join(&running.container_name)
                .join("output.log"),
        )
        .unwrap();
        assert_eq!(output.contains("got TERM"), timeout > 0, "{output}");
        agent.client.remove(id).await.unwrap();
        assert_eq!(status(agent.client.remove(id).await), Some(404));
    }
}

#[tokio::test]
async fn a_task_outlives_the_agent_and_ends_meanwhile() {
    let machine = Machine::new("process", None);
    let agent = machine.agent(None).await;
    agent.client.submit(&config("1")).await.unwrap();
    let running = agent.until_status("1", TaskStatus::Running).await;
    agent.kill();
    let agent = machine.agent(None).await;
    assert_eq!(agent.client.task("1").await.unwrap().ports, running.ports);
    agent.kill();
    let pid: serde_json::Value = serde_json::from_str(
        &fs_err::read_to_string(
            machine
                .path("runners")
                .join(&running.container_name)
                .join("process.json"),
        )
        .unwrap(),
    )
    .unwrap();
    machine.finish(&running, 0).await;
    while alive(&pid["pid"].to_string()) {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let agent = machine.agent(None).await;
    let ended = agent.client.task("1").await.unwrap();
    assert_eq!(ended.termination_reason, reason::DONE_BY_RUNNER);
    assert_eq!(machine.starts(&running), 1);
}

#[tokio::test]
async fn one_agent_per_directory() {
    let machine = Machine::new("process", None);
    let _agent = machine.agent(None).await;
    let second = std::process::Command::new(crate::support::AGENT)
        .args([
            "shim",
            "--shim-home",
            machine.home.path().to_str().unwrap(),
            "--runtime",
            "process",
            "--shim-http-port",
            "0",
        ])
        .output()
        .unwrap();
    assert!(!second.status.success());
    assert!(String::from_utf8_lossy(&second.stderr).contains("another dstack-shim uses"));
}

#[tokio::test]
async fn versions_and_mistakes() {
    let run = |arguments: &[&str]| {
        let output = std::process::Command::new(crate::support::AGENT)
            .args(arguments)
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    assert_eq!(run(&["shim", "--version"]).1, "dstack-shim version 0.22.5\n");
    assert_eq!(run(&["shim", "-v"]).1, "dstack-shim version 0.22.5\n");
    assert_eq!(run(&["runner", "--version"]).1, "dstack-runner version 0.22.5\n");
    assert_eq!(run(&["--version"]).1, "dstack-agent version 0.22.5\n");
    let (code, _, error) = run(&["shim", "--shim-home", "/tmp", "--shim-log-level", "loud"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("--shim-log-level: \"loud\" is none of"), "{error}");
    let (code, _, error) = run(&["shim", "--shim-home", "/proc/nowhere", "--runtime", "process"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("cannot use the agent's directory"), "{error}");
    assert_eq!(run(&["fly"]).0, Some(2));
}

#[tokio::test]
async fn auto_does_not_take_an_engine_that_is_away_for_none() {
    let machine = Machine::new("auto", Some("unix:///nowhere/engine.sock".to_owned()));
    let agent = machine.agent(None).await;
    let host = agent.client.host().await.unwrap();
    assert_eq!(host.runtime, "docker");
    assert_eq!(status(agent.client.submit(&config("1")).await), Some(503));
    assert_eq!(machine.task_dirs(), Vec::<std::path::PathBuf>::new());
}

#[tokio::test]
async fn tasks_that_run_as_processes_are_not_left_for_containers() {
    let machine = Machine::new("process", None);
    let agent = machine.agent(None).await;
    agent.client.submit(&config("1")).await.unwrap();
    let running = agent.until_status("1", TaskStatus::Running).await;
    agent.kill();
    let other = std::process::Command::new(crate::support::AGENT)
        .args([
            "shim",
            "--runtime",
            "docker",
            "--shim-http-port",
            "0",
            "--shim-home",
        ])
        .arg(machine.home.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(!other.status.success());
    assert!(
        said.contains("still run in the runtime process: run-1. Start with --runtime process"),
        "{said}"
    );
    let agent = machine.agent(None).await;
    assert_eq!(agent.client.task("1").await.unwrap().status, running.status);
    machine.finish(&running, 0).await;
    agent.until_status("1", TaskStatus::Terminated).await;
}
