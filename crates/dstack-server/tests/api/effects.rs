//! What each route leaves in the audit trail: one story in which every route of the table succeeds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dstack_api::{Body as Kind, Endpoint, Method, ROUTES, RouteInfo, Trail, routes as r};
use dstack_compute::{BackendKind, Registry};
use dstack_login_doubles::Idp;
use dstack_plan::hosts::reach;
use dstack_store::rows::AgentAddress;
use dstack_store::{Changes, EngineStore as _, EventMaker, Json};
use dstack_units::FleetId;
use serde_json::{Value, json};

use super::{ADMIN, Answer, Server, TestServer, backends, login, multipart, request};

/// Routes that cannot succeed here, and why.
const NEVER: &[(&str, &str)] = &[(
    "SshProxyGetUpstream",
    "it reads only, and needs a job that runs on a host of an SSH fleet",
)];

const SSH_KEY: &str = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW\nQyNTUxOQAAACCAYJGQjq5u1c2IwjF4YzxBzVze4M2A3AcicFR+ERNjqgAAAJhuS3FYbktx\nWAAAAAtzc2gtZWQyNTUxOQAAACCAYJGQjq5u1c2IwjF4YzxBzVze4M2A3AcicFR+ERNjqg\nAAAEDmVlpYEvdD8MKbu75eojRn506VMf1omj9SOoqm9W4cgoBgkZCOrm7VzYjCMXhjPEHN\nXN7gzYDcByJwVH4RE2OqAAAAFGdvbGRlbkBleGFtcGxlLmxvY2FsAQ==\n-----END OPENSSH PRIVATE KEY-----\n";
const PUBLIC_KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINRFlJk/hBpwMoXLcqE5f7yTVwT/WiVFn1o1T4J4PjgG golden@laptop";

/// Calls routes, and notes what each of them leaves behind.
struct Story {
    server: Server,
    /// The place in the audit trail up to which everything is known.
    known: (Value, Value),
    /// Texts that were seen, by route.
    seen: BTreeMap<&'static str, BTreeSet<&'static str>>,
}

impl Story {
    async fn new() -> Self {
        let kinds = Registry::new([Arc::new(backends::Picky) as Arc<dyn BackendKind>]);
        let server = TestServer::new().kinds(kinds);
        let server = server.settings(|settings| settings.exports_enabled = true);
        let mut story = Self {
            server: server.start().await,
            known: (Value::Null, Value::Null),
            seen: BTreeMap::new(),
        };
        story.new_events().await;
        story
    }

    /// Texts of the events since the last question, oldest first.
    async fn new_events(&mut self) -> Vec<String> {
        let mut texts = Vec::new();
        loop {
            let question = json!({
                "ascending": true, "prev_recorded_at": self.known.0, "prev_id": self.known.1,
            });
            let page = self.server.post(ADMIN, "/api/events/list", question).await.ok();
            let Some(last) = page.as_array().unwrap().last() else {
                return texts;
            };
            self.known = (last["recorded_at"].clone(), last["id"].clone());
            for event in page.as_array().unwrap() {
                texts.push(event["message"].as_str().unwrap().to_owned());
            }
        }
    }

    /// Calls a route below project `main` as the admin; it must succeed.
    async fn call<E: Endpoint>(&mut self, body: Value) -> Value {
        self.at::<E>(&[("project_name", "main")], body).await
    }

    async fn at<E: Endpoint>(&mut self, params: &[(&str, &str)], body: Value) -> Value {
        let route = E::ROUTE;
        let path = params.iter().fold(route.path.to_owned(), |path, (name, value)| {
            path.replace(&format!("{{{name}}}"), value)
        });
        assert!(!path.contains('{'), "{path}");
        let answer = match (route.body, route.method) {
            (Kind::Upload, _) => {
                let repo = body["repo_id"].as_str().map(|id| format!("?repo_id={id}"));
                let path = format!("{path}{}", repo.unwrap_or_default());
                self.server.send(multipart(&path, ADMIN, "cafe", b"data")).await
            }
            (_, Method::Get) => self.server.send(request("GET", &path, Some(ADMIN), None)).await,
            _ => self.server.post(ADMIN, &path, body).await,
        };
        self.check(route, answer).await
    }

