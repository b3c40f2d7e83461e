//! Two projects on one host of an SSH fleet: what each sees of the other, and what is left on the host when all is over.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // tests

use anyhow::Result;
use dstack_tests::fleets::{apply, delete, events, start_with, traces, until_idle};
use dstack_tests::hosts::{Has, Host, IMAGE, Lab, USUAL};
use dstack_tests::http::Client;
use dstack_tests::need;
use dstack_tests::parts::Part;
use dstack_tests::runs::{Run, TEST_TIMEOUT, submit_in};
use dstack_tests::server::{Server, eventually};
use serde_json::{Value, json};

const OTHER: &str = "other";

/// A host whose engine can give a job a part of it.
fn host(lab: &Lab) -> Part<Host<'_>> {
    for (number, has) in [(2, USUAL), (3, &[Has::Docker, Has::Sudo])] {
        let host = lab.host(&format!("host{number}"), number, has)?;
        let limits = host.run("docker info --format '{{.CPUCfsQuota}}'").unwrap();
        if limits.trim() == "true" {
            return Ok(host);
        }
    }
    Err("engines of hosts cannot limit CPUs on this machine".to_owned())
}

/// A fleet of one host with two blocks, which project `other` may use as well; the token of the only member of that project.
fn shared(server: &Server, lab: &Lab, host: &Host<'_>) -> String {
    let processors = host.run("nproc").unwrap();
    // Each block has as many processors as the others.
    let blocks: u32 = processors.trim().parse().unwrap();
    let entry = json!({"hostname": host.address, "blocks": blocks});
    apply(server, &lab.fleet("lab", &[entry], &json!({})).unwrap());
    until_idle(server, "lab", 1);
    server
        .get("/api/projects/create", &json!({"project_name": OTHER}))
        .unwrap();
    let user = json!({"username": "bob", "global_role": "user"});
    server.get("/api/users/create", &user).unwrap();
    let member = json!({"members": [{"username": "bob", "project_role": "user"}]});
    server
        .get(&format!("/api/projects/{OTHER}/add_members"), &member)
        .unwrap();
    let export = json!({"name": "shared", "importer_projects": [OTHER], "exported_fleets": ["lab"]});
    server.get("/api/project/main/exports/create", &export).unwrap();
    let bob = server
        .get("/api/users/get_user", &json!({"username": "bob"}))
        .unwrap();
    bob["creds"]["token"].as_str().unwrap().to_owned()
}

/// A task on that host; it takes one block.
fn task<'a>(server: &'a Server, project: &str, name: &str, commands: &[&str], volumes: &[&str]) -> Run<'a> {
    let fleet = if project == OTHER { "main/lab" } else { "lab" };
    let more = json!({"image": IMAGE, "user": "root", "fleets": [fleet], "volumes": volumes,
        "resources": {"cpu": 1, "memory": "0.1GB..", "disk": "0.1GB.."}});
    submit_in(server, project, name, commands, &more).unwrap()
}

fn address(host: &Host<'_>, run: &Run<'_>) -> String {
    let task = run.submission().unwrap()["id"].as_str().unwrap().to_owned();
    let inspect = format!(
        "docker inspect --format '{{{{range .NetworkSettings.Networks}}}}{{{{.IPAddress}}}}{{{{end}}}}' \
         $(docker ps -q --filter label=ai.dstack.shim.task-id={task})"
    );
    host.run(&inspect).unwrap().trim().to_owned()
}

fn keys(host: &Host<'_>) -> String {
    host.run("cat /home/me/.ssh/authorized_keys /root/.ssh/authorized_keys")
        .unwrap()
}

/// What a member of `other` is told of something of project `main`.
fn told(server: &Server, token: &str, route: &str, body: &Value) -> Result<(u16, String)> {
    let url = format!("{}/api/project/{route}", server.url());
    let answer = Client::default().post(&url, token, body)?;
    Ok((answer.status, answer.text()))
}

