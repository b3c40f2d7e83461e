//! The client against a real OpenSSH server. Skipped where none is installed, or where it cannot be started.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use dstack_ssh::keys::{KeyPair, fingerprint, generate_ed25519, generate_rsa, parse_private};
use dstack_ssh::{ConnectOptions, Connection, Endpoint, ExitStatus, Refusal, SshError};
use dstack_system::Random;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

const SSHD: &str = "/usr/sbin/sshd";

struct Server {
    dir: tempfile::TempDir,
    port: u16,
    key: KeyPair,
    host_key: String,
    process: Child,
}

impl Server {
    /// `None`, with the reason printed, where there is no usable sshd.
    async fn start() -> Option<Self> {
        if !Path::new(SSHD).exists() {
            eprintln!("skipped: no {SSHD} here");
            return None;
        }
        let dir = tempfile::Builder::new().prefix("ds-").tempdir_in("/tmp").unwrap();
        let path = |name: &str| dir.path().join(name);
        let random = Random::system();
        let (key, host_key) = (
            generate_rsa(&random, "test").unwrap(),
            generate_ed25519(&random, "").unwrap(),
        );
        std::fs::write(path("host_key"), host_key.private.expose()).unwrap();
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path("host_key"), std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(path("authorized_keys"), &key.public).unwrap();
        let port = free_port();
        let config = format!(
            "ListenAddress 127.0.0.1\nPort {port}\nHostKey {0}/host_key\nAuthorizedKeysFile {0}/authorized_keys\n\
             StrictModes no\nUsePAM no\nPidFile none\nPasswordAuthentication no\nPermitRootLogin yes\n\
             MaxStartups 100\nClientAliveInterval 30\n",
            dir.path().display()
        );
        std::fs::write(path("config"), config).unwrap();
        // Where sshd wants its (empty) privilege separation directory.
        let _ = std::fs::create_dir_all("/run/sshd");
        let mut command = Command::new(SSHD);
        command
            .args(["-D", "-e", "-f"])
            .arg(path("config"))
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut process = command.spawn().unwrap();
        for _ in 0..500 {
            if tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port))
                .await
                .is_ok()
            {
                let host_key = fingerprint(&host_key.public).unwrap();
                return Some(Self {
                    dir,
                    port,
                    key,
                    host_key,
                    process,
                });
            }
            if process.try_wait().unwrap().is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let _ = process.kill().await;
        let mut reason = String::new();
        process
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut reason)
            .await
            .unwrap();
        eprintln!("skipped: {SSHD} does not start here: {}", reason.trim());
        None
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint {
            host: "127.0.0.1".to_owned(),
            port: self.port,
            user: std::env::var("USER").unwrap_or("root".to_owned()),
            keys: vec![Arc::new(parse_private(self.key.private.expose()).unwrap())],
            host_key: Some(self.host_key.clone()),
            known_keys: Vec::new(),
        }
    }

    async fn open(&self) -> Connection {
        Connection::open(&self.endpoint(), &[], &ConnectOptions::default())
            .await
            .unwrap()
    }
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

