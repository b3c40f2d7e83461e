//! Services whose number of replicas follows what those tell of themselves.
#![allow(clippy::unwrap_used, clippy::panic)] // tests

use dstack_tests::cli::Cli;
use dstack_tests::fleets::until_told;
use dstack_tests::need;
use dstack_tests::ports::own_port;
use dstack_tests::runs::{SMALL_YAML, attach};
use dstack_tests::server::Setup;
use serde_json::json;

/// The page of a replica is read over the way of its requests, and the queue on it makes the server want another one. (On a machine
/// without containers that one finds its port taken, which does not matter here.) Clients of dstack 0.22.5 read what is stored.
#[test]
fn a_replica_whose_page_says_that_requests_wait_is_given_another_one() {
    let server = need!(Setup::local()).start().unwrap();
    let cli = need!(Cli::ours());
    cli.knows(&server);
    let port = own_port(0);
    let service = format!(
        "type: service\nname: web\nport: {port}\nreplicas: 1..2\nscaling:\n  signals: [{{metric: queue_length, target: 2}}]\n  \
         metrics_path: /metrics.txt\n  scale_up_delay: 1s\nprobes: [{{type: http, url: /, interval: 1s}}]\ncommands:\n  \
         - 'echo \"vllm:num_requests_waiting 9\" > metrics.txt'\n  \
         - exec python3 -m http.server {port} --bind 127.0.0.1\n{SMALL_YAML}"
    );
    cli.write("service.yml", &service).unwrap();
    cli.succeeds(&["apply", "-f", "service.yml", "-y", "-d"]);
    until_told(&server, "Replicas of group 0 changed 1 -> 2 (queue_length)");
    let run = attach(&server, "web");
    let scaling = run.get().unwrap()["run_spec"]["configuration"]["scaling"].clone();
    assert_eq!(scaling["metric"], "rps");
    assert_eq!(scaling["target"], json!(1_000_000_000.0));
    let python = need!(Cli::python());
    python.knows(&server);
    assert!(python.succeeds(&["ps", "-v"]).contains("web"));
    cli.succeeds(&["stop", "web", "-y"]);
    assert_eq!(run.wait_until_finished().unwrap(), "terminated");
}
