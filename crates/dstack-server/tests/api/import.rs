//! Taking over an installation of dstack 0.22.5: from SQLite into SQLite, or from PostgreSQL into PostgreSQL.

use std::path::{Path, PathBuf};

use dstack_compute::config::BackendConfig;
use dstack_control::backends::stored;
use dstack_server::Settings;
use dstack_server::access::{Access, FailedLogins, Freshness};
use dstack_server::import::{ImportError, ImportOptions, Report, import};
use dstack_store::encryption::{Encryption, Key};
use dstack_store::queries::views::{InstanceFilter, RunFilter};
use dstack_store::queries::{Page, events, users};
use dstack_store::{Database, DatabaseOptions, RowKeys, raw};
use dstack_system::{Clock, Random, SystemClock};
use serde_json::Value;

use crate::{new_postgres, on_postgres};

/// An installation to take over, and an empty folder for ours.
struct Both {
    dir: tempfile::TempDir,
    /// The database to import.
    from: String,
    /// Ours; `None`: a file in its folder.
    into: Option<String>,
}

impl Both {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("old/data");
        fs_err::create_dir_all(&data).unwrap();
        let file = data.join("sqlite.db").display().to_string();
        let (url, dump) = match on_postgres() {
            true => (
                new_postgres().await,
                include_str!("../data/dstack-0.22.5.postgres.sql"),
            ),
            false => (
                format!("sqlite://{file}?mode=rwc"),
                include_str!("../data/dstack-0.22.5.sql"),
            ),
        };
        raw::run_script(&url, dump).await.unwrap();
        let (from, into) = match on_postgres() {
            // As 0.22.5 writes it.
            true => (
                url.replace("postgres://", "postgresql+asyncpg://"),
                Some(new_postgres().await),
            ),
            false => (format!("sqlite://{file}"), None),
        };
        let both = Self { dir, from, into };
        let keys = "plugins: [rest_plugin]\nencryption:\n  keys:\n  - type: aes\n    name: k1\n    \
                    secret: BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=\n";
        fs_err::write(both.old().join("config.yml"), keys).unwrap();
        both
    }

    fn old(&self) -> PathBuf {
        self.dir.path().join("old")
    }

    fn new_dir(&self) -> PathBuf {
        self.dir.path().join("new")
    }

    async fn import(&self, config: Option<&Path>, dry_run: bool) -> Result<Report, ImportError> {
        let settings = Settings {
            dir: self.new_dir(),
            database_url: self.into.clone(),
            ..Settings::from_env()
        };
        // PostgreSQL has no folder in which the configuration lies.
        let beside = self.into.as_ref().map(|_| self.old().join("config.yml"));
        let options = ImportOptions {
            from: self.from.clone(),
            config: config.map(Path::to_owned).or(beside),
            dry_run,
        };
        import(&settings, &Random::system(), &options).await
    }

    /// Changes what is to be taken over.
    async fn change(&self, statements: &[&'static str]) {
        raw::run_script(&self.from, &statements.join(";\n"))
            .await
            .unwrap();
    }

    async fn database(&self) -> Database {
        let file = self.new_dir().join("data/dstack.db");
        let url = match &self.into {
            Some(url) => url.clone(),
            None => format!("sqlite://{}", file.display()),
        };
        let keys = RowKeys::from(&self.encryption());
        let database = Database::open_on(&url, DatabaseOptions::default(), keys, None).await;
        database.unwrap()
    }

    /// With the key that was made for ours.
    fn encryption(&self) -> Encryption {
        use base64::Engine;
        let text = fs_err::read_to_string(self.new_dir().join("encryption.key")).unwrap();
        let secret = base64::engine::general_purpose::STANDARD
            .decode(text.trim())
            .unwrap();
        let key = Key::Aes {
            name: "generated".to_owned(),
            secret: secret.try_into().unwrap(),
        };
        Encryption::new(vec![key], Random::system())
    }
}

/// Found, new.
fn counts(report: &Report, kind: &str) -> (usize, usize) {
    let taken = report.taken.iter().find(|taken| taken.kind == kind).unwrap();
    (taken.found, taken.new)
}

