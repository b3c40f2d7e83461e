//! What a newcomer meets: plans that are only looked at, plans that say what will not be, and words about what happened.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod support;

use serde_json::{Value, json};
use support::{Cli, Ended, Exchange, FakeServer, recorded, recorded_apply, recorded_run};

const INIT: &str = "/api/project/main/repos/init";
const PLAN: &str = "/api/project/main/runs/get_plan";
const APPLY: &str = "/api/project/main/runs/apply";
const GET: &str = "/api/project/main/runs/get";
const STOP: &str = "/api/project/main/runs/stop";

fn plan(change: impl FnOnce(&mut Value)) -> Exchange {
    let mut plan = recorded_apply("02-project-runs-get_plan.json");
    change(&mut plan);
    Exchange::new(PLAN, plan)
}

async fn dstack(exchanges: Vec<Exchange>, arguments: &[&str]) -> (FakeServer, Ended) {
    let server = FakeServer::start(exchanges).await;
    let cli = Cli::with_project(&server);
    let task = "type: task\nname: cli-task\ncommands:\n  - echo hello\n";
    cli.write("my task.yml", task);
    cli.write("twice.yml", &format!("{task}name: other\n"));
    let ended = cli.run(arguments).await;
    (server, ended)
}

fn explained(plan: &mut Value) {
    plan["explanations"] = json!([{
        "job_name": "cli-task-0-0", "fits": false,
        "fleets": [{"name": "local", "chosen": true, "reason": null, "no_new_instances": "is an SSH fleet: it gets no new instances"}],
        "instances": [{"name": "local-0", "fleet": "local", "available": false, "reasons": ["has no GPU, wanted H100:8"]}],
        "refused_offers": [], "total_refused_offers": 0,
        "changes": [{"fields": [{"field": "resources.gpu", "from": "H100:8", "to": "0"},
                                {"field": "availability_zones", "from": "b", "to": "unset"}],
                     "gives": "instance local-0", "price": 0.0}],
    }]);
}

#[tokio::test]
async fn an_explanation_submits_nothing_whatever_else_is_said() {
    for arguments in [
        vec!["apply", "-f", "my task.yml", "--explain"],
        vec!["apply", "-f", "my task.yml", "--explain", "-y"],
        vec!["apply", "-f", "my task.yml", "--explain", "-y", "-d"],
    ] {
        let exchanges = vec![Exchange::new(INIT, Value::Null), plan(explained)];
        let (server, ended) = dstack(exchanges, &arguments).await;
        server.assert_done();
        ended.assert_code(0);
        assert!(ended.out.contains("What would help"), "{}", ended.out);
        assert!(!ended.out.contains("Submit"), "{}", ended.out);
    }
}

#[tokio::test]
async fn an_explanation_says_each_thing_once() {
    let exchanges = vec![Exchange::new(INIT, Value::Null), plan(explained)];
    let (_server, ended) = dstack(exchanges, &["apply", "-f", "my task.yml", "--explain"]).await;
    let fleet = ended.out.lines().find(|line| line.contains("SSH fleet")).unwrap();
    assert!(
        fleet
            .trim_end()
            .ends_with("possible; is an SSH fleet: it gets no new instances"),
        "{fleet}"
    );
    let help = ended.out.lines().find(|line| line.starts_with(" - ")).unwrap();
    assert_eq!(
        help,
        " - resources.gpu: 0 instead of H100:8 and without availability_zones gives instance local-0 at $0 an hour"
    );
}

#[tokio::test]
async fn the_hint_names_the_file() {
    let none = |plan: &mut Value| plan["job_plans"][0]["offers"] = json!([]);
    let exchanges = vec![
        Exchange::new(INIT, Value::Null),
        plan(none),
        Exchange::new("/api/project/main/fleets/list", json!([fleet()])),
        Exchange::new(APPLY, recorded_run("submitted", |_| {})),
    ];
    let (_server, ended) = dstack(exchanges, &["apply", "-f", "my task.yml", "-y", "-d"]).await;
    assert!(
        ended.err.contains("dstack apply -f 'my task.yml' --explain"),
        "{}",
        ended.err
    );
    assert!(!ended.out.contains("dstack.ai"), "{}", ended.out);
}

