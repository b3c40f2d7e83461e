//! The token of the host agent: without it nobody on the host is answered, whatever they ask.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use dstack_agent_api::http::TcpConnector;
use dstack_agent_api::shim::routes::{Endpoint, ROUTES};
use dstack_agent_api::shim::{TaskStatus, TaskTerminate, UNAUTHORIZED};
use dstack_agent_api::shim_client::ShimClient;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::docker::engine;
use crate::support::{Agent, Machine, config};

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
            "Authorization: Bearer 0123456789abcdee\r\n",
            "Authorization: 0123456789abcdef\r\n",
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
        let header = format!("Authorization: Bearer {TOKEN}\r\n");
        let (status, body) = ask(address, route.method.as_str(), &path, &header).await;
        assert_ne!(status, 401, "{path}: {body}");
    }
    let client = ShimClient::new(Arc::new(TcpConnector { address })).with_token(TOKEN.into());
    client.shutdown(false).await.unwrap();
}

#[tokio::test]
async fn an_agent_without_a_token_answers_whoever_sends_one() {
    let machine = Machine::new("process", None);
    let agent = machine.agent(None).await;
    let client = agent.client.clone().with_token(TOKEN.into());
    client.submit(&config("1")).await.unwrap();
    client.terminate("1", &TaskTerminate::default()).await.unwrap();
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
    agent
        .client
        .terminate("token-1", &TaskTerminate::default())
        .await
        .unwrap();
    agent.client.remove("token-1").await.unwrap();
}
