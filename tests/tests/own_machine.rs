//! The server's own machine: offered while only people of this machine reach the server, or when somebody says so.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use dstack_tests::runs::submit;
use dstack_tests::server::{Server, Setup};
use dstack_tests::{need, parts};
use serde_json::{Value, json};

const NOTICE: &str = "this machine is not offered as an instance";

fn fleets(server: &Server) -> Vec<Value> {
    let fleets = server.get("/api/project/main/fleets/list", &json!({})).unwrap();
    fleets.as_array().unwrap().clone()
}

#[test]
fn it_is_not_offered_where_others_reach_the_server() {
    let server = need!(Setup::local()).listening_on("0.0.0.0").start().unwrap();
    assert!(server.output().contains(NOTICE), "{}", server.output());
    assert!(server.output().contains("--local"), "{}", server.output());
    assert!(fleets(&server).is_empty());
}

#[test]
fn it_is_offered_there_on_purpose() {
    let flag = need!(Setup::local()).argument("--local");
    let variable = need!(Setup::local()).variable("DSTACK_SERVER_LOCAL", "1");
    for setup in [flag, variable] {
        let server = setup.listening_on("0.0.0.0").start().unwrap();
        assert!(!server.output().contains(NOTICE), "{}", server.output());
        assert_eq!(fleets(&server)[0]["name"], "local");
    }
}

/// As behind a proxy: the server listens on localhost, and is known by another name.
#[test]
fn it_is_not_offered_where_the_public_url_is_elsewhere() {
    let setup = need!(Setup::local()).variable("DSTACK_SERVER_URL", "https://dstack.example.org");
    let server = setup.start().unwrap();
    assert!(server.output().contains(NOTICE), "{}", server.output());
    assert!(
        server.output().contains("dstack.example.org"),
        "{}",
        server.output()
    );
    assert!(fleets(&server).is_empty());
}

#[test]
fn it_is_not_offered_where_the_variable_says_no() {
    let setup = need!(Setup::local()).variable("DSTACK_SERVER_LOCAL", "0");
    let server = setup.start().unwrap();
    assert!(!server.output().contains(NOTICE), "{}", server.output());
    assert!(fleets(&server).is_empty());
}

/// The server was killed and could not end its agent; the next one does not want it.
#[test]
fn an_idle_agent_that_was_left_is_ended_and_the_fleet_can_be_deleted() {
    let mut server = need!(Setup::local()).start().unwrap();
    let delete = json!({"names": ["local"]});
    let refused = server
        .get("/api/project/main/fleets/delete", &delete)
        .unwrap_err();
    assert!(refused.to_string().contains("--no-local"), "{refused}");
    server.kill().unwrap();
    server.listen_on("0.0.0.0");
    server.start().unwrap();
    let ended = "the agent that an earlier server left running on this machine was ended";
    assert!(server.output().contains(ended), "{}", server.output());
    server.get("/api/project/main/fleets/delete", &delete).unwrap();
}

/// As when a package of the same version replaces the program while a job runs and the server is down.
#[test]
fn new_jobs_run_after_the_agent_was_replaced_by_another_build() {
    let setup = need!(Setup::local());
    let (agent, folder) = (need!(parts::agent()), tempfile::tempdir().unwrap());
    let path = |name: &str| folder.path().join(name);
    let install = |name: &str| {
        fs_err::copy(&agent, path(name)).unwrap();
        fs_err::remove_file(path("dstack-agent")).ok();
        std::os::unix::fs::symlink(path(name), path("dstack-agent")).unwrap();
    };
    install("first");
    let named = path("dstack-agent").display().to_string();
    let mut server = setup.variable("DSTACK_AGENT_PATH", named).start().unwrap();
    let commands = ["echo begun; while [ ! -e $HOME/end ]; do sleep 0.1; done; echo over"];
    let home = json!({"env": {"HOME": server.home()}});
    submit(&server, "long", &commands, &home)
        .unwrap()
        .wait_for_log("begun\n")
        .unwrap();
    server.kill().unwrap();
    install("second");
    fs_err::remove_file(path("first")).unwrap();
    server.start().unwrap();
    let new = submit(&server, "new", &["echo new"], &json!({})).unwrap();
    assert_eq!(
        new.wait_until_finished().unwrap(),
        "done",
        "{:#}",
        new.get().unwrap()
    );
    fs_err::write(server.home().join("end"), "").unwrap();
    let long = dstack_tests::runs::attach(&server, "long");
    assert_eq!(long.wait_until_finished().unwrap(), "done");
}

#[test]
fn jobs_go_on_when_it_is_not_offered_any_more_and_new_ones_are_told() {
    let mut server = need!(Setup::local()).start().unwrap();
    let commands = ["i=0; while [ ! -e $HOME/end ]; do i=$((i+1)); echo line $i; sleep 0.1; done; echo over"];
    let home = json!({"env": {"HOME": server.home()}});
    submit(&server, "long", &commands, &home)
        .unwrap()
        .wait_for_log("line 3\n")
        .unwrap();
    server.kill().unwrap();
    server.listen_on("0.0.0.0");
    server.start().unwrap();
    assert!(server.output().contains(NOTICE), "{}", server.output());

    let new = submit(&server, "new", &["echo new"], &json!({})).unwrap();
    assert_eq!(new.wait_until_finished().unwrap(), "failed");
    let said = new.get().unwrap().to_string();
    assert!(said.contains("dstack server --local"), "{said}");

    fs_err::write(server.home().join("end"), "").unwrap();
    let long = dstack_tests::runs::attach(&server, "long");
    assert_eq!(
        long.wait_until_finished().unwrap(),
        "done",
        "{:#}",
        long.get().unwrap()
    );
    assert!(long.logs().unwrap().ends_with("over\n"));
    assert_eq!(
        fleets(&server)[0]["name"],
        "local",
        "it is there for its next offer"
    );

    // Told to, it takes jobs again.
    server.terminate().unwrap();
    server.listen_on("127.0.0.1");
    server.start().unwrap();
    let again = submit(&server, "again", &["echo again"], &json!({})).unwrap();
    assert_eq!(again.wait_until_finished().unwrap(), "done");
}