    async fn check(&mut self, route: RouteInfo, answer: Answer) -> Value {
        assert_eq!(answer.status, 200, "{} {}", route.name, answer.body);
        let events = self.new_events().await;
        let seen = self.seen.entry(route.name).or_default();
        match route.trail {
            Trail::Reads | Trail::Silent(_) => {
                assert_eq!(events, Vec::<String>::new(), "{} writes events", route.name);
            }
            Trail::Writes(texts) => {
                assert!(!events.is_empty(), "{} writes no event", route.name);
                for event in events {
                    let text = texts.iter().find(|text| event.starts_with(**text));
                    let text = text.unwrap_or_else(|| panic!("{} also writes: {event}", route.name));
                    seen.insert(text);
                }
            }
        }
        answer.body
    }

    /// Every route was called, and left everything that the table says.
    fn end(self) {
        for route in ROUTES {
            if NEVER.iter().any(|(name, _)| *name == route.name) {
                continue;
            }
            let seen = self.seen.get(route.name);
            let seen = seen.unwrap_or_else(|| panic!("the story lacks {}", route.name));
            if let Trail::Writes(texts) = route.trail {
                for text in texts {
                    assert!(seen.contains(text), "{} does not write: {text}", route.name);
                }
            }
        }
    }
}

#[tokio::test]
async fn every_change_is_in_the_audit_trail() {
    let mut story = Story::new().await;
    general(&mut story).await;
    logins(&mut story).await;
    users(&mut story).await;
    projects(&mut story).await;
    repos_and_files(&mut story).await;
    runs(&mut story).await;
    secrets(&mut story).await;
    infrastructure(&mut story).await;
    gateways(&mut story).await;
    exports(&mut story).await;
    tear_down(&mut story).await;
    story.end();
}

async fn general(story: &mut Story) {
    story.call::<r::ServerGetInfo>(json!(null)).await;
    story.call::<r::Healthcheck>(json!(null)).await;
    story.call::<r::ServerGetDiagnosis>(json!(null)).await;
    story
        .call::<r::ServerListAccount>(json!({"backend": "runpod"}))
        .await;
    story.call::<r::AuthListProviders>(json!(null)).await;
    let state = json!({"code": "c", "state": "eyJ2YWx1ZSI6InYiLCJsb2NhbF9wb3J0Ijo4MDgwfQ=="});
    story.call::<r::AuthGetNextRedirect>(state).await;
    story.call::<r::EventsList>(json!({})).await;
}

async fn logins(story: &mut Story) {
    let idp = Idp::start().await;
    idp.visitor(json!({"sub": "1", "preferred_username": "grace@acme.com"}));
    story.server.log_in_with(&login::okta(&idp, "")).await;
    let begun = story.server.begin("okta", json!({})).await;
    story.check(r::AuthAuthorize::ROUTE, begun.answer()).await;
    let back = begun.visit().await;
    let answer = story.server.finish("okta", &back).await;
    story.check(r::AuthCallback::ROUTE, answer).await;
}

async fn users(story: &mut Story) {
    let alice = json!({"username": "alice", "global_role": "user"});
    story.call::<r::UsersCreate>(alice).await;
    let admin = json!({"username": "alice", "global_role": "admin"});
    story.call::<r::UsersUpdate>(admin).await;
    story.call::<r::UsersList>(json!({})).await;
    story.call::<r::UsersGetMyUser>(json!(null)).await;
    let name = json!({"username": "alice"});
    story.call::<r::UsersGetUser>(name.clone()).await;
    story.call::<r::UsersRefreshToken>(name.clone()).await;
    story.call::<r::UsersRefreshSshKey>(name).await;
    let key = story.call::<r::PublicKeysAdd>(json!({"key": PUBLIC_KEY})).await;
    story.call::<r::PublicKeysList>(json!(null)).await;
    story
        .call::<r::PublicKeysDelete>(json!({"ids": [key["id"]]}))
        .await;
    let token = json!({"name": "ci", "read_only": true});
    story.call::<r::TokensCreate>(token).await;
    story.call::<r::TokensList>(json!({})).await;
    let names = json!({"names": ["ci"]});
    story.call::<r::TokensDelete>(names).await;
    story.call::<r::UsersDelete>(json!({"users": ["alice"]})).await;
}