fn fleet() -> Value {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/cli");
    let mut found = None;
    for file in walk(&path) {
        let exchange: Value = serde_json::from_str(&fs_err::read_to_string(file).unwrap()).unwrap();
        let answer = &exchange["response"]["json"][0];
        if exchange["request"]["path"]
            .as_str()
            .is_some_and(|path| path.ends_with("fleets/list"))
            && answer.is_object()
        {
            found = Some(answer.clone());
        }
    }
    found.unwrap()
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in fs_err::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(walk(&path)),
            false if path.extension().is_some_and(|end| end == "json") => files.push(path),
            false => {}
        }
    }
    files
}

#[tokio::test]
async fn a_plan_says_what_will_not_be_as_configured() {
    let notice = "local-0 has no container engine, and it ignores `image`.";
    let exchanges = vec![
        Exchange::new(INIT, Value::Null),
        plan(|plan| plan["notices"] = json!([notice])),
        Exchange::new(APPLY, recorded_run("submitted", |_| {})),
    ];
    let (server, ended) = dstack(exchanges, &["apply", "-f", "my task.yml", "-y", "-d"]).await;
    server.assert_done();
    assert!(ended.out.contains(&format!("Note: {notice}\n")), "{}", ended.out);
}

#[tokio::test]
async fn a_plan_that_takes_a_smaller_machine_says_why() {
    let small = |plan: &mut Value| {
        let resources = &mut plan["job_plans"][0]["offers"][0]["instance"]["resources"];
        resources["disk"]["size_mib"] = json!(71_762);
        resources["cpus"] = json!(1);
    };
    let exchanges = vec![
        Exchange::new(INIT, Value::Null),
        plan(small),
        Exchange::new(APPLY, recorded_run("submitted", |_| {})),
    ];
    let (_server, ended) = dstack(exchanges, &["apply", "-f", "my task.yml", "-y", "-d"]).await;
    assert!(
        ended
            .out
            .contains("cpu=1 disk=70.1GB is outside of the resources above: the defaults"),
        "{}",
        ended.out
    );
}

#[tokio::test]
async fn a_run_without_a_place_says_whether_it_is_taken() {
    for (message, shown) in [
        (
            "No matching fleet found. local-0 is busy; b-0 has no GPU, wanted 1",
            "Busy",
        ),
        (
            "No matching fleet found. local-0 has no GPU, wanted 1",
            "No match",
        ),
        (
            "No matching fleet found. The project has no fleet with an instance",
            "No fleets",
        ),
    ] {
        let failed = |submission: &mut Value| {
            submission["status_message"] = json!("no fleets");
            submission["termination_reason"] = json!("failed_to_start_due_to_no_capacity");
            submission["termination_reason_message"] = json!(message);
        };
        let exchanges = vec![
            Exchange::new(INIT, Value::Null),
            plan(|_| {}),
            Exchange::new(APPLY, recorded_run("submitted", |_| {})),
            Exchange::new(GET, recorded_run("failed", failed)),
            Exchange::new(GET, recorded_run("failed", failed)),
        ];
        let (_server, ended) = dstack(exchanges, &["apply", "-f", "my task.yml", "-y"]).await;
        ended.assert_code(1);
        assert!(
            ended.out.contains(&format!("\n{shown}")),
            "{message}: {}",
            ended.out
        );
        assert_eq!(
            ended.out.contains("lets a run wait"),
            shown == "Busy",
            "{}",
            ended.out
        );
        assert!(
            ended.out.contains(&format!(" {} ", shown.to_lowercase())),
            "{}",
            ended.out
        );
    }
}

#[tokio::test]
async fn stopping_says_what_it_does() {
    let exchanges = || {
        vec![
            Exchange::new(GET, recorded_run("running", |_| {})),
            Exchange::new(STOP, Value::Null),
        ]
    };
    let (server, ended) = dstack(exchanges(), &["stop", "cli-task", "-y"]).await;
    server.assert_done();
    assert_eq!(ended.out, "The run cli-task is being stopped\n");
    let (_server, ended) = dstack(exchanges(), &["stop", "cli-task", "-y", "-x"]).await;
    assert_eq!(ended.out, "The run cli-task is aborted\n");
    let over = vec![Exchange::new(GET, recorded_run("done", |_| {}))];
    let (server, ended) = dstack(over, &["stop", "cli-task", "-y"]).await;
    server.assert_done();
    ended.assert_code(0);
    assert_eq!(ended.out, "The run cli-task is over already (done)\n");
}

