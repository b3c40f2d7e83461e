//! What the built server sends to an OpenTelemetry collector and to Sentry, and that it does not suffer when they are away.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::net::TcpListener;

use dstack_telemetry_doubles::otlp::{self, Point, Span};
use dstack_telemetry_doubles::{Received, Receiver, sentry};
use dstack_tests::cli::Cli;
use dstack_tests::http::Client;
use dstack_tests::ports::own_port;
use dstack_tests::runs::{SMALL_YAML, TEST_TIMEOUT};
use dstack_tests::server::{Server, Setup, TOKEN, eventually, signal};
use dstack_tests::{need, parts};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

const ME: &str = "/api/users/get_my_user";
const MY_SPAN: &str = "POST /api/users/get_my_user";

/// Everything that OpenTelemetry can get, for the receiver at this address.
fn watched(setup: Setup, url: &str) -> Setup {
    setup
        .variable("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        .variable("DSTACK_OTEL_TRACES_ENABLED", "1")
        .variable("DSTACK_OTEL_LOGS_ENABLED", "1")
        .variable("DSTACK_OTEL_METRICS_ENABLED", "1")
        // Soon.
        .variable("OTEL_BSP_SCHEDULE_DELAY", "100")
        .variable("OTEL_BLRP_SCHEDULE_DELAY", "100")
}

/// The receiver, and what it runs on.
fn receiver() -> (Runtime, Receiver) {
    let runtime = Runtime::new().unwrap();
    let receiver = runtime.block_on(Receiver::start());
    (runtime, receiver)
}

fn span(received: &[Received], name: &str) -> Option<Span> {
    otlp::spans(received).into_iter().find(|span| span.name == name)
}

/// Threads of the server by their names.
fn threads(server: &Server) -> Vec<String> {
    let folder = format!("/proc/{}/task", server.pid().unwrap());
    let threads = fs_err::read_dir(folder).unwrap().filter_map(|thread| {
        let name = fs_err::read_to_string(thread.ok()?.path().join("comm")).ok()?;
        Some(name.trim().to_owned())
    });
    threads.collect()
}

/// Those that send telemetry.
fn sends(thread: &str) -> bool {
    thread.starts_with("dstack-telemetr") || thread.starts_with("OpenTelemetry")
}

#[test]
fn a_request_its_log_and_its_numbers_arrive() {
    let (runtime, receiver) = receiver();
    let mut server = watched(need!(Setup::local()), &receiver.url)
        .variable("OTEL_EXPORTER_OTLP_HEADERS", "x-key=of-the-collector")
        .variable("DSTACK_SERVER_ENVIRONMENT", "proving ground")
        .start()
        .unwrap();
    assert!(threads(&server).iter().any(|thread| sends(thread)));
    server.get(ME, &Value::Null).unwrap();
    let wait = receiver.wait_for("the span of the request", |all| span(all, MY_SPAN));
    let request = runtime.block_on(wait);
    let attribute = |name: &str| request.attributes.get(name).map(String::as_str);
    assert_eq!(attribute("http.request.method"), Some("POST"));
    assert_eq!(attribute("http.route"), Some(ME));
    assert_eq!(attribute("http.response.status_code"), Some("200"));
    assert_eq!(attribute("dstack.user.name"), Some("admin"));
    assert_eq!(
        (request.kind, request.status, request.parent.as_str()),
        (2, 0, "")
    );
    assert_eq!(request.scope, "dstack.server");
    assert_eq!(request.resource["service.name"], "dstack-server");
    assert_eq!(request.resource["service.version"], "0.22.5");
    assert_eq!(request.resource["deployment.environment.name"], "proving ground");
    assert_eq!(request.resource["service.instance.id"].len(), 36);

    let step = "pipeline_tasks.InstanceWorker.process";
    let wait = receiver.wait_for("a step of the engine", |all| span(all, step));
    let step = runtime.block_on(wait);
    assert_eq!(step.attributes["task.status"], "success");
    let line = "this machine is an instance of the fleet `local`";
    let wait = receiver.wait_for("a line of the log", |all| {
        otlp::records(all).into_iter().find(|record| record.body == line)
    });
    let record = runtime.block_on(wait);
    assert_eq!((record.severity.as_str(), record.trace.as_str()), ("INFO", ""));
    assert_eq!(record.resource, request.resource);

    // Metrics are sent once a minute, and at the end.
    assert_eq!(server.terminate().unwrap(), Some(0));
    let points = otlp::points(&receiver.received());
    let find = |name: &str, labels: &[(&str, &str)]| -> Point {
        let has = |point: &Point| {
            let mut labels = labels.iter();
            point.name == name
                && labels
                    .all(|(label, value)| point.attributes.get(*label).map(String::as_str) == Some(*value))
        };
        let found = points.iter().find(|point| has(point));
        found
            .unwrap_or_else(|| panic!("no {name} {labels:?} in {points:#?}"))
            .clone()
    };
    let mine = find(
        "http.server.request.duration",
        &[("http.route", ME), ("http.response.status_code", "200")],
    );
    assert!((mine.value - 1.0).abs() < f64::EPSILON, "{mine:?}");
    assert_eq!(mine.unit, "s");
    let runs = "dstack.server.background.task.runs";
    let task = "pipeline_tasks.InstanceWorker.process";
    assert!(find(runs, &[("task", task), ("status", "success")]).value >= 1.0);
    find(runs, &[("task", "scheduled_tasks.delete_events")]);
    assert!(find("process.cpu.time", &[("type", "user")]).value > 0.0);
    assert!(find("process.memory.usage", &[]).value > 1e6);
    assert!(find("process.memory.virtual", &[]).value > 1e6);
    assert!(find("process.thread.count", &[]).value > 1.0);
    assert!(find("process.open_file_descriptor.count", &[]).value > 3.0);
    find("process.context_switches", &[("type", "voluntary")]);
    for request in receiver.received() {
        assert_eq!(
            request.header("x-key"),
            Some("of-the-collector"),
            "{}",
            request.path
        );
        assert_eq!(request.header("content-type"), Some("application/x-protobuf"));
        let token = request
            .body
            .windows(TOKEN.len())
            .any(|part| part == TOKEN.as_bytes());
        assert!(!token, "the caller's token was sent to {}", request.path);
    }
}

#[test]
fn what_is_sampled_and_whose_trace_it_is() {
    let (runtime, receiver) = receiver();
    let mut server = watched(need!(Setup::local()), &receiver.url)
        .variable("DSTACK_OTEL_TRACES_BACKGROUND_SAMPLE_RATE", "0")
        .variable("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        .start()
        .unwrap();
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let parent = "b7ad6b7169203331";
    let post = |path: &str, token: &str| {
        let headers = [
            ("authorization".to_owned(), format!("Bearer {token}")),
            ("traceparent".to_owned(), format!("00-{trace}-{parent}-01")),
        ];
        let url = format!("{}{path}", server.url());
        Client::default()
            .send("POST", &url, &headers, Some(Vec::new()))
            .unwrap()
    };
    assert_eq!(post(ME, TOKEN).status, 200);
    assert_eq!(post("/api/users/list", "nobody's").status, 403);
    let wait = receiver.wait_for("the caller's trace", |all| {
        Some((span(all, MY_SPAN)?, span(all, "POST /api/users/list")?))
    });
    let (mine, refused) = runtime.block_on(wait);
    assert_eq!((mine.trace.as_str(), mine.parent.as_str()), (trace, parent));
    assert_eq!(refused.attributes["http.response.status_code"], "403");
    assert_eq!(refused.attributes.get("dstack.user.name"), None);
    assert_eq!(server.terminate().unwrap(), Some(0));
    let received = receiver.received();
    let names: Vec<String> = otlp::spans(&received).into_iter().map(|span| span.name).collect();
    assert!(!names.iter().any(|name| name.contains("_tasks.")), "{names:?}");
    // Counted all the same.
    let runs = |point: &Point| point.name == "dstack.server.background.task.runs";
    assert!(otlp::points(&received).iter().any(runs));
    assert!(
        received
            .iter()
            .all(|request| request.header("content-encoding") == Some("gzip"))
    );
}

/// Services are part of the trace of whoever asks them, and of the server's own span in it.
#[test]
fn a_trace_goes_on_at_a_service() {
    let (runtime, receiver) = receiver();
    let server = watched(need!(Setup::local()), &receiver.url).start().unwrap();
    let cli = need!(Cli::ours());
    cli.knows(&server);
    let port = own_port(0);
    let service = format!(
        "type: service\nname: web\nport: {port}\nauth: false\ncommands:\n  - exec python3 {} {port}\n{SMALL_YAML}",
        parts::repository().join("tests/python/echo_headers.py").display()
    );
    cli.write("service.yml", &service).unwrap();
    cli.succeeds(&["apply", "-f", "service.yml", "-y", "-d"]);
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let headers = [(
        "traceparent".to_owned(),
        format!("00-{trace}-b7ad6b7169203331-01"),
    )];
    let url = format!("{}/proxy/services/main/web/", server.url());
    let told = eventually("the service answers", TEST_TIMEOUT, || {
        let answer = Client::default().send("GET", &url, &headers, None)?;
        Ok((answer.status == 200).then(|| answer.text()))
    })
    .unwrap();
    let told: Value = serde_json::from_str(&told).unwrap();
    let wait = receiver.wait_for("the span of the request", |all| {
        let mut spans = otlp::spans(all).into_iter();
        spans.find(|span| {
            span.trace == trace
                && span
                    .attributes
                    .get("http.response.status_code")
                    .is_some_and(|code| code == "200")
        })
    });
    let span = runtime.block_on(wait);
    assert_eq!(told["traceparent"], format!("00-{trace}-{}-01", span.id));
}

#[test]
fn prometheus_reads_the_same_numbers() {
    let server = need!(Setup::local())
        .variable("DSTACK_OTEL_METRICS_ENABLED", "1")
        .variable("DSTACK_OTEL_METRICS_EXPORTERS", "prometheus")
        .variable("DSTACK_ENABLE_PROMETHEUS_METRICS", "1")
        .start()
        .unwrap();
    server.get(ME, &Value::Null).unwrap();
    let url = format!("{}/metrics", server.url());
    let read = || Client::default().send("GET", &url, &[], None).unwrap().text();
    let step = "task=\"pipeline_tasks.InstanceWorker.process\"";
    // How busy the processors are is known from the second time on.
    read();
    let text = eventually("the engine has done a step", TEST_TIMEOUT, || {
        Ok(Some(read()).filter(|text| text.contains(step)))
    })
    .unwrap();
    for part in [
        "\ndstack_instance_price_dollars_per_hour{",
        "\nhttp_server_request_duration_seconds_bucket{",
        "http_route=\"/api/users/get_my_user\"",
        "http_route=\"/metrics\"",
        "\ndstack_server_background_task_runs_total{",
        "task=\"pipeline_tasks.InstanceWorker.process\"",
        "\nprocess_cpu_time_seconds_total{",
        "\nprocess_cpu_utilization",
        "\nprocess_memory_usage_bytes{",
        "\nprocess_open_file_descriptor_count{",
        "\nprocess_context_switches_total{",
        "\ntarget_info{",
    ] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    // Nobody is sent anything.
    let threads = threads(&server);
    assert!(!threads.iter().any(|thread| sends(thread)), "{threads:?}");
}

#[test]
fn nothing_is_sent_unless_it_is_asked_for() {
    let (_runtime, receiver) = receiver();
    let mut server = need!(Setup::local())
        .variable("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url.clone())
        .variable("SENTRY_DSN", sentry::dsn(&receiver))
        .start()
        .unwrap();
    server.get(ME, &Value::Null).unwrap();
    let threads = threads(&server);
    assert!(!threads.iter().any(|thread| sends(thread)), "{threads:?}");
    assert_eq!(server.terminate().unwrap(), Some(0));
    assert!(receiver.received().is_empty());
}

/// Nobody listens, or somebody listens and does not answer: the server serves, says so once, and ends.
#[test]
fn a_receiver_that_is_away_holds_up_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", listener.local_addr().unwrap());
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = format!("http://{closed}");
    for url in [&nobody, &silent] {
        let dsn = url.replace("http://", "http://key@") + "/42";
        let mut server = watched(need!(Setup::local()), url)
            .variable("DSTACK_SENTRY_DSN", dsn)
            .variable("DSTACK_SENTRY_TRACES_SAMPLE_RATE", "1")
            .start()
            .unwrap();
        for _ in 0..20 {
            server.get(ME, &Value::Null).unwrap();
        }
        if url == &nobody {
            let warnings = |server: &Server| {
                let text = server.output();
                let of = |what: &str| {
                    let lines = text
                        .lines()
                        .filter(|line| line.contains("telemetry cannot be sent"));
                    lines.filter(|line| line.contains(what)).count()
                };
                ["OpenTelemetry traces", "OpenTelemetry logs", "Sentry"].map(of)
            };
            eventually("the log says that telemetry cannot be sent", TEST_TIMEOUT, || {
                Ok((warnings(&server) == [1, 1, 1]).then_some(()))
            })
            .unwrap();
            // More of it is not said again.
            for _ in 0..20 {
                server.get(ME, &Value::Null).unwrap();
            }
            assert_eq!(warnings(&server), [1, 1, 1], "{}", server.output());
        }
        assert_eq!(server.terminate().unwrap(), Some(0));
    }
}

#[test]
fn errors_and_traces_go_to_sentry() {
    let (runtime, receiver) = receiver();
    let mut server = need!(Setup::local())
        .variable("DSTACK_SENTRY_DSN", sentry::dsn(&receiver))
        .variable("DSTACK_SENTRY_TRACES_SAMPLE_RATE", "1")
        .variable("DSTACK_SENTRY_TRACES_BACKGROUND_SAMPLE_RATE", "0")
        .variable("DSTACK_SERVER_ENVIRONMENT", "proving ground")
        .start()
        .unwrap();
    server.get(ME, &Value::Null).unwrap();
    let wait = receiver.wait_for("the trace of the request", |all| {
        sentry::items(all, "transaction")
            .into_iter()
            .find(|trace| trace["transaction"] == MY_SPAN)
    });
    let trace = runtime.block_on(wait);
    assert_eq!(trace["environment"], "proving ground");
    assert_eq!(trace["release"], "0.22.5");
    let context = &trace["contexts"]["trace"];
    assert_eq!(context["op"], "http.server");
    assert_eq!(context["data"]["dstack.user.name"], "admin");
    assert_eq!(context["data"]["http.response.status_code"], json!(200));

    let config = server.home().join(".dstack/server/config.yml");
    fs_err::write(config, "projects:\n- nam: main\n").unwrap();
    signal(server.pid().unwrap(), "HUP");
    let wait = receiver.wait_for("the error", |all| sentry::items(all, "event").pop());
    let event = runtime.block_on(wait);
    // Unless something else is said, an event is an error.
    assert_eq!(event.get("level"), None);
    assert_eq!(event["environment"], "proving ground");
    let text = event.to_string();
    assert!(text.contains("config.yml is not applied again"), "{text}");

    assert_eq!(server.terminate().unwrap(), Some(0));
    for request in receiver.received() {
        let auth = request.header("x-sentry-auth").unwrap();
        assert!(auth.contains(sentry::KEY), "{auth}");
        let body = String::from_utf8_lossy(&request.body);
        assert!(!body.contains(TOKEN) && !body.contains("_tasks."), "{body}");
    }
}

#[test]
fn what_makes_no_sense_stops_the_start() {
    for (variable, value, expected) in [
        (
            "DSTACK_OTEL_METRICS_EXPORTERS",
            "otlp,stdout",
            "unknown exporter `stdout`",
        ),
        (
            "DSTACK_SENTRY_DSN",
            "https://sentry.example.com",
            "DSTACK_SENTRY_DSN is not the DSN",
        ),
    ] {
        let setup = need!(Setup::without_engine())
            .variable("DSTACK_OTEL_METRICS_ENABLED", "1")
            .variable(variable, value);
        let error = setup.start().map(drop).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
