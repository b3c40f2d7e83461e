//! Another server of this kind as a cloud: it has a host of a lab, on which jobs of the first server run.

use dstack_tests::cli::Cli;
use dstack_tests::hosts::{Host, IMAGE, Lab, USUAL};
use dstack_tests::need;
use dstack_tests::parts::{self, Part};
use dstack_tests::runs::{TEST_TIMEOUT, attach};
use dstack_tests::server::{Server, Setup, TOKEN, eventually};
use serde_json::{Value, json};

use crate::{CREATE, is_attached_to_and_stopped, nothing_is_left, runs_to_its_end, succeeds};

mod ours {
    use dstack_tests::{cli::Cli, need};
    #[test]
    fn a_task_runs_on_a_host_of_another_server() {
        super::a_task_runs_on_a_host_of_another_server(&need!(Cli::ours()));
    }
    #[test]
    fn a_task_runs_in_a_container_of_a_cloud_of_another_server() {
        super::a_task_runs_in_a_container_of_a_cloud_of_another_server(&need!(Cli::ours()));
    }
}

mod python {
    use dstack_tests::{cli::Cli, need};
    #[test]
    fn a_task_runs_on_a_host_of_another_server() {
        super::a_task_runs_on_a_host_of_another_server(&need!(Cli::python()));
    }
}

/// Gives the image of the host what the host itself has of an SSH server: through one, the agent of a job comes into a container.
/// What the servers know of the image is what this machine's engine says of its own.
fn add_sshd_to_image(host: &Host<'_>) {
    let script = format!(
        "set -e
        root=$(mktemp -d)
        mkdir -p $root/bin $root/etc/ssh $root/run/sshd $root/tmp $root/root $root/var/empty
        docker create --name base {IMAGE} true >/dev/null
        docker export base | tar -C $root -x
        docker rm base >/dev/null
        for file in /usr/sbin/sshd /usr/bin/ssh-keygen /usr/lib/openssh/sshd-session /usr/lib/openssh/sshd-auth; do
            [ -e $file ] || continue
            for part in $file $(ldd $file | grep -o '/[^ ]*'); do
                mkdir -p $root$(dirname $part)
                cp -L $part $root$part
            done
        done
        echo 'sshd:x:100:65534::/run/sshd:/bin/false' >>$root/etc/passwd
        tar -C $root -c . | docker import - {IMAGE} >/dev/null
        rm -r $root"
    );
    host.run(&script).unwrap();
}

