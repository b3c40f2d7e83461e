//! A run that is attached to: a small SSH server stands for the job, with the job agent's log stream and one port of
//! the application behind it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod support;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use dstack_ssh::keys::{KeyPair, generate_ed25519, generate_host_keys, parse_public};
use dstack_system::{Random, task};
use futures_util::SinkExt;
use russh::Channel;
use russh::server::{Auth, ChannelOpenHandle, Handler, Msg, Session};
use serde_json::{Value, json};
use support::{Cli, Exchange, FakeServer, recorded_apply, recorded_run};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;

const RUN: &str = "/api/project/main/runs/get";

/// What the job saw while the command was attached.
#[derive(Debug, Default)]
struct Seen {
    users: Vec<String>,
    ssh_config: String,
    answer: String,
}

/// The job's side of a connection.
#[derive(Clone)]
struct Job {
    key: String,
    home: PathBuf,
    port: u16,
    /// Whether the job's `localhost` is this machine's.
    here: bool,
    seen: Arc<Mutex<Seen>>,
}

impl Handler for Job {
    type Error = russh::Error;

    async fn auth_publickey_offered(
        &mut self,
        _: &str,
        _: russh::server::PublicKeyOffer<'_>,
    ) -> Result<Auth, Self::Error> {
        Ok(Auth::Accept)
    }