#[test]
fn two_projects_on_a_host_see_nothing_of_one_another_and_leave_nothing() {
    let (server, lab) = need!(start_with(
        |setup| setup.variable("DSTACK_SERVER_EXPORTS_ENABLED", "1")
    ));
    let host = need!(host(&lab));
    let keys_before = keys(&host);
    let bob = shared(&server, &lab, &host);
    let keys_of_fleet = keys(&host);
    assert_ne!(keys_before, keys_of_fleet);

    host.run("mkdir -p /srv/ours /srv/theirs && echo ours >/srv/ours/file && echo theirs >/srv/theirs/file")
        .unwrap();
    let victim = task(
        &server,
        "main",
        "victim",
        &[
            "echo private >/tmp/private",
            "cat /data/file",
            "echo printed-by-main",
            "httpd -f -p 8000 -h /tmp",
        ],
        &["/srv/ours:/data"],
    );
    victim.wait_for(&["running"]).unwrap();
    victim.wait_for_log("printed-by-main").unwrap();
    let runner = format!("http://{}:10999/api", address(&host, &victim));
    let ports = victim.submission().unwrap()["job_runtime_data"]["ports"].clone();
    let port = |inside: &str| ports[inside].as_u64().unwrap();
    // Of the other project: it looks for whatever it can reach.
    let get = |url: String| format!("echo \"got $(wget -qO- {url} 2>&1)\"");
    let commands = [
        get(format!("'{runner}/pull?timestamp=0'")),
        get(format!("'{runner}/stream?timestamp=0'")),
        format!("echo \"got $(wget -qO- --post-data= {runner}/stop 2>&1)\""),
        get(format!("http://172.17.0.1:{}/api/pull", port("10999"))),
        get("http://172.17.0.1:10998/api/tasks".to_owned()),
        "ls /tmp /data".to_owned(),
        "cat /data/file".to_owned(),
        "echo looked".to_owned(),
        "sleep 600".to_owned(),
    ];
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    let curious = task(&server, OTHER, "curious", &commands, &["/srv/theirs:/data"]);
    curious.wait_for(&["running"]).unwrap();
    curious.wait_for_log("looked").unwrap_or_else(|error| {
        panic!(
            "{error}\n{:#}\n{}",
            curious.get().unwrap(),
            curious.logs().unwrap()
        )
    });
    let log = curious.logs().unwrap();
    assert_eq!(
        log.matches("got wget: server returned error: HTTP/1.1 401")
            .count(),
        3,
        "{log}"
    );
    assert_eq!(log.matches("Connection refused").count(), 2, "{log}");
    assert!(log.contains("\ntheirs\n"), "{log}");
    for secret in ["printed-by-main", "private", "ours"] {
        assert!(!log.contains(secret), "{secret}: {log}");
    }
    assert_eq!(victim.status().unwrap(), "running", "{}", victim.logs().unwrap());
    assert_ne!(keys(&host), keys_of_fleet, "users may attach through the host");
    assert!(victim.logs().unwrap().contains("\nours\n"));

    // Nor does the API tell a member of one project of the other's.
    let job = victim.submission().unwrap()["id"].clone();
    let poll = json!({"run_name": "victim", "job_submission_id": job, "limit": 10});
    for (route, body) in [
        ("main/logs/poll", &poll),
        ("main/runs/get", &json!({"run_name": "victim"})),
        ("main/fleets/delete", &json!({"names": ["lab"]})),
    ] {
        let (status, text) = told(&server, &bob, route, body).unwrap();
        assert_eq!(status, 403, "{route}: {text}");
    }
    // Under the name of his own project it does not exist.
    let (_, text) = told(&server, &bob, "other/logs/poll", &poll).unwrap();
    assert!(text.contains("\"logs\":[]"), "{text}");

    for run in [&victim, &curious] {
        run.stop(false).unwrap();
        assert_eq!(run.wait_until_finished().unwrap(), "terminated");
    }
    eventually("the keys of the jobs are gone", TEST_TIMEOUT, || {
        Ok((keys(&host) == keys_of_fleet).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", keys(&host)));
    delete(&server, "lab");
    assert_eq!(traces(&host), "", "{:#?}", events(&server));
    assert_eq!(keys(&host), keys_before);
    assert_eq!(host.run("docker ps -aq").unwrap(), "");
}
