//! What the unmodified dstack 0.22.5 command line printed and asked for, reproduced.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod support;

use std::path::PathBuf;

use serde_json::Value;
use support::{Cli, Exchange, FakeServer};

fn folder(flow: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden/cli")
        .join(flow)
}

fn load(path: &std::path::Path) -> Value {
    serde_json::from_str(&fs_err::read_to_string(path).unwrap()).unwrap()
}

fn exchanges(flow: &str) -> Vec<Exchange> {
    let mut files: Vec<PathBuf> = fs_err::read_dir(folder(flow))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.retain(|path| path.file_name().unwrap() != "command.json");
    files.sort();
    files.iter().map(|path| exchange(&load(path))).collect()
}

fn exchange(recorded: &Value) -> Exchange {
    let text = |pointer: &str| recorded.pointer(pointer).unwrap().as_str().unwrap().to_owned();
    Exchange {
        method: text("/request/method"),
        path: text("/request/path"),
        request: recorded.pointer("/request/json").cloned(),
        status: u16::try_from(recorded["response"]["status"].as_u64().unwrap()).unwrap(),
        answer: recorded["response"]["json"].clone(),
    }
}

/// Times of the recording as now, so that `now` is printed again.
fn renewed(value: &mut Value, now: &str) {
    match value {
        Value::String(text) if text.starts_with("2026-11-21T") => now.clone_into(text),
        Value::Array(list) => list.iter_mut().for_each(|item| renewed(item, now)),
        Value::Object(map) => map.values_mut().for_each(|item| renewed(item, now)),
        _ => {}
    }
}

struct Replay {
    out: String,
    err: String,
    recorded: String,
}

/// Runs a recorded command against its recorded exchanges; exit code and calls must be the same.
async fn replay(flow: &str, renew: bool) -> Replay {
    let command = load(&folder(flow).join("command.json"));
    let mut exchanges = exchanges(flow);
    if renew {
        let now = dstack_system::Clock::now(&dstack_system::SystemClock).to_string();
        for exchange in &mut exchanges {
            renewed(&mut exchange.answer, &now);
            exchange
                .request
                .iter_mut()
                .for_each(|request| renewed(request, &now));
        }
    }
    let server = FakeServer::start(exchanges).await;
    let recorded_url = "http://127.0.0.1:42973";
    let cli = if flow.starts_with("project-add") {
        Cli::new()
    } else {
        Cli::with_project(&server)
    };
    for (name, text) in command["files"].as_object().unwrap() {
        cli.write(name, text.as_str().unwrap());
    }
    let argv: Vec<String> = command["argv"]
        .as_array()
        .unwrap()
        .iter()
        .skip(1)
        .map(|arg| arg.as_str().unwrap().to_owned())
        .collect();
    let argv: Vec<String> = argv
        .iter()
        .map(|arg| arg.replace(recorded_url, &server.url))
        .collect();
    let ended = cli
        .run(&argv.iter().map(String::as_str).collect::<Vec<_>>())
        .await;
    ended.assert_code(u8::try_from(command["exit_code"].as_u64().unwrap()).unwrap());
    server.assert_done();
    let recorded = command["output"].as_str().unwrap().to_owned();
    let hide = |text: String| text.replace(&server.url, recorded_url);
    Replay {
        out: hide(ended.out),
        err: hide(ended.err),
        recorded,
    }
}

/// What we say in other words, on purpose (`docs/compatibility.md`): theirs, ours.
const DIFFERENT: [(&str, &str); 3] = [
    (
        " Possible reasons: https://dstack.ai/docs/guides/troubleshooting/#no-offers\n",
        "\n",
    ),
    ("Stopped\n", "The run cli-task is being stopped\n"),
    ("Aborted\n", "The run cli-service is aborted\n"),
];

#[track_caller]
fn assert_same(replay: &Replay) {
    // The reference prints errors to standard output, without codes and hints.
    let errors = replay
        .err
        .lines()
        .filter(|line| !line.starts_with("hint:"))
        .map(|line| match line.rsplit_once(" [D") {
            Some((line, _)) => format!("{line}\n"),
            None => format!("{line}\n"),
        });
    let printed: String = std::iter::once(replay.out.clone()).chain(errors).collect();
    let recorded = DIFFERENT
        .iter()
        .fold(replay.recorded.clone(), |text, (theirs, ours)| {
            text.replace(theirs, ours)
        });
    assert_eq!(printed, recorded);
}

macro_rules! recorded {
    ($($name:ident: $flow:literal;)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                assert_same(&replay($flow, true).await);
            }
        )*
    };
}

recorded! {
    apply_a_task: "apply-task";
    apply_a_dev_environment: "apply-dev";
    apply_a_service: "apply-service";
    apply_a_changed_service: "apply-service-again";
    apply_what_the_server_refuses: "apply-service-autoscaling-no-gateway";
    apply_a_fleet: "apply-fleet";
    apply_a_gateway: "apply-gateway";
    apply_a_volume: "apply-volume";
    delete_a_fleet: "delete-fleet";
    export_list: "export-list";
    fleet_list: "fleet-list";
    fleet_list_empty: "fleet-list-empty";
    gateway_list: "gateway-list";
    logs_empty: "logs";
    metrics_without_samples: "metrics";
    offer: "offer";
    project_add: "project-add";
    project_add_with_a_wrong_token: "project-add-bad-token";
    ps: "ps";
    ps_empty: "ps-empty";
    secret_delete: "secret-delete";
    secret_get: "secret-get";
    secret_list: "secret-list";
    secret_set: "secret-set";
    stop: "stop";
    stop_abort: "stop-abort";
    volume_delete: "volume-delete";
    volume_list: "volume-list";
}

#[tokio::test]
async fn project_list() {
    // The width of the URL column depends on the fake server's port.
    let replay = replay("project-list-verbose", true).await;
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(&replay.out), words(&replay.recorded));
}

#[tokio::test]
async fn json_is_the_same_to_the_byte() {
    for flow in ["run-get", "fleet-get"] {
        assert_same(&replay(flow, false).await);
    }
}

#[tokio::test]
async fn json_of_offers_means_the_same() {
    for flow in ["offer-gpu-json", "offer-group-by"] {
        let replay = replay(flow, false).await;
        let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(parse(&replay.out), parse(&replay.recorded));
        assert_eq!(replay.out.lines().count(), 1);
    }
}

#[tokio::test]
async fn event_list() {
    let replay = replay("event-list", false).await;
    // Times are local.
    let without_times = |text: &str| {
        text.lines()
            .map(|line| line.get(21..).unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(without_times(&replay.out), without_times(&replay.recorded));
    assert!(replay.out.starts_with("[2026-11-2"));
}
