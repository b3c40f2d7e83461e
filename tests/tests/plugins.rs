//! The REST plugin with services in Python: the example of the documentation, and one that reads with the reference's own types.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use dstack_tests::server::{Server, Setup, eventually, free_port};
use dstack_tests::{need, parts};
use serde_json::{Value, json};

struct Service {
    child: Child,
    url: String,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A program that listens on the port it is told.
fn service(python: &std::path::Path, program: &str) -> Service {
    let port = free_port().unwrap();
    let child = Command::new(python)
        .args(["-c", program, &port.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let service = Service {
        child,
        url: format!("http://127.0.0.1:{port}"),
    };
    eventually("the service listens", Duration::from_secs(60), || {
        Ok(TcpStream::connect(("127.0.0.1", port)).ok().map(drop))
    })
    .unwrap();
    service
}

fn start(setup: Setup, service: &Service) -> Server {
    setup
        .config("plugins:\n  - rest_plugin\n")
        .variable("DSTACK_PLUGIN_SERVICE_URI", service.url.clone())
        .start()
        .unwrap()
}

/// The Python block of the page.
fn example() -> String {
    let page = fs_err::read_to_string(parts::repository().join("docs/plugins.md")).unwrap();
    let (_, rest) = page.split_once("```python\n").unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

fn plan(memory: &str) -> Value {
    json!({"run_spec": {"run_name": "hello", "configuration": {
        "type": "task", "commands": ["echo hello"], "env": {"A": "1"}, "resources": {"memory": memory},
    }}})
}

#[test]
fn the_example_of_the_documentation_works() {
    let python = need!(parts::python_env()).join("bin/python");
    let setup = need!(Setup::without_engine());
    let service = service(&python, &example());
    let server = start(setup, &service);
    let small = server
        .get("/api/project/main/runs/get_plan", &plan("1GB.."))
        .unwrap();
    assert_eq!(
        small["effective_run_spec"]["configuration"]["env"],
        json!({"A": "1", "TEAM": "admin"})
    );
    let large = server
        .call("/api/project/main/runs/get_plan", &plan("200GB.."))
        .unwrap();
    let answer = large.json().unwrap();
    assert_eq!(large.status, 400, "{answer}");
    assert_eq!(
        answer["detail"][0]["msg"],
        "Apply request rejected: admin, no run in main gets more than 100GB of memory"
    );
    let volume = json!({"configuration": {
        "type": "volume", "name": "v", "backend": "aws", "region": "eu-west-1", "size": "1GB",
    }});
    let other = server.call("/api/project/main/volumes/create", &volume).unwrap();
    assert!(!other.text().contains("lugin"), "{}", other.text());
}

/// Reads requests and writes answers with the types of dstack 0.22.5.
const STRICT: &str = r#"
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from dstack.plugins.builtin import rest_plugin as types

KINDS = {"run": "Run", "fleet": "Fleet", "volume": "Volume", "gateway": "Gateway"}

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        kind = KINDS[self.path.split("/")[-1].split("_")[1]]
        body = self.rfile.read(int(self.headers["Content-Length"]))
        error = None
        try:
            request = getattr(types, kind + "SpecRequest").model_validate_json(body)
            answer = getattr(types, kind + "SpecResponse")(spec=request.spec).model_dump_json()
        except Exception as problem:
            answer = json.dumps({"spec": json.loads(body)["spec"], "error": f"{kind}: {problem}"})
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer.encode())

HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"#;

#[test]
fn a_service_with_the_types_of_the_reference_understands_us_and_is_understood() {
    let python = need!(parts::python_env()).join("bin/python");
    let setup = need!(Setup::without_engine());
    let service = service(&python, STRICT);
    let server = start(setup, &service);
    let plan = server
        .get("/api/project/main/runs/get_plan", &plan("1GB.."))
        .unwrap();
    assert_eq!(
        plan["effective_run_spec"]["configuration"]["env"],
        json!({"A": "1"})
    );
    let fleet = json!({"spec": {"profile": {"name": "p"}, "configuration": {
        "type": "fleet", "name": "cloud", "nodes": "0..2",
    }}});
    let plan = server.get("/api/project/main/fleets/get_plan", &fleet).unwrap();
    assert_eq!(plan["effective_spec"]["configuration"]["nodes"]["max"], 2);
    let volume = json!({"configuration": {
        "type": "volume", "name": "v", "backend": "aws", "region": "eu-west-1", "size": "1GB",
    }});
    let gateway = json!({"spec": {"configuration": {
        "type": "gateway", "name": "g", "backend": "aws", "region": "eu-west-1", "domain": "a.example",
    }}});
    // No cloud is implemented: what matters is who refuses.
    for (path, body) in [("volumes/create", &volume), ("gateways/get_plan", &gateway)] {
        let answer = server.call(&format!("/api/project/main/{path}"), body).unwrap();
        let text = answer.text();
        assert!(
            !text.contains("lugin") && !text.contains("rejected"),
            "{path}: {text}"
        );
    }
}
