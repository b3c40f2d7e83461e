//! A backend that a file describes: tried out by the command line, configured at a server, and gone when the file is.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)] // tests

use std::path::Path;
use std::time::Duration;

use dstack_backend_kit::{Emulator as _, serve};
use dstack_emulator_lambda::{Lambda, Size, Times};
use dstack_tests::cli::Cli;
use dstack_tests::need;
use dstack_tests::parts::Part;
use dstack_tests::server::{Server, Setup};
use serde_json::json;
use tempfile::TempDir;

const KEY: &str = "canary-manifest-key";

const TYPE: &str = "lambda-manifest";

/// A size of the catalogue, and a region that has it.
const SIZE: (&str, &str) = ("gpu_1x_a10", "us-east-1");

fn emulator() -> Lambda {
    let times = Times {
        boots: Duration::from_millis(100),
        ends: Duration::from_millis(100),
        shown: Duration::ZERO,
        launch_interval: Duration::ZERO,
        request_interval: Duration::ZERO,
    };
    let size = Size {
        name: SIZE.0.to_owned(),
        region: SIZE.1.to_owned(),
    };
    Lambda::with_times(KEY, vec![size], times)
}

fn address(emulator: &Lambda) -> String {
    format!("http://{}/api/v1", serve(emulator.router()))
}

/// The example, of a vendor that takes no time.
fn manifest() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../backends/manifest/examples/lambda.yml");
    let mut text = fs_err::read_to_string(path).unwrap();
    for (from, to) in [
        ("  interval: 1 #", "  interval: 0 #"),
        ("    interval: 12 #", "    interval: 0 #"),
        ("start_interval: 20s", "start_interval: 1s"),
        ("end_interval: 10s", "end_interval: 1s\n  listed_within: 1s"),
    ] {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, to, 1);
    }
    text
}

#[test]
fn the_command_line_tries_a_file_out() {
    let cli = need!(Cli::ours());
    let emulator = emulator();
    let url = address(&emulator);
    cli.write("acme.yml", &manifest()).unwrap();
    cli.write("key.txt", KEY).unwrap();
    let told = cli.succeeds(&["backend", "check", "acme.yml", "--offline"]);
    assert!(told.contains("lambda-manifest (Lambda) is described"), "{told}");
    let check = [
        "backend",
        "check",
        "acme.yml",
        "--url",
        &url,
        "--creds",
        "api_key=@key.txt",
    ];
    let told = cli.succeeds(&check);
    for step in [
        "wrong credentials",
        "offers",
        "make",
        "found by its marks",
        "look",
        "remove again",
        "inventory",
    ] {
        assert!(told.contains(&format!("ok      {step}: ")), "{step}: {told}");
    }
    assert!(!told.contains(KEY), "{told}");
    assert_eq!(
        (emulator.ledger().count(), emulator.ledger().alive()),
        (1, Vec::new())
    );

    cli.write("acme.yml", &manifest().replace("name: /name", "name: /label"))
        .unwrap();
    let ended = cli.run(&check).unwrap();
    assert_eq!(ended.code, Some(1), "{}", ended.text);
    assert!(
        ended.text.contains("`/label` (machine.read.name)"),
        "{}",
        ended.text
    );
    assert_eq!(emulator.ledger().alive(), []);

    cli.write("acme.yml", &manifest().replace("state: /status", "stat: /status"))
        .unwrap();
    let ended = cli.run(&["backend", "check", "acme.yml", "--offline"]).unwrap();
    assert_eq!(ended.code, Some(1));
    let line = manifest()
        .lines()
        .position(|line| line.contains("state: /status"))
        .unwrap()
        + 1;
    assert!(
        ended.text.contains(&format!("acme.yml:{line}:")),
        "{}",
        ended.text
    );
}

/// A server with this directory of files.
fn start(dir: &TempDir, emulator: &Lambda) -> Part<Server> {
    let config = format!(
        "projects:\n- name: main\n  backends:\n  - type: {TYPE}\n    creds:\n      type: api_key\n      api_key: {KEY}\n"
    );
    let setup = Setup::local()?
        .config(&config)
        .variable("DSTACK_SERVER_BACKENDS_DIR", dir.path().display().to_string())
        .variable(
            "DSTACK_SERVER_BACKEND_ENDPOINTS",
            format!("{TYPE}={}", address(emulator)),
        );
    Ok(setup.start().unwrap())
}

fn types(server: &Server) -> String {
    server
        .get("/api/backends/list_types", &json!({}))
        .unwrap()
        .to_string()
}

#[test]
fn a_server_has_the_backend_as_long_as_the_file_is_there() {
    let (cli, emulator, dir) = (need!(Cli::ours()), emulator(), TempDir::new().unwrap());
    fs_err::write(dir.path().join("lambda.yml"), manifest()).unwrap();
    fs_err::write(dir.path().join("broken.yml"), "manifest: 1\ntype: nimbus\n").unwrap();
    let mut server = need!(start(&dir, &emulator));
    assert!(types(&server).contains(TYPE), "{}", types(&server));
    let output = server.output();
    assert!(
        output.contains("broken.yml:") && !output.contains(KEY),
        "{output}"
    );
    cli.knows(&server);
    let offers = cli.succeeds(&["offer", "-b", TYPE, "--gpu", "A10"]);
    assert!(offers.contains(SIZE.0) && offers.contains(SIZE.1), "{offers}");
    cli.write(
        "fleet.dstack.yml",
        &format!("type: fleet\nname: cloud\nnodes: 0..1\nbackends: [{TYPE}]\n"),
    )
    .unwrap();
    cli.succeeds(&["apply", "-f", "fleet.dstack.yml", "-y"]);

    fs_err::remove_file(dir.path().join("lambda.yml")).unwrap();
    server.terminate().unwrap();
    server.without_variable("DSTACK_SERVER_BACKEND_ENDPOINTS");
    server.start().unwrap();
    assert!(!types(&server).contains(TYPE), "{}", types(&server));
    let project = server.get("/api/projects/main/get", &json!({})).unwrap();
    let configured = project["backends"].as_array().unwrap();
    assert!(
        configured.iter().any(|backend| backend["name"] == TYPE),
        "it is kept: {project}"
    );
    let fleets = cli.succeeds(&["fleet"]);
    assert!(fleets.contains("cloud"), "{fleets}");

    fs_err::write(dir.path().join("lambda.yml"), manifest()).unwrap();
    server.terminate().unwrap();
    server.start().unwrap();
    assert!(types(&server).contains(TYPE), "{}", types(&server));
}

#[test]
fn the_command_line_of_0_22_5_reads_lists_with_such_a_backend() {
    let (python, emulator, dir) = (need!(Cli::python()), emulator(), TempDir::new().unwrap());
    fs_err::write(dir.path().join("lambda.yml"), manifest()).unwrap();
    let server = need!(start(&dir, &emulator));
    python.knows(&server);
    let offers = python.succeeds(&["offer", "--gpu", "A10", "--max-offers", "3"]);
    assert!(offers.contains(SIZE.0) && offers.contains("dstack"), "{offers}");
}
