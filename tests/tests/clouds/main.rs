//! From a configuration of a cloud to the lines of a job, with machines and containers that are real as far as SSH and what runs
//! there go.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)] // tests

mod gateway_pods;
mod gateways;
mod machines;
mod pods;
mod servers;
mod slurm;

use dstack_backend_kit::Emulator;
use dstack_tests::cli::{Cli, Ended};
use dstack_tests::fleets::events;
use dstack_tests::hosts::{EndsHosts, IMAGE};
use dstack_tests::need;
use dstack_tests::parts::{self, Part};
use dstack_tests::runs::{TEST_TIMEOUT, attach, submit};
use dstack_tests::server::{Server, Setup, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;

const CREATE: &str = "/api/project/main/backends/create";

/// A cloud, as a test knows it.
struct Cloud {
    /// As users name the backend.
    name: &'static str,
    config: Value,
    /// With credentials that are none.
    wrong_config: Value,
    /// Parts of the name of the field that is at fault then.
    wrong_fields: &'static [&'static str],
    /// What must not be shown.
    secret: String,
    /// Files that describe backends.
    files: Option<TempDir>,
    /// Where its API is, as a server is told; `None`: the configuration says so.
    endpoint: Option<String>,
    books: Box<dyn Books>,
    /// Words of `dstack offer`, and the type that it shows.
    offer: (&'static [&'static str], &'static str),
    /// How many things two runs cost, one after the other.
    made_for_two_runs: usize,
    /// Where its machines and containers are.
    #[allow(dead_code)] // it ends them
    lab: Option<EndsHosts>,
}

/// What a cloud knows of what was made in it.
trait Books {
    /// Names of what costs money now.
    fn alive(&self) -> Vec<String>;

    /// How many things were made altogether.
    fn made(&self) -> usize;
}

impl<E: Emulator> Books for E {
    fn alive(&self) -> Vec<String> {
        let alive = self.ledger().alive().into_iter();
        alive.map(|entry| entry.name).collect()
    }

    fn made(&self) -> usize {
        self.ledger().count()
    }
}

fn start(cloud: &Cloud) -> Part<Server> {
    // What an image says of itself is asked of this machine's engine, as there is no registry.
    parts::image()?;
    let mut setup = Setup::local()?;
    if let Some(endpoint) = &cloud.endpoint {
        setup = setup.variable("DSTACK_SERVER_BACKEND_ENDPOINTS", endpoint);
    }
    if let Some(files) = &cloud.files {
        setup = setup.variable("DSTACK_SERVER_BACKENDS_DIR", files.path().display().to_string());
    }
    Ok(setup.start().unwrap())
}

