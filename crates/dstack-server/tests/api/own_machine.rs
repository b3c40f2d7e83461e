//! The server's own machine in a project with several people.

use std::sync::Arc;

use dstack_control::projects::Projects;
use dstack_control::{Directory, Watcher};
use dstack_engine::{Inputs as _, InputsError};
use dstack_model::instances::InstanceStatus;
use dstack_server::wiring::SqlInputs;
use dstack_store::rows::{AgentAddress, FleetRow, HostRules, InstanceRow};
use dstack_store::writes::Affected;
use dstack_store::{Changes, EngineStore, EventMaker, JobSnapshot, Json};
use dstack_system::{Clock as _, Random, SystemClock};
use dstack_units::ProjectId;
use serde_json::{Value, json};

use super::blobs::{alone, snapshot};
use super::login::with_okta;
use super::{ADMIN, Server};

impl Server {
    /// Makes a machine the instance of project `main`, as the start of a server does.
    pub(crate) async fn own_machine(&self, runtime: &str, offered: bool) {
        self.own_machines(&[runtime], offered).await;
    }

    /// As [`Self::own_machine`], for several servers that share the database.
    async fn own_machines(&self, runtimes: &[&str], offered: bool) {
        let now = SystemClock.now();
        let random = &self.state.data.random;
        let fleet = local_fleet(random, self.main_project().await);
        let mut changes = Changes::new(EventMaker::system(now, random.clone()));
        changes.insert_silently(fleet.clone());
        for (number, runtime) in (0..).zip(runtimes) {
            let instance = machine_of(random, &fleet, number, runtime, offered);
            changes.insert_silently(instance);
        }
        let store = self.state.data.store();
        store.commit(changes.into_commit()).await.unwrap();
    }

    /// As if a job had each of them.
    async fn occupy_machines(&self) {
        let store = self.state.data.store();
        let placement = store.placement(self.main_project().await).await.unwrap();
        let random = self.state.data.random.clone();
        let mut changes = Changes::new(EventMaker::system(SystemClock.now(), random));
        for before in &placement.instances {
            let mut row = before.clone();
            row.make_ready(InstanceStatus::Busy).unwrap();
            row.busy_blocks = 1;
            changes.update(before, row);
        }
        store.commit(changes.into_commit()).await.unwrap();
    }

    /// Events about the server's own machine, newest first, as this user sees them.
    async fn warnings(&self, token: &str) -> Vec<String> {
        let list = self.post(token, "/api/events/list", json!({})).await.ok();
        let messages = list.as_array().unwrap().iter();
        let messages = messages.map(|event| event["message"].as_str().unwrap().to_owned());
        messages
            .filter(|message| message.contains("server's own machine"))
            .collect()
    }

    fn projects(&self) -> Projects {
        Projects::new(Directory {
            database: self.state.data.database.clone(),
            encryption: self.state.data.encryption.clone(),
            keys: Arc::clone(&self.state.data.keys),
            clock: Arc::clone(&self.state.data.clock),
            random: self.state.data.random.clone(),
            keep_events: true,
            watcher: Arc::new(Nobody),
        })
    }
}

/// The fleet of such machines.
pub(super) fn local_fleet(random: &Random, project: ProjectId) -> FleetRow {
    let spec = json!({"configuration": {"type": "fleet", "name": "local", "ssh_config": {"hosts": ["127.0.0.1"]}},
                      "profile": {}});
    let spec = serde_json::from_value(spec).unwrap();
    let (id, now) = (random.uuid().into(), SystemClock.now());
    let mut fleet = FleetRow::active(id, project, "local".to_owned(), spec, now);
    fleet.local = true;
    fleet
}

/// The row of a machine, as the start of a server writes it.
pub(super) fn machine_of(
    random: &Random,
    fleet: &FleetRow,
    number: i64,
    runtime: &str,
    offered: bool,
) -> InstanceRow {
    let now = SystemClock.now();
    let id = random.uuid().into();
    let mut instance = InstanceRow::pending(id, fleet, number, now);
    let resources =
        json!({"cpus": 8, "memory_mib": 65536, "gpus": [], "spot": false, "disk": {"size_mib": 60_000}});
    let kind = json!({"name": "local", "resources": resources});
    let offer = json!({"backend": "remote", "instance": kind, "region": "remote", "price": 0.0, "availability": "idle",
                       "total_blocks": 1});
    let place = json!({"backend": "remote", "instance_type": kind, "instance_id": "local", "hostname": "127.0.0.1",
                       "region": "remote", "price": 0.0, "username": "root", "ssh_port": 22, "dockerized": false});
    instance = instance.offering(
        serde_json::from_value(offer).unwrap(),
        serde_json::from_value(place).unwrap(),
    );
    instance.make_ready(InstanceStatus::Idle).unwrap();
    instance.agent = Some(Json::new(AgentAddress::Local {
        runtime: runtime.to_owned(),
        host: format!("here-{number}"),
        rules: HostRules {
            offered,
            containers: runtime == "docker",
            protected_paths: match runtime {
                "docker" => vec!["/srv/dstack".to_owned()],
                _ => Vec::new(),
            },
            told: None,
        },
    }));
    instance.total_blocks = Some(1);
    instance
}

