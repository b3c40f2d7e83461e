//! Stands for `dstack-agent` in the tests of deployments: answers the calls that a deployment makes, and runs nothing.
#![allow(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)]

use dstack_agent_api::proof::Gate;
use dstack_agent_api::shim::UNAUTHORIZED;
use dstack_system::Random;
use http::Request;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--version") {
        println!("dstack-shim version 0.0.1");
        return Ok(());
    }
    let var = |name: &str| std::env::var(name).unwrap_or_default();
    if let Ok(problem) = std::env::var("STUB_FAILS") {
        eprintln!("error: {problem}");
        std::process::exit(1);
    }
    let home = var("DSTACK_SHIM_HOME");
    let token = std::fs::read_to_string(var("DSTACK_SHIM_TOKEN_FILE"))?;
    let mut log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(format!("{home}/shim.log"))?;
    writeln!(log, "{}", std::process::id())?;
    let is_reference = std::env::var("STUB_IS_REFERENCE").is_ok();
    if is_reference {
        std::fs::write(format!("{home}/host_info.json"), r#"{"cpus":7,"memory":8}"#)?;
    }
    let takes_bearer = std::env::var("STUB_TAKES_BEARER").is_ok();
    let gate = (!is_reference).then(|| Arc::new(Gate::new(token.as_str().into(), Random::system())));
    let port = var("DSTACK_SHIM_HTTP_PORT").parse().unwrap_or(0);
    for stream in TcpListener::bind((Ipv4Addr::LOCALHOST, port))?.incoming() {
        let stream = stream?;
        // A client that goes away is no reason to end.
        let gate = gate.clone();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(&stream);
            while answer(&stream, &mut reader, gate.as_deref(), takes_bearer).is_ok() {}
        });
    }
    Ok(())
}

/// One call of a connection. dstack 0.22.5's agent knows no token, and has no gate.
fn answer(
    mut stream: &TcpStream,
    reader: &mut BufReader<&TcpStream>,
    gate: Option<&Gate>,
    takes_bearer: bool,
) -> std::io::Result<()> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    let mut lines = head.lines();
    let mut first = lines.next().unwrap_or_default().split(' ');
    let (method, path) = (first.next().unwrap_or_default(), first.next().unwrap_or_default());
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        request = request.header(name, value);
    }
    let (parts, ()) = request.body(()).map_err(std::io::Error::other)?.into_parts();
    let challenge = gate.and_then(|gate| gate.challenge(&parts.method, &parts.uri, &parts.headers));
    let (status, body) = match path {
        // Nobody calls it so any more.
        _ if takes_bearer => ("401 Unauthorized", UNAUTHORIZED.to_owned()),
        _ if challenge.is_some() => ("200 OK", serde_json::to_string(&challenge)?),
        _ if gate.is_some_and(|gate| !gate.admits(&parts)) => ("401 Unauthorized", UNAUTHORIZED.to_owned()),
        "/api/healthcheck" => (
            "200 OK",
            r#"{"service":"dstack-shim","version":"0.0.1"}"#.to_owned(),
        ),
        "/api/host" if gate.is_some() => {
            let told = std::env::var("STUB_SAYS").unwrap_or_default();
            let report = format!(
                r#"{{"host_info":{{"cpus":3}},"runtime":"docker","version":"0.0.1","notices":["{told}"]}}"#
            );
            ("200 OK", report)
        }
        "/api/tasks" => ("200 OK", r#"{"tasks":[]}"#.to_owned()),
        _ => ("404 Not Found", "not found".to_owned()),
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}
