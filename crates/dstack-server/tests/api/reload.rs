//! Applying config.yml again while the server runs.

use dstack_server::{Reloaded, Reloader, config};
use dstack_store::encryption::Key;
use serde_json::json;

use super::{ADMIN, Server};

impl Server {
    /// What has changed, or why nothing did.
    pub(super) async fn reload(&self, config: &str) -> Result<Vec<String>, String> {
        let reloaded = self.reload_from("{}", config).await;
        reloaded.map(|reloaded| reloaded.changes)
    }

    /// As if the server had started with the first.
    async fn reload_from(&self, at_start: &str, config: &str) -> Result<Reloaded, String> {
        fs_err::write(self.state.edge.settings.dir.join("config.yml"), at_start).unwrap();
        let at_start = config::load(&self.state.edge.settings.dir).unwrap().unwrap();
        fs_err::write(self.state.edge.settings.dir.join("config.yml"), config).unwrap();
        let admin = self
            .state
            .data
            .database
            .users()
            .by_name("admin")
            .await
            .unwrap()
            .unwrap();
        let reloaded = Reloader::new(admin, &at_start).reload(&self.state).await;
        reloaded.map_err(|error| error.to_string())
    }

    async fn stored_secret(&self) -> String {
        let database = &self.state.data.database;
        let project = database.projects().by_name("main").await.unwrap().unwrap();
        database
            .secrets()
            .by_name(project.id, "S")
            .await
            .unwrap()
            .unwrap()
            .value
    }
}

/// The key of [`Server`] (32 times 7), then others.
pub(super) const OLD: &str = "{type: aes, name: k, secret: BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=}";
const NEW: &str = "{type: aes, name: k2, secret: AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=}";

#[tokio::test]
async fn permissions_are_in_force_at_once() {
    let server = Server::new().await;
    let alice = server.user("alice").await;
    let config = format!(
        "default_permissions:\n  allow_non_admins_create_projects: false\nencryption:\n  keys:\n  - {OLD}\n"
    );
    assert_eq!(
        server.reload(&config).await.unwrap(),
        ["default_permissions.allow_non_admins_create_projects: false (was true)"]
    );
    let create = server
        .post(&alice, "/api/projects/create", json!({"project_name": "team"}))
        .await;
    assert_eq!(create.status, 403);
    let me = server
        .post(&alice, "/api/users/get_my_user", json!(null))
        .await
        .ok();
    assert_eq!(me["permissions"]["can_create_projects"], false);
    assert_eq!(server.reload(&config).await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn keys_are_rotated_while_the_server_runs() {
    let server = Server::new().await;
    let secret =
        |value: &'static str| server.main("secrets/create_or_update", json!({"name": "S", "value": value}));
    secret("first").await.ok();
    let spec = json!({"run_name": "train", "configuration": {"type": "task", "commands": ["train"]}});
    let run = json!({"plan": {"run_spec": spec}, "force": false});
    server.main("runs/apply", run).await.ok();
    assert!(server.stored_secret().await.starts_with("enc:aes:k:"));
    let both = format!("encryption:\n  keys:\n  - {NEW}\n  - {OLD}\n");
    assert_eq!(
        server.reload(&both).await.unwrap(),
        ["encryption.keys: k2, k (was k); values written from now on are encrypted with the first"]
    );
    let read = server.main("secrets/get", json!({"name": "S"})).await.ok();
    assert_eq!(read["value"], "first");
    secret("second").await.ok();
    assert!(server.stored_secret().await.starts_with("enc:aes:k2:"));

    // The admin's token is still encrypted with the old key.
    let refused = server
        .reload(&format!("encryption:\n  keys:\n  - {NEW}\n"))
        .await
        .unwrap_err();
    for column in ["users.token (1)", "runs.run_spec (1)", "jobs.job_spec (1)"] {
        assert!(refused.contains(column), "{refused}");
    }
    let clear = format!("encryption:\n  keys:\n  - {{type: identity}}\n  - {NEW}\n  - {OLD}\n");
    server.reload(&clear).await.unwrap();
    secret("third").await.ok();
    assert_eq!(server.stored_secret().await, "enc:identity:noname:third");
    assert_eq!(
        server
            .post(ADMIN, "/api/users/get_my_user", json!(null))
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn a_broken_file_changes_nothing_and_is_named_with_its_place() {
    let server = Server::new().await;
    let good = format!("encryption:\n  keys:\n  - {OLD}\n");
    server.reload(&good).await.unwrap();
    let permissions = "default_permissions:\n  allow_managers_manage_secrets: true\n";
    for (broken, place) in [
        ("projects: [\n".to_owned(), "config.yml:"),
        (format!("{permissions}projects:\n- nam: x\n"), "config.yml:4:"),
        (
            format!("{permissions}encryption:\n  keys:\n  - {{type: aes, name: k}}\n"),
            "config.yml:5:",
        ),
        (format!("{permissions}{good}projects:\n- name: a b\n"), "`a b`"),
        (format!("{permissions}encryption:\n  keys: []\n"), "users.token"),
    ] {
        let error = server.reload(&broken).await.unwrap_err();
        assert!(error.contains(place), "{error}");
        assert!(
            !server.state.auth.permissions.get().allow_managers_manage_secrets,
            "{broken}"
        );
        let keys = server.state.data.encryption.keys();
        assert_eq!(keys.iter().map(Key::name).collect::<Vec<_>>(), ["k"]);
    }
}

#[tokio::test]
async fn what_is_decided_of_the_machine_at_the_start_asks_for_a_restart() {
    let server = Server::new().await;
    let keys = format!("encryption:\n  keys:\n  - {OLD}\n");
    let provider = "{type: github, client_id: c, client_secret: s, sign_up: false}";
    let login = format!("{keys}login:\n  providers:\n  - {provider}\n");
    let warnings = async |from: &str, to: &str| server.reload_from(from, to).await.unwrap().warnings;
    assert_eq!(warnings(&keys, &keys).await, Vec::<String>::new());
    assert_eq!(warnings(&login, &login).await, Vec::<String>::new());
    let more = warnings(&keys, &login).await;
    assert_eq!(more.len(), 1, "{more:?}");
    assert!(
        more[0].starts_with("restart the server") && more[0].contains("whoever logs in"),
        "{more:?}"
    );
    let none = warnings(&login, &keys).await;
    assert!(none[0].contains("no login providers any more"), "{none:?}");

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("creds.json");
    fs_err::write(&file, "{}").unwrap();
    let file = file.display();
    let creds = format!("{{type: service_account, filename: {file}}}");
    let backend = format!("{{type: gcp, project_id: p, creds: {creds}}}");
    let backends = format!("{keys}projects:\n- name: main\n  backends:\n  - {backend}\n");
    let files = warnings(&keys, &backends).await;
    assert_eq!(files.len(), 1, "{files:?}");
    assert!(
        files[0].starts_with("restart the server") && files[0].contains(&file.to_string()),
        "{files:?}"
    );
    assert_eq!(warnings(&backends, &backends).await, Vec::<String>::new());
}
