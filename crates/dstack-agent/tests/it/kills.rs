//! kill -9 of the host agent at every step of a task's life: after a restart the task goes on to the same end, and its
//! runner was started once.

use dstack_agent_api::shim::{TaskStatus, TaskTerminate, reason};

use crate::docker::{containers, engine};
use crate::support::{Machine, alive, config, status};

const STARTING: [&str; 6] = [
    "submitted",
    "preparing",
    "prepared",
    "pulling",
    "pulled",
    "created",
];

/// Killed while it starts a task.
async fn killed_while_starting(runtime: &'static str, docker: Option<String>) {
    for point in STARTING.into_iter().chain(["started"]) {
        let machine = Machine::new(runtime, docker.clone());
        let agent = machine.agent(Some(point)).await;
        // The answer may be lost with the agent.
        let _ = agent.client.submit(&config(&format!("{runtime}-{point}"))).await;
        agent.died().await;
        let agent = machine.agent(None).await;
        let id = format!("{runtime}-{point}");
        assert_eq!(
            status(agent.client.submit(&config(&id)).await),
            Some(409),
            "{point}: the task was not forgotten"
        );
        let running = agent.until_status(&id, TaskStatus::Running).await;
        machine.finish(&running, 0).await;
        let ended = agent.until_status(&id, TaskStatus::Terminated).await;
        assert_eq!(ended.termination_reason, reason::DONE_BY_RUNNER, "{point}");
        assert_eq!(machine.starts(&running), 1, "{point}: started once");
        agent.client.remove(&id).await.unwrap();
        machine.until_no_task_dirs().await;
    }
}

/// Killed while it ends a task.
async fn killed_while_ending(runtime: &'static str, docker: Option<String>) {
    for point in ["terminating", "stopped", "released"] {
        let machine = Machine::new(runtime, docker.clone());
        let agent = machine.agent(Some(point)).await;
        let id = format!("{runtime}-{point}");
        agent.client.submit(&config(&id)).await.unwrap();
        let running = agent.until_status(&id, TaskStatus::Running).await;
        let order = TaskTerminate {
            termination_reason: "terminated_by_user".into(),
            ..TaskTerminate::default()
        };
        agent.client.terminate(&id, &order).await.unwrap_err();
        agent.died().await;
        let agent = machine.agent(None).await;
        let ended = agent.client.task(&id).await.unwrap();
        assert_eq!(
            (ended.status, ended.termination_reason.as_str()),
            (TaskStatus::Terminated, "terminated_by_user"),
            "{point}"
        );
        agent.client.terminate(&id, &order).await.unwrap();
        if runtime == "process" {
            let file = machine
                .path("runners")
                .join(&running.container_name)
                .join("runner/orphan");
            assert!(!alive(&fs_err::read_to_string(file).unwrap()), "{point}");
        }
        agent.client.remove(&id).await.unwrap();
        machine.until_no_task_dirs().await;
    }
}

/// Killed after the container ended by itself, and while what is left of it is deleted.
async fn killed_after_the_end(runtime: &'static str, docker: Option<String>) {
    for point in ["removing", "discarding"] {
        let machine = Machine::new(runtime, docker.clone());
        let id = format!("{runtime}-{point}");
        let agent = machine.agent(Some("exited")).await;
        agent.client.submit(&config(&id)).await.unwrap();
        let running = agent.until_status(&id, TaskStatus::Running).await;
        machine.finish(&running, 0).await;
        agent.died().await;
        let agent = machine.agent(Some(point)).await;
        let ended = agent.client.task(&id).await.unwrap();
        assert_eq!(ended.termination_reason, reason::DONE_BY_RUNNER);
        // The answer may be lost with the agent.
        let _ = agent.client.remove(&id).await;
        agent.died().await;
        assert_eq!(machine.task_dirs().len(), 1, "{point}: there is something left");
        let agent = machine.agent(None).await;
        assert_eq!(
            status(agent.client.task(&id).await),
            Some(404),
            "{point}: it was removed"
        );
        machine.until_no_task_dirs().await;
        if let Some(engine) = &docker {
            assert_eq!(containers(engine, &id), "", "{point}");
        }
    }
}

#[tokio::test]
async fn process_while_starting() {
    killed_while_starting("process", None).await;
}

#[tokio::test]
async fn process_while_ending() {
    killed_while_ending("process", None).await;
}

#[tokio::test]
async fn process_after_the_end() {
    killed_after_the_end("process", None).await;
}

#[tokio::test]
async fn docker_while_starting() {
    let Some(engine) = engine() else { return };
    killed_while_starting("docker", Some(engine)).await;
}

#[tokio::test]
async fn docker_while_ending() {
    let Some(engine) = engine() else { return };
    killed_while_ending("docker", Some(engine)).await;
}

#[tokio::test]
async fn docker_after_the_end() {
    let Some(engine) = engine() else { return };
    killed_after_the_end("docker", Some(engine)).await;
}