/// Nothing is remembered here.
#[derive(Debug)]
struct Nobody;

impl Watcher for Nobody {
    fn changed(&self, _: Affected) {}
}

fn member(name: &str) -> Value {
    json!({"username": name, "project_role": "user"})
}

#[tokio::test]
async fn who_comes_to_share_it_is_told_to_those_who_govern() {
    let server = Server::new().await;
    let bob = server.user("bob").await;
    server.user("carol").await;
    let post = async |path: &str, body: Value| server.post(ADMIN, path, body).await.ok();
    server.own_machine("process", true).await;
    let admin = json!({"username": "admin", "project_role": "admin"});
    post("/api/projects/main/set_members", json!({"members": [admin]})).await;
    assert!(server.warnings(ADMIN).await.is_empty(), "nobody shares it");

    post(
        "/api/projects/main/add_members",
        json!({"members": [member("bob")]}),
    )
    .await;
    let warnings = server.warnings(ADMIN).await;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].contains("project main") && warnings[0].contains("New there: bob."),
        "{warnings:?}"
    );
    assert!(
        warnings[0].contains("as processes of the server's own user"),
        "{warnings:?}"
    );
    assert!(server.warnings(&bob).await.is_empty());

    // A member with another role is nobody new.
    let manager = json!({"members": [{"username": "bob", "project_role": "manager"}]});
    post("/api/projects/main/add_members", manager).await;
    assert_eq!(server.warnings(ADMIN).await.len(), 1);
    let all = json!({"members": [admin, member("bob"), member("carol")]});
    post("/api/projects/main/set_members", all).await;
    let warnings = server.warnings(ADMIN).await;
    assert_eq!(warnings.len(), 2);
    assert!(warnings[0].contains("New there: carol."), "{warnings:?}");
}

#[tokio::test]
async fn whoever_joins_by_logging_in_is_told_of_as_well() {
    let (server, _idp) = with_okta(", projects: [main]").await;
    server.own_machine("docker", true).await;
    server.log_in("okta").await.ok();
    let warnings = server.warnings(ADMIN).await;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("New there: grace-hopper."), "{warnings:?}");
    assert!(warnings[0].contains("in containers"), "{warnings:?}");
}

#[tokio::test]
async fn of_several_machines_the_one_without_containers_is_told_of() {
    let server = Server::new().await;
    server.user("bob").await;
    server.own_machines(&["docker", "process"], true).await;
    let bob = json!({"members": [member("bob")]});
    server
        .post(ADMIN, "/api/projects/main/add_members", bob)
        .await
        .ok();
    let warnings = server.warnings(ADMIN).await;
    assert!(
        warnings[0].contains("as processes of the server's own user"),
        "{warnings:?}"
    );
}

#[tokio::test]
async fn a_machine_of_one_person_is_told_of_when_another_comes() {
    let server = Server::new().await;
    server.user("bob").await;
    let project = server
        .state
        .auth
        .access
        .project("main", dstack_server::access::Freshness::Current);
    let row = project.await.unwrap().unwrap().row.clone();
    server.own_machine("docker", true).await;
    let projects = server.projects();
    projects.tell_of_own_machines(&row).await.unwrap();
    assert!(server.warnings(ADMIN).await.is_empty(), "the admin is alone");
    let bob = json!({"members": [member("bob")]});
    server
        .post(ADMIN, "/api/projects/main/add_members", bob)
        .await
        .ok();
    projects.tell_of_own_machines(&row).await.unwrap();
    let warnings = server.warnings(ADMIN).await;
    assert_eq!(warnings.len(), 1, "bob was told of when he came: {warnings:?}");
}

#[tokio::test]
async fn one_that_is_not_offered_concerns_nobody_and_says_so_in_plans() {
    let server = Server::new().await;
    server.user("bob").await;
    server.own_machine("docker", false).await;
    let bob = json!({"members": [member("bob")]});
    server
        .post(ADMIN, "/api/projects/main/add_members", bob)
        .await
        .ok();
    assert!(server.warnings(ADMIN).await.is_empty());
    let reasons = explained(&server, json!({})).await;
    assert!(reasons[0].contains("dstack server --local"), "{reasons:?}");
}

#[tokio::test]
async fn plans_say_what_is_not_mounted_there() {
    let server = Server::new().await;
    server.own_machine("docker", true).await;
    assert!(explained(&server, json!({})).await.is_empty());
    let mounts = json!({"volumes": ["/srv:/s"]});
    let reasons = explained(&server, mounts).await;
    assert!(reasons[0].starts_with("does not mount /srv:"), "{reasons:?}");
    let reasons = explained(&server, json!({"privileged": true})).await;
    assert!(reasons[0].contains("`privileged`"), "{reasons:?}");
}

