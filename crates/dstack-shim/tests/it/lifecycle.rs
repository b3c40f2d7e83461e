//! Tasks from submission to removal, also over restarts of the agent.

use dstack_agent_api::shim::{StreamEvent, TaskConfig, TaskStatus, TaskTerminate};
use dstack_shim::runtime::ContainerState;
use dstack_shim::store::{Record, Store};
use dstack_shim::task::Task;

use crate::fake::{Agent, FakeRuntime, config};

fn order(reason: &str, timeout: u32) -> TaskTerminate {
    TaskTerminate {
        termination_reason: reason.into(),
        termination_message: "m".into(),
        timeout,
    }
}

fn running(info: &dstack_agent_api::shim::TaskInfo) -> bool {
    info.status == TaskStatus::Running
}

fn terminated(info: &dstack_agent_api::shim::TaskInfo) -> bool {
    info.status == TaskStatus::Terminated
}

#[tokio::test]
async fn a_task_runs_and_ends_by_itself() {
    let home = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::new(home.path());
    let agent = Agent::start(home.path(), runtime.clone()).await;
    let accepted = agent.client.submit(&config("1")).await.unwrap();
    assert_eq!(accepted.status, TaskStatus::Pending);
    assert_eq!(accepted.ports, None);
    let info = agent.until("1", running).await;
    assert_eq!(info.host_port(10999), Some(32768));
    assert_eq!(info.container_id, format!("c-{}", info.container_name));
    assert_eq!(
        agent
            .client
            .submit(&config("1"))
            .await
            .unwrap_err()
            .status()
            .unwrap(),
        409
    );
    assert_eq!(agent.client.remove("1").await.unwrap_err().status().unwrap(), 409);
    runtime.exit(&info.container_id, 0);
    let ended = agent.until("1", terminated).await;
    assert_eq!(ended.termination_reason, "done_by_runner");
    let again = agent
        .client
        .terminate("1", &order("terminated_by_server", 0))
        .await
        .unwrap();
    assert_eq!(
        again.termination_reason, "done_by_runner",
        "the first reason stays"
    );
    agent.client.remove("1").await.unwrap();
    assert_eq!(agent.client.remove("1").await.unwrap_err().status().unwrap(), 404);
    assert_eq!(agent.client.task("1").await.unwrap_err().status().unwrap(), 404);
    runtime.until_empty().await;
    // The directory goes after the container.
    agent.tasks.finish_removals().await;
    assert_eq!(fs_err::read_dir(home.path().join("runners")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_failing_container_says_its_last_lines() {
    let home = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::new(home.path());
    let agent = Agent::start(home.path(), runtime.clone()).await;
    agent.client.submit(&config("1")).await.unwrap();
    let info = agent.until("1", running).await;
    runtime.exit(&info.container_id, 3);
    let ended = agent.until("1", terminated).await;
    assert_eq!(ended.termination_reason, "container_exited_with_error");
    assert_eq!(ended.termination_message, "one\ntwo");
}

#[tokio::test]
async fn failures_while_starting() {
    let home = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::new(home.path());
    let agent = Agent::start(home.path(), runtime.clone()).await;
    *runtime.pull_error.lock().unwrap() = Some("manifest unknown".into());
    agent.client.submit(&config("1")).await.unwrap();
    let pull = agent.until("1", terminated).await;
    assert_eq!(pull.termination_reason, "creating_container_error");
    assert_eq!(pull.termination_message, "pullImage error: manifest unknown");
    *runtime.pull_error.lock().unwrap() = None;
    *runtime.start_error.lock().unwrap() = Some("no".into());
    agent.client.submit(&config("2")).await.unwrap();
    assert_eq!(
        agent.until("2", terminated).await.termination_reason,
        "container_exited_with_error"
    );
    let user = TaskConfig {
        host_ssh_user: "nobody-here".into(),
        ..config("3")
    };
    agent.client.submit(&user).await.unwrap();
    assert_eq!(
        agent.until("3", terminated).await.termination_reason,
        "executor_error"
    );
    agent
        .client
        .submit(&TaskConfig {
            gpu: 3,
            ..config("4")
        })
        .await
        .unwrap();
    let gpus = agent.until("4", terminated).await;
    assert_eq!(
        gpus.termination_message,
        "no capacity: 3 GPUs requested, 2 available"
    );
    for id in ["1", "2", "3", "4"] {
        agent.client.remove(id).await.unwrap();
    }
    *runtime.start_error.lock().unwrap() = None;
    agent
        .client
        .submit(&TaskConfig {
            gpu: 2,
            ..config("5")
        })
        .await
        .unwrap();
    let all = agent.until("5", running).await;
    assert_eq!(
        all.gpus_ids.unwrap(),
        ["g0", "g1"],
        "failed tasks gave their GPUs back"
    );
}

#[tokio::test]
async fn a_pull_is_cancelled() {
    let home = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::new(home.path());
    runtime.pulls.forget_permits(1000);
    let agent = Agent::start(home.path(), runtime.clone()).await;
    agent.client.submit(&config("1")).await.unwrap();
    let pulling = agent.until("1", |info| info.image_pull_progress.is_some()).await;
    assert_eq!(pulling.status, TaskStatus::Pulling);
    let ended = agent
        .client
        .terminate("1", &order("terminated_by_user", 10))
        .await
        .unwrap();
    assert_eq!(
        (ended.status, ended.termination_reason.as_str()),
        (TaskStatus::Terminated, "terminated_by_user")
    );
    agent.client.remove("1").await.unwrap();
    assert_eq!(runtime.called("create"), 0);
}

#[tokio::test]
async fn an_order_to_end_can_be_repeated() {
    let home = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::new(home.path());
    let agent = Agent::start(home.path(), runtime.clone()).await;
    agent
        .client
        .submit(&TaskConfig {
            gpu: -1,
            ..config("1")
        })
        .await
        .unwrap();
    agent.until("1", running).await;
    *runtime.stop_error.lock().unwrap() = Some("engine is busy".into());
    let failed = agent
        .client
        .terminate("1", &order("terminated_by_user", 7))
        .await
        .unwrap_err();
    assert_eq!(failed.status().unwrap(), 500);
    agent
        .client
        .terminate("1", &order("terminated_by_user", 7))
        .await
        .unwrap();
    agent
        .client
        .terminate("1", &order("terminated_by_server", 7))
        .await
        .unwrap();
    assert!(runtime.called("stop 7") >= 1);
    agent
        .client
        .submit(&TaskConfig {
            gpu: 2,
            ..config("2")
        })
        .await
        .unwrap();
    agent.until("2", running).await;
    assert_eq!(
        agent
            .client
            .terminate("9", &order("", 0))
            .await
            .unwrap_err()
            .status()
            .unwrap(),
        404
    );
}

#[tokio::test]
async fn a_restarted_agent_finds_its_tasks() {
    let home = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::new(home.path());
    let agent = Agent::start(home.path(), runtime.clone()).await;
    agent
        .client
        .submit(&TaskConfig {
            gpu: 1,
            ..config("1")
        })
        .await
        .unwrap();
    let before = agent.until("1", running).await;
    agent.kill().await;
    let agent = Agent::start(home.path(), runtime.clone()).await;
    let after = agent.client.task("1").await.unwrap();
    assert_eq!(
        (after.status, after.gpus_ids, after.ports),
        (TaskStatus::Running, before.gpus_ids, before.ports)
    );
    agent.kill().await;
    runtime.exit(&before.container_id, 0);
    let agent = Agent::start(home.path(), runtime.clone()).await;
    let ended = agent.client.task("1").await.unwrap();
    assert_eq!(
        ended.termination_reason, "done_by_runner",
        "looked at before the API answers"
    );
    agent.kill().await;
    let agent = Agent::start(home.path(), runtime.clone()).await;
    assert_eq!(
        agent.client.task("1").await.unwrap().termination_reason,
        "done_by_runner"
    );
    assert_eq!(runtime.called("start"), 1);
}

#[tokio::test]
async fn a_start_that_was_interrupted_goes_on() {
    let home = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::new(home.path());
    runtime.pulls.forget_permits(1000);
    let agent = Agent::start(home.path(), runtime.clone()).await;
    agent.client.submit(&config("1")).await.unwrap();
    let private = TaskConfig {
        registry_username: "me".into(),
        registry_password: "x".into(),
        ..config("2")
    };
    agent.client.submit(&private).await.unwrap();
    for id in ["1", "2"] {
        agent.until(id, |info| info.image_pull_progress.is_some()).await;
    }
    agent.kill().await;
    // The tasks' own futures of the killed agent hang in their pulls for ever.
    runtime.pulls.close();
    let runtime = FakeRuntime::new(home.path());
    let agent = Agent::start(home.path(), runtime.clone()).await;
    agent.until("1", running).await;
    let dropped = agent.client.task("2").await.unwrap_err();
    assert_eq!(dropped.status().unwrap(), 404, "credentials are not kept");
    assert_eq!(runtime.called("create"), 1);
}

#[tokio::test]
async fn containers_of_an_old_agent_without_records() {
    let home = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::new(home.path());
    let agent = Agent::start(home.path(), runtime.clone()).await;
    agent.client.submit(&config("1")).await.unwrap();
    agent.client.submit(&config("2")).await.unwrap();
    let first = agent.until("1", running).await;
    let second = agent.until("2", running).await;
    agent.kill().await;
    fs_err::remove_dir_all(home.path().join("runners")).unwrap();
    runtime
        .containers
        .lock()
        .unwrap()
        .get_mut(&second.container_id)
        .unwrap()
        .state = ContainerState::Created;
    let agent = Agent::start(home.path(), runtime.clone()).await;
    assert_eq!(agent.client.task("1").await.unwrap().status, TaskStatus::Running);
    let never_started = agent.client.task("2").await.unwrap();
    assert_eq!(never_started.termination_message, "container was not started");
    runtime.containers.lock().unwrap().remove(&first.container_id);
    agent
        .client
        .terminate("1", &order("terminated_by_user", 0))
        .await
        .unwrap();
    agent.client.remove("1").await.unwrap();
}

/// The end is confirmed when nothing runs any more; deleting the container may take the engine as long as it likes.
#[tokio::test]
async fn the_container_of_a_removed_task_goes_later() {
    let home = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::new(home.path());
    let agent = Agent::start(home.path(), runtime.clone()).await;
    let all = TaskConfig {
        gpu: -1,
        ..config("1")
    };
    agent.client.submit(&all).await.unwrap();
    let info = agent.until("1", running).await;
    runtime.hold_removals();
    agent
        .client
        .terminate("1", &order("terminated_by_user", 0))
        .await
        .unwrap();
    let state = runtime.containers.lock().unwrap()[&info.container_id].state;
    assert_eq!(state, ContainerState::Exited(137), "it was stopped first");
    agent.client.remove("1").await.unwrap();
    assert_eq!(runtime.containers.lock().unwrap().len(), 1);
    assert_eq!(agent.client.remove("1").await.unwrap_err().status().unwrap(), 404);
    assert_eq!(agent.client.task("1").await.unwrap_err().status().unwrap(), 404);
    assert!(agent.client.tasks().await.unwrap().tasks.is_empty());
    let next = TaskConfig {
        gpu: 2,
        ..config("2")
    };
    agent.client.submit(&next).await.unwrap();
    let next = agent.until("2", running).await;
    assert_eq!(next.gpus_ids.unwrap(), ["g0", "g1"], "they are free");
    // Killed before the container was deleted.
    agent.kill().await;
    let runtime = runtime.without_holds();
    let agent = Agent::start(home.path(), runtime.clone()).await;
    assert_eq!(agent.client.task("1").await.unwrap_err().status().unwrap(), 404);
    assert_eq!(agent.client.task("2").await.unwrap().status, TaskStatus::Running);
    runtime.until_gone(&info.container_id).await;
}

#[tokio::test]
async fn a_container_that_cannot_be_deleted_is_tried_again() {
    let home = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::new(home.path());
    let agent = Agent::start(home.path(), runtime.clone()).await;
    agent.client.submit(&config("1")).await.unwrap();
    agent.until("1", running).await;
    *runtime.remove_error.lock().unwrap() = Some("engine is busy".into());
    agent.client.terminate("1", &order("", 0)).await.unwrap();
    agent.client.remove("1").await.unwrap();
    runtime.until_empty().await;
    assert_eq!(runtime.called("remove"), 2);
    // The same id again: nothing of the first is in its way.
    agent.client.submit(&config("1")).await.unwrap();
    agent.until("1", running).await;
}

/// What an agent left behind that was killed before it had a container for the task.
fn interrupted(home: &std::path::Path, id: &str, runtime: &str) -> std::path::PathBuf {
    let store = Store::new(home);
    let task = Task::new(config(id));
    let dir = store.dir(&task.container_name);
    store.create(&dir, &Record::of(&task, runtime)).unwrap();
    dir
}

#[tokio::test]
async fn a_task_is_not_run_by_another_runtime_than_its_own() {
    let home = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::new(home.path());
    let foreign = interrupted(home.path(), "1", "process");
    interrupted(home.path(), "2", "fake");
    // Of an agent that did not write it down: not a process, or there would be a launch.json.
    interrupted(home.path(), "3", "");
    let agent = Agent::start(home.path(), runtime.clone()).await;
    agent.until("2", running).await;
    agent.until("3", running).await;
    assert_eq!(agent.client.task("1").await.unwrap_err().status().unwrap(), 404);
    assert_eq!(runtime.called("create"), 2);
    assert!(foreign.join("task.json").exists(), "left for whom it belongs to");
}

#[tokio::test]
async fn while_the_engine_does_not_answer_tasks_wait_and_say_for_what() {
    let home = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::new(home.path());
    interrupted(home.path(), "1", "fake");
    *runtime.list_error.lock().unwrap() = Some("no such socket".into());
    let agent = Agent::start_waiting(home.path(), runtime.clone()).await;
    let mut stream = agent.client.stream().await.unwrap();
    let refused = loop {
        let refused = agent.client.submit(&config("2")).await.unwrap_err();
        // The first look at the engine may be under way.
        if refused.to_string().contains("no such socket") {
            break refused;
        }
    };
    let said = "POST /api/tasks: the agent answered 503 Service Unavailable: waiting for the container engine: no such socket";
    assert_eq!(refused.to_string(), said);
    for unknown in [
        agent.client.task("1").await.map(drop),
        agent.client.tasks().await.map(drop),
        agent.client.terminate("1", &order("x", 0)).await.map(drop),
        agent.client.remove("1").await,
    ] {
        assert_eq!(
            unknown.unwrap_err().status().unwrap(),
            503,
            "nobody may take the task for lost"
        );
    }
    let notices = agent.client.host().await.unwrap().notices;
    let notice = "Tasks of this machine are waiting for the container engine: no such socket";
    assert_eq!(notices, [notice]);
    assert_eq!(runtime.called("create"), 0);

    *runtime.list_error.lock().unwrap() = None;
    let first = loop {
        match stream.next().await.unwrap().unwrap() {
            StreamEvent::Tick => {}
            event => break event,
        }
    };
    assert!(
        matches!(first, StreamEvent::Task(task) if task.id == "1"),
        "before everything is told"
    );
    agent.until("1", running).await;
    assert_eq!(runtime.called("create"), 1);
    assert_eq!(agent.client.host().await.unwrap().notices, Vec::<String>::new());

    // It goes away again: what runs is known, what is new waits.
    *runtime.unavailable.lock().unwrap() = Some("gone".into());
    assert_eq!(
        agent
            .client
            .submit(&config("2"))
            .await
            .unwrap_err()
            .status()
            .unwrap(),
        503
    );
    assert_eq!(agent.client.task("1").await.unwrap().status, TaskStatus::Running);
    *runtime.unavailable.lock().unwrap() = None;
    agent.client.submit(&config("2")).await.unwrap();
}

#[tokio::test]
async fn an_agent_without_tasks_says_so_also_while_it_waits() {
    let home = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::new(home.path());
    *runtime.list_error.lock().unwrap() = Some("no".into());
    let agent = Agent::start_waiting(home.path(), runtime).await;
    assert_eq!(agent.client.tasks().await.unwrap().tasks, []);
}
