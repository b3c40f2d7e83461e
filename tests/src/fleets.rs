//! SSH fleets on a server under test, through its API.

use serde_json::{Value, json};

use crate::hosts::{Host, IMAGE, Lab};
use crate::parts::{self, Part};
use crate::runs::{Run, TEST_TIMEOUT, submit};
use crate::server::{Server, Setup, eventually};

/// A server, and a network for hosts.
///
/// # Errors
/// The reason to skip the test.
pub fn start() -> Part<(Server, Lab)> {
    start_with(|setup| setup)
}

/// As [`start`], with a server that is set up in another way.
///
/// # Errors
/// The reason to skip the test.
#[allow(clippy::missing_panics_doc)] // a server that does not start fails the test
pub fn start_with(change: impl FnOnce(Setup) -> Setup) -> Part<(Server, Lab)> {
    let lab = Lab::new()?;
    // What the image says of itself is asked of this machine's engine, as there is no registry.
    parts::image()?;
    let setup = change(Setup::local()?);
    Ok((setup.start().unwrap(), lab))
}

/// Applies the fleet that [`Lab::fleet`] gives.
pub fn apply(server: &Server, spec: &Value) {
    let body = json!({"plan": {"spec": spec}, "force": true});
    server.get("/api/project/main/fleets/apply", &body).unwrap();
}

/// The fleet as the API shows it.
pub fn fleet(server: &Server, name: &str) -> Value {
    server
        .get("/api/project/main/fleets/get", &json!({"name": name}))
        .unwrap()
}

/// Statuses of a fleet's instances.
pub fn statuses(fleet: &Value) -> Vec<&str> {
    let instances = fleet["instances"].as_array().unwrap();
    instances
        .iter()
        .map(|instance| instance["status"].as_str().unwrap())
        .collect()
}

/// Waits until so many instances are idle, and none is anything else.
#[allow(clippy::panic)] // with the whole story
pub fn until_idle(server: &Server, name: &str, count: usize) -> Value {
    let idle = eventually("the hosts are idle", TEST_TIMEOUT, || {
        let fleet = fleet(server, name);
        Ok((statuses(&fleet) == vec!["idle"; count]).then_some(fleet))
    });
    idle.unwrap_or_else(|error| panic!("{error}\n{:#}\n{}", fleet(server, name), server.output()))
}

/// Deletes the fleet, and waits until it is gone.
pub fn delete(server: &Server, name: &str) {
    server
        .get("/api/project/main/fleets/delete", &json!({"names": [name]}))
        .unwrap();
    eventually("the fleet is gone", TEST_TIMEOUT, || {
        let fleets = server.get("/api/project/main/fleets/list", &json!({}))?;
        let names = fleets
            .as_array()
            .unwrap()
            .iter()
            .map(|fleet| fleet["name"].as_str().unwrap());
        Ok((!names.into_iter().any(|found| found == name)).then_some(()))
    })
    .unwrap();
}

/// The latest hundred events, the latest first.
pub fn events(server: &Server) -> Vec<String> {
    let events = server.get("/api/events/list", &json!({"limit": 100})).unwrap();
    let events = events.as_array().unwrap().iter();
    events
        .map(|event| event["message"].as_str().unwrap().to_owned())
        .collect()
}

/// Waits for an event that has these words in it.
#[allow(clippy::panic)] // with the whole story
pub fn until_told(server: &Server, words: &str) -> String {
    eventually(words, TEST_TIMEOUT, || {
        Ok(events(server).into_iter().find(|event| event.contains(words)))
    })
    .unwrap_or_else(|error| panic!("{error}\n{:#?}\n{}", events(server), server.output()))
}

/// A task in a container of fleet `lab`; `more` holds further fields.
pub fn task<'a>(server: &'a Server, name: &str, commands: &[&str], more: &Value) -> Run<'a> {
    let mut fields = json!({"image": IMAGE, "user": "root", "fleets": ["lab"]});
    fields
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    submit(server, name, commands, &fields).unwrap()
}

/// Runs a task on fleet `lab` to its end.
pub fn runs_a_task(server: &Server, name: &str) {
    let run = task(server, name, &["echo hello from $(hostname)"], &json!({}));
    let ended = run.wait_until_finished().unwrap();
    assert_eq!(ended, "done", "{:#}\n{}", run.get().unwrap(), server.output());
    let log = run.logs().unwrap();
    assert!(log.contains("hello from "), "{log}");
}

/// Everything of ours on a host: files, units, processes, keys.
pub fn traces(host: &Host<'_>) -> String {
    let look = "ls -d /usr/local/lib/dstack /etc/systemd/system/dstack-shim.service /root/.dstack /var/lib/dstack-gateway 2>/dev/null; \
                pgrep -a dstack-agent; grep -h dstack /root/.ssh/authorized_keys /home/me/.ssh/authorized_keys; true";
    host.run(look).unwrap()
}