async fn echo_server() -> u16 {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = stream.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_give_output_status_and_signal() {
    let Some(server) = Server::start().await else {
        return;
    };
    let connection = server.open().await;
    assert_eq!(connection.host_key(), server.host_key);
    assert_eq!(fingerprint(connection.host_key_line()).unwrap(), server.host_key);
    let done = connection
        .exec("cat; echo err >&2; exit 3", b"input")
        .await
        .unwrap();
    assert_eq!(
        (done.status, done.stdout, done.stderr),
        (ExitStatus::Code(3), b"input".to_vec(), b"err\n".to_vec())
    );
    let done = connection.exec("kill -KILL $$", b"").await.unwrap();
    assert_eq!(done.status, ExitStatus::Signal("KILL".to_owned()));
    // A command that does not read its input.
    assert!(
        connection
            .exec("true", &vec![0; 5 << 20])
            .await
            .unwrap()
            .status
            .success()
    );
    let large = connection.exec("head -c 1000000 /dev/zero", b"").await.unwrap();
    assert_eq!(large.stdout.len(), 1_000_000);
    let endless = connection.exec("cat /dev/zero", b"").await;
    assert!(
        matches!(endless, Err(SshError::OutputTooLong { .. })),
        "{endless:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_reach_remote_ports_through_jump_hosts() {
    let Some(server) = Server::start().await else {
        return;
    };
    let echo = echo_server().await;
    let hop = server.endpoint();
    let connection = Connection::open(&hop, &[hop.clone(), hop.clone()], &ConnectOptions::default())
        .await
        .unwrap();
    assert_eq!(connection.host_keys(), vec![connection.host_key_line(); 3]);
    let mut stream = connection.direct_tcpip("localhost", echo).await.unwrap();
    stream.write_all(b"through three").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "through three");
    let refused = connection
        .direct_tcpip("127.0.0.1", free_port())
        .await
        .unwrap_err();
    assert_eq!(refused.refusal(), Some(Refusal::NotConnected), "{refused:?}");
    assert!(!connection.is_closed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_reader_does_not_stop_other_channels() {
    let Some(server) = Server::start().await else {
        return;
    };
    let connection = server.open().await;
    let stalled = connection.start("head -c 8000000 /dev/zero").await.unwrap();
    for _ in 0..5 {
        assert!(connection.exec("true", b"").await.unwrap().status.success());
    }
    let mut stream = stalled.into_stream();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).await.unwrap();
    assert_eq!(all.len(), 8_000_000);
}

/// More than a gigabyte: after that the library would renew keys by itself.
#[tokio::test(flavor = "multi_thread")]
async fn many_streams_at_once_go_on_however_much_they_carry() {
    const BYTES: u64 = 200_000_000;
    let Some(server) = Server::start().await else {
        return;
    };
    let connection = server.open().await;
    let command = format!("head -c {BYTES} /dev/zero");
    let read = async || {
        let mut stream = connection.start(&command).await.unwrap().into_stream();
        tokio::io::copy(&mut stream, &mut tokio::io::sink())
            .await
            .unwrap()
    };
    let (one, other, third) = (
        async { tokio::join!(read(), read()) },
        async { tokio::join!(read(), read()) },
        async { tokio::join!(read(), read()) },
    );
    let read = tokio::join!(one, other, third);
    assert_eq!(read, ((BYTES, BYTES), (BYTES, BYTES), (BYTES, BYTES)));
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_keys_wrong_hosts_and_silent_ones_are_told_apart() {
    let Some(server) = Server::start().await else {
        return;
    };
    let options = ConnectOptions {
        timeout: Duration::from_millis(500),
        ..ConnectOptions::default()
    };
    let mut wrong = server.endpoint();
    wrong.keys = vec![Arc::new(
        parse_private(generate_ed25519(&Random::system(), "").unwrap().private.expose()).unwrap(),
    )];
    let denied = Connection::open(&wrong, &[], &ConnectOptions::default())
        .await
        .unwrap_err();
    assert!(matches!(denied, SshError::Denied { .. }), "{denied:?}");
    // The right one among several.
    wrong.keys.extend(server.endpoint().keys);
    assert!(
        Connection::open(&wrong, &[], &ConnectOptions::default())
            .await
            .is_ok()
    );
    let mut other = server.endpoint();
    other.host_key = Some("SHA256:other".to_owned());
    let changed = Connection::open(&other, &[], &ConnectOptions::default())
        .await
        .unwrap_err();
    assert!(matches!(changed, SshError::HostKey { .. }), "{changed:?}");
    let mut nobody = server.endpoint();
    nobody.port = free_port();
    let refused = Connection::open(&nobody, &[], &options).await.unwrap_err();
    assert!(matches!(refused, SshError::Connect { .. }), "{refused:?}");
    let mut nameless = server.endpoint();
    nameless.host = "no-such-host.invalid".to_owned();
    let unknown = Connection::open(&nameless, &[], &ConnectOptions::default())
        .await
        .unwrap_err();
    assert!(matches!(unknown, SshError::Resolve { .. }), "{unknown:?}");
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    nobody.port = silent.local_addr().unwrap().port();
    let timeout = Connection::open(&nobody, &[], &options).await.unwrap_err();
    assert!(matches!(timeout, SshError::Timeout { .. }), "{timeout:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_connection_is_noticed() {
    let Some(mut server) = Server::start().await else {
        return;
    };
    let connection = server.open().await;
    let mut running = connection.start("echo $PPID; sleep 600").await.unwrap();
    let Some(dstack_ssh::inbox::Event::Data(pid)) = running.next().await else {
        panic!()
    };
    let mut stream = connection
        .start("echo begun; sleep 600")
        .await
        .unwrap()
        .into_stream();
    let mut begun = [0; 6];
    stream.read_exact(&mut begun).await.unwrap();
    server.process.kill().await.unwrap();
    // The connection's own sshd process lives on: end it as a dying host would.
    let pid = String::from_utf8_lossy(&pid).trim().to_owned();
    assert!(
        Command::new("kill")
            .args(["-KILL", &pid])
            .status()
            .await
            .unwrap()
            .success()
    );
    connection.closed().await;
    assert!(connection.is_closed());
    while running.next().await.is_some() {}
    let cut_off = stream.read(&mut begun).await.unwrap_err();
    assert_eq!(cut_off.kind(), std::io::ErrorKind::ConnectionReset);
    assert!(matches!(
        connection.exec("true", b"").await,
        Err(SshError::Closed)
    ));
    assert!(matches!(
        connection.direct_tcpip("localhost", 1).await,
        Err(SshError::Closed)
    ));
    drop(server.dir);
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_ends_everything() {
    let Some(server) = Server::start().await else {
        return;
    };
    let connection = server.open().await;
    let mut running = connection.start("sleep 600").await.unwrap();
    connection.close().await;
    assert_eq!(running.next().await, None);
    connection.closed().await;
}
