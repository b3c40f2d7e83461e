//! Secrets planted wherever a secret can be put, and looked for wherever the server and its agents write.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::path::{Path, PathBuf};

use dstack_login_doubles::{CLIENT_ID, CLIENT_SECRET, Idp};
use dstack_telemetry_doubles::{Receiver, sentry};
use dstack_tests::http::Client;
use dstack_tests::runs::{TEST_TIMEOUT, submit};
use dstack_tests::server::{Server, Setup, eventually};
use dstack_tests::{need, parts};
use serde_json::{Value, json};

/// What the canaries sing of: where each was planted.
struct Canaries(Vec<(&'static str, String)>);

impl Canaries {
    /// A secret that is found nowhere else.
    fn plant(&mut self, place: &'static str) -> String {
        let number = self.0.len();
        let secret = format!("canary{number}x7f3a9c");
        self.0.push((place, secret.clone()));
        secret
    }

    /// One that the server made.
    fn know(&mut self, place: &'static str, secret: &str) {
        assert!(secret.len() > 20, "{place}: {secret}");
        self.0.push((place, secret.to_owned()));
    }

    /// The places of those that are in there.
    fn found_in(&self, bytes: &[u8]) -> Vec<&'static str> {
        let is_in = |secret: &str| bytes.windows(secret.len()).any(|part| part == secret.as_bytes());
        let found = self.0.iter().filter(|(_, secret)| is_in(secret));
        found.map(|(place, _)| *place).collect()
    }
}

/// The server with doubles of clouds, so that backends can be configured; this machine runs the jobs.
fn setup(config: &str) -> parts::Part<Setup> {
    let setup = Setup::new(parts::golden_server()?)
        .config(config)
        .variable("DSTACK_AGENT_PATH", parts::agent()?.display().to_string())
        .variable("DSTACK_LOCAL_RUNTIME", "process")
        // With login providers it is offered on purpose only.
        .variable("DSTACK_SERVER_LOCAL", "1")
        // Libraries as well: they print what they are given.
        .variable("DSTACK_LOG", "trace")
        .variable("DSTACK_SHIM_LOG_LEVEL", "trace")
        .variable("DSTACK_RUNNER_LOG_LEVEL", "trace");
    if parts::on_postgres() {
        return setup.on_postgres();
    }
    Ok(setup)
}

#[test]
fn no_secret_is_written_anywhere_but_where_it_must_be() {
    let mut canaries = Canaries(Vec::new());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let telemetry = runtime.block_on(Receiver::start());
    let encryption_key = "Y2FuYXJ5LW9mLXRoZS1lbmNyeXB0aW9uLWtleS0zMmI=";
    let idp = runtime.block_on(Idp::start());
    let config = format!(
        "login:\n  providers:\n  - {{type: okta, issuer: '{}', client_id: {CLIENT_ID}, client_secret: '{CLIENT_SECRET}'}}\n\
         projects:\n- name: main\n  backends:\n  - type: aws\n    creds: {{type: access_key, access_key: {}, secret_key: {}}}\n\
         \x20 - type: runpod\n    creds: {{type: api_key, api_key: {}}}\n\
         encryption:\n  keys:\n  - {{type: aes, name: k, secret: {encryption_key}}}\n",
        idp.url,
        canaries.plant("access key of a backend"),
        canaries.plant("secret key of a backend"),
        canaries.plant("API key of a backend"),
    );
    canaries.know("encryption key of config.yml", encryption_key);
    let admin = canaries.plant("token of the admin");
    let headers = format!("x-api-key={}", canaries.plant("key of a collector"));
    let setup = watched(need!(setup(&config)), &telemetry).variable("OTEL_EXPORTER_OTLP_HEADERS", headers);
    let mut server = setup.token(&admin).start().unwrap();
    plant(&server, &mut canaries);
    canaries.know("client secret of a login provider", CLIENT_SECRET);
    log_in(&server, &idp, &mut canaries);

    let environment = canaries.plant("env of a run");
    let secret = canaries.plant("secret of the project in env");
    let set = json!({"name": "S", "value": secret});
    server
        .get("/api/project/main/secrets/create_or_update", &set)
        .unwrap();
    let used = json!({
        "env": {"CANARY": environment, "FROM_SECRET": "${{ secrets.S }}"},
        "registry_auth": {"username": "me", "password": canaries.plant("password of a registry")},
    });
    let commands = ["echo length ${#CANARY} ${#FROM_SECRET}", "exit 3"];
    let run = submit(&server, "canary", &commands, &used).unwrap();
    assert_eq!(run.wait_until_finished().unwrap(), "failed");
    let expected = format!("length {} {}\n", environment.len(), secret.len());
    assert!(
        run.logs().unwrap().ends_with(&expected),
        "{}",
        run.logs().unwrap()
    );
    refuse(&server, &mut canaries);

    let events = server.get("/api/events/list", &json!({})).unwrap();
    assert_eq!(
        canaries.found_in(events.to_string().as_bytes()),
        [""; 0],
        "in events"
    );
    // What the server says to whoever started it is the one place where the admin's token is to be seen.
    let said: Vec<String> = server
        .output()
        .lines()
        .filter(|line| !line.contains("The admin token is"))
        .map(str::to_owned)
        .collect();
    let says_all = |line: &String| line.contains("DEBUG") || line.contains("TRACE");
    assert!(
        said.iter().any(says_all),
        "the log is not that of level trace: {said:?}"
    );
    for line in &said {
        let found = canaries.found_in(line.as_bytes());
        assert_eq!(
            found,
            [""; 0],
            "in the log: {}",
            line.get(..line.len().min(300)).unwrap_or(line)
        );
    }
    wait_until_tasks_are_removed(&server);
    let mut looked_at = 0;
    for file in files(server.home()) {
        let inside = file.strip_prefix(server.home()).unwrap();
        // The files whose purpose it is.
        let own = [
            ".dstack/config.yml",
            ".dstack/server/config.yml",
            ".dstack/server/encryption.key",
        ];
        if own.iter().any(|name| inside == Path::new(name)) {
            let mode =
                std::os::unix::fs::PermissionsExt::mode(&fs_err::metadata(&file).unwrap().permissions());
            assert!(
                inside.ends_with("server/config.yml") || mode & 0o077 == 0,
                "{}",
                inside.display()
            );
            continue;
        }
        let Ok(bytes) = fs_err::read(&file) else { continue };
        looked_at += 1;
        assert_eq!(canaries.found_in(&bytes), [""; 0], "in {}", inside.display());
        let keys = bytes
            .windows(16)
            .any(|part| part == b"PRIVATE KEY-----".as_slice());
        assert!(
            !keys || is_host_key(inside),
            "a private key in {}",
            inside.display()
        );
    }
    assert!(looked_at > 5, "only {looked_at} files");
    server.terminate().unwrap();
    nothing_is_sent_elsewhere(&telemetry, &canaries);
}

/// While a task is there, its directory holds what the job needs, secrets among it. A run is over before it is removed.
fn wait_until_tasks_are_removed(server: &Server) {
    let tasks = server.home().join(".dstack/server/local/runners");
    eventually("no task has a directory", TEST_TIMEOUT, || {
        let left = fs_err::read_dir(&tasks)?.count();
        Ok((left == 0).then_some(()))
    })
    .unwrap();
}

/// With everything that can be sent to OpenTelemetry and Sentry.
fn watched(setup: Setup, telemetry: &Receiver) -> Setup {
    setup
        .variable("OTEL_EXPORTER_OTLP_ENDPOINT", telemetry.url.clone())
        .variable("DSTACK_OTEL_TRACES_ENABLED", "1")
        .variable("DSTACK_OTEL_LOGS_ENABLED", "1")
        .variable("DSTACK_OTEL_METRICS_ENABLED", "1")
        .variable("DSTACK_SENTRY_DSN", sentry::dsn(telemetry))
        .variable("DSTACK_SENTRY_TRACES_SAMPLE_RATE", "1")
        .variable("DSTACK_SENTRY_TRACES_BACKGROUND_SAMPLE_RATE", "1")
}

fn nothing_is_sent_elsewhere(telemetry: &Receiver, canaries: &Canaries) {
    let received = telemetry.received();
    for path in ["/v1/traces", "/v1/logs", "/v1/metrics", "/api/42/envelope/"] {
        assert!(
            received.iter().any(|request| request.path == path),
            "nothing at {path}"
        );
    }
    for request in received {
        let found = canaries.found_in(&request.body);
        assert_eq!(found, [""; 0], "sent to {}", request.path);
    }
}

/// The key by which SSH in a job knows itself: made by the runner, for the runner.
fn is_host_key(file: &Path) -> bool {
    file.to_string_lossy().contains("host_key") || file.to_string_lossy().contains("ssh_host")
}

/// Where secrets go in besides runs.
fn plant(server: &Server, canaries: &mut Canaries) {
    let me = server.get("/api/users/get_my_user", &Value::Null).unwrap();
    let private = me["ssh_private_key"].as_str().unwrap();
    canaries.know("SSH key of a user", private.lines().nth(2).unwrap());
    let token = server
        .get("/api/users/tokens/create", &json!({"name": "ci"}))
        .unwrap();
    canaries.know("API token", token["token"].as_str().unwrap());
    let alice = json!({"username": "alice", "global_role": "user"});
    server.get("/api/users/create", &alice).unwrap();
    let refreshed = server
        .get("/api/users/refresh_token", &json!({"username": "alice"}))
        .unwrap();
    canaries.know("token of a user", refreshed["creds"]["token"].as_str().unwrap());

    let creds = json!({
        "clone_url": "https://example.invalid/x.git",
        "private_key": canaries.plant("private key of a repo"),
        "oauth_token": canaries.plant("token of a repo"),
    });
    let repo = json!({
        "repo_id": "repo", "repo_creds": creds,
        "repo_info": {"repo_type": "remote", "repo_name": "https://example.invalid/x.git"},
    });
    server.get("/api/project/main/repos/init", &repo).unwrap();

    let key = format!(
        "-----BEGIN OPENSSH KEY-----\n{}\n-----END OPENSSH KEY-----\n",
        canaries.plant("SSH key of a fleet")
    );
    let fleet = json!({
        "configuration": {"type": "fleet", "name": "hosts", "env": {"CANARY": canaries.plant("env of a fleet")}, "ssh_config": {
            "user": "me", "hosts": ["192.0.2.1"], "ssh_key": {"public": "", "private": key},
        }},
        "profile": {"name": "default"},
    });
    let plan = json!({"plan": {"spec": fleet}, "force": false});
    server.call("/api/project/main/fleets/apply", &plan).unwrap();
}

/// Somebody logs in with a provider.
fn log_in(server: &Server, idp: &Idp, canaries: &mut Canaries) {
    idp.visitor(json!({"sub": "1", "preferred_username": "grace"}));
    let client = Client::default();
    let post = |path: &str, cookie: &str, body: &Value| {
        let headers = [("content-type", "application/json"), ("cookie", cookie)];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let url = format!("{}/api/auth/okta/{path}", server.url());
        let answer = client
            .send("POST", &url, &headers, Some(serde_json::to_vec(body).unwrap()))
            .unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer
    };
    let begun = post("authorize", "", &json!({}));
    let cookie = begun
        .header("set-cookie")
        .unwrap()
        .split(';')
        .next()
        .unwrap()
        .to_owned();
    canaries.know("cookie of a login", cookie.split_once('=').unwrap().1);
    let url = begun.json().unwrap()["authorization_url"]
        .as_str()
        .unwrap()
        .to_owned();
    let sent_back = client.send("GET", &url, &[], None).unwrap();
    let (_, query) = sent_back.header("location").unwrap().split_once('?').unwrap();
    let value = |name: &str| {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let found = pairs.into_iter().find(|(key, _)| *key == name).unwrap().1;
        found.replace("%3D", "=").replace("%2B", "+").replace("%2F", "/")
    };
    let (code, state) = (value("code"), value("state"));
    canaries.know("code of a login", &code);
    canaries.know("state of a login", &state);
    let user = post("callback", &cookie, &json!({"code": code, "state": state}));
    let user = user.json().unwrap();
    canaries.know(
        "token of a user who logged in",
        user["creds"]["token"].as_str().unwrap(),
    );
}

/// What is refused is not written down either.
fn refuse(server: &Server, canaries: &mut Canaries) {
    let wrong = canaries.plant("wrong token");
    let client = dstack_tests::http::Client::default();
    let me = format!("{}/api/users/get_my_user", server.url());
    assert_eq!(client.post(&me, &wrong, &json!({})).unwrap().status, 403);
    let long = canaries.plant("refused secret").repeat(1000);
    let answer = server
        .call(
            "/api/project/main/secrets/create_or_update",
            &json!({"name": "a b", "value": long}),
        )
        .unwrap();
    assert_eq!(answer.status, 400);
    let wrong_type = json!({"name": "S", "value": {"nested": canaries.plant("secret of a wrong type")}});
    let answer = server
        .call("/api/project/main/secrets/create_or_update", &wrong_type)
        .unwrap();
    assert_eq!(answer.status, 422);
    let backend =
        json!({"type": "aws", "creds": {"type": "access_key", "secret": canaries.plant("bad backend")}});
    let answer = server
        .call("/api/project/main/backends/create", &backend)
        .unwrap();
    assert!((400..500).contains(&answer.status), "{}", answer.status);
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = fs_err::read_dir(folder) else {
        return found;
    };
    for entry in entries.map_while(Result::ok) {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(files(&entry.path()));
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
    found
}
