//! Every route by the agents' conventions.

use serde_json::{Value, json};

use axum::http::Method;
use dstack_agent_api::proof::{Challenge, NONCE, PATH, Signed};
use dstack_agent_api::runner::RunnerState;

use crate::harness::{TestRunner, body, log_of};

const TEXT: &str = "content-type: text/plain; charset=utf-8\r\nx-content-type-options: nosniff";

/// Status code, content type ok, body.
fn check(answer: &(String, String), status: u16, body: &str) {
    let (head, got) = answer;
    assert!(head.starts_with(&format!("http/1.1 {status} ")), "{head}");
    assert!(head.contains(TEXT), "{head}");
    assert_eq!(got, body);
}

#[tokio::test(flavor = "multi_thread")]
async fn healthcheck() {
    let runner = TestRunner::start().await;
    let (head, body) = runner.call("GET /api/healthcheck", "", "").await;
    assert!(head.contains("content-type: application/json"), "{head}");
    assert_eq!(
        body,
        format!(
            "{{\"service\":\"dstack-runner\",\"version\":\"{}\"}}\n",
            env!("CARGO_PKG_VERSION")
        )
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_paths_and_methods() {
    let runner = TestRunner::start().await;
    check(&runner.call("GET /", "", "").await, 404, "404 page not found\n");
    check(
        &runner.call("POST /api/nothing", "", "").await,
        404,
        "404 page not found\n",
    );
    for (call, allowed) in [
        ("GET /api/submit", "allow: post"),
        ("POST /api/pull", "allow: get"),
        ("PUT /api/run", "allow: post"),
    ] {
        let answer = runner.call(call, "", "").await;
        check(&answer, 405, "Method Not Allowed\n");
        assert!(answer.0.contains(allowed), "{}", answer.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn submit_bodies() {
    let runner = TestRunner::start().await;
    let json_type = "Content-Type: application/json; charset=utf-8\r\n";
    let wrong = runner
        .call("POST /api/submit", "Content-Type: text/plain\r\n", "{}")
        .await;
    check(&wrong, 415, "Content-Type header is not application/json\n");
    for bad in [
        "",
        "{",
        "{} {}",
        r#"{"run": 1}"#,
        r#"{"job_spec": {"commands": "x"}}"#,
        "[]x",
    ] {
        let (head, _) = runner.call("POST /api/submit", json_type, bad).await;
        assert!(head.starts_with("http/1.1 400 "), "{bad}: {head}");
    }
    let huge = format!("{{\"unknown\": \"{}\"}}", "x".repeat(17 << 20));
    let announced = format!(
        "POST /api/submit HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        huge.len()
    );
    let (head, text) = runner.raw(&announced).await;
    assert!(head.starts_with("http/1.1 413 "), "{head}");
    assert_eq!(text, "Request body must not be larger than 16MB\n");
    let (head, _) = runner.call("POST /api/submit", json_type, &huge[..1000]).await;
    assert!(head.starts_with("http/1.1 400 "), "{head}");
    assert_eq!(runner.client.job().await.unwrap().state, RunnerState::WaitSubmit);
    // More than the original's limit, no content type, nulls, unknown fields; repeatable.
    let large =
        json!({"run": null, "unknown": 1, "job_spec": {"commands": ["/bin/true", "x".repeat(2 << 20)]}})
            .to_string();
    check(&runner.call("POST /api/submit", "", &large).await, 200, "\n");
    let all_null = r#"{"run": null, "job_spec": null, "job_submission": null, "cluster_info": null, "secrets": null,
        "repo_credentials": null, "log_quota_hour": null, "run_spec": null}"#;
    check(
        &runner.call("POST /api/submit", json_type, all_null).await,
        200,
        "\n",
    );
    assert_eq!(runner.client.job().await.unwrap().state, RunnerState::WaitRun);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_out_of_order_conflict() {
    let runner = TestRunner::start().await;
    for call in [
        "POST /api/run",
        "POST /api/upload_code",
        "POST /api/upload_archive",
    ] {
        check(&runner.call(call, "", "").await, 409, "Conflict\n");
    }
    check(&runner.call("POST /api/stop", "", "").await, 200, "\n");
    runner.run_script("echo ready; sleep 1000").await;
    runner.wait_for_log("ready").await;
    let submit = serde_json::to_string(&body(&runner.spec("true"))).unwrap();
    check(
        &runner.call("POST /api/submit", "", &submit).await,
        409,
        "Conflict\n",
    );
    for call in [
        "POST /api/run",
        "POST /api/upload_code",
        "POST /api/upload_archive",
    ] {
        check(&runner.call(call, "", "").await, 409, "Conflict\n");
    }
    let status = runner.client.job().await.unwrap();
    assert_eq!(
        (status.state, status.job_id.as_str()),
        (RunnerState::ServeLogs, "job-id")
    );
    assert_eq!(status.working_dir, runner.path("work").to_str().unwrap());
    runner.client.stop().await.unwrap();
    runner.events().await;
    check(
        &runner.call("POST /api/submit", "", &submit).await,
        409,
        "Conflict\n",
    );
    assert_eq!(
        runner.client.job().await.unwrap().state,
        RunnerState::WaitLogsFinished
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn run_answers_with_the_job_or_an_empty_text() {
    let runner = TestRunner::start().await;
    runner.client.submit(&body(&runner.spec("true"))).await.unwrap();
    let (head, text) = runner.call("POST /api/run", "", "").await;
    assert!(head.contains("content-type: application/json"), "{head}");
    let info: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(info["working_dir"], json!(runner.path("work")));
    assert!(info["username"].is_string());

    let runner = TestRunner::start().await;
    let mut spec = runner.spec("true");
    spec["user"] = json!({"username": "no-such-user-here"});
    runner.client.submit(&body(&spec)).await.unwrap();
    check(&runner.call("POST /api/run", "", "").await, 200, "\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn archives_are_uploaded_strictly() {
    let runner = TestRunner::start().await;
    runner.client.submit(&body(&runner.spec("true"))).await.unwrap();
    let typed = "Content-Type: multipart/form-data; boundary=B\r\n";
    let part =
        |disposition: &str| format!("--B\r\nContent-Disposition: form-data; {disposition}\r\n\r\ntar\r\n");
    let end = "--B--\r\n";
    let good = part("name=\"archive\"; filename=\"id-1\"");
    for (headers, content, message) in [
        ("", format!("{good}{end}"), None),
        (
            "Content-Type: multipart/form-data\r\n",
            format!("{good}{end}"),
            None,
        ),
        ("Content-Type: application/json\r\n", format!("{good}{end}"), None),
        (typed, end.to_owned(), None),
        (
            typed,
            part("name=\"other\"; filename=\"x\"") + end,
            Some("unexpected field other\n"),
        ),
        (typed, part("filename=\"x\"") + end, Some("missing field name\n")),
        (typed, part("name=\"archive\"") + end, Some("missing file name\n")),
        (
            typed,
            part("name=\"archive\"; filename=\"../x\"") + end,
            Some("file name \"../x\" is not an archive id\n"),
        ),
        (typed, format!("{good}{good}{end}"), Some("more than one part\n")),
        (typed, good.clone(), None),
    ] {
        let answer = runner.call("POST /api/upload_archive", headers, &content).await;
        assert!(
            answer.0.starts_with("http/1.1 400 "),
            "{headers}{content}: {}",
            answer.0
        );
        if let Some(message) = message {
            assert_eq!(answer.1, message);
        }
        assert!(!runner.path("temp/file_archives/id-1").exists(), "{content}");
    }
    check(
        &runner
            .call("POST /api/upload_archive", typed, &format!("{good}{end}"))
            .await,
        200,
        "\n",
    );
    assert_eq!(
        fs_err::read_to_string(runner.path("temp/file_archives/id-1")).unwrap(),
        "tar"
    );
    let archive: Vec<u8> = (0..3_000_000u32).map(|n| n as u8).collect();
    runner.client.upload_archive("id-2", &archive).await.unwrap();
    assert_eq!(
        fs_err::read(runner.path("temp/file_archives/id-2")).unwrap(),
        archive
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn code_is_uploaded_whole() {
    let runner = TestRunner::start().await;
    runner.client.submit(&body(&runner.spec("true"))).await.unwrap();
    let code: Vec<u8> = (0..20_000_000u32).map(|n| (n / 7) as u8).collect();
    runner.client.upload_code(code.clone()).await.unwrap();
    assert_eq!(fs_err::read(runner.path("temp/repo_blobs/code")).unwrap(), code);
    check(&runner.call("POST /api/upload_code", "", "").await, 200, "\n");
    assert_eq!(fs_err::read(runner.path("temp/repo_blobs/code")).unwrap(), b"");
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_whole_or_absent() {
    let runner = TestRunner::start().await;
    let (head, text) = runner.call("GET /api/metrics", "", "").await;
    if head.starts_with("http/1.1 200 ") {
        let metrics: Value = serde_json::from_str(&text).unwrap();
        for field in [
            "timestamp_micro",
            "cpu_usage_micro",
            "memory_usage_bytes",
            "memory_working_set_bytes",
        ] {
            assert!(metrics[field].is_i64(), "{text}");
        }
        assert!(metrics["gpus"].is_array(), "{text}");
    } else if head.starts_with("http/1.1 404 ") {
        assert_eq!(text, "Metrics collector is not available\n");
    } else {
        // The root group of a machine has no memory.current.
        assert!(head.starts_with("http/1.1 500 "), "{head}");
        assert_eq!(text, "\n");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pulls_take_integers_only() {
    let runner = TestRunner::start().await;
    for bad in ["x", "1.5", "99999999999999999999"] {
        let (head, _) = runner
            .call(&format!("GET /api/pull?timestamp={bad}"), "", "")
            .await;
        assert!(head.starts_with("http/1.1 400 "), "{bad}: {head}");
    }
    let (_, text) = runner.call("GET /api/pull", "", "").await;
    let pull: Value = serde_json::from_str(&text).unwrap();
    let last = pull["last_updated"].as_i64().unwrap();
    assert_eq!(last % 1000, 0, "whole seconds before the first event");
    assert_eq!(
        pull,
        json!({"job_states": [], "job_logs": [], "runner_logs": [], "last_updated": last, "no_connections_secs": 0,
            "has_more": true})
    );
    assert_eq!(runner.client.pull(last + 5).await.unwrap().last_updated, last);
}

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn every_route_asks_for_the_token_when_there_is_one() {
    let runner = TestRunner::with(&[], Some("s3cret")).await;
    for wrong in [
        "",
        "Authorization: Bearer s3cret\r\n",
        "Authorization: Dstack s3cret\r\n",
        "Authorization: Bearer \r\n",
    ] {
        for call in [
            "GET /api/healthcheck",
            "GET /api/metrics",
            "POST /api/submit",
            "POST /api/upload_archive",
            "POST /api/upload_code",
            "POST /api/run",
            "GET /api/pull?timestamp=9000000000000000000",
            "POST /api/stop",
            "GET /api/stream?timestamp=0",
            "POST /api/ack",
            "GET /api/job",
            "GET /logs_ws",
            "HEAD /api/healthcheck",
            "DELETE /api/job",
            "GET /api/nothing",
            "GET /",
        ] {
            let upgrade = if call.ends_with("/logs_ws") { UPGRADE } else { "" };
            let (head, _) = runner.call(call, &format!("{upgrade}{wrong}"), "{}").await;
            assert!(head.starts_with("http/1.1 401 "), "{wrong}{call}: {head}");
        }
    }
    assert_eq!(
        runner.client.job().await.unwrap().state,
        RunnerState::WaitSubmit,
        "nothing was done"
    );
    runner.client.healthcheck().await.unwrap();
    runner.client.pull(0).await.unwrap();
    // A call that somebody has listened to.
    let nonce = "0123456789";
    let (_, told) = runner
        .call(&format!("GET {PATH}"), &format!("{NONCE}: {nonce}\r\n"), "")
        .await;
    let told: Challenge = serde_json::from_str(&told).unwrap();
    assert!(told.is_proven(&"s3cret".into(), nonce));
    let signed = Signed::new(&"s3cret".into(), &told.challenge, &Method::GET, "/api/job", b"");
    let headers = signed
        .headers()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .concat();
    for status in [200, 401] {
        let (head, _) = runner.call("GET /api/job", &headers, "").await;
        assert!(head.starts_with(&format!("http/1.1 {status} ")), "{head}");
    }
    // The job does not see it, whatever it is started with.
    runner.run_script("env").await;
    assert!(!log_of(&runner.events().await).contains("s3cret"));
}

#[tokio::test(flavor = "multi_thread")]
async fn output_that_was_not_sent_cannot_be_acknowledged() {
    let runner = TestRunner::start().await;
    runner.run_script("echo kept").await;
    let far = 9_000_000_000_000_000_000;
    let refused = runner.client.ack(far).await.unwrap_err();
    assert_eq!(
        refused.status().map(|status| status.as_u16()),
        Some(400),
        "{refused}"
    );
    // As dstack 0.22.5 does, which knows no such error, a pull is answered all the same.
    runner.client.pull(far).await.unwrap();
    assert!(log_of(&runner.events().await).contains("kept"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_port_file_is_true() {
    let runner = TestRunner::start().await;
    let ports: Value = serde_json::from_slice(&fs_err::read(runner.path("ports.json")).unwrap()).unwrap();
    assert_eq!(ports["http"], json!(runner.port));
    let ssh = u16::try_from(ports["ssh"].as_u64().unwrap()).unwrap();
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", ssh)).await.unwrap();
    let mut greeting = [0; 4];
    tokio::io::AsyncReadExt::read_exact(&mut stream, &mut greeting)
        .await
        .unwrap();
    assert_eq!(&greeting, b"SSH-");
}