#[tokio::test]
async fn users_projects_secrets_and_the_history_of_runs_are_taken_over() {
    let both = Both::new().await;
    let report = both.import(None, false).await.unwrap();
    for (kind, count) in [
        ("users", 4),
        ("projects", 2),
        ("members", 3),
        ("secrets", 1),
        ("backends", 1),
        ("runs", 2),
    ] {
        assert_eq!(counts(&report, kind), (count, count), "{kind}");
    }
    let (database, keys) = (both.database().await, both.encryption());

    // The old tokens work.
    let access = Access::new(database.clone(), FailedLogins::new(0, std::time::Duration::ZERO));
    let now = SystemClock.now();
    let admin = access
        .caller("imported-admin-token", now, Freshness::Current)
        .await
        .unwrap()
        .unwrap()
        .user;
    assert_eq!(admin.name, "admin");
    assert_eq!(
        keys.decrypt(&admin.token).unwrap().expose(),
        "imported-admin-token"
    );
    let private = admin.ssh_private_key.as_ref().unwrap();
    assert_eq!(keys.decrypt(private).unwrap().expose(), "private key of admin");
    let alice = database.users().by_name("alice").await.unwrap().unwrap();
    assert_eq!(alice.email.as_deref(), Some("alice@example.com"));
    assert_eq!(database.users().public_keys(admin.id).await.unwrap().len(), 1);

    let team = database.projects().by_name("team").await.unwrap().unwrap();
    let members = database.projects().members(team.id).await.unwrap();
    let members: Vec<_> = members
        .iter()
        .map(|member| (member.user.name.as_str(), member.role.as_str()))
        .collect();
    assert_eq!(members.len(), 2);
    assert!(
        members.contains(&("alice", "manager")) && members.contains(&("admin", "admin")),
        "{members:?}"
    );
    let secret = database.secrets().by_name(team.id, "S").await.unwrap().unwrap();
    assert_eq!(
        keys.decrypt(&secret.value).unwrap().expose(),
        "imported secret value"
    );
    let backend = &database.backends().list(team.id).await.unwrap()[0];
    assert_eq!(backend.kind, "runpod");
    assert!(
        keys.decrypt(&backend.auth)
            .unwrap()
            .expose()
            .contains("imported-api-key")
    );
    assert!(backend.auth.starts_with("enc:aes:generated:"));

    let found = database
        .views()
        .run_keys(&RunFilter::default(), &Page::newest(10))
        .await
        .unwrap();
    let ids: Vec<_> = found.iter().map(|(id, _)| *id).collect();
    let runs = database.views().runs(&ids).await.unwrap();
    let mut names: Vec<_> = runs
        .iter()
        .map(|listed| (listed.run.run_name.as_str(), listed.run.status().as_str()))
        .collect();
    names.sort_unstable();
    assert_eq!(names, [("finished", "failed"), ("second", "failed")]);
    let jobs = database.views().jobs(&ids).await.unwrap();
    assert_eq!(jobs.len(), 2);
    assert_eq!(
        jobs[0].termination_reason().unwrap().as_str(),
        "failed_to_start_due_to_no_capacity"
    );
    assert_eq!(jobs[0].job_spec.env.get("A").map(String::as_str), Some("b"));
    let trail = database
        .events()
        .list(&events::EventFilter::default(), &Page::newest(1000))
        .await
        .unwrap();
    assert!(
        trail
            .iter()
            .any(|event| event.message == "Secret created" && event.targets[0].entity_type == "secret")
    );
}

