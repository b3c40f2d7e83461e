//! `backend delete`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod support;

use serde_json::{Value, json};
use support::{Cli, Exchange, FakeServer};

const DELETE: &str = "/api/project/main/backends/delete";

/// A project with a backend of a type that this command line does not know.
fn project() -> Exchange {
    let owner = json!({"id": "0df2c062-1818-4087-974b-c2122b309d8d", "username": "admin", "global_role": "admin", "active": true,
                       "permissions": {"can_create_projects": true}});
    let answer = json!({
        "project_id": "0df2c062-1818-4087-974b-c2122b309d8d", "project_name": "main", "members": [], "owner": owner,
        "backends": [{"name": "nimbus", "config": {"type": "nimbus"}}, {"name": "aws", "config": {"type": "aws"}}],
    });
    Exchange::new("/api/projects/main/get", answer)
}

#[tokio::test]
async fn a_backend_is_deleted_whether_or_not_its_type_is_known() {
    let deleted = Exchange {
        request: Some(json!({"backends_names": ["nimbus"]})),
        ..Exchange::new(DELETE, Value::Null)
    };
    let in_use = json!({"detail": [{"msg": "Backend aws has active instances.", "code": "error"}]});
    let server = FakeServer::start(vec![
        project(),
        project(),
        deleted,
        project(),
        Exchange::refused(DELETE, 400, in_use),
        project(),
    ])
    .await;
    let mut cli = Cli::with_project(&server);
    cli.input = "n\n".to_owned();
    let ended = cli.run(&["backend", "delete", "nimbus"]).await;
    ended.assert_code(0);
    assert_eq!(ended.out, "Delete the backend nimbus? [y/n]: \nExiting...\n");
    let ended = cli.run(&["backend", "delete", "nimbus", "-y"]).await;
    ended.assert_code(0);
    assert_eq!(ended.out, "Backend nimbus deleted\n");
    let ended = cli.run(&["backend", "delete", "aws", "-y"]).await;
    ended.assert_code(1);
    assert!(
        ended.err.starts_with("Backend aws has active instances."),
        "{}",
        ended.err
    );
    let ended = cli.run(&["backend", "delete", "gcp", "-y"]).await;
    ended.assert_code(1);
    assert!(
        ended
            .err
            .starts_with("Project main does not have the backend gcp [D0401]\nhint: it has nimbus, aws"),
        "{}",
        ended.err
    );
    let ended = cli.run(&["backend", "delete", "Not A Name"]).await;
    ended.assert_code(2);
    assert!(ended.err.contains("is no name of a type"), "{}", ended.err);
    server.assert_done();
}