#[tokio::test]
async fn what_was_just_stopped_is_deleted_once_it_is_over() {
    let exchanges = vec![
        Exchange::new(GET, recorded_run("terminating", |_| {})),
        Exchange::new(GET, recorded_run("terminated", |_| {})),
        Exchange::new("/api/project/main/runs/delete", Value::Null),
    ];
    let (server, ended) = dstack(exchanges, &["delete", "-f", "my task.yml", "-y"]).await;
    server.assert_done();
    assert_eq!(ended.out, "Run cli-task deleted\n");
}

#[tokio::test]
async fn a_key_that_is_there_twice_is_pointed_at() {
    let exchanges = vec![
        Exchange::new(GET, recorded_run("done", |_| {})),
        Exchange::new("/api/project/main/runs/delete", Value::Null),
    ];
    let (_server, ended) = dstack(exchanges, &["delete", "-f", "twice.yml", "-y"]).await;
    assert_eq!(
        ended.err,
        "twice.yml:5:1: `name` is there twice: the last one counts\n"
    );
}

#[tokio::test]
async fn a_service_that_is_not_reached_is_not_announced_at_its_url() {
    let notice = "Requests to services are not passed on.";
    let service = |status: &str, notice: Value| {
        let mut run = recorded_run(status, |_| {});
        run["service"] =
            json!({"url": "/proxy/services/main/cli-task/", "model": null, "options": {}, "notice": notice});
        run["run_spec"]["configuration"] = json!({"type": "service", "port": 8000, "commands": ["x"]});
        run
    };
    for (notice, announced) in [
        (json!(notice), format!("Note: {notice}")),
        (Value::Null, "Service is published at:".to_owned()),
    ] {
        let exchanges = vec![
            Exchange::new(INIT, Value::Null),
            plan(|_| {}),
            Exchange::new(APPLY, service("submitted", notice.clone())),
            Exchange::new(GET, service("done", notice.clone())),
            Exchange::new(
                "/api/project/main/logs/poll",
                json!({"logs": [], "external_url": null, "next_token": null}),
            ),
            Exchange::new(GET, service("done", notice.clone())),
        ];
        let (_server, ended) = dstack(exchanges, &["apply", "-f", "my task.yml", "-y"]).await;
        assert!(ended.out.contains(&announced), "{}", ended.out);
        assert_eq!(
            ended.out.contains("/proxy/services"),
            notice.is_null(),
            "{}",
            ended.out
        );
    }
}

#[tokio::test]
async fn runs_are_listed_by_name() {
    let runs = vec![
        Exchange::new(GET, recorded_run("done", |_| {})),
        Exchange::missing(GET),
    ];
    let (server, ended) = dstack(runs, &["ps", "cli-task", "none"]).await;
    server.assert_done();
    ended.assert_code(1);
    assert!(ended.err.starts_with("Run none not found"), "{}", ended.err);
    let (server, ended) = dstack(
        vec![Exchange::new(GET, recorded_run("done", |_| {}))],
        &["ps", "cli-task"],
    )
    .await;
    server.assert_done();
    assert!(ended.out.contains("cli-task"), "{}", ended.out);
}

#[tokio::test]
async fn the_last_lines_of_logs_are_those_of_all_pages() {
    use base64::Engine as _;
    let page = |texts: &[&str], next: Value| {
        let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        let logs: Vec<Value> = texts
            .iter()
            .map(|text| json!({"timestamp": "2026-01-01T00:00:00Z", "log_source": "stdout", "message": encode(text)}))
            .collect();
        json!({"logs": logs, "external_url": null, "next_token": next})
    };
    let exchanges = vec![
        Exchange::new(GET, recorded_run("done", |_| {})),
        Exchange::new(
            "/api/project/main/logs/poll",
            page(&["1\n", "2\n", "3\n"], json!("more")),
        ),
        Exchange::new("/api/project/main/logs/poll", page(&["4\n"], Value::Null)),
    ];
    let (server, ended) = dstack(exchanges, &["logs", "--tail", "2", "cli-task"]).await;
    server.assert_done();
    assert_eq!(ended.out, "3\n4\n");
}

#[tokio::test]
async fn a_token_alone_says_what_else_is_needed() {
    let mut cli = Cli::new();
    cli.env = dstack_cli::settings::Environment::fixed([("DSTACK_TOKEN", "t")]);
    let ended = cli.run(&["ps"]).await;
    ended.assert_code(1);
    assert!(
        ended.err.contains("set DSTACK_SERVER_URL and DSTACK_PROJECT"),
        "{}",
        ended.err
    );
}