/// As its own code stores them (`stored_0_22_5.py`). That they open and work, the tests of the backends show.
#[tokio::test]
async fn backends_of_all_types_are_taken_over() {
    let all = include_str!("../../../../backends/conformance/tests/data/stored-0.22.5.json");
    let all: Value = serde_json::from_str(all).unwrap();
    let mut all = all["configurations"].as_array().unwrap().clone();
    all.dedup_by_key(|one| one["type"].clone());
    let text = |one: &Value, name: &str| one[name].as_str().unwrap().to_owned();
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
    let both = Both::new().await;
    let mut script = "DELETE FROM backends;\n".to_owned();
    for (number, one) in all.iter().enumerate() {
        let kind = quoted(&text(one, "type").to_uppercase());
        let config = quoted(&text(one, "config"));
        let auth = quoted(&format!("enc:identity:noname:{}", text(one, "auth")));
        // What was typed is the same here.
        let (source_config, source_auth) = match text(one, "auth").is_empty() {
            true => (config.clone(), "NULL".to_owned()),
            false => (config.clone(), auth.clone()),
        };
        script.push_str(&format!(
            "INSERT INTO backends SELECT '5f0d3a5c-0000-4000-8000-{number:012}', id, {kind}, {config}, {auth}, {source_config}, \
             {source_auth} FROM projects WHERE name = 'team';\n"
        ));
    }
    raw::run_script(&both.from, &script).await.unwrap();
    let report = both.import(None, false).await.unwrap();
    assert_eq!(counts(&report, "backends"), (all.len(), all.len()));

    let (database, keys) = (both.database().await, both.encryption());
    let team = database.projects().by_name("team").await.unwrap().unwrap();
    let rows = database.backends().list(team.id).await.unwrap();
    assert_eq!(rows.len(), all.len());
    for (row, one) in rows.iter().zip(&all) {
        let kind = text(one, "type");
        assert_eq!(row.kind, kind);
        let config = BackendConfig::join(&stored::stored(&keys, row).unwrap()).unwrap();
        assert_eq!(
            serde_json::to_value(&config).unwrap(),
            one["config_info"],
            "{kind}"
        );
        assert_eq!(stored::source(&keys, row).as_ref(), Some(&config), "{kind}");
        // Also of those whose configuration has all of it there.
        let shown = format!("{row:?}");
        assert!(
            !shown.contains("canary") && !shown.contains("PRIVATE KEY"),
            "{shown}"
        );
    }
}