/// A server with nothing but this host.
fn with_the_host(lab: &Lab, host: &Host<'_>) -> Part<Server> {
    let setup = Setup::new(parts::dstack()?)
        .variable("DSTACK_AGENT_PATH", parts::agent()?.display().to_string())
        .argument("--no-local");
    let server = setup.start().unwrap();
    let fleet = lab.fleet("lab", &[host.entry()], &json!({})).unwrap();
    let plan = json!({"plan": {"spec": fleet}, "force": true});
    server.get("/api/project/main/fleets/apply", &plan).unwrap();
    eventually("the host is usable", TEST_TIMEOUT, || {
        let fleet = server.get("/api/project/main/fleets/get", &json!({"name": "lab"}))?;
        Ok((fleet["instances"][0]["status"] == "idle").then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}: {}", server.output()));
    Ok(server)
}

/// The runs that the other server has now.
fn runs(server: &Server) -> Vec<Value> {
    let all = json!({"project_name": "main", "only_active": false});
    let runs = server.get("/api/runs/list", &all).unwrap();
    let is_there = |run: &&Value| run["deleted"] == false;
    runs.as_array()
        .unwrap()
        .iter()
        .filter(is_there)
        .cloned()
        .collect()
}

/// The host is free again, and the run that had it is deleted.
fn nothing_is_there(other: &Server) {
    eventually("nothing is left there", TEST_TIMEOUT, || {
        Ok(runs(other).is_empty().then_some(()))
    })
    .unwrap();
}

fn write_task(cli: &Cli, name: &str, command: &str) {
    let task = format!(
        "type: task\nname: {name}\nimage: {IMAGE}\nuser: root\nfleets: [cloud]\nenv:\n  - WORD=secret-word\n\
         commands:\n  - echo hello from $DSTACK_RUN_NAME\n  - {command}\n\
         resources:\n  cpu: 1..\n  memory: 0.1GB..\n  disk: 1GB..\n"
    );
    cli.write("task.yml", &task).unwrap();
}

fn apply_fleet_of_other_server(cli: &Cli, server: &Server) {
    let added = cli.add_project(server).unwrap();
    assert_eq!(added.code, Some(0), "{}", added.text);
    cli.write(
        "fleet.yml",
        "type: fleet\nname: cloud\nnodes: 0..2\nidle_duration: 1h\nbackends: [dstack]\n",
    )
    .unwrap();
    succeeds(cli, server, &["apply", "-y", "-f", "fleet.yml"]);
}

fn a_task_runs_on_a_host_of_another_server(cli: &Cli) {
    let lab = need!(Lab::new());
    let host = need!(lab.host("one", 2, USUAL));
    add_sshd_to_image(&host);
    need!(parts::image());
    let other = need!(with_the_host(&lab, &host));
    let server = need!(Setup::local()).start().unwrap();
    let wrong = json!({"type": "dstack", "url": other.url(), "project": "main", "creds": {"type": "api_token", "api_token": "wrong"}});
    let refused = server.call(CREATE, &wrong).unwrap();
    assert_eq!(refused.status, 400, "{}", refused.text());
    let right = json!({"type": "dstack", "url": other.url(), "project": "main", "creds": {"type": "api_token", "api_token": TOKEN}});
    server.get(CREATE, &right).unwrap();
    apply_fleet_of_other_server(cli, &server);

    write_task(cli, "train", "echo the word is $WORD");
    succeeds(cli, &server, &["apply", "-y", "-d", "-f", "task.yml"]);
    let ended = attach(&server, "train").wait_until_finished().unwrap();
    assert_eq!(ended, "done", "{}\n{}", server.output(), other.output());
    let text = succeeds(cli, &server, &["logs", "train"]);
    assert!(
        text.contains("hello from train") && text.contains("the word is secret-word"),
        "{text}"
    );

    nothing_is_there(&other);
    write_task(cli, "held", "sleep 1000");
    succeeds(cli, &server, &["apply", "-y", "-d", "-f", "task.yml"]);
    let held = attach(&server, "held");
    eventually("its lines come", TEST_TIMEOUT, || {
        Ok(held.logs()?.contains("hello from held").then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}: {}\n{}", server.output(), other.output()));
    let there = runs(&other);
    let active: Vec<&Value> = there.iter().filter(|run| run["status"] == "running").collect();
    assert_eq!(active.len(), 1);
    assert!(
        !active[0].to_string().contains("secret-word"),
        "the other server was told what the job knows"
    );
    succeeds(cli, &server, &["stop", "-y", "held"]);
    assert_eq!(
        held.wait_until_finished().unwrap(),
        "terminated",
        "{}",
        server.output()
    );
    succeeds(cli, &server, &["fleet", "delete", "-y", "cloud"]);
    nothing_is_there(&other);
    assert!(!server.output().contains(&format!("Bearer {TOKEN}")));
}

/// In a container with two agents of this kind, each with its own ports and folders.
fn a_task_runs_in_a_container_of_a_cloud_of_another_server(cli: &Cli) {
    let cloud = need!(crate::pods::runpod());
    let other = need!(crate::start(&cloud));
    other.get(CREATE, &cloud.config).unwrap();
    let fleet = json!({"type": "fleet", "name": "cloud", "nodes": "0..2", "idle_duration": "1h", "backends": [cloud.name]});
    let plan =
        json!({"plan": {"spec": {"configuration": fleet, "profile": {"name": "default"}}}, "force": true});
    other.get("/api/project/main/fleets/apply", &plan).unwrap();

    let server = need!(Setup::local()).start().unwrap();
    let config = json!({"type": "dstack", "url": other.url(), "project": "main", "backends": [cloud.name],
        "creds": {"type": "api_token", "api_token": TOKEN}});
    server.get(CREATE, &config).unwrap();
    apply_fleet_of_other_server(cli, &server);
    runs_to_its_end(cli, &server);
    is_attached_to_and_stopped(cli, &server);
    nothing_is_there(&other);
    let delete = json!({"names": ["cloud"]});
    other.get("/api/project/main/fleets/delete", &delete).unwrap();
    nothing_is_left(&cloud);
}
