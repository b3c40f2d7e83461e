//! The token of the host agent: without it nobody on the host is answered, whatever they ask.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use dstack_agent_api::http::{CallError, TcpConnector};
use dstack_agent_api::proof::{Challenge, NONCE, PATH, Signed};
use dstack_agent_api::shim::routes::{Endpoint, ROUTES};
use dstack_agent_api::shim::{TaskConfig, TaskStatus, TaskTerminate, UNAUTHORIZED};
use dstack_agent_api::shim_client::ShimClient;
use dstack_system::task;
use http::Method;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::docker::engine;
use crate::support::{Agent, Machine, config, status};

const TOKEN: &str = "0123456789abcdef";

/// An agent on a TCP port, as hosts have it, and on its socket; both want the token.
async fn agent_with_token(machine: &Machine) -> (Agent, SocketAddr) {
    let (token, port) = (machine.path("shim.token"), machine.path("port"));
    fs_err::write(&token, TOKEN).unwrap();
    fs_err::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    let mut agent = machine
        .agent_with(
            None,
            &[
                "--runner-binary-path",
                machine.path("fake-runner").to_str().unwrap(),
                "--shim-http-port",
                "0",
                "--port-file",
                port.to_str().unwrap(),
                "--token-file",
                token.to_str().unwrap(),
            ],
        )
        .await;
    agent.client = agent.client.clone().with_token(TOKEN.into());
    let port: u16 = fs_err::read_to_string(port).unwrap().trim().parse().unwrap();
    (agent, SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

/// Status and what comes first of the body: a stream does not end.
async fn ask(address: SocketAddr, method: &str, path: &str, header: &str) -> (u16, String) {
    let body = if method == "POST" { "{}" } else { "" };
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n{header}\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let (mut answer, mut buffer) = (String::new(), [0; 4096]);
    loop {
        let count = stream.read(&mut buffer).await.unwrap();
        answer.push_str(&String::from_utf8_lossy(&buffer[..count]));
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        if count == 0 || (!body.is_empty() && path.ends_with("/stream")) {
            return (head[9..12].parse().unwrap(), body.to_owned());
        }
    }
}

#[tokio::test]
async fn every_route_asks_for_the_token() {
    let machine = Machine::new("process", None);
    let (agent, address) = agent_with_token(&machine).await;
    agent.client.submit(&config("1")).await.unwrap();
    agent.until_status("1", TaskStatus::Running).await;
    let others = [
        ("HEAD", "/api/healthcheck"),
        ("DELETE", "/api/tasks"),
        ("GET", "/"),
    ];
    let routes = ROUTES
        .iter()
        .map(|route| (route.method.as_str(), route.path.replace("{id}", "1")));
    let others = others.map(|(method, path)| (method, path.to_owned()));
    for (method, path) in routes.chain(others) {
        for header in [
            "",
            "Authorization: Bearer \r\n",
            "Authorization: Bearer 0123456789abcdef\r\n",
            "Authorization: Dstack 0123456789abcdef\r\n",
        ] {
            let (status, body) = ask(address, method, &path, header).await;
            assert_eq!(status, 401, "{method} {path} {header}");
            assert!(method == "HEAD" || body.contains(UNAUTHORIZED), "{body}");
        }
    }
    // Nothing was done, and who has the token is answered on every route.
    let task = agent.client.task("1").await.unwrap();
    assert_eq!(task.status, TaskStatus::Running);
    for route in ROUTES {
        // It would end the agent.
        if route.endpoint == Endpoint::Shutdown {
            continue;
        }
        let path = route.path.replace("{id}", "1");
        let header = signature(address, &route.method, &path).await;
        let (status, body) = ask(address, route.method.as_str(), &path, &header).await;
        assert_ne!(status, 401, "{path}: {body}");
        // Who has listened to the call cannot make it again.
        let (status, _) = ask(address, route.method.as_str(), &path, &header).await;
        assert_eq!(status, 401, "{path}");
    }
    let client = ShimClient::new(Arc::new(TcpConnector { address })).with_token(TOKEN.into());
    client.shutdown(false).await.unwrap();
}

/// The headers of a call of [`ask`] that is signed with the token.
async fn signature(address: SocketAddr, method: &Method, path: &str) -> String {
    let nonce = "0123456789";
    let (_, told) = ask(address, "GET", PATH, &format!("{NONCE}: {nonce}\r\n")).await;
    let told: Challenge = serde_json::from_str(&told).unwrap();
    assert!(told.is_proven(&TOKEN.into(), nonce));
    let body: &[u8] = if method == Method::POST { b"{}" } else { b"" };
    let signed = Signed::new(&TOKEN.into(), &told.challenge, method, path, body);
    let lines = signed
        .headers()
        .map(|(name, value)| format!("{name}: {value}\r\n"));
    lines.concat()
}

/// Whoever set it up without a token calls it without one; a client that has one waits for a proof, which it cannot give.
#[tokio::test]
async fn an_agent_without_a_token_answers_calls_without_one() {
    let machine = Machine::new("process", None);
    let agent = machine.agent(None).await;
    let with_token = agent.client.clone().with_token(TOKEN.into());
    assert_eq!(status(with_token.submit(&config("1")).await), Some(404));
    agent.client.submit(&config("1")).await.unwrap();
    agent
        .client
        .terminate("1", &TaskTerminate::default())
        .await
        .unwrap();
}

/// Another program listens where the agent did: at its port while it does not run, and beside it. It is told nothing that opens
/// the agent, nor what a task has.
#[tokio::test]
async fn who_listens_in_place_of_the_agent_gets_nothing_that_opens_it() {
    let machine = Machine::new("process", None);
    let (agent, address) = agent_with_token(&machine).await;
    agent.kill();
    let listener = TcpListener::bind(address).await.unwrap();
    let heard = task::spawn("impostor", async move {
        let (mut heard, mut buffer) = (Vec::new(), [0; 4096]);
        for answer in [
            r#"{"service":"dstack-shim","version":"1"}"#,
            "{}",
            r#"{"challenge":"c","proof":"p"}"#,
        ] {
            let (mut stream, _) = listener.accept().await.unwrap();
            let count = stream.read(&mut buffer).await.unwrap();
            heard.extend_from_slice(&buffer[..count]);
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{answer}",
                answer.len()
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
            // Until the client gives up.
            while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                heard.extend_from_slice(&buffer[..count]);
            }
        }
        String::from_utf8(heard).unwrap()
    });
    let client = ShimClient::new(Arc::new(TcpConnector { address })).with_token(TOKEN.into());
    let secret = TaskConfig {
        registry_password: "s3cret of a registry".into(),
        ..config("1")
    };
    for _ in 0..3 {
        let error = client.submit(&secret).await.unwrap_err();
        assert!(matches!(error, CallError::Unproven { .. }), "{error}");
    }
    let heard = heard.await.unwrap().unwrap();
    assert_eq!(heard.matches("GET /api/proof ").count(), 3, "{heard}");
    assert!(!heard.contains(TOKEN) && !heard.contains("/api/tasks"), "{heard}");
    assert!(
        !heard.to_lowercase().contains("authorization") && !heard.contains("s3cret"),
        "{heard}"
    );
    // What it has heard is of no use at the agent, which has the port again.
    let (_agent, address) = agent_with_token(&machine).await;
    let nonce = heard
        .lines()
        .find(|line| line.starts_with("dstack-nonce"))
        .unwrap();
    let (status, _) = ask(address, "GET", "/api/tasks", &format!("{nonce}\r\n")).await;
    assert_eq!(status, 401);
}

/// What a job, whose commands are root in its container, sees of the token.
#[tokio::test]
async fn containers_do_not_get_the_token() {
    let Some(engine) = engine() else { return };
    let machine = Machine::new("docker", Some(engine.clone()));
    let (agent, _) = agent_with_token(&machine).await;
    agent.client.submit(&config("token-1")).await.unwrap();
    let running = agent.until_status("token-1", TaskStatus::Running).await;
    let told = std::process::Command::new("docker")
        .env("DOCKER_HOST", &engine)
        .args(["inspect", &running.container_id])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.contains("dstack-runner"), "{told}");
    assert!(!told.contains(TOKEN) && !told.contains("shim.token"), "{told}");
    // Nor what is started for the agent itself, or what reads its command line.
    let of_agent = |name: &str| {
        let content = fs_err::read(format!("/proc/{}/{name}", agent.child.id())).unwrap();
        String::from_utf8_lossy(&content).into_owned()
    };
    assert!(!of_agent("environ").contains(TOKEN) && !of_agent("cmdline").contains(TOKEN));
    agent.end("token-1").await;
}
