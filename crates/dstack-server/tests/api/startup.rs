//! From an empty directory to a serving process.

use std::path::Path;
use std::sync::Arc;

use dstack_server::{
    EngineContext, EngineParts, NoEngine, ServerError, ServerOptions, Settings, StartedEngine, serve,
};
use dstack_store::rows::AgentAddress;
use dstack_store::{Changes, EngineStore as _, EventMaker, Json};
use dstack_system::{Random, SystemClock};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::own_machine::{local_fleet, machine_of};

fn options(dir: &Path, home: Option<&Path>) -> (ServerOptions, oneshot::Receiver<std::net::SocketAddr>) {
    let (ready, address) = oneshot::channel();
    let settings = Settings {
        dir: dir.to_owned(),
        port: 0,
        url: None,
        admin_token: Some("first-token".to_owned()),
        database_url: None,
        ..Settings::from_env()
    };
    let options = ServerOptions {
        settings,
        clock: Arc::new(SystemClock),
        random: Random::system(),
        home: home.map(Path::to_owned),
        start_engine: None,
        ready: Some(ready),
        stop: CancellationToken::new(),
        ..ServerOptions::from_env()
    };
    (options, address)
}

#[tokio::test]
async fn first_and_second_start() {
    let (dir, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for start in 0..2 {
        let (mut options, address) = options(dir.path(), Some(home.path()));
        if start == 1 {
            // Only the first start takes the token.
            options.settings.admin_token = Some("another".to_owned());
        }
        let stop = options.stop.clone();
        let server = dstack_system::task::spawn("server", serve(options));
        let address = address.await.unwrap();
        let text = http(address, "POST /api/projects/main/get", "first-token", "").await;
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        let (second, _) = self::options(dir.path(), None);
        assert!(matches!(serve(second).await, Err(ServerError::InUse { .. })));
        stop.cancel();
        server.await.unwrap().unwrap().unwrap();
    }
    assert!(
        fs_err::read_to_string(dir.path().join("config.yml"))
            .unwrap()
            .contains("name: main")
    );
    let cli = fs_err::read_to_string(home.path().join(".dstack/config.yml")).unwrap();
    assert!(cli.contains("token: first-token"), "{cli}");
}

pub(super) async fn http(address: std::net::SocketAddr, line: &str, token: &str, body: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!(
        "{line} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn a_bad_configuration_stops_the_start_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    fs_err::write(dir.path().join("config.yml"), "projects:\n- nam: main\n").unwrap();
    let (options, _) = options(dir.path(), None);
    let error = serve(options).await.unwrap_err().to_string();
    assert!(error.contains("config.yml:2:"), "{error}");
}

#[tokio::test]
async fn projects_are_created_and_unknown_backends_skipped() {
    let dir = tempfile::tempdir().unwrap();
    fs_err::write(
        dir.path().join("config.yml"),
        "projects:\n- name: team\n  backends:\n  - type: aws\n    creds: {type: default}\n",
    )
    .unwrap();
    let (options, address) = options(dir.path(), None);
    let stop = options.stop.clone();
    let server = dstack_system::task::spawn("server", serve(options));
    let text = http(
        address.await.unwrap(),
        "POST /api/projects/team/get",
        "first-token",
        "",
    )
    .await;
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    stop.cancel();
    server.await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (mut options, _) = options(dir.path(), None);
    options.settings.port = taken.local_addr().unwrap().port();
    let error = serve(options).await.unwrap_err().to_string();
    assert!(
        error.contains(&format!("127.0.0.1:{}", taken.local_addr().unwrap().port())),
        "{error}"
    );
}

/// A start of a server whose machines run jobs as is said, with what is done to it while it serves. `fails`: the engine does not
/// come up once the machines are there, as if the server was killed then.
async fn start_with(dir: &Path, runtimes: &'static [&'static str], fails: bool) -> Vec<String> {
    let (mut options, address) = options(dir, None);
    options.start_engine = Some(Box::new(move |context| {
        Box::pin(async move {
            own_machines(&context, runtimes).await;
            match fails {
                true => Err("killed".into()),
                false => Ok(StartedEngine {
                    parts: EngineParts {
                        handle: Arc::new(NoEngine(context.data.store())),
                        jobs: context.jobs,
                    },
                    stop: Box::new(|| Box::pin(async {})),
                }),
            }
        })
    }));
    let stop = options.stop.clone();
    let server = dstack_system::task::spawn("server", serve(options));
    if fails {
        let error = server.await.unwrap().unwrap().unwrap_err();
        assert!(matches!(error, ServerError::Engine(_)), "{error}");
        return Vec::new();
    }
    let address = address.await.unwrap();
    post(
        address,
        "/api/users/create",
        &json!({"username": "bob", "global_role": "user"}),
    )
    .await;
    let bob = json!({"username": "bob", "project_role": "user"});
    post(
        address,
        "/api/projects/main/add_members",
        &json!({"members": [bob]}),
    )
    .await;
    let events = post(address, "/api/events/list", &json!({})).await;
    stop.cancel();
    server.await.unwrap().unwrap().unwrap();
    let messages = events
        .lines()
        .last()
        .map(|body| serde_json::from_str::<Value>(body).unwrap());
    let messages = messages.iter().flat_map(|list| list.as_array().unwrap());
    messages
        .map(|event| event["message"].as_str().unwrap().to_owned())
        .filter(|message| message.contains("server's own machine"))
        .collect()
}

async fn post(address: std::net::SocketAddr, path: &str, body: &Value) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let body = body.to_string();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer first-token\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

/// What `dstack server` does with its own machine, and other servers with theirs.
async fn own_machines(context: &EngineContext, runtimes: &[&str]) {
    let store = context.data.store();
    let (random, now) = (&context.data.random, context.data.clock.now());
    let placement = store.placement(context.project.id).await.unwrap();
    let mut changes = Changes::new(EventMaker::system(now, random.clone()));
    let fleet = match placement.fleets.first() {
        Some(fleet) => fleet.clone(),
        None => {
            let fleet = local_fleet(random, context.project.id);
            changes.insert_silently(fleet.clone());
            fleet
        }
    };
    for (number, runtime) in (0..).zip(runtimes) {
        let mut row = machine_of(random, &fleet, number, runtime, true);
        let mut earlier = placement.instances.iter();
        match earlier.find(|earlier| earlier.instance_num == number) {
            None => changes.insert_silently(row),
            Some(before) => {
                let address = AgentAddress::clone(row.agent.as_deref().unwrap());
                row = before.clone();
                row.agent = Some(Json::new(address.after(before.agent.as_deref())));
                changes.update(before, row);
            }
        }
    }
    store.commit(changes.into_commit()).await.unwrap();
}

#[tokio::test]
async fn each_machine_is_told_of_once_as_it_is_though_the_server_is_killed_before() {
    let dir = tempfile::tempdir().unwrap();
    assert!(start_with(dir.path(), &[], false).await.is_empty(), "bob joins");
    for (runtimes, fails, told) in [
        (&["docker"][..], true, 0),
        (&["docker"], false, 1),
        (&["docker"], false, 1),
        (&["process"], false, 2),
        (&["process", "docker"], false, 3),
        (&["process", "docker"], false, 3),
        (&["process", "process"], true, 0),
        (&["process", "process"], false, 4),
        (&["process", "process"], false, 4),
    ] {
        let warnings = start_with(dir.path(), runtimes, fails).await;
        assert_eq!(warnings.len(), told, "{runtimes:?}: {warnings:?}");
        if let Some(latest) = warnings.first() {
            assert!(latest.contains("New there: admin, bob."), "{latest}");
        }
    }
}
