//! Output and uploads that are kept elsewhere: the built server against doubles of other people's stores.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::future::Future;

use dstack_store_doubles::Fault;
use dstack_store_doubles::cloudwatch::CloudWatch;
use dstack_store_doubles::elasticsearch::Elasticsearch;
use dstack_store_doubles::fluent_bit::FluentBit;
use dstack_store_doubles::gcp_logging::GcpLogging;
use dstack_store_doubles::objects::{Kind, Objects};
use dstack_tests::cli::Cli;
use dstack_tests::need;
use dstack_tests::runs::{SMALL_YAML, TEST_TIMEOUT, attach, submit};
use dstack_tests::server::{Server, Setup, eventually};
use serde_json::json;
use tokio::runtime::Runtime;

/// Runs doubles beside the test.
struct Doubles(Runtime);

impl Doubles {
    fn new() -> Doubles {
        Doubles(Runtime::new().unwrap())
    }

    fn start<T>(&self, double: impl Future<Output = T>) -> T {
        self.0.block_on(double)
    }
}

/// Lines that a task prints, all at once.
fn lines() -> String {
    (0..500).map(|n| format!("line {n}\n")).collect()
}

const PRINT: &str = "i=0; while [ $i -lt 500 ]; do echo line $i; i=$((i+1)); done";

/// A task gets a file that was uploaded, and what it prints comes back.
fn a_file_goes_in_and_comes_out(server: &Server) {
    let cli = need!(Cli::ours());
    assert_eq!(cli.add_project(server).unwrap().code, Some(0));
    cli.write("data.txt", &lines()).unwrap();
    let yaml =
        format!("type: task\nname: reader\nfiles:\n  - data.txt\ncommands:\n  - cat data.txt\n{SMALL_YAML}");
    cli.write("task.yml", &yaml).unwrap();
    let applied = cli.run(&["apply", "-f", "task.yml", "-y", "-d"]).unwrap();
    assert_eq!(applied.code, Some(0), "{}", applied.text);
    let run = attach(server, "reader");
    assert_eq!(
        run.wait_until_finished().unwrap(),
        "done",
        "{:#}",
        run.get().unwrap()
    );
    assert_eq!(run.logs().unwrap(), lines());
    let shown = cli.run(&["logs", "reader"]).unwrap();
    assert!(shown.text.ends_with(&lines()), "{}", shown.text);
}

#[test]
fn at_amazon() {
    let doubles = Doubles::new();
    let logs = doubles.start(CloudWatch::start("runs"));
    let objects = doubles.start(Objects::start(Kind::S3, "uploads"));
    let server = need!(Setup::local())
        .variable("AWS_ACCESS_KEY_ID", "AKIATEST")
        .variable("AWS_SECRET_ACCESS_KEY", "secret")
        .variable("AWS_REGION", "eu-west-1")
        .variable("AWS_ENDPOINT_URL_LOGS", logs.url.clone())
        .variable("AWS_ENDPOINT_URL_S3", objects.url.clone())
        .variable("DSTACK_SERVER_CLOUDWATCH_LOG_GROUP", "runs")
        .variable("DSTACK_SERVER_S3_BUCKET", "uploads")
        .start()
        .unwrap();
    a_file_goes_in_and_comes_out(&server);
    assert_eq!(objects.all().len(), 1);

    // CloudWatch goes away while a task prints.
    logs.faults.add([Fault::Unavailable; 1000]);
    let run = submit(&server, "patient", &[PRINT], &json!({})).unwrap();
    eventually("the server has tried to store output", TEST_TIMEOUT, || {
        Ok((logs.faults.left() < 990).then_some(()))
    })
    .unwrap();
    assert!(!["done", "failed"].contains(&run.status().unwrap().as_str()));
    logs.faults.clear();
    assert_eq!(run.wait_until_finished().unwrap(), "done");
    assert_eq!(run.logs().unwrap(), lines());
}

#[test]
fn at_google() {
    let doubles = Doubles::new();
    // Without a token: the address is not Google's.
    let logs = doubles.start(GcpLogging::start("p", ""));
    let objects = doubles.start(Objects::start(Kind::Gcs, "uploads"));
    let server = need!(Setup::local())
        .variable("DSTACK_SERVER_GCP_LOGGING_PROJECT", "p")
        .variable("DSTACK_SERVER_GCP_LOGGING_ENDPOINT", logs.url.clone())
        .variable("DSTACK_SERVER_GCS_BUCKET", "uploads")
        .variable("DSTACK_SERVER_GCS_ENDPOINT", objects.url.clone())
        .start()
        .unwrap();
    a_file_goes_in_and_comes_out(&server);
    assert_eq!(objects.all().len(), 1);
    assert!(logs.count() > 0);
}

#[test]
fn behind_fluent_bit() {
    let doubles = Doubles::new();
    let index = doubles.start(Elasticsearch::start("dstack-logs", "key"));
    for protocol in ["forward", "http"] {
        let fluent_bit = match protocol {
            "http" => doubles.start(FluentBit::http(index.clone())),
            _ => doubles.start(FluentBit::forward(index.clone())),
        };
        let server = need!(Setup::local())
            .variable("DSTACK_SERVER_FLUENTBIT_HOST", "127.0.0.1")
            .variable("DSTACK_SERVER_FLUENTBIT_PORT", fluent_bit.port.to_string())
            .variable("DSTACK_SERVER_FLUENTBIT_PROTOCOL", protocol)
            .variable("DSTACK_SERVER_ELASTICSEARCH_HOST", index.url.clone())
            .variable("DSTACK_SERVER_ELASTICSEARCH_API_KEY", "key")
            .start()
            .unwrap();
        a_file_goes_in_and_comes_out(&server);
        assert!(!fluent_bit.tags().is_empty(), "{protocol}");
    }
}

#[test]
fn a_store_that_cannot_be_used_is_said_and_files_are_used() {
    let server = need!(Setup::local())
        .variable("DSTACK_SERVER_FLUENTBIT_HOST", "127.0.0.1")
        .variable("DSTACK_SERVER_FLUENTBIT_PROTOCOL", "carrier-pigeon")
        .start()
        .unwrap();
    let output = server.output();
    assert!(
        output.contains("cannot use Fluent Bit") && output.contains("carrier-pigeon"),
        "{output}"
    );
    let run = submit(&server, "files", &["echo kept"], &json!({})).unwrap();
    assert_eq!(run.wait_until_finished().unwrap(), "done");
    assert_eq!(run.logs().unwrap(), "kept\n");
}
