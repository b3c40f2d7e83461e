//! From an empty directory to a serving process.

use std::path::Path;
use std::sync::Arc;

use dstack_server::{ServerError, ServerOptions, Settings, serve};
use dstack_system::{Random, SystemClock};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

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
        let text = http(address, "POST /api/projects/main/get", "first-token").await;
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

async fn http(address: std::net::SocketAddr, line: &str, token: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!(
        "{line} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
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
