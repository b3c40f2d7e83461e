//! Our agents, driven by the server of dstack 0.22.5: by its own client code, from the Python package.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use dstack_tests::server::eventually;
use dstack_tests::{need, parts};
use serde_json::{Value, json};

/// A shim that runs jobs as plain processes or in containers; ended with the value.
struct Shim {
    child: Child,
    port: u16,
    home: tempfile::TempDir,
}

impl Shim {
    fn start(agent: &Path, runtime: &str) -> Shim {
        let home = tempfile::tempdir().unwrap();
        let port_file = home.path().join("port");
        let mut child = Command::new(agent)
            .args(["shim", "--shim-http-port", "0", "--runtime", runtime])
            .arg("--port-file")
            .arg(&port_file)
            .arg("--shim-home")
            .arg(home.path())
            .arg("--runner-binary-path")
            .arg(agent)
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let port = eventually("the shim's port", Duration::from_secs(30), || {
            assert!(child.try_wait().unwrap().is_none(), "the shim has ended");
            let text = fs_err::read_to_string(&port_file).ok();
            Ok(text.and_then(|text| text.trim().parse().ok()))
        })
        .unwrap();
        Shim { child, port, home }
    }

    /// Whether it ended by itself, without an error.
    fn ended(&mut self) -> bool {
        eventually("the end of the shim", Duration::from_secs(30), || {
            Ok(self.child.try_wait()?)
        })
        .unwrap()
        .success()
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        self.child.kill().ok(); // it may have ended
        self.child.wait().ok();
    }
}

/// What the script saw.
fn drive(python: &Path, shim: &Shim, image: &str) -> Value {
    let repository = parts::repository();
    let output = Command::new(python.join("bin/python"))
        .arg(repository.join("tests/python/drive_agents.py"))
        .arg(shim.port.to_string())
        .arg(repository.join("tests/golden/lifecycle/no-fleet-apply.json"))
        .arg(image)
        .env("HOME", shim.home.path())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn expected() -> Value {
    json!({
        "version": "0.22.5",
        "api_v2": true,
        "health": true,
        "info": true,
        "components": ["dstack-runner", "dstack-shim"],
        "tasks_before": [],
        "metrics": true,
        "job": {
            "states": [["running", null], ["failed", 3]],
            "messages": [],
            "logs": "from the archive\nvalue yes\nline 1\nline 2\nline 3\n",
            "timestamps": true,
            "info": true,
        },
        "safe_to_restart": true,
        "termination": "done_by_runner",
        "removed": true,
        "shutdown": true,
    })
}

/// As the terminal of the job gives it.
fn plain(mut seen: Value) -> Value {
    let logs = seen["job"]["logs"].as_str().unwrap().replace("\r\n", "\n");
    seen["job"]["logs"] = dstack_tests::runs::without_notice(&logs).into();
    seen
}

#[test]
fn the_python_servers_client_drives_a_job_as_a_process() {
    let agent = need!(parts::agent());
    let python = need!(parts::python_env());
    let mut shim = Shim::start(&agent, "process");
    assert_eq!(plain(drive(&python, &shim, "scratch")), expected());
    assert!(shim.ended());
}

#[test]
fn the_python_servers_client_drives_a_job_in_a_container() {
    let agent = need!(parts::agent());
    let python = need!(parts::python_env());
    let image = need!(parts::image());
    let mut shim = Shim::start(&agent, "docker");
    assert_eq!(plain(drive(&python, &shim, &image)), expected());
    assert!(shim.ended());
}