async fn projects(story: &mut Story) {
    story.server.user("bob").await;
    story
        .call::<r::ProjectsCreate>(json!({"project_name": "team"}))
        .await;
    let team = [("project_name", "team")];
    let members = |role: &str| {
        json!({"members": [
            {"username": "admin", "project_role": "admin"}, {"username": "bob", "project_role": role},
        ]})
    };
    story.at::<r::ProjectsSetMembers>(&team, members("user")).await;
    story.at::<r::ProjectsAddMembers>(&team, members("manager")).await;
    let bob = json!({"usernames": ["bob"]});
    story.at::<r::ProjectsRemoveMembers>(&team, bob).await;
    story
        .at::<r::ProjectsUpdate>(&team, json!({"is_public": true}))
        .await;
    story.at::<r::ProjectsGet>(&team, json!(null)).await;
    story.call::<r::ProjectsList>(json!({})).await;
    story.call::<r::ProjectsListOnlyNoFleets>(json!(null)).await;
    story.call::<r::TemplatesList>(json!(null)).await;
}

async fn repos_and_files(story: &mut Story) {
    let repo = json!({"repo_id": "code", "repo_info": {"repo_type": "virtual"}});
    story.call::<r::ReposInit>(repo).await;
    story.call::<r::ReposList>(json!(null)).await;
    let one = json!({"repo_id": "code", "include_creds": true});
    story.call::<r::ReposGet>(one).await;
    story.call::<r::ReposUploadCode>(json!({"repo_id": "code"})).await;
    story.call::<r::FilesUploadArchive>(json!({})).await;
    story
        .call::<r::FilesGetArchiveByHash>(json!({"hash": "cafe"}))
        .await;
    story.call::<r::ReposDelete>(json!({"repos_ids": ["code"]})).await;
}

async fn runs(story: &mut Story) {
    let spec = |priority: i64| {
        json!({"run_name": "hello", "configuration": {
            "type": "task", "commands": ["echo hello"], "priority": priority,
        }})
    };
    let apply = |priority: i64| json!({"plan": {"run_spec": spec(priority)}, "force": true});
    story.call::<r::RunsGetPlan>(json!({"run_spec": spec(1)})).await;
    story.call::<r::GpusList>(json!({"run_spec": spec(1)})).await;
    let run = story.call::<r::RunsApply>(apply(1)).await;
    story.call::<r::RunsApply>(apply(2)).await;
    story.call::<r::RunsList>(json!({})).await;
    story.call::<r::RunsGet>(json!({"run_name": "hello"})).await;
    let job = &run["jobs"][0]["job_submissions"][0]["id"];
    let logs = json!({"run_name": "hello", "job_submission_id": job});
    story.call::<r::LogsPoll>(logs).await;
    story.call::<r::ChangesFollow>(json!(null)).await;
    let job = [("project_name", "main"), ("run_name", "hello")];
    story.at::<r::MetricsJob>(&job, json!(null)).await;
    let names = json!({"runs_names": ["hello"]});
    story
        .call::<r::RunsStop>(json!({"runs_names": ["hello"], "abort": true}))
        .await;
    story.server.finish_runs().await;
    story.new_events().await;
    story.call::<r::RunsApply>(apply(1)).await;
    story
        .call::<r::RunsStop>(json!({"runs_names": ["hello"], "abort": true}))
        .await;
    story.server.finish_runs().await;
    story.new_events().await;
    story.call::<r::RunsDelete>(names).await;
    let service = json!({"type": "service", "port": 80, "commands": ["serve"]});
    let service = json!({"run_name": "hello", "configuration": service});
    story
        .call::<r::RunsApply>(json!({"plan": {"run_spec": service}, "force": true}))
        .await;
    let run = [("project_name", "main"), ("run_name", "hello")];
    story.at::<r::MetricsService>(&run, json!(null)).await;
    let rollout = json!({"strategy": "blue_green", "switch": "manual"});
    let green = json!({"type": "service", "port": 80, "commands": ["serve anew"], "rollout": rollout});
    let green = json!({"run_name": "hello", "configuration": green});
    story
        .call::<r::RunsApply>(json!({"plan": {"run_spec": green}, "force": true}))
        .await;
    story.call::<r::RunsGetRollout>(json!({"name": "hello"})).await;
    for action in ["promote", "abort"] {
        story
            .call::<r::RunsRollout>(json!({"run_name": "hello", "action": action}))
            .await;
    }
    story.new_events().await;
    story
        .call::<r::RunsStop>(json!({"runs_names": ["hello"], "abort": true}))
        .await;
    story.server.finish_runs().await;
    story.new_events().await;
}

