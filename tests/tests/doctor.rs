//! What a database that was restored from a backup does not know any more: found by `dstack doctor`, and ended by the server.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // tests

use std::path::Path;
use std::sync::Arc;

use dstack_backend_kit::{Emulator as _, serve};
use dstack_emulator_cloudrift::CloudRift;
use dstack_tests::cli::Cli;
use dstack_tests::fleets::until_told;
use dstack_tests::parts::{self, Part};
use dstack_tests::runs::{TEST_TIMEOUT, submit};
use dstack_tests::server::{Server, Setup, eventually};
use dstack_tests::{need, skip};
use serde_json::{Value, json};

const KEY: &str = "canary-cloudrift-key";

/// A size of the catalogue, and a data center that has it.
const SIZE: (&str, &str) = ("rtx49-10c.1", "us-east-nc-nr-1");

/// Where orphans are ended as soon as they are found.
fn start(cloud: &CloudRift) -> Part<Server> {
    let address = serve(cloud.router());
    let endpoints = format!("cloudrift=http://{address}/api/v1");
    let setup = Setup::local()?
        .variable("DSTACK_SERVER_BACKEND_ENDPOINTS", endpoints)
        // The backend is configured by the API.
        .variable("DSTACK_SERVER_CONFIG_DISABLED", "1")
        .variable("DSTACK_SERVER_ORPHANS", "remove-unknown")
        .variable("DSTACK_SERVER_ORPHANS_GRACE_SECONDS", "0");
    Ok(setup.start().unwrap())
}

fn copy(from: &Path, to: &Path) {
    fs_err::create_dir_all(to).unwrap();
    for entry in fs_err::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap();
        if path.is_file() {
            fs_err::copy(&path, to.join(name)).unwrap();
        }
    }
}

#[test]
fn a_machine_that_a_restored_database_does_not_know_is_found_and_ended() {
    if parts::on_postgres() {
        skip!("the database that is copied is one of SQLite");
    }
    let cloud = Arc::new(CloudRift::new(KEY, vec![(SIZE.0.to_owned(), SIZE.1.to_owned())]));
    let (mut server, cli) = (need!(start(&cloud)), need!(Cli::ours()));
    let backend = json!({"type": "cloudrift", "creds": {"type": "api_key", "api_key": KEY}});
    server.get("/api/project/main/backends/create", &backend).unwrap();
    server.terminate().unwrap();
    let (data, backup) = (
        server.home().join(".dstack/server/data"),
        server.home().join("backup"),
    );
    copy(&data, &backup);

    server.start().unwrap();
    let fleet = json!({"type": "fleet", "name": "cloud", "nodes": "0..1", "backends": ["cloudrift"]});
    let plan =
        json!({"plan": {"spec": {"configuration": fleet, "profile": {"name": "default"}}}, "force": true});
    server.get("/api/project/main/fleets/apply", &plan).unwrap();
    let wanted = json!({"user": "root", "fleets": ["cloud"],
        "resources": {"cpu": "1..", "memory": "0.1GB..", "disk": "1GB..", "gpu": "0.."}});
    submit(&server, "train", &["true"], &wanted).unwrap();
    let made = || Ok((cloud.ledger().alive().len() == 1).then_some(()));
    eventually("a machine is made", TEST_TIMEOUT, made).unwrap();
    cli.add_project(&server).unwrap();
    let of_account = || cli.run(&["doctor", "--account", "cloudrift"]).unwrap();
    let known = of_account();
    assert!(
        known.code == Some(0) && known.text.contains("instance cloud-0"),
        "{}",
        known.text
    );

    server.kill().unwrap();
    fs_err::remove_dir_all(&data).unwrap();
    copy(&backup, &data);
    server.start().unwrap();
    let lost = of_account();
    assert!(
        lost.code == Some(0) && lost.text.contains("nobody"),
        "{}",
        lost.text
    );
    let found = cli.run(&["doctor", "--json"]).unwrap();
    assert_eq!(found.code, Some(1), "{}", found.text);
    let diagnosis: Value = serde_json::from_str(&found.text).unwrap();
    let findings = diagnosis["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 1, "{diagnosis:#}");
    assert_eq!(
        (&findings[0]["check"], &findings[0]["projects"]),
        (&json!("orphans"), &json!(["main"]))
    );
    until_told(&server, "Orphan ended in cloudrift: machine ");
    assert!(cloud.ledger().alive().is_empty());
    let healthy = cli.run(&["doctor"]).unwrap();
    assert!(
        healthy.code == Some(0) && healthy.text.contains("Nothing is wrong."),
        "{}",
        healthy.text
    );
    assert!(
        !server.output().contains(KEY),
        "the key is shown in {}",
        server.output()
    );
}