/// What is said against the machine.
async fn explained(server: &Server, more: Value) -> Vec<String> {
    let mut task = json!({"type": "task", "commands": ["x"], "image": "x"});
    let fields = more.as_object().unwrap().clone();
    task.as_object_mut().unwrap().extend(fields);
    let spec = json!({"run_name": "probe", "configuration": task,
                      "ssh_key_pub": "ssh-rsa AAAA"});
    let plan = server
        .main("runs/get_plan", json!({"run_spec": spec, "explain": true}))
        .await
        .ok();
    let verdict = &plan["explanations"][0]["instances"][0];
    let reasons = verdict["reasons"].as_array().unwrap().iter();
    reasons
        .map(|reason| reason.as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn plans_say_what_processes_ignore() {
    let server = Server::new().await;
    let notices = async |more: Value| {
        let mut task = json!({"type": "task", "commands": ["x"], "image": "x"});
        task.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let spec = json!({"run_name": "probe", "configuration": task, "ssh_key_pub": "ssh-rsa AAAA"});
        let plan = server.main("runs/get_plan", json!({"run_spec": spec})).await.ok();
        plan.get("notices").map_or_else(String::new, ToString::to_string)
    };
    assert_eq!(notices(json!({})).await, "", "nothing runs anywhere");
    server.own_machine("process", true).await;
    let said = notices(json!({"volumes": ["/data:/data"], "privileged": true})).await;
    assert!(said.contains("local-0 has no container engine"), "{said}");
    assert!(
        said.contains("it ignores `image`, `privileged`, `volumes`."),
        "{said}"
    );
    // Another job has it: this one waits for it, and runs as a process all the same.
    server.occupy_machines().await;
    let said = notices(json!({"privileged": true})).await;
    assert!(said.contains("it ignores `image`, `privileged`."), "{said}");
}

/// A replica of the old deployment that had not started yet must not get the commands of the new one.
#[tokio::test]
async fn a_process_gets_no_commands_of_a_deployment_that_it_is_not_of() {
    let server = Server::new().await;
    server.own_machine("process", true).await;
    let apply = async |commands: &str| {
        let service =
            json!({"type": "service", "name": "web", "port": 80, "commands": [commands], "auth": false});
        let spec = json!({"run_name": "web", "configuration": service, "ssh_key_pub": "ssh-rsa AAAA"});
        let plan = json!({"plan": {"run_spec": spec}, "force": true});
        server.main("runs/apply", plan).await.ok();
    };
    let inputs = SqlInputs::new(
        server.state.control.jobs.clone(),
        server.state.data.blobs.clone(),
        &server.state.edge.settings,
    );
    let store = server.state.data.store();
    let placement = store.placement(server.main_project().await).await.unwrap();
    let placed = async || {
        let mut job = snapshot(&server).await;
        job.instance = placement.instances.first().cloned();
        job
    };
    let commands = async |job: &JobSnapshot| {
        let inputs = inputs.start(job, &alone(job)).await;
        inputs.map(|inputs| inputs.body.job_spec.commands.join(" "))
    };
    apply("serve --old").await;
    assert!(commands(&placed().await).await.unwrap().contains("serve --old"));
    apply("serve --new").await;
    let mut job = placed().await;
    assert_eq!((job.job.deployment_num, job.run.deployment_num), (0, 1));
    let error = commands(&job).await.unwrap_err();
    assert!(matches!(error, InputsError::Transient(_)), "{error:?}");
    // A container gets what was stored of the job.
    let mut contained = job.clone();
    contained.instance = None;
    assert!(commands(&contained).await.unwrap().contains("serve --old"));
    job.job.deployment_num = 1;
    assert!(commands(&job).await.unwrap().contains("serve --new"));
}

#[tokio::test]
async fn containers_ignore_nothing() {
    let server = Server::new().await;
    server.own_machine("docker", true).await;
    let spec = json!({"run_name": "probe", "configuration": {"type": "task", "commands": ["x"], "image": "x"},
                      "ssh_key_pub": "ssh-rsa AAAA"});
    let plan = server.main("runs/get_plan", json!({"run_spec": spec})).await.ok();
    assert_eq!(plan.get("notices"), None);
}

#[tokio::test]
async fn secrets_that_are_missing_are_named_in_the_plan() {
    let server = Server::new().await;
    let env = json!({"A": "${{ secrets.KEY }}", "B": "x ${{ secrets.KEY }}"});
    let spec = json!({"run_name": "probe", "configuration": {"type": "task", "commands": ["x"], "image": "x", "env": env},
                      "ssh_key_pub": "ssh-rsa AAAA"});
    let plan = json!({"run_spec": spec});
    let planned = server.main("runs/get_plan", plan.clone()).await.ok();
    let notice = planned["notices"][0].as_str().unwrap();
    assert!(
        notice.contains("the project has no secret KEY, which `env` names")
            && notice.contains("`dstack secret set KEY VALUE`"),
        "{notice}"
    );
    let secret = json!({"name": "KEY", "value": "v"});
    server.main("secrets/create_or_update", secret).await.ok();
    let planned = server.main("runs/get_plan", plan).await.ok();
    assert_eq!(planned.get("notices"), None);
}