async fn secrets(story: &mut Story) {
    for value in ["one", "two"] {
        let secret = json!({"name": "s", "value": value});
        story.call::<r::SecretsCreateOrUpdate>(secret).await;
    }
    story.call::<r::SecretsList>(json!(null)).await;
    story.call::<r::SecretsGet>(json!({"name": "s"})).await;
    story
        .call::<r::SecretsDelete>(json!({"secrets_names": ["s"]}))
        .await;
}

pub(super) fn ssh_fleet(hosts: &[&str]) -> Value {
    json!({"profile": {"name": ""}, "configuration": {"type": "fleet", "name": "onprem", "ssh_config": {
        "user": "ubuntu", "ssh_key": {"public": "", "private": SSH_KEY}, "hosts": hosts,
    }}})
}

async fn infrastructure(story: &mut Story) {
    let key = json!({"type": "runpod", "creds": {"type": "api_key", "api_key": "k"}});
    let yaml = json!({"config_yaml": "type: runpod\ncreds: {type: api_key, api_key: k}\n"});
    let runpod = [("project_name", "main"), ("backend_name", "runpod")];
    let names = json!({"backends_names": ["runpod"]});
    story.call::<r::BackendsListTypes>(json!(null)).await;
    story.call::<r::BackendsCreate>(key.clone()).await;
    story.call::<r::BackendsUpdate>(key).await;
    story.call::<r::BackendsDelete>(names).await;
    story.call::<r::BackendsCreateYaml>(yaml.clone()).await;
    story.call::<r::BackendsUpdateYaml>(yaml).await;
    story.at::<r::BackendsConfigInfo>(&runpod, json!(null)).await;
    story.at::<r::BackendsGetYaml>(&runpod, json!(null)).await;

    let fleet = |hosts: &[&str]| json!({"plan": {"spec": ssh_fleet(hosts)}, "force": true});
    let plan = json!({"spec": ssh_fleet(&["192.0.2.1"])});
    story.call::<r::FleetsGetPlan>(plan).await;
    story.call::<r::FleetsApply>(fleet(&["192.0.2.1"])).await;
    story
        .call::<r::FleetsApply>(fleet(&["192.0.2.1", "192.0.2.2"]))
        .await;
    story.call::<r::FleetsApply>(fleet(&["192.0.2.1"])).await;
    story.call::<r::FleetsGet>(json!({"name": "onprem"})).await;
    story.call::<r::FleetsList>(json!({})).await;
    story.call::<r::ProjectFleetsList>(json!({})).await;
    let instances = story.call::<r::InstancesList>(json!({})).await;
    let id = json!({"id": instances[0]["id"]});
    story.call::<r::InstancesGet>(id).await;
    let health = json!({"fleet_name": "onprem", "instance_num": 0});
    story.call::<r::InstancesGetHealthChecks>(health).await;

    let volume = json!({"configuration": {
        "type": "volume", "name": "data", "backend": "runpod", "region": "EU-RO-1", "size": "50GB",
    }});
    story.call::<r::VolumesCreate>(volume).await;
    story.call::<r::VolumesGet>(json!({"name": "data"})).await;
    story.call::<r::VolumesList>(json!({})).await;
    story.call::<r::ProjectVolumesList>(json!(null)).await;
}

