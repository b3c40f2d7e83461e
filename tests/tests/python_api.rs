//! The unmodified Python API of dstack 0.22.5 against our server, with this machine as its fleet.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Stdio};

use dstack_tests::server::Setup;
use dstack_tests::{need, parts};
use tempfile::TempDir;

#[test]
fn the_python_api_works() {
    let python = need!(parts::python_env()).join("bin/python");
    let server = need!(Setup::local()).start().unwrap();
    let home = TempDir::with_prefix("dstack-test-api-").unwrap();
    let script = parts::repository().join("tests/python/api_client.py");
    let output = Command::new(python)
        .arg(script)
        .args([server.url(), server.token().to_owned()])
        .env("HOME", home.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("all parts passed"),
        "{text}\nThe server said:\n{}",
        server.output()
    );
}
