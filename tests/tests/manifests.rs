//! A backend that a file describes: tried out by the command line, configured at a server, and gone when the file is.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)] // tests

use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::Uri;
use axum::middleware::map_request;
use axum::response::Redirect;
use axum::routing::post;
use dstack_backend_kit::{Emulator as _, serve};
use dstack_emulator_lambda::{Lambda, Size, Times};
use dstack_tests::cli::Cli;
use dstack_tests::parts::Part;
use dstack_tests::server::{Server, Setup, eventually};
use dstack_tests::{manifests, need};
use serde_json::{Value, json};
use tempfile::TempDir;

const KEY: &str = "canary-manifest-key";

/// How long anything may take that a test waits for.
const TIMEOUT: Duration = Duration::from_secs(60);

const TYPE: &str = manifests::LAMBDA;

/// A size of the catalogue, and a region that has it.
const SIZE: (&str, &str) = ("gpu_1x_a10", "us-east-1");

fn emulator() -> Lambda {
    emulator_that_boots_for(Duration::from_millis(100))
}

fn emulator_that_boots_for(boots: Duration) -> Lambda {
    let times = Times {
        boots,
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

/// The command line in a folder with a manifest and the key.
fn with_files(cli: Cli, manifest: &str) -> Cli {
    cli.write("acme.yml", manifest).unwrap();
    cli.write("key.txt", KEY).unwrap();
    cli
}

/// Tries that manifest out at this URL.
fn check_at(url: &str) -> [&str; 7] {
    [
        "backend",
        "check",
        "acme.yml",
        "--url",
        url,
        "--creds",
        "api_key=@key.txt",
    ]
}

#[test]
fn the_command_line_tries_a_file_out() {
    let cli = with_files(need!(Cli::ours()), &manifests::lambda());
    let emulator = emulator();
    let url = address(&emulator);
    let told = cli.succeeds(&["backend", "check", "acme.yml", "--offline"]);
    assert!(told.contains("lambda-manifest (Lambda) is described"), "{told}");
    let check = check_at(&url);
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

    cli.write(
        "acme.yml",
        &manifests::lambda().replace("name: /name", "name: /label"),
    )
    .unwrap();
    let ended = cli.run(&check).unwrap();
    assert_eq!(ended.code, Some(1), "{}", ended.text);
    assert!(
        ended.text.contains("`/label` (machine.read.name)"),
        "{}",
        ended.text
    );
    assert_eq!(emulator.ledger().alive(), []);

    cli.write(
        "acme.yml",
        &manifests::lambda().replace("state: /status", "stat: /status"),
    )
    .unwrap();
    let ended = cli.run(&["backend", "check", "acme.yml", "--offline"]).unwrap();
    assert_eq!(ended.code, Some(1));
    let line = manifests::lambda()
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

#[test]
fn a_check_that_is_interrupted_ends_what_it_made() {
    let cli = with_files(need!(Cli::ours()), &manifests::lambda());
    for signal in ["TERM", "INT"] {
        let emulator = emulator_that_boots_for(Duration::from_secs(3600));
        let url = address(&emulator);
        let mut running = cli.start(&check_at(&url)).unwrap();
        eventually("a machine is made", TIMEOUT, || {
            running.still_runs()?;
            Ok((emulator.ledger().alive().len() == 1).then_some(()))
        })
        .unwrap();
        running.signal(signal);
        let ended = running.ended(TIMEOUT).unwrap();
        assert_eq!(ended.code, Some(1), "{signal}: {}", ended.text);
        assert!(
            ended
                .text
                .contains("FAILED  interrupted: what was made is removed"),
            "{signal}: {}",
            ended.text
        );
        assert_eq!(
            (emulator.ledger().count(), emulator.ledger().alive()),
            (1, Vec::new()),
            "{signal}: {}",
            ended.text
        );
    }
}

/// Requests that came, with all headers.
#[derive(Debug, Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// Serves this, and keeps what is asked for.
    fn serve(&self, router: Router) -> SocketAddr {
        let seen = Arc::clone(&self.0);
        let keep = move |request: Request| {
            let text = format!("{} {} {:?}", request.method(), request.uri(), request.headers());
            seen.lock().unwrap().push(text);
            ready(request)
        };
        serve(router.layer(map_request(keep)))
    }

    /// Whether anything was asked for after a launch.
    fn goes_on_after_a_launch(&self) -> bool {
        let all = self.all();
        let launch = all.iter().position(|text| text.contains("/launch"));
        launch.is_some_and(|at| at + 1 < all.len())
    }
}

/// Sends whoever asks to `elsewhere`, with method and body.
fn redirect(elsewhere: SocketAddr) -> impl Fn(Uri) -> Ready<Redirect> + Clone + Send + Sync + 'static {
    move |uri: Uri| ready(Redirect::temporary(&format!("http://{elsewhere}{uri}")))
}

/// Whoever is sent elsewhere would take the key along: in headers of any name, and in launches.
#[test]
fn a_vendor_that_redirects_is_not_followed() {
    let in_a_header = manifests::lambda().replacen(
        "auth: {bearer: api_key}",
        "auth: {headers: {X-Api-Key: {field: api_key}}}",
        1,
    );
    assert!(in_a_header.contains("X-Api-Key"));
    let cli = with_files(need!(Cli::ours()), &in_a_header);
    let (asked, seen) = (Seen::default(), Seen::default());
    let elsewhere = seen.serve(Router::new().fallback(async || "{}"));
    let redirecting = asked.serve(Router::new().fallback(redirect(elsewhere)));
    let url = format!("http://{redirecting}/api/v1");
    let ended = cli.run(&check_at(&url)).unwrap();
    assert_eq!((ended.code, seen.all()), (Some(1), Vec::new()), "{}", ended.text);
    assert!(
        ended.text.contains("FAILED  credentials: ") && ended.text.contains("307"),
        "{}",
        ended.text
    );

    let by_the_check = asked.all().len();
    assert!(by_the_check > 0);

    // The server itself has the same rule.
    let dir = TempDir::new().unwrap();
    fs_err::write(dir.path().join("lambda.yml"), &in_a_header).unwrap();
    let server = need!(start_at(&dir, &url));
    let output = server.output();
    assert!(
        output.contains("This backend cannot be configured") && output.contains("307"),
        "{output}"
    );
    assert!(asked.all().len() > by_the_check);
    assert_eq!(seen.all(), [""; 0]);

    // Only launches are sent elsewhere: everything else works.
    cli.write("acme.yml", &manifests::lambda()).unwrap();
    let (emulator, asked) = (emulator(), Seen::default());
    let launch = "/api/v1/instance-operations/launch";
    let router = Router::new()
        .route(launch, post(redirect(elsewhere)))
        .fallback_service(emulator.router());
    let url = format!("http://{}/api/v1", asked.serve(router));
    let mut running = cli.start(&check_at(&url)).unwrap();
    // Nobody knows what became of it: it is looked for.
    eventually("a machine is asked for and looked for", TIMEOUT, || {
        running.still_runs()?;
        Ok(asked.goes_on_after_a_launch().then_some(()))
    })
    .unwrap();
    let text = running.text();
    assert!(text.contains("ok      offers: "), "{text}");
    assert_eq!(seen.all(), [""; 0]);
    assert_eq!(emulator.ledger().count(), 0);
    // It would look for what it asked for until no request can be under way any more.
    running.signal("KILL");
}

/// A server with this directory of files.
fn start(dir: &TempDir, emulator: &Lambda) -> Part<Server> {
    start_at(dir, &address(emulator))
}

/// As [`start`], with the vendor at this URL.
fn start_at(dir: &TempDir, url: &str) -> Part<Server> {
    let config = format!(
        "projects:\n- name: main\n  backends:\n  - type: {TYPE}\n    creds:\n      type: api_key\n      api_key: {KEY}\n"
    );
    let setup = Setup::local()?
        .config(&config)
        .variable("DSTACK_SERVER_BACKENDS_DIR", dir.path().display().to_string())
        .variable("DSTACK_SERVER_BACKEND_ENDPOINTS", format!("{TYPE}={url}"));
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
    fs_err::write(dir.path().join("lambda.yml"), manifests::lambda()).unwrap();
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

    fs_err::write(dir.path().join("lambda.yml"), manifests::lambda()).unwrap();
    server.terminate().unwrap();
    server.start().unwrap();
    assert!(types(&server).contains(TYPE), "{}", types(&server));
}

/// What `dstack doctor` finds of these checks: subject, problem and remedy.
fn findings(cli: &Cli, check: &str) -> Vec<(String, String, String)> {
    let ended = cli.run(&["doctor", "--json"]).unwrap();
    let diagnosis: Value = serde_json::from_str(&ended.text).unwrap_or_else(|_| panic!("{}", ended.text));
    let found = diagnosis["findings"].as_array().unwrap().iter();
    let text = |finding: &Value, field: &str| finding[field].as_str().unwrap().to_owned();
    found
        .filter(|finding| finding["check"] == check)
        .map(|finding| {
            (
                text(finding, "subject"),
                text(finding, "problem"),
                text(finding, "remedy"),
            )
        })
        .collect()
}

#[test]
fn files_that_are_left_out_and_backends_without_a_file_are_found() {
    let (cli, emulator, dir) = (need!(Cli::ours()), emulator(), TempDir::new().unwrap());
    let write = |name: &str, text: &str| fs_err::write(dir.path().join(name), text).unwrap();
    let right = manifests::lambda();
    let broken = right.replacen("state: /status", "stat: /status", 1);
    let line_of = |text: &str, part: &str| text.lines().position(|line| line.contains(part)).unwrap() + 1;
    write("a.yml", &right);
    write("broken.yml", &broken);
    write(
        "built-in.yml",
        &right.replacen("type: lambda-manifest", "type: lambda", 1),
    );
    write("twice.yml", &right);
    let mut server = need!(start(&dir, &emulator));
    cli.knows(&server);
    let found = findings(&cli, "backend-files");
    let line = line_of(&right, "type: lambda-manifest");
    let expected = [
        (
            "broken.yml",
            line_of(&broken, "stat: /status"),
            "`machine.read.stat`",
        ),
        (
            "built-in.yml",
            line,
            "`lambda` is a type that this version has by itself",
        ),
        ("twice.yml", line, "a.yml describes `lambda-manifest` already"),
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for ((subject, problem, _), (name, line, cause)) in found.iter().zip(expected) {
        let file = dir.path().join(name);
        assert_eq!(subject, &format!("file {}", file.display()));
        assert!(
            problem.contains(&format!("line {line}: ")) && problem.contains(cause),
            "{problem}"
        );
    }
    assert_eq!(findings(&cli, "backends"), []);

    for name in ["a.yml", "broken.yml", "built-in.yml", "twice.yml"] {
        fs_err::remove_file(dir.path().join(name)).unwrap();
    }
    server.terminate().unwrap();
    server.without_variable("DSTACK_SERVER_BACKEND_ENDPOINTS");
    server.start().unwrap();
    assert_eq!(findings(&cli, "backend-files"), []);
    let found = findings(&cli, "backends");
    let [(subject, problem, remedy)] = found.as_slice() else {
        panic!("{found:#?}");
    };
    assert!(
        subject == "backend lambda-manifest" && problem.contains("does not know the type"),
        "{found:#?}"
    );
    assert!(
        remedy.contains("`dstack backend delete lambda-manifest`"),
        "{remedy}"
    );
    let told = cli.succeeds(&["backend", "delete", TYPE, "-y"]);
    assert!(told.contains("Backend lambda-manifest deleted"), "{told}");
    assert_eq!(findings(&cli, "backends"), []);
    assert!(!server.output().contains(KEY), "{}", server.output());
}

/// What it has made cannot be ended without the file: it says so, and goes once the machine has.
#[test]
fn a_backend_without_its_file_is_not_deleted_while_it_has_a_machine() {
    let (cli, emulator, dir) = (need!(Cli::ours()), emulator(), TempDir::new().unwrap());
    let file = dir.path().join("lambda.yml");
    fs_err::write(&file, manifests::lambda()).unwrap();
    let mut server = need!(start(&dir, &emulator));
    cli.knows(&server);
    let fleet = format!("type: fleet\nname: cloud\nnodes: 1\nbackends: [{TYPE}]\nresources:\n  gpu: A10\n");
    cli.write("fleet.dstack.yml", &fleet).unwrap();
    cli.succeeds(&["apply", "-f", "fleet.dstack.yml", "-y", "-d"]);
    eventually("a machine is made", TIMEOUT, || {
        Ok((emulator.ledger().alive().len() == 1).then_some(()))
    })
    .unwrap();

    fs_err::remove_file(&file).unwrap();
    server.terminate().unwrap();
    server.start().unwrap();
    let refused = cli.run(&["backend", "delete", TYPE, "-y"]).unwrap();
    assert_eq!(refused.code, Some(1), "{}", refused.text);
    assert!(
        refused.text.contains("has active instances") && refused.text.contains("DSTACK_SERVER_BACKENDS_DIR"),
        "{}",
        refused.text
    );
    assert_eq!(emulator.ledger().alive().len(), 1);

    fs_err::write(&file, manifests::lambda()).unwrap();
    server.terminate().unwrap();
    server.start().unwrap();
    cli.succeeds(&["fleet", "delete", "cloud", "-y"]);
    eventually("the machine is gone", TIMEOUT, || {
        Ok(emulator.ledger().alive().is_empty().then_some(()))
    })
    .unwrap();
    eventually("the backend is deleted", TIMEOUT, || {
        let ended = cli.run(&["backend", "delete", TYPE, "-y"])?;
        Ok((ended.code == Some(0)).then_some(()))
    })
    .unwrap();
}

#[test]
fn the_command_line_of_0_22_5_reads_lists_with_such_a_backend() {
    let (python, emulator, dir) = (need!(Cli::python()), emulator(), TempDir::new().unwrap());
    fs_err::write(dir.path().join("lambda.yml"), manifests::lambda()).unwrap();
    let server = need!(start(&dir, &emulator));
    python.knows(&server);
    let offers = python.succeeds(&["offer", "--gpu", "A10", "--max-offers", "3"]);
    assert!(offers.contains(SIZE.0) && offers.contains("dstack"), "{offers}");
}