fn gateway(name: &str, domain: &str) -> Value {
    json!({
        "type": "gateway", "name": name, "backend": "runpod", "region": "EU-RO-1", "domain": domain, "default": true,
    })
}

async fn gateways(story: &mut Story) {
    let spec = |domain: &str| json!({"configuration": gateway("one", domain)});
    let apply = |domain: &str| json!({"plan": {"spec": spec(domain)}, "force": true});
    let plan = json!({"spec": spec("a.test")});
    story.call::<r::GatewaysGetPlan>(plan).await;
    story.call::<r::GatewaysApply>(apply("a.test")).await;
    let two = json!({"configuration": gateway("two", "c.test")});
    story.call::<r::GatewaysCreate>(two).await;
    story.call::<r::GatewaysApply>(apply("b.test")).await;
    let two = json!({"name": "two"});
    story.call::<r::GatewaysSetDefault>(two.clone()).await;
    let domain = json!({"name": "two", "wildcard_domain": "*.d.test"});
    story.call::<r::GatewaysSetWildcardDomain>(domain).await;
    story.call::<r::GatewaysGet>(two).await;
    story.call::<r::GatewaysList>(json!({})).await;
}

async fn exports(story: &mut Story) {
    let export = json!({"name": "shared", "importer_projects": ["team"], "exported_fleets": ["onprem"]});
    story.call::<r::ExportsCreate>(export.clone()).await;
    story.call::<r::ExportsList>(json!(null)).await;
    let team = [("project_name", "team")];
    story.at::<r::ImportsList>(&team, json!(null)).await;
    let import = json!({"export_name": "shared", "export_project_name": "main"});
    story.at::<r::ImportsDelete>(&team, import).await;
    let change = json!({"name": "shared", "add_importer_projects": ["team"]});
    story.call::<r::ExportsUpdate>(change).await;
    story.call::<r::ExportsDelete>(json!({"name": "shared"})).await;
}

/// Makes the host of the fleet one that was set up.
async fn set_up_host(server: &Server) {
    let data = &server.state.data;
    let fleet = server
        .post(ADMIN, "/api/project/main/fleets/get", json!({"name": "onprem"}))
        .await
        .ok();
    let id: FleetId = fleet["id"].as_str().unwrap().parse().unwrap();
    let found = data.store().fleet(id).await.unwrap().unwrap();
    let before = found.instances.iter().find(|row| row.instance_num == 0).unwrap();
    let place = before.job_provisioning_data.as_deref().unwrap();
    let reach = reach(id, &found.fleet.spec, place);
    let mut row = before.clone();
    row.agent = Some(Json::new(AgentAddress::Ssh {
        reach: Box::new(reach.unwrap()),
        shim_port: 10_998,
        runtime: "docker".to_owned(),
    }));
    let mut changes = Changes::new(EventMaker::system(data.clock.now(), data.random.clone()));
    changes.update(before, row);
    data.store().commit(changes.into_commit()).await.unwrap();
}

async fn tear_down(story: &mut Story) {
    set_up_host(&story.server).await;
    let key = "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU";
    let accepted = json!({"name": "onprem", "instance_num": 0, "host_key": key});
    story.call::<r::FleetsTrustHost>(accepted).await;
    let some = json!({"name": "onprem", "instance_nums": [0]});
    story.call::<r::FleetsDeleteInstances>(some).await;
    let fleet = json!({"plan": {"spec": ssh_fleet(&["192.0.2.7"])}, "force": true});
    let mut other = fleet.clone();
    other["plan"]["spec"]["configuration"]["name"] = json!("other");
    story.call::<r::FleetsApply>(other).await;
    story.call::<r::FleetsDelete>(json!({"names": ["other"]})).await;
    let names = json!({"names": ["one", "two"]});
    story.call::<r::GatewaysDelete>(names).await;
    story.call::<r::VolumesDelete>(json!({"names": ["data"]})).await;
    story
        .call::<r::ProjectsDelete>(json!({"projects_names": ["team"]}))
        .await;
}
