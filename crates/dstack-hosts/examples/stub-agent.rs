//! Stands for `dstack-agent` in the tests of deployments: answers the calls that a deployment makes, and runs nothing.
#![allow(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)]

use dstack_agent_api::shim::UNAUTHORIZED;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

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
    let port = var("DSTACK_SHIM_HTTP_PORT").parse().unwrap_or(0);
    for stream in TcpListener::bind((Ipv4Addr::LOCALHOST, port))?.incoming() {
        let stream = stream?;
        // A client that goes away is no reason to end.
        let token = Some(token.clone()).filter(|_| !is_reference);
        std::thread::spawn(move || answer(&stream, is_reference, token.as_deref()));
    }
    Ok(())
}

/// dstack 0.22.5's agent knows no token.
fn answer(mut stream: &TcpStream, is_reference: bool, token: Option<&str>) -> std::io::Result<()> {
    let mut head = String::new();
    let mut reader = BufReader::new(stream);
    while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head)? > 0 {}
    let path = head.split(' ').nth(1).unwrap_or_default();
    let is_authorized = |token: &str| head.contains(&format!("authorization: Bearer {token}\r\n"));
    let (status, body) = match path {
        _ if !token.is_none_or(is_authorized) => ("401 Unauthorized", UNAUTHORIZED.to_owned()),
        "/api/healthcheck" => (
            "200 OK",
            r#"{"service":"dstack-shim","version":"0.0.1"}"#.to_owned(),
        ),
        "/api/host" if !is_reference => {
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
        "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}