fn nothing_is_left(cloud: &Cloud) {
    eventually("nothing is left", TEST_TIMEOUT, || {
        Ok(cloud.books.alive().is_empty().then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}: {:?}", cloud.books.alive()));
}

fn does_not_show_the_secret(server: &Server, cloud: &Cloud) {
    let output = server.output();
    assert!(!output.contains(&cloud.secret), "the secret is shown in {output}");
}

/// Makes a test for each of these clouds of a function that takes one.
macro_rules! in_each_cloud {
    ($test:ident: $($cloud:ident = $make:path),* $(,)?) => {
        $(#[test] fn $cloud() { $test(&dstack_tests::need!($make())); })*
    };
}

/// Makes a test for each cloud of a task that runs there by a command line.
macro_rules! a_task_runs_in_each_cloud {
    ($command_line:path) => {
        mod a_task_runs_in {
            fn run(cloud: &crate::Cloud) {
                crate::a_task_runs_in_a_cloud(&dstack_tests::need!($command_line()), cloud);
            }
            in_each_cloud! {
                run:
                aws = crate::machines::aws,
                cloudrift = crate::machines::cloudrift,
                kubernetes = crate::pods::kubernetes,
                lambda = crate::machines::lambda,
                lambda_manifest = crate::machines::lambda_manifest,
                oci = crate::machines::oci,
                runpod = crate::pods::runpod,
                slurm = crate::slurm::slurm,
                vastai = crate::pods::vastai,
            }
        }
    };
}

mod ours {
    a_task_runs_in_each_cloud!(crate::Cli::ours);
}

mod python {
    a_task_runs_in_each_cloud!(crate::Cli::python);
}

mod wrong_credentials_are_refused_by {
    use crate::wrong_credentials_are_refused as run;
    in_each_cloud! {
        run:
        aws = crate::machines::empty_aws,
        cloudrift = crate::machines::empty_cloudrift,
        kubernetes = crate::pods::kubernetes,
        lambda = crate::machines::empty_lambda,
        lambda_manifest = crate::machines::empty_lambda_manifest,
        oci = crate::machines::empty_oci,
        runpod = crate::pods::runpod,
        slurm = crate::slurm::slurm,
        vastai = crate::pods::vastai,
    }
}

/// By the command line, from a backend to a fleet that is deleted: the address that the cloud tells is where jobs are attached to.
fn a_task_runs_in_a_cloud(cli: &Cli, cloud: &Cloud) {
    let server = need!(start(cloud));
    server.get(CREATE, &cloud.config).unwrap();
    let added = cli.add_project(&server).unwrap();
    assert_eq!(added.code, Some(0), "{}", added.text);
    // The command line of dstack 0.22.5 can neither name nor read a type that it does not know.
    let (backends, shown) = match cli.is_python() && cloud.files.is_some() {
        true => (String::new(), "dstack"),
        false => (format!("backends: [{}]\n", cloud.name), cloud.name),
    };
    let fleet = format!("type: fleet\nname: cloud\nnodes: 0..2\nidle_duration: 1h\n{backends}");
    cli.write("fleet.yml", &fleet).unwrap();
    succeeds(cli, &server, &["apply", "-y", "-f", "fleet.yml"]);
    let (words, instance_type) = cloud.offer;
    let text = succeeds(cli, &server, &[&["offer"], words].concat());
    assert!(text.contains(shown) && text.contains(instance_type), "{text}");
    runs_to_its_end(cli, &server);
    is_attached_to_and_stopped(cli, &server);
    succeeds(cli, &server, &["fleet", "delete", "-y", "cloud"]);
    nothing_is_left(cloud);
    assert_eq!(cloud.books.made(), cloud.made_for_two_runs);
    does_not_show_the_secret(&server, cloud);
}

fn succeeds(cli: &Cli, server: &Server, words: &[&str]) -> String {
    let Ended { code, text } = cli.run(words).unwrap();
    assert_eq!(code, Some(0), "{words:?}: {text}\n{}", server.output());
    text
}

fn write_task(cli: &Cli, name: &str, command: &str) {
    let task = format!(
        "type: task\nname: {name}\nimage: {IMAGE}\nuser: root\nfleets: [cloud]\n\
         commands:\n  - echo hello from a cloud\n  - {command}\n\
         resources:\n  gpu: 0..\n  cpu: 1..\n  memory: 0.1GB..\n  disk: 1GB..\n"
    );
    cli.write("task.yml", &task).unwrap();
}

fn runs_to_its_end(cli: &Cli, server: &Server) {
    write_task(cli, "train", "echo and goodbye");
    let text = succeeds(cli, server, &["apply", "-y", "-f", "task.yml"]);
    assert!(
        text.contains("hello from a cloud") && text.contains("and goodbye"),
        "{text}"
    );
    for wrong in ["Can't connect", "Lost run connection", "Traceback"] {
        assert!(!text.contains(wrong), "{wrong}:\n{text}");
    }
}

fn is_attached_to_and_stopped(cli: &Cli, server: &Server) {
    write_task(cli, "held", "sleep 1000");
    let mut apply = cli.start(&["apply", "-y", "-f", "task.yml"]).unwrap();
    eventually("its lines come", TEST_TIMEOUT, || {
        apply.still_runs()?;
        Ok(apply.text().contains("\nhello from a cloud").then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}:\n{}\n{}", apply.text(), server.output()));
    let said = eventually("it is attached to", TEST_TIMEOUT, || {
        apply.still_runs()?;
        cli.ssh("held", "echo from the job")
    });
    assert_eq!(said.unwrap(), "from the job\n", "{}", apply.text());
    succeeds(cli, server, &["stop", "-y", "held"]);
    let ended = attach(server, "held").wait_until_finished().unwrap();
    assert_eq!(ended, "terminated", "{}", server.output());
}

fn wrong_credentials_are_refused(cloud: &Cloud) {
    let server = need!(start(cloud));
    let refused = server.call(CREATE, &cloud.wrong_config).unwrap();
    assert_eq!(refused.status, 400, "{}", refused.text());
    let answer = refused.json().unwrap();
    let errors = answer["detail"].as_array().unwrap();
    assert!(!errors.is_empty(), "{answer}");
    for error in errors {
        assert_eq!(error["code"], "invalid_credentials", "{answer}");
        assert!(error["msg"].as_str().is_some_and(|text| !text.is_empty()));
    }
    let fields = answer.to_string();
    let is_named = |field: &&str| fields.contains(&format!("\"{field}\""));
    assert!(cloud.wrong_fields.iter().all(is_named), "{answer}");
    // The right ones are taken by the same server.
    server.get(CREATE, &cloud.config).unwrap();
    does_not_show_the_secret(&server, cloud);
}

#[test]
fn a_user_of_kubernetes_that_lacks_rights_is_refused_with_all_of_them() {
    let (cloud, emulator) = need!(pods::kubernetes_with_emulator());
    let server = need!(start(&cloud));
    emulator.deny("create", "pods");
    emulator.deny("patch", "secrets");
    let refused = server.call(CREATE, &cloud.config).unwrap();
    assert_eq!(refused.status, 400, "{}", refused.text());
    let text = refused.text();
    assert!(
        text.contains("may not create pods in default, patch secrets in default"),
        "{text}"
    );
}

#[test]
fn a_machine_of_cloudrift_runs_a_job_and_is_gone_when_idle() {
    let cloud = need!(machines::cloudrift());
    let server = need!(start(&cloud));
    server.get(CREATE, &cloud.config).unwrap();

    let fleet = json!({"type": "fleet", "name": "cloud", "nodes": "0..1", "idle_duration": "10s", "backends": ["cloudrift"]});
    let plan =
        json!({"plan": {"spec": {"configuration": fleet, "profile": {"name": "default"}}}, "force": true});
    server.get("/api/project/main/fleets/apply", &plan).unwrap();
    let wanted = json!({"image": IMAGE, "user": "root", "fleets": ["cloud"],
        "resources": {"cpu": "1..", "memory": "0.1GB..", "disk": "1GB..", "gpu": "0.."}});
    let run = submit(&server, "train", &["echo hello from a cloud"], &wanted).unwrap();
    assert_eq!(
        run.wait_until_finished().unwrap(),
        "done",
        "{:#}\n{:#?}\n{}",
        run.get().unwrap(),
        events(&server),
        server.output()
    );
    assert!(run.logs().unwrap().contains("hello from a cloud"));
    let machines = cloud.books.alive();
    assert_eq!(machines.len(), 1);
    assert!(machines[0].starts_with("dstack-cloud-0-"), "{machines:?}");

    // A backend that has machines stays.
    let delete = |server: &Server| {
        server
            .call(
                "/api/project/main/backends/delete",
                &json!({"backends_names": ["cloudrift"]}),
            )
            .unwrap()
    };
    let refused = delete(&server);
    assert_eq!(refused.status, 400, "{}", refused.text());
    nothing_is_left(&cloud);
    eventually("the backend can be deleted", TEST_TIMEOUT, || {
        Ok((delete(&server).status == 200).then_some(()))
    })
    .unwrap();
    assert_eq!(cloud.books.made(), 1);
    does_not_show_the_secret(&server, &cloud);
}
