//! Requests that Schemathesis makes from our OpenAPI document: right ones and wrong ones. No answer is a 5xx, every
//! status is documented, every body is as documented.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Stdio};

use dstack_tests::server::Setup;
use dstack_tests::{need, parts};
use serde_json::Value;
use tempfile::TempDir;

/// Parameters of paths that exist; with others, requests would end at the first check.
const CONFIG: &str = "\
[parameters]
\"path.project_name\" = \"main\"
";

const CHECKS: &str =
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";

#[test]
fn no_request_is_answered_in_an_undocumented_way() {
    let schemathesis = need!(parts::schemathesis());
    let server = need!(Setup::without_engine()).start().unwrap();
    let folder = TempDir::with_prefix("dstack-test-st-").unwrap();
    let config = folder.path().join("schemathesis.toml");
    fs_err::write(&config, CONFIG).unwrap();
    let output = Command::new(schemathesis.join("bin/st"))
        .arg("--config-file")
        .arg(&config)
        .args(["run", &format!("{}/openapi.json", server.url())])
        .args(["--header", &format!("Authorization:Bearer {}", server.token())])
        .args(["--checks", CHECKS, "--phases", "fuzzing"])
        // The same requests each time.
        .arg("--generation-deterministic")
        .args(["--max-examples", "10", "--workers", "1", "--no-shrink"])
        // Of services there are none; what they answer is not ours. A stream of changes has no end
        // (`dstack-server::api changes`). The other would replace the token with which all others are sent.
        .args([
            "--exclude-path-regex",
            "^/(proxy/services|api/changes/follow|api/users/refresh_token)",
        ])
        .args([
            "--suppress-health-check",
            "all",
            "--warnings",
            "off",
            "--no-color",
        ])
        .current_dir(folder.path())
        .env("HOME", folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    // Otherwise most answers were 403, and nothing is proven.
    server.get("/api/users/get_my_user", &Value::Null).unwrap();
}