#[tokio::test]
async fn a_run_that_replaces_itself_is_not_told_that_nothing_fits() {
    let replaces = |plan: &mut Value| {
        plan["job_plans"][0]["offers"] = json!([]);
        plan["current_resource"] = recorded_run("running", |_| {});
        plan["action"] = json!("update");
        plan["current_resource"]["run_spec"]["configuration"]["commands"] = json!(["other"]);
    };
    let exchanges = vec![
        Exchange::new(INIT, Value::Null),
        plan(replaces),
        Exchange::new("/api/project/main/fleets/list", json!([fleet()])),
        Exchange::new(APPLY, recorded_run("submitted", |_| {})),
    ];
    let (_server, ended) = dstack(exchanges, &["apply", "-f", "my task.yml", "-y", "-d"]).await;
    assert!(
        ended
            .err
            .contains("the active run may hold the place that is missing"),
        "{ended:?}"
    );
    assert!(!ended.err.contains("--explain"), "{ended:?}");
}

#[tokio::test]
async fn a_server_without_exports_says_how_it_would_have_them() {
    let said = "This dstack server does not support exports. Export support is available in dstack Sky and dstack Factory.";
    let answer = json!({"detail": [{"msg": said, "code": "error"}]});
    let exchanges = vec![Exchange::refused("/api/project/main/exports/list", 400, answer)];
    let (_server, ended) = dstack(exchanges, &["export"]).await;
    ended.assert_code(1);
    assert!(
        ended.err.contains("DSTACK_SERVER_EXPORTS_ENABLED=1"),
        "{}",
        ended.err
    );
}

#[tokio::test]
async fn whoever_is_refused_is_told_whom_to_ask() {
    let denied = Exchange::refused(
        "/api/project/main/runs/get",
        403,
        json!({"detail": [{"msg": "Access denied", "code": null}]}),
    );
    let (_server, ended) = dstack(vec![denied], &["stop", "cli-task", "-y"]).await;
    ended.assert_code(1);
    assert!(ended.err.contains("ask an admin of the project"), "{}", ended.err);
    assert!(
        !ended.err.contains("the server says: Access denied"),
        "{}",
        ended.err
    );
}

/// Everything that is not blank, in reading order of a table's cells: nothing of it may be missing where it is narrow.
fn letters(text: &str) -> Vec<char> {
    let mut letters: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
    letters.sort_unstable();
    letters
}

#[tokio::test]
async fn tables_are_whole_in_80_columns() {
    let runs = recorded("ps", "01-runs-list.json");
    let fleets = recorded("fleet-list", "01-project-fleets-list.json");
    for (path, answer, arguments) in [
        ("/api/runs/list", &runs, &["ps", "-a"][..]),
        ("/api/runs/list", &runs, &["ps", "-a", "-v"]),
        ("/api/project/main/fleets/list", &fleets, &["fleet"]),
        ("/api/project/main/fleets/list", &fleets, &["fleet", "-v"]),
    ] {
        let printed = async |columns: usize| {
            let server = FakeServer::start(vec![Exchange::new(path, answer.clone())]).await;
            let mut cli = Cli::with_project(&server);
            cli.columns = columns;
            cli.run(arguments).await.out
        };
        let (wide, narrow) = (printed(200).await, printed(80).await);
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
        let (first, rows) = wide.split_once('\n').unwrap();
        let header = narrow.lines().next().unwrap();
        // Columns without cells may be left out.
        let titles = first.split("  ").filter(|title| !title.trim().is_empty());
        let kept =
            titles.filter(|title| header.contains(title.split_whitespace().next().unwrap_or_default()));
        let whole = kept.chain([rows]).collect::<String>();
        assert!(header.contains("NAME") && header.contains("STATUS"), "{narrow}");
        assert_eq!(letters(&narrow), letters(&whole), "{narrow}");
    }
}

#[tokio::test]
async fn a_project_without_fleets_says_where_jobs_can_run() {
    let empty = Exchange::new("/api/project/main/fleets/list", json!([]));
    let (server, ended) = dstack(vec![empty], &["fleet"]).await;
    server.assert_done();
    ended.assert_code(0);
    assert!(
        ended
            .err
            .starts_with("hint: a server that is started with `--local`"),
        "{}",
        ended.err
    );
}
