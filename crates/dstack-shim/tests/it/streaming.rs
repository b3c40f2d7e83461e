//! `GET /api/stream`.

use dstack_agent_api::shim::{StreamEvent, TaskStatus, TaskTerminate};

use crate::fake::{Agent, FakeRuntime, config};

#[tokio::test]
async fn everything_first_then_changes_in_order() {
    let home = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::new(home.path());
    let agent = Agent::start(home.path(), runtime.clone()).await;
    let mut stream = agent.client.stream().await.unwrap();
    assert_eq!(stream.next().await.unwrap(), Some(StreamEvent::Synced));
    agent.client.submit(&config("1")).await.unwrap();
    let mut seen = Vec::new();
    while seen.last() != Some(&TaskStatus::Running) {
        if let StreamEvent::Task(info) = stream.next().await.unwrap().unwrap() {
            seen.push(info.status);
        }
    }
    assert!(seen.is_sorted(), "{seen:?}");
    seen.dedup();
    assert_eq!(seen.len(), 5, "every state is told: {seen:?}");
    let mut late = agent.client.stream().await.unwrap();
    assert!(matches!(late.next().await.unwrap(), Some(StreamEvent::Task(info)) if info.id == "1"));
    assert_eq!(late.next().await.unwrap(), Some(StreamEvent::Synced));
    agent
        .client
        .terminate("1", &TaskTerminate::default())
        .await
        .unwrap();
    agent.client.remove("1").await.unwrap();
    loop {
        match late.next().await.unwrap().unwrap() {
            StreamEvent::Removed { id } => break assert_eq!(id, "1"),
            StreamEvent::Task(info) => assert!(info.status >= TaskStatus::Running),
            other => panic!("{other:?}"),
        }
    }
    agent.client.shutdown(false).await.unwrap();
    assert_eq!(late.next().await.unwrap(), None, "streams end with the agent");
    assert!(agent.shutdown.is_cancelled() && !agent.force.is_cancelled());
}