    async fn auth_publickey(
        &mut self,
        user: &str,
        key: russh::server::VerifiedPublicKey<'_>,
    ) -> Result<Auth, Self::Error> {
        self.seen.lock().unwrap().users.push(user.to_owned());
        let known = parse_public(&self.key).unwrap();
        Ok(if key.public_key.key_data() == known.key_data() {
            Auth::Accept
        } else {
            Auth::reject()
        })
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        channel: Channel<Msg>,
        _: &str,
        port: u32,
        _: &str,
        _: u32,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Self::Error> {
        let job = self.clone();
        let port = u16::try_from(port).unwrap();
        if port == 10999 {
            reply.accept().await;
            task::spawn("logs", async move { job.logs(channel).await });
        } else if job.here {
            let mut local = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            reply.accept().await;
            task::spawn("local", async move {
                tokio::io::copy_bidirectional(&mut channel.into_stream(), &mut local)
                    .await
                    .unwrap();
            });
        } else if port == job.port {
            reply.accept().await;
            task::spawn("app", async move {
                channel.into_stream().write_all(b"from the app").await.unwrap();
            });
        } else {
            reply.reject(russh::ChannelOpenFailure::ConnectFailed).await;
        }
        Ok(())
    }
}

impl Job {
    /// Sends two lines, looking around in between.
    async fn logs(self, channel: Channel<Msg>) {
        let mut socket = tokio_tungstenite::accept_async(channel.into_stream())
            .await
            .unwrap();
        socket.send(Message::binary("step 1\n")).await.unwrap();
        let config = fs_err::read_to_string(self.home.join(".dstack/ssh/config")).unwrap();
        let mut answer = String::new();
        TcpStream::connect(("127.0.0.1", self.port))
            .await
            .unwrap()
            .read_to_string(&mut answer)
            .await
            .unwrap();
        {
            let mut seen = self.seen.lock().unwrap();
            seen.ssh_config = config;
            seen.answer = answer;
        }
        socket
            .send(Message::text(format!(
                "listening on http://0.0.0.0:{}/lab\n",
                self.port
            )))
            .await
            .unwrap();
        socket.close(None).await.unwrap();
    }
}

/// A port that nobody uses right now.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

async fn start_job(key: &str, home: &Path, app_port: u16, here: bool) -> (u16, Arc<Mutex<Seen>>) {
    let keys = generate_host_keys(&Random::seeded(3)).unwrap();
    let config = Arc::new(russh::server::Config {
        keys,
        ..russh::server::Config::default()
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let job = Job {
        key: key.to_owned(),
        home: home.to_owned(),
        port: app_port,
        here,
        seen: Arc::default(),
    };
    let seen = job.seen.clone();
    task::spawn("job", async move {
        while let Ok((stream, _)) = listener.accept().await {
            let session = russh::server::run_stream(config.clone(), stream, job.clone())
                .await
                .unwrap();
            task::spawn("session", session);
        }
    });
    (port, seen)
}

fn apps(port: u16) -> Value {
    json!([{"port": port, "map_to_port": port, "app_name": "app_0", "url_path": null, "url_query_params": null}])
}

fn run(status: &str, ssh_port: u16, app_port: u16, key: &KeyPair) -> Value {
    let mut run = recorded_run(status, |submission| {
        submission["job_provisioning_data"] = json!({
            "backend": "remote", "instance_type": {"name": "ssh", "resources": {"cpus": 8, "memory_mib": 16384, "gpus": [], "spot": false}},
            "instance_id": "i", "hostname": "127.0.0.1", "region": "remote", "price": 0.0, "username": "me",
            "ssh_port": ssh_port, "dockerized": false,
        });
        submission["job_runtime_data"] = json!({"network_mode": "bridge", "username": "worker"});
    });
    run["run_spec"]["ssh_key_pub"] = json!(key.public);
    run["jobs"][0]["job_spec"]["app_specs"] = apps(app_port);
    run
}

fn user(key: &KeyPair) -> Value {
    json!({
        "id": "0df2c062-1818-4087-974b-c2122b309d8d", "username": "admin", "global_role": "admin", "active": true,
        "permissions": {"can_create_projects": true}, "ssh_public_key": key.public, "ssh_private_key": key.private.expose(),
        "creds": {"token": "golden-admin-token"},
    })
}

#[tokio::test]
async fn output_ports_and_ssh_entries() {
    let key = generate_ed25519(&Random::seeded(1), "me").unwrap();
    let app_port = free_port();
    let mut cli = Cli::new();
    let (ssh_port, seen) = start_job(&key.public, cli.home.path(), app_port, false).await;
    let mut plan = recorded_apply("02-project-runs-get_plan.json");
    plan["job_plans"][0]["job_spec"]["app_specs"] = apps(app_port);
    let server = FakeServer::start(vec![
        Exchange::new("/api/project/main/repos/init", Value::Null),
        Exchange::new("/api/project/main/runs/get_plan", plan),
        Exchange::new(
            "/api/project/main/runs/apply",
            run("submitted", ssh_port, app_port, &key),
        ),
        Exchange::new(RUN, run("running", ssh_port, app_port, &key)),
        Exchange::new("/api/users/get_my_user", user(&key)),
        Exchange::new(RUN, run("running", ssh_port, app_port, &key)),
        Exchange::new(RUN, run("done", ssh_port, app_port, &key)),
        // A second command: the key is on this machine by then.
        Exchange::new(RUN, run("running", ssh_port, app_port, &key)),
        Exchange::new(RUN, run("done", ssh_port, app_port, &key)),
    ])
    .await;
    cli.env = dstack_cli::settings::Environment::fixed([
        ("DSTACK_SERVER_URL", &server.url),
        ("DSTACK_TOKEN", "golden-admin-token"),
        ("DSTACK_PROJECT", "main"),
    ]);
    cli.write(
        "task.yml",
        &format!("type: task\nname: cli-task\ncommands:\n  - echo hello\nports:\n  - {app_port}\n"),
    );
    let ended = cli.run(&["apply", "-f", "task.yml", "-y"]).await;
    ended.assert_code(0);
    assert_eq!(ended.err, "");
    let output = format!("(running)\nstep 1\nlistening on http://127.0.0.1:{app_port}/lab\nDone\n");
    assert!(ended.out.ends_with(&output), "{}", ended.out);
    {
        let seen = seen.lock().unwrap();
        assert_eq!(seen.users, ["root"]);
        assert_eq!(seen.answer, "from the app");
        let entry = format!(
            "Host cli-task\n    HostName 127.0.0.1\n    Port {ssh_port}\n    User worker\n    IdentityFile "
        );
        assert!(seen.ssh_config.starts_with(&entry), "{}", seen.ssh_config);
    }
    let home = cli.home.path();
    assert_eq!(
        fs_err::read_to_string(home.join(".dstack/ssh/config")).unwrap(),
        ""
    );
    assert!(
        fs_err::read_to_string(home.join(".ssh/config"))
            .unwrap()
            .starts_with("Include ")
    );

    let ended = cli.run(&["attach", "cli-task", "--logs"]).await;
    ended.assert_code(0);
    let greeting = format!(
        "Attached to run cli-task (replica=0 job=0)\nForwarded ports (local -> remote):\n  - localhost:{app_port} -> {app_port}\n\
         To connect to the run via SSH, use `ssh cli-task`.\nPress Ctrl+C to detach...\nstep 1\n"
    );
    assert!(ended.out.starts_with(&greeting), "{}", ended.out);
    server.assert_done();
}

#[tokio::test]
async fn ports_of_a_job_on_this_network_are_left_to_the_job() {
    let key = generate_ed25519(&Random::seeded(1), "me").unwrap();
    let cli = Cli::new();
    // The job itself listens on its port.
    let app = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let app_port = app.local_addr().unwrap().port();
    task::spawn("app", async move {
        let app = app;
        app.set_nonblocking(true).unwrap();
        let (mut stream, _) = TcpListener::from_std(app).unwrap().accept().await.unwrap();
        stream.write_all(b"from the app").await.unwrap();
    });
    let (ssh_port, seen) = start_job(&key.public, cli.home.path(), app_port, true).await;
    let here = |status: &str| run(status, ssh_port, app_port, &key);
    let server = FakeServer::start(vec![
        Exchange::new(RUN, here("running")),
        Exchange::new("/api/users/get_my_user", user(&key)),
        Exchange::new(RUN, here("done")),
    ])
    .await;
    let config = format!(
        "projects:\n- {{default: true, name: main, token: t, url: '{}'}}\n",
        server.url
    );
    cli.write(".dstack/config.yml", &config);
    let ended = cli.run(&["attach", "cli-task", "--logs"]).await;
    ended.assert_code(0);
    assert!(
        ended
            .out
            .contains(&format!("  - localhost:{app_port} -> {app_port}\n")),
        "{}",
        ended.out
    );
    assert_eq!(seen.lock().unwrap().answer, "from the app");
    server.assert_done();
}

#[tokio::test]
async fn a_key_that_the_run_does_not_know_is_refused_with_a_remedy() {
    let app_port = free_port();
    let (key, other) = (
        generate_ed25519(&Random::seeded(1), "me").unwrap(),
        generate_ed25519(&Random::seeded(2), "me").unwrap(),
    );
    let server = FakeServer::start(vec![
        Exchange::new(RUN, run("running", 1, app_port, &key)),
        Exchange::new("/api/users/get_my_user", user(&other)),
    ])
    .await;
    let ended = Cli::with_project(&server)
        .run(&["attach", "cli-task", "-p", &format!("*:{app_port}")])
        .await;
    ended.assert_code(1);
    assert!(
        ended.err.contains("another SSH key") && ended.err.contains("--ssh-identity"),
        "{}",
        ended.err
    );
    server.assert_done();
}
