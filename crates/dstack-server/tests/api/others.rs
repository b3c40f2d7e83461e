//! What is asked of somebody else's things: every route of the table, with the names and ids of things that belong to another
//! user, or to a project that the caller is no member of.
//!
//! The matrix of roles (`matrix`) says who may call a route at all. Here the caller may, in a project of their own, and names
//! what they have no business with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dstack_api::{Body as Kind, Endpoint, Method, ROUTES, RouteInfo, routes as r};
use dstack_compute::{BackendKind, Registry};
use dstack_logs::{LogEntry, LogStream, Producer, Source};
use dstack_store::raw;
use serde_json::{Value, json};

use super::{ADMIN, Answer, Server, TestServer, backends, effects, matrix, multipart, on_postgres, request};

/// Who has everything.
const OWNER: &str = "owner-token";
/// Who asks: the admin of project `theirs`, and a plain user of project `shared`, where the owner is one as well.
const CALLER: &str = "mallory-token";

/// What a call with somebody else's names must come to. Nothing may be changed by it, whatever the answer is.
#[derive(Debug, Clone)]
enum Expected {
    /// Status and a part of the message.
    Refused(u16, &'static str),
    /// `null`: names that mean nothing to the caller are left alone.
    Ignored,
    /// A list of nothing.
    Empty,
    /// This part of the answer has this value.
    Shows(&'static str, Value),
}

use Expected::{Empty, Ignored, Refused, Shows};

/// A call that names things of somebody else, and what it must be answered.
#[derive(Debug)]
struct Row {
    route: RouteInfo,
    path: String,
    body: Value,
    expected: Expected,
}

/// Routes that cannot name anything that exists, and why.
const NAMES_NOTHING: &[(&str, &str)] = &[
    ("ServerGetInfo", "takes nothing"),
    ("Healthcheck", "takes nothing"),
    ("ServerGetDiagnosis", "takes nothing"),
    ("AuthListProviders", "takes nothing"),
    ("AuthGetNextRedirect", "the state is what a provider sent back"),
    ("AuthAuthorize", "names a provider"),
    (
        "AuthCallback",
        "the code is what a provider sent back; attempts are bound to a browser by `login`'s tests",
    ),
    ("UsersGetMyUser", "takes nothing"),
    ("PublicKeysList", "takes nothing"),
    (
        "PublicKeysAdd",
        "a key is not a thing of the server's; two users may add the same one",
    ),
    ("ProjectsListOnlyNoFleets", "takes nothing"),
    ("BackendsListTypes", "takes nothing"),
    (
        "FilesUploadArchive",
        "a hash names the content that is sent; archives are their uploader's",
    ),
];

/// Ids of the owner's things.
struct World {
    server: Server,
    ids: BTreeMap<&'static str, Value>,
}

impl World {
    async fn new() -> Self {
        let kinds = Registry::new([Arc::new(backends::Picky) as Arc<dyn BackendKind>]);
        let server = TestServer::new().kinds(kinds);
        let server = server.settings(|settings| settings.exports_enabled = true);
        let mut world = Self {
            server: server.start().await,
            ids: BTreeMap::new(),
        };
        for name in ["owner", "mallory"] {
            world.server.user(name).await;
        }
        world.add_projects().await;
        world.add_things().await;
        world
    }

    async fn own<E: Endpoint>(&self, project: &str, body: Value) -> Value {
        let path = E::ROUTE.path.replace("{project_name}", project);
        self.server.post(OWNER, &path, body).await.ok()
    }

    async fn add_projects(&mut self) {
        let theirs = json!({"project_name": "theirs"});
        self.server
            .post(CALLER, r::ProjectsCreate::ROUTE.path, theirs)
            .await
            .ok();
        let team = self
            .own::<r::ProjectsCreate>("", json!({"project_name": "team"}))
            .await;
        self.ids.insert("project", team["project_id"].clone());
        self.ids.insert("user", team["owner"]["id"].clone());
        self.own::<r::ProjectsCreate>("", json!({"project_name": "other"}))
            .await;
        let shared = json!({"project_name": "shared"});
        self.server
            .post(ADMIN, r::ProjectsCreate::ROUTE.path, shared)
            .await
            .ok();
        let member = |name: &str| json!({"username": name, "project_role": "user"});
        let members = json!({"members": [member("owner"), member("mallory")]});
        let add = "/api/projects/shared/add_members";
        self.server.post(ADMIN, add, members).await.ok();
    }

    /// One of each kind.
    async fn add_things(&mut self) {
        let key =
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINRFlJk/hBpwMoXLcqE5f7yTVwT/WiVFn1o1T4J4PjgG golden@laptop";
        let key = self.own::<r::PublicKeysAdd>("", json!({"key": key})).await;
        self.ids.insert("key", key["id"].clone());
        self.own::<r::TokensCreate>("", json!({"name": "ci"})).await;
        let archive = multipart(r::FilesUploadArchive::ROUTE.path, OWNER, "cafe", b"dotfiles");
        let archive = self.server.send(archive).await.ok();
        self.ids.insert("archive", archive["id"].clone());

        let creds = json!({"clone_url": "https://host/code.git", "oauth_token": "canary"});
        let repo = json!({"repo_id": "code", "repo_info": {"repo_type": "remote", "repo_name": "code"}, "repo_creds": creds});
        for project in ["team", "shared"] {
            self.own::<r::ReposInit>(project, repo.clone()).await;
        }
        let code = "/api/project/team/repos/upload_code?repo_id=code";
        self.server
            .send(multipart(code, OWNER, "beef", b"diff"))
            .await
            .ok();
        self.own::<r::SecretsCreateOrUpdate>("team", json!({"name": "s", "value": "canary"}))
            .await;

        let backend = json!({"type": "runpod", "creds": {"type": "api_key", "api_key": "k"}});
        self.own::<r::BackendsCreate>("team", backend).await;
        let hosts = json!({"plan": {"spec": effects::ssh_fleet(&["192.0.2.1"])}, "force": true});
        let fleet = self.own::<r::FleetsApply>("team", hosts).await;
        self.ids.insert("fleet", fleet["id"].clone());
        self.ids.insert("instance", fleet["instances"][0]["id"].clone());
        let volume = self
            .own::<r::VolumesCreate>("team", json!({"configuration": volume()}))
            .await;
        self.ids.insert("volume", volume["id"].clone());
        let gateway = self
            .own::<r::GatewaysCreate>("team", json!({"configuration": gateway()}))
            .await;
        self.ids.insert("gateway", gateway["id"].clone());
        let export = json!({"name": "shared", "importer_projects": ["other"], "exported_fleets": ["onprem"]});
        self.own::<r::ExportsCreate>("team", export).await;

        let run = self
            .own::<r::RunsApply>(
                "team",
                json!({"plan": {"run_spec": run(json!({}))}, "force": true}),
            )
            .await;
        self.ids.insert("run", run["id"].clone());
        let job = &run["jobs"][0]["job_submissions"][0]["id"];
        self.ids.insert("job", job.clone());
        self.write_log("team").await;
        // As a project of the same name would have left it.
        self.write_log("theirs").await;
    }

    async fn write_log(&self, project: &str) {
        let stream = LogStream {
            project: project.to_owned(),
            run: "hello".to_owned(),
            job: self.ids["job"].as_str().unwrap().parse().unwrap(),
            producer: Producer::Job,
        };
        let entry = LogEntry {
            timestamp: self.server.state.data.clock.now(),
            source: Source::Stdout,
            message: axum::body::Bytes::from_static(b"canary"),
        };
        self.server
            .state
            .data
            .logs
            .append(&stream, vec![entry])
            .await
            .unwrap();
    }

    fn id(&self, of: &str) -> Value {
        self.ids[of].clone()
    }

    /// Every row of the database.
    async fn rows(&self) -> BTreeMap<String, Vec<String>> {
        let database = &self.server.state.data.database;
        let (tables, whole) = match on_postgres() {
            true => (
                "SELECT CAST(tablename AS TEXT) FROM pg_tables WHERE schemaname = 'public'",
                "SELECT CAST(t AS TEXT) FROM TABLE t ORDER BY 1",
            ),
            false => (
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'",
                "",
            ),
        };
        let texts = async |sql: String| -> Vec<String> {
            let rows = raw::fetch(database, &sql).await.unwrap();
            rows.into_iter().map(|row| row[0].clone().unwrap()).collect()
        };
        let mut found = BTreeMap::new();
        for table in texts(tables.to_owned()).await {
            let sql = match on_postgres() {
                true => whole.replace("TABLE", &format!("\"{table}\"")),
                false => {
                    let columns = texts(format!("SELECT name FROM pragma_table_info('{table}')")).await;
                    let quoted: Vec<String> =
                        columns.iter().map(|name| format!("quote(\"{name}\")")).collect();
                    format!(
                        "SELECT {} FROM \"{table}\" ORDER BY 1",
                        quoted.join(" || ',' || ")
                    )
                }
            };
            found.insert(table.clone(), texts(sql).await);
        }
        found
    }

    async fn call(&self, row: &Row) -> Answer {
        let asked = match (row.route.body, row.route.method) {
            (Kind::Upload, _) => multipart(&row.path, CALLER, "beef", b"diff"),
            (_, Method::Get) => request("GET", &row.path, Some(CALLER), None),
            _ => request("POST", &row.path, Some(CALLER), Some(&row.body)),
        };
        self.server.send(asked).await
    }
}

fn volume() -> Value {
    json!({"type": "volume", "name": "data", "backend": "runpod", "region": "EU-RO-1", "size": "50GB"})
}

fn gateway() -> Value {
    json!({"type": "gateway", "name": "gate", "backend": "runpod", "region": "EU-RO-1", "domain": "team.test"})
}

fn run(more: Value) -> Value {
    let mut spec = json!({"run_name": "hello", "configuration": {"type": "task", "commands": ["true"]}});
    let all = more.as_object().unwrap();
    for (name, value) in all {
        match name.as_str() {
            "repo_id" | "repo_data" | "file_archives" => spec[name] = value.clone(),
            _ => spec["configuration"][name] = value.clone(),
        }
    }
    spec
}

/// The table of calls, in the order of the routes.
#[derive(Default)]
struct Table(Vec<Row>);

impl Table {
    /// In the caller's own project, where the route is one of projects.
    fn add<E: Endpoint>(&mut self, body: Value, expected: Expected) {
        self.at::<E>("theirs", "", body, expected);
    }

    fn at<E: Endpoint>(&mut self, project: &str, query: &str, body: Value, expected: Expected) {
        let route = E::ROUTE;
        let path = matrix::path_of(&route).replace("/team/", &format!("/{project}/"));
        let path = path.replace("/aws/", "/runpod/").replace("/job/x", "/job/hello");
        self.0.push(Row {
            route,
            path: format!("{path}{query}"),
            body,
            expected,
        });
    }
}

const NOT_FOUND: Expected = Refused(400, "Resource not found");

fn table(world: &World) -> Vec<Row> {
    let mut all = Table::default();
    users(&mut all, world);
    projects(&mut all);
    backends_and_repos(&mut all);
    fleets(&mut all, world);
    runs(&mut all, world);
    secrets_and_files(&mut all);
    gateways_and_volumes(&mut all);
    events(&mut all, world);
    exports(&mut all);
    all.0
}

fn users(all: &mut Table, world: &World) {
    let (owner, denied) = (json!({"username": "owner"}), Refused(403, "Access denied"));
    all.add::<r::UsersList>(json!({"name_pattern": "owner"}), Empty);
    all.add::<r::UsersGetUser>(owner.clone(), NOT_FOUND);
    let update = json!({"username": "owner", "global_role": "user", "active": false});
    all.add::<r::UsersCreate>(update.clone(), denied.clone());
    all.add::<r::UsersUpdate>(update, denied.clone());
    all.add::<r::UsersDelete>(json!({"users": ["owner"]}), denied.clone());
    all.add::<r::UsersRefreshToken>(owner.clone(), denied.clone());
    all.add::<r::UsersRefreshSshKey>(owner.clone(), denied.clone());
    all.add::<r::TokensList>(owner, denied.clone());
    let delete = json!({"username": "owner", "names": ["ci"]});
    all.add::<r::TokensDelete>(delete, denied);
    let own = json!({"names": ["ci"]});
    all.add::<r::TokensDelete>(own, Refused(400, "ci"));
    let token = json!({"name": "mine", "project_name": "team"});
    all.add::<r::TokensCreate>(token, Refused(400, "team"));
    all.add::<r::PublicKeysDelete>(json!({"ids": [world.id("key")]}), Ignored);
}

fn projects(all: &mut Table) {
    let account = json!({"backend": "runpod", "project_name": "team"});
    all.add::<r::ServerListAccount>(account, Refused(403, "Access denied"));
    let member = json!([{"username": "mallory", "project_role": "admin"}]);
    all.add::<r::ProjectsList>(json!({"username": "owner", "name_pattern": "team"}), Empty);
    all.add::<r::ProjectsCreate>(json!({"project_name": "Team"}), Refused(400, "Resource exists"));
    all.add::<r::ProjectsDelete>(json!({"projects_names": ["team"]}), Refused(403, "Access denied"));
    all.add::<r::ProjectsDelete>(
        json!({"projects_names": ["theirs", "team"]}),
        Refused(403, "Access denied"),
    );
    all.at::<r::ProjectsGet>("team", "", json!(null), Refused(403, "Access denied"));
    for project in ["team", "shared"] {
        let members = json!({"members": member});
        let denied = Refused(403, "Access denied");
        all.at::<r::ProjectsSetMembers>(project, "", members.clone(), denied.clone());
        all.at::<r::ProjectsAddMembers>(project, "", members, denied.clone());
        let owner = json!({"usernames": ["owner"]});
        all.at::<r::ProjectsRemoveMembers>(project, "", owner, denied.clone());
        all.at::<r::ProjectsUpdate>(project, "", json!({"is_public": true}), denied);
    }
    let owner = json!({"usernames": ["owner"]});
    all.add::<r::ProjectsRemoveMembers>(owner, Refused(400, "User is not a member of this project: owner"));
    all.at::<r::TemplatesList>("team", "", json!(null), Refused(403, "Access denied"));
}

fn backends_and_repos(all: &mut Table) {
    let denied = Refused(403, "Access denied");
    let config = json!({"type": "runpod", "creds": {"type": "api_key", "api_key": "k"}});
    let yaml = json!({"config_yaml": "type: runpod\ncreds: {type: api_key, api_key: k}\n"});
    all.at::<r::BackendsCreate>("team", "", config.clone(), denied.clone());
    all.at::<r::BackendsCreateYaml>("team", "", yaml.clone(), denied.clone());
    all.add::<r::BackendsUpdate>(config, NOT_FOUND);
    all.add::<r::BackendsUpdateYaml>(yaml, NOT_FOUND);
    all.add::<r::BackendsDelete>(json!({"backends_names": ["runpod"]}), Ignored);
    all.add::<r::BackendsConfigInfo>(json!(null), NOT_FOUND);
    all.add::<r::BackendsGetYaml>(json!(null), NOT_FOUND);

    let repo = json!({"repo_id": "code", "include_creds": true});
    all.add::<r::ReposList>(json!(null), Empty);
    all.add::<r::ReposGet>(repo.clone(), NOT_FOUND);
    // The repo is that of all members; what opens it belongs to each of them.
    all.at::<r::ReposGet>("shared", "", repo, Shows("/repo_creds", Value::Null));
    let init = json!({"repo_id": "code", "repo_info": {"repo_type": "virtual"}});
    all.at::<r::ReposInit>("team", "", init, denied);
    all.add::<r::ReposDelete>(json!({"repos_ids": ["code"]}), Ignored);
    let unknown = Refused(400, "Repo code does not exist");
    all.at::<r::ReposUploadCode>("theirs", "?repo_id=code", json!(null), unknown);
}

fn fleets(all: &mut Table, world: &World) {
    let taken = Refused(400, "Instances [192.0.2.1] are already assigned to a fleet.");
    let hosts = effects::ssh_fleet(&["192.0.2.1"]);
    all.add::<r::FleetsList>(json!({"project_name": "team"}), Empty);
    all.add::<r::FleetsList>(json!({"include_imported": true}), Empty);
    all.add::<r::ProjectFleetsList>(json!({"include_imported": true}), Empty);
    all.add::<r::FleetsGet>(json!({"name": "onprem"}), NOT_FOUND);
    all.add::<r::FleetsGet>(json!({"id": world.id("fleet")}), NOT_FOUND);
    all.add::<r::FleetsGetPlan>(json!({"spec": hosts}), taken.clone());
    all.add::<r::FleetsApply>(json!({"plan": {"spec": hosts}, "force": true}), taken);
    let free = json!({"spec": effects::ssh_fleet(&["192.0.2.9"])});
    all.add::<r::FleetsGetPlan>(free, Shows("/current_resource", Value::Null));
    all.add::<r::FleetsDelete>(json!({"names": ["onprem"]}), Ignored);
    let one = json!({"name": "onprem", "instance_nums": [0]});
    all.add::<r::FleetsDeleteInstances>(one, Ignored);
    let key = "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU";
    let accepted = json!({"name": "onprem", "instance_num": 0, "host_key": key});
    all.add::<r::FleetsTrustHost>(accepted, NOT_FOUND);
    all.add::<r::InstancesList>(json!({"project_names": ["team"]}), Empty);
    let of_fleet = json!({"fleet_ids": [world.id("fleet")], "include_imported": true});
    all.add::<r::InstancesList>(of_fleet, Empty);
    all.add::<r::InstancesGet>(json!({"id": world.id("instance")}), NOT_FOUND);
    let health = json!({"fleet_name": "onprem", "instance_num": 0});
    all.add::<r::InstancesGetHealthChecks>(health, NOT_FOUND);
}

fn runs(all: &mut Table, world: &World) {
    let unknown = Refused(400, "Run not found");
    all.add::<r::RunsList>(json!({"project_name": "team"}), Empty);
    all.add::<r::RunsList>(json!({"username": "owner"}), Empty);
    let of_repo = json!({"project_name": "theirs", "repo_id": "code"});
    all.add::<r::RunsList>(of_repo, Refused(400, "Repo code does not exist"));
    all.add::<r::RunsGet>(json!({"run_name": "hello"}), unknown.clone());
    all.add::<r::RunsGet>(json!({"id": world.id("run")}), unknown);
    let names = json!({"runs_names": ["hello"]});
    all.add::<r::RunsStop>(json!({"runs_names": ["hello"], "abort": true}), Ignored);
    all.add::<r::RunsDelete>(names, Ignored);
    let no_service = Refused(400, "Found no service of this name");
    all.add::<r::RunsGetRollout>(json!({"name": "hello"}), no_service.clone());
    let abort = json!({"run_name": "hello", "action": "abort"});
    all.add::<r::RunsRollout>(abort, no_service);

    let plan = |more: Value| json!({"run_spec": run(more)});
    let apply = |more: Value| json!({"plan": {"run_spec": run(more)}, "force": true});
    let mount = json!({"volumes": ["data:/data"]});
    let secret = json!({"image": "i", "registry_auth": {"username": "${{ secrets.s }}", "password": "p"}});
    for (more, expected) in [
        (mount, Refused(400, "Volume ['data'] not found")),
        (secret, Refused(400, "secrets.s")),
    ] {
        all.add::<r::RunsGetPlan>(plan(more.clone()), expected.clone());
        all.add::<r::RunsApply>(apply(more), expected);
    }
    let fleet = plan(on_fleet("team/onprem"));
    all.add::<r::RunsGetPlan>(fleet.clone(), Shows("/job_plans/0/offers", json!([])));
    all.add::<r::RunsGetPlan>(plan(json!({})), Shows("/current_resource", Value::Null));
    all.add::<r::GpusList>(fleet, Shows("/gpus", json!([])));
    let gateway = json!({"type": "service", "port": 80, "gateway": "team/gate"});
    let no_gateway = Refused(400, "Gateway gate does not exist in project team");
    all.add::<r::RunsApply>(apply(gateway), no_gateway);
    let repo = json!({"repo_id": "code", "repo_data": {"repo_type": "remote", "repo_name": "code"}});
    all.add::<r::RunsApply>(apply(repo), Refused(400, "Repo code does not exist"));
    let files = apply(json!({"file_archives": [{"id": world.id("archive"), "path": "f"}]}));
    for project in ["theirs", "shared"] {
        let expected = Refused(400, "does not exist. Upload the files again");
        all.at::<r::RunsApply>(project, "", files.clone(), expected);
    }

    let no_job = Refused(400, "Found no job with given parameters");
    all.add::<r::MetricsJob>(json!(null), no_job.clone());
    let id = world.id("run");
    let query = format!("?run_id={}", id.as_str().unwrap());
    all.at::<r::MetricsJob>("theirs", &query, json!(null), no_job);
    all.add::<r::MetricsService>(json!(null), Refused(400, "Found no service of this name"));
    let elsewhere = Refused(403, "Access denied");
    all.at::<r::ChangesFollow>("theirs", "?project_name=team", json!(null), elsewhere);
    let log = json!({"run_name": "hello", "job_submission_id": world.id("job")});
    all.add::<r::LogsPoll>(log, Shows("/logs", json!([])));
    all.add::<r::SshProxyGetUpstream>(json!({"id": world.id("job")}), Refused(403, "Access denied"));
}

fn secrets_and_files(all: &mut Table) {
    all.add::<r::SecretsList>(json!(null), Empty);
    all.add::<r::SecretsGet>(json!({"name": "s"}), NOT_FOUND);
    all.add::<r::SecretsDelete>(
        json!({"secrets_names": ["s"]}),
        Refused(400, "Secrets not found: s"),
    );
    let secret = json!({"name": "s", "value": "v"});
    for project in ["team", "shared"] {
        let denied = Refused(403, "Access denied");
        all.at::<r::SecretsCreateOrUpdate>(project, "", secret.clone(), denied);
    }
    all.add::<r::FilesGetArchiveByHash>(json!({"hash": "cafe"}), NOT_FOUND);
}

fn gateways_and_volumes(all: &mut Table) {
    let (name, names, denied) = (
        json!({"name": "gate"}),
        json!({"names": ["gate"]}),
        Refused(403, "Access denied"),
    );
    all.add::<r::GatewaysList>(json!({"include_imported": true}), Empty);
    all.add::<r::GatewaysGet>(name.clone(), NOT_FOUND);
    let spec = json!({"configuration": gateway()});
    let plan = json!({"spec": spec});
    all.add::<r::GatewaysGetPlan>(plan, Shows("/current_resource", Value::Null));
    all.at::<r::GatewaysApply>(
        "team",
        "",
        json!({"plan": {"spec": spec}, "force": true}),
        denied.clone(),
    );
    all.at::<r::GatewaysCreate>("team", "", spec, denied.clone());
    all.add::<r::GatewaysDelete>(names, Ignored);
    let import = json!({"name": "gate", "gateway_project": "team"});
    all.add::<r::GatewaysSetDefault>(name, NOT_FOUND);
    all.add::<r::GatewaysSetDefault>(import, NOT_FOUND);
    let domain = json!({"name": "gate", "wildcard_domain": "*.evil.test"});
    all.add::<r::GatewaysSetWildcardDomain>(domain, NOT_FOUND);

    all.add::<r::VolumesList>(json!({"project_name": "team"}), Empty);
    all.add::<r::ProjectVolumesList>(json!(null), Empty);
    all.add::<r::VolumesGet>(json!({"name": "data"}), NOT_FOUND);
    all.at::<r::VolumesCreate>("team", "", json!({"configuration": volume()}), denied);
    all.add::<r::VolumesDelete>(json!({"names": ["data"]}), Ignored);
}

/// Fields of a run that a host of the fleet satisfies before anything is known of it.
fn on_fleet(fleet: &str) -> Value {
    json!({"fleets": [fleet], "resources": {"cpu": "1..", "memory": "0..", "disk": null}})
}

/// Filters of events, and whose ids they take.
const FILTERS: [(&str, &str); 12] = [
    ("target_projects", "project"),
    ("target_users", "user"),
    ("target_fleets", "fleet"),
    ("target_instances", "instance"),
    ("target_runs", "run"),
    ("target_jobs", "job"),
    ("target_volumes", "volume"),
    ("target_gateways", "gateway"),
    ("within_projects", "project"),
    ("within_fleets", "fleet"),
    ("within_runs", "run"),
    ("within_gateways", "gateway"),
];

fn events(all: &mut Table, world: &World) {
    for (filter, of) in FILTERS {
        all.add::<r::EventsList>(json!({filter: [world.id(of)]}), Empty);
    }
}

fn exports(all: &mut Table) {
    let denied = Refused(403, "Access denied");
    let fleets = json!({"name": "mine", "exported_fleets": ["onprem"]});
    all.add::<r::ExportsCreate>(fleets, Refused(400, "not found in project 'theirs'"));
    let importers = json!({"name": "mine", "importer_projects": ["team"]});
    all.add::<r::ExportsCreate>(importers, Refused(400, "team"));
    let unknown = Refused(400, "'shared' not found in project 'theirs'");
    let update = json!({"name": "shared", "unset_global": true});
    all.add::<r::ExportsUpdate>(update, unknown.clone());
    all.add::<r::ExportsDelete>(json!({"name": "shared"}), unknown);
    all.at::<r::ExportsList>("team", "", json!(null), denied.clone());
    all.at::<r::ImportsList>("other", "", json!(null), denied);
    let import = json!({"export_name": "shared", "export_project_name": "team"});
    let unknown = Refused(400, "'team/shared' not found in project 'theirs'");
    all.add::<r::ImportsDelete>(import, unknown);
}

fn check(row: &Row, answer: &Answer) -> Result<(), String> {
    let told = answer.body.to_string();
    let is_right = !told.contains("canary")
        && match &row.expected {
            Refused(status, text) => answer.status == *status && told.contains(text),
            Ignored => (answer.status, &answer.body) == (200, &Value::Null),
            Empty => (answer.status, &answer.body) == (200, &json!([])),
            Shows(place, value) => answer.status == 200 && answer.body.pointer(place) == Some(value),
        };
    let Row {
        path, body, expected, ..
    } = row;
    match is_right {
        true => Ok(()),
        false => Err(format!(
            "{path} {body}: {} {told}\n  instead of {expected:?}",
            answer.status
        )),
    }
}

#[tokio::test]
async fn somebody_elses_things_are_out_of_reach() {
    let world = World::new().await;
    let mut problems = Vec::new();
    let before = world.rows().await;
    for row in table(&world) {
        let answer = world.call(&row).await;
        problems.extend(check(&row, &answer).err());
        let after = world.rows().await;
        for (table, rows) in &after {
            if before.get(table) != Some(rows) {
                problems.push(format!("{} {} changed {table}", row.path, row.body));
            }
        }
        assert!(problems.len() < 20, "{}", problems.join("\n"));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// A route that takes a name or an id must say here what becomes of somebody else's.
#[tokio::test]
async fn every_route_has_its_row() {
    let world = World::new().await;
    let tried: BTreeSet<&str> = table(&world).iter().map(|row| row.route.name).collect();
    for route in ROUTES {
        let excused = NAMES_NOTHING.iter().any(|(name, _)| *name == route.name);
        assert!(
            excused != tried.contains(route.name),
            "{}: add a call that names somebody else's thing, or say in NAMES_NOTHING why it cannot",
            route.name
        );
    }
}

/// The calls of the table are those that the owner makes of their own things: what is refused is refused because of who asks.
#[tokio::test]
async fn the_owner_reaches_them() {
    let world = World::new().await;
    let ask = async |path: &str, body: Value| world.server.post(OWNER, path, body).await.ok();
    let log = json!({"run_name": "hello", "job_submission_id": world.id("job")});
    let log = ask("/api/project/team/logs/poll", log).await;
    assert_eq!(log["logs"].as_array().unwrap().len(), 1);
    let secret = ask("/api/project/team/secrets/get", json!({"name": "s"})).await;
    assert_eq!(secret["value"], "canary");
    for (path, body) in [
        ("runs/get", json!({"id": world.id("run")})),
        ("fleets/get", json!({"id": world.id("fleet")})),
        ("instances/get", json!({"id": world.id("instance")})),
        ("volumes/get", json!({"name": "data"})),
        ("gateways/get", json!({"name": "gate"})),
        ("repos/get", json!({"repo_id": "code", "include_creds": true})),
        ("backends/runpod/get_yaml", json!(null)),
    ] {
        ask(&format!("/api/project/team/{path}"), body).await;
    }
    for (filter, of) in FILTERS {
        let found = ask("/api/events/list", json!({filter: [world.id(of)]})).await;
        assert_ne!(found, json!([]), "{filter}");
    }
    let plan = json!({"run_spec": run(on_fleet("onprem"))});
    let plan = ask("/api/project/team/runs/get_plan", plan).await;
    assert_eq!(plan["job_plans"][0]["total_offers"], 1);
}