/// It is not shown to members, and an update of the backend puts it right.
#[tokio::test]
async fn a_configuration_that_cannot_be_read_shows_no_secrets() {
    let both = Both::new().await;
    both.change(&[
        "UPDATE backends SET type = 'KUBERNETES', auth = 'enc:identity:noname:', \
         config = '{\"type\":\"kubernetes\",\"kubeconfig\":\"canary\"}'",
    ])
    .await;
    both.import(None, false).await.unwrap();
    let (database, keys) = (both.database().await, both.encryption());
    let team = database.projects().by_name("team").await.unwrap().unwrap();
    let row = database.backends().list(team.id).await.unwrap().remove(0);
    assert_eq!(row.config, r#"{"type":"kubernetes"}"#);
    let error = BackendConfig::join(&stored::stored(&keys, &row).unwrap()).unwrap_err();
    assert!(error.contains("kubeconfig"), "{error}");
}

#[tokio::test]
async fn what_lives_is_left_with_the_reason() {
    let both = Both::new().await;
    let report = both.import(None, true).await.unwrap();
    let text = report.text(true);
    for line in [
        "- fleets hosts: its hosts belong to the other server: delete it there and apply its configuration again\n",
        "- instances hosts-0: it is pending: it belongs to the other server\n",
        "- jobs waiting-0-0: its run is not taken over\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
    assert!(text.contains("- runs waiting: it is "), "{text}");
    assert!(text.contains("runs              2 taken over; 1 not\n"), "{text}");
    assert_eq!(counts(&report, "fleets").0, 1, "the elastic one has no instances");
}

#[tokio::test]
async fn how_the_gpus_of_an_ended_instance_were_is_taken_over() {
    let both = Both::new().await;
    both.change(&[
        "INSERT INTO instance_health_checks SELECT '11111111222233334444555555555555', id, '2026-11-21 17:20:00', 'WARNING', \
         '{\"dcgm\":{\"overall_health\":10,\"incidents\":[]}}' FROM instances WHERE name = 'hosts-0'",
    ])
    .await;
    let checks = async |database: &Database| {
        let found = "SELECT instance_id, status, response FROM instance_health_checks";
        raw::fetch(database, found).await.unwrap()
    };
    both.import(None, false).await.unwrap();
    // The instance lives, and stays where it is.
    assert_eq!(checks(&both.database().await).await.len(), 0);

    both.change(&["UPDATE instances SET status = 'TERMINATED', health = 'WARNING'"])
        .await;
    both.import(None, false).await.unwrap();
    let database = both.database().await;
    let found = checks(&database).await;
    let answer = r#"{"dcgm":{"overall_health":10,"incidents":[]}}"#;
    assert_eq!(found.len(), 1);
    let [instance, status, response] = found[0].as_slice() else {
        panic!("{found:?}")
    };
    assert_eq!(
        (status.as_deref(), response.as_deref()),
        (Some("warning"), Some(answer))
    );
    let instance = instance.as_ref().unwrap().parse().unwrap();
    let listed = database.health_checks().list(instance, None, None, None).await;
    assert_eq!(
        listed.unwrap()[0].collected_at.to_string(),
        "2026-11-21T17:20:00Z"
    );
    let filter = InstanceFilter::default();
    let instances = database.views().instances(&filter, &Page::newest(10)).await;
    let instances = instances.unwrap();
    assert_eq!(instances[0].instance.health.as_str(), "warning");
    // Once.
    both.import(None, false).await.unwrap();
    assert_eq!(checks(&both.database().await).await.len(), 1);
}

#[tokio::test]
async fn a_dry_run_changes_nothing_and_a_repeated_import_adds_nothing() {
    let both = Both::new().await;
    let dry = both.import(None, true).await.unwrap();
    assert_eq!(counts(&dry, "users"), (4, 0));
    let admin = both.database().await.users().by_name("admin").await.unwrap();
    assert_eq!(admin, None);
    both.import(None, false).await.unwrap();
    let again = both.import(None, false).await.unwrap();
    assert!(again.taken.iter().all(|taken| taken.new == 0), "{again:?}");
    assert_eq!(counts(&again, "users"), (4, 0));
}

#[tokio::test]
async fn without_the_keys_and_into_a_server_in_use_nothing_is_imported() {
    let both = Both::new().await;
    let empty = both.dir.path().join("empty.yml");
    fs_err::write(&empty, "encryption:\n  keys: []\n").unwrap();
    let error = both.import(Some(&empty), false).await.unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("the token of admin") && text.contains("--config"),
        "{text}"
    );

    // Somebody else is called alice here.
    let database = both.database().await;
    let random = Random::system();
    let other = users::UserRow {
        id: random.uuid().into(),
        name: "alice".to_owned(),
        created_at: SystemClock.now(),
        global_role: "user".parse().unwrap(),
        email: None,
        active: true,
        token: both.encryption().encrypt("x").unwrap(),
        ssh_private_key: None,
        ssh_public_key: None,
        projects_quota: 1,
        deleted: false,
        original_name: None,
    };
    database
        .write(move |tx| Box::pin(async move { users::insert(tx, &other, "hash").await }))
        .await
        .unwrap();
    let error = both.import(None, false).await.unwrap_err().to_string();
    assert!(error.contains("another user alice"), "{error}");
    assert_eq!(database.users().by_name("admin").await.unwrap(), None);
}

#[tokio::test]
async fn other_databases_are_refused() {
    let both = Both::new().await;
    let ours = both.dir.path().join("ours.db");
    Database::open_file(&ours).await.unwrap().close().await;
    let settings = Settings {
        dir: both.new_dir(),
        ..Settings::from_env()
    };
    for from in [
        format!("sqlite://{}", ours.display()),
        "sqlite:///nonexistent/x.db".to_owned(),
        "x".to_owned(),
    ] {
        let options = ImportOptions {
            from,
            config: None,
            dry_run: false,
        };
        let missing = options.from.contains("nonexistent");
        let error = import(&settings, &Random::system(), &options).await.unwrap_err();
        match missing {
            true => assert!(
                error
                    .to_string()
                    .starts_with("there is no database file /nonexistent/x.db:"),
                "{error}"
            ),
            false => assert!(matches!(error, ImportError::Source(_)), "{error}"),
        }
    }
}
