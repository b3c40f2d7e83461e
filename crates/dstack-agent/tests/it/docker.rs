//! The Docker runtime, against an engine that `tests/scripts/dockerd.sh` starts.

use std::process::Command;
use std::sync::OnceLock;

use dstack_agent_api::shim::{NetworkMode, TaskConfig, TaskStatus, TaskTerminate, reason};

use crate::support::{Machine, config};

/// `DOCKER_HOST` of an engine for tests; `None`, with the reason on stderr, where none can run. It is left running: the
/// next run finds it.
pub(crate) fn engine() -> Option<String> {
    static ENGINE: OnceLock<Option<String>> = OnceLock::new();
    ENGINE
        .get_or_init(|| {
            let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/scripts/dockerd.sh");
            let output = Command::new(script)
                .args(["start", "/tmp/dstack-test-docker"])
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let host = text.lines().find_map(|line| line.strip_prefix("DOCKER_HOST="));
            if host.is_none() {
                eprintln!("skipped: {}", String::from_utf8_lossy(&output.stderr).trim());
            }
            host.map(str::to_owned)
        })
        .clone()
}

fn docker(engine: &str, arguments: &[&str]) -> String {
    let output = Command::new("docker")
        .env("DOCKER_HOST", engine)
        .args(arguments)
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Whether a command in a container succeeds.
fn succeeds(engine: &str, container: &str, command: &[&str]) -> bool {
    Command::new("docker")
        .env("DOCKER_HOST", engine)
        .args(["exec", container])
        .args(command)
        .output()
        .unwrap()
        .status
        .success()
}

/// Ids of a task's containers, running or not.
pub(crate) fn containers(engine: &str, task: &str) -> String {
    let label = format!("label=ai.dstack.shim.task-id={task}");
    docker(engine, &["ps", "-aq", "--filter", &label])
}

/// Where a container is in its bridge network.
pub(crate) fn address(engine: &str, container: &str) -> String {
    docker(
        engine,
        &["inspect", "-f", "{{.NetworkSettings.IPAddress}}", container],
    )
}

#[tokio::test]
async fn a_task_in_a_bridge_network() {
    let Some(engine) = engine() else { return };
    let machine = Machine::new("docker", Some(engine.clone()));
    let agent = machine.agent(None).await;
    assert_eq!(agent.client.host().await.unwrap().runtime, "docker");
    let limits = TaskConfig {
        network_mode: NetworkMode::Bridge,
        memory: 64 << 20,
        cpu: 0.5,
        shm_size: 1 << 20,
        ..config("bridge-1")
    };
    agent.client.submit(&limits).await.unwrap();
    let running = agent.until_status("bridge-1", TaskStatus::Running).await;
    let ports = running.ports.clone().unwrap();
    assert_eq!(
        ports.iter().map(|port| port.container).collect::<Vec<_>>(),
        [10022, 10999]
    );
    assert!(ports.iter().all(|port| port.host > 1024));
    let id = &running.container_id;
    assert_eq!(
        docker(
            &engine,
            &[
                "inspect",
                "-f",
                "{{.HostConfig.Memory}} {{.HostConfig.NanoCpus}}",
                id
            ]
        ),
        "67108864 500000000"
    );
    assert!(docker(&engine, &["exec", id, "cat", "/tmp/runner/starts"]).contains("start"));
    machine.finish(&running, 0).await;
    let ended = agent.until_status("bridge-1", TaskStatus::Terminated).await;
    assert_eq!(ended.termination_reason, reason::DONE_BY_RUNNER);
    agent.client.remove("bridge-1").await.unwrap();
    machine.until_no_task_dirs().await;
    assert_eq!(containers(&engine, "bridge-1"), "");
}

#[tokio::test]
async fn root_in_a_container_cannot_change_the_agent_of_the_host() {
    use std::os::unix::fs::PermissionsExt as _;
    let Some(engine) = engine() else { return };
    let machine = Machine::new("docker", Some(engine.clone()));
    let agent = machine.agent(None).await;
    agent.client.submit(&config("ro-1")).await.unwrap();
    let running = agent.until_status("ro-1", TaskStatus::Running).await;
    let container = running.container_id.as_str();
    let file = machine.path("fake-runner");
    let before = (
        fs_err::read(&file).unwrap(),
        fs_err::metadata(&file).unwrap().permissions().mode(),
    );
    assert!(succeeds(
        &engine,
        container,
        &["test", "-x", "/usr/local/bin/dstack-runner"]
    ));
    for attack in [
        "chmod 000 /usr/local/bin/dstack-runner",
        "chmod u+s /usr/local/bin/dstack-runner",
        "chown 1 /usr/local/bin/dstack-runner",
        "echo x >> /usr/local/bin/dstack-runner",
        "echo x > /usr/local/bin/dstack-runner",
        "rm -f /usr/local/bin/dstack-runner",
        "mv /bin/busybox /usr/local/bin/dstack-runner",
    ] {
        assert!(
            !succeeds(&engine, container, &["/bin/sh", "-c", attack]),
            "{attack}"
        );
    }
    let after = (
        fs_err::read(&file).unwrap(),
        fs_err::metadata(&file).unwrap().permissions().mode(),
    );
    assert_eq!(before, after);
    agent.end("ro-1").await;
}

#[tokio::test]
async fn failing_and_missing_images_say_why() {
    let Some(engine) = engine() else { return };
    let machine = Machine::new("docker", Some(engine));
    let agent = machine.agent(None).await;
    agent.client.submit(&config("fail-1")).await.unwrap();
    let running = agent.until_status("fail-1", TaskStatus::Running).await;
    assert_eq!(running.ports, Some(vec![]), "host network");
    machine.finish(&running, 3).await;
    let ended = agent.until_status("fail-1", TaskStatus::Terminated).await;
    assert_eq!(ended.termination_reason, reason::CONTAINER_EXITED_WITH_ERROR);
    assert_eq!(ended.termination_message, "the runner is up");
    let missing = TaskConfig {
        image_name: "127.0.0.1:9/nothing/here:1".into(),
        ..config("missing-1")
    };
    agent.client.submit(&missing).await.unwrap();
    let ended = agent.until_status("missing-1", TaskStatus::Terminated).await;
    assert_eq!(ended.termination_reason, reason::CREATING_CONTAINER_ERROR);
    assert!(
        ended
            .termination_message
            .starts_with("pullImage error: failed pulling 127.0.0.1:9/nothing/here:1"),
        "{ended:?}"
    );
    let empty = TaskConfig {
        image_name: "dstack-test/empty:2".into(),
        ..config("empty-1")
    };
    agent.client.submit(&empty).await.unwrap();
    let ended = agent.until_status("empty-1", TaskStatus::Terminated).await;
    assert_eq!(
        ended.termination_reason,
        reason::CONTAINER_EXITED_WITH_ERROR,
        "a shell script in an image without a shell"
    );
    for id in ["fail-1", "missing-1", "empty-1"] {
        agent.client.remove(id).await.unwrap();
    }
}

#[tokio::test]
async fn ending_a_container() {
    let Some(engine) = engine() else { return };
    let machine = Machine::new("docker", Some(engine));
    let agent = machine.agent(None).await;
    agent.client.submit(&config("stop-1")).await.unwrap();
    agent.until_status("stop-1", TaskStatus::Running).await;
    let order = TaskTerminate {
        termination_reason: "terminated_by_user".into(),
        timeout: 5,
        ..TaskTerminate::default()
    };
    let ended = agent.client.terminate("stop-1", &order).await.unwrap();
    assert_eq!(ended.termination_reason, "terminated_by_user");
    agent.client.remove("stop-1").await.unwrap();
}

/// The engine of the tests under a path that can be taken away.
struct Switch {
    engine: std::path::PathBuf,
    path: std::path::PathBuf,
}

impl Switch {
    fn new(engine: &str, dir: &std::path::Path) -> Self {
        Self {
            engine: engine.trim_start_matches("unix://").into(),
            path: dir.join("engine.sock"),
        }
    }

    fn on(&self) {
        fs_err::os::unix::fs::symlink(&self.engine, &self.path).unwrap();
    }

    fn off(&self) {
        fs_err::remove_file(&self.path).unwrap();
    }

    fn host(&self) -> String {
        format!("unix://{}", self.path.display())
    }
}

#[tokio::test]
async fn auto_waits_for_the_engine_and_never_runs_a_container_as_a_process() {
    let Some(engine) = engine() else { return };
    let dir = tempfile::tempdir().unwrap();
    let switch = Switch::new(&engine, dir.path());
    let machine = Machine::new("auto", Some(switch.host()));
    switch.on();
    let agent = machine.agent(None).await;
    // Once the agent answers it has asked the engine.
    agent.client.submit(&config("auto-1")).await.unwrap();
    let running = agent.until_status("auto-1", TaskStatus::Running).await;
    // One more that has no container yet when its agent dies.
    agent.kill();
    let agent = machine.agent(Some("submitted")).await;
    agent.client.submit(&config("auto-2")).await.unwrap_err();
    agent.died().await;

    switch.off();
    let agent = machine.agent(None).await;
    let host = agent.client.host().await.unwrap();
    assert_eq!(host.runtime, "docker");
    assert!(
        host.notices
            .iter()
            .any(|notice| notice.contains("waiting for the container engine")),
        "{host:?}"
    );
    let waits = agent.client.submit(&config("auto-3")).await.unwrap_err();
    assert_eq!(waits.status().map(|status| status.as_u16()), Some(503), "{waits}");
    assert!(waits.to_string().contains("engine.sock"), "{waits}");
    assert_eq!(
        (machine.starts(&running), machine.task_dirs().len()),
        (1, 2),
        "nothing was started"
    );

    switch.on();
    let found = agent.until_status("auto-1", TaskStatus::Running).await;
    assert_eq!(found.container_id, running.container_id);
    assert_eq!(machine.starts(&running), 1);
    let second = agent.until_status("auto-2", TaskStatus::Running).await;
    assert_ne!(second.container_id, "");
    for id in ["auto-1", "auto-2"] {
        agent.end(id).await;
    }
}
