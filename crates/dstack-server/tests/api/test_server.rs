//! The server of a test, in process.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::Request;
use dstack_compute::{Backends, NoBackends, Registry};
use dstack_conformance::Exchange;
use dstack_logs::{Durability, FileLogStore};
use dstack_proxy::models::Renderer;
use dstack_server::access::{FailedLogins, Freshness};
use dstack_server::blobs::Bucket;
use dstack_server::doctor::{BackendFiles, Doctor};
use dstack_server::handlers;
use dstack_server::images::UnknownImages;
use dstack_server::login::Logins;
use dstack_server::login::config::LoginConfig;
use dstack_server::overload::{Limits, Overload};
use dstack_server::services::ServiceRoutes;
use dstack_server::site::Site;
use dstack_server::{
    AppState, Auth, Control, Data, DefaultPermissions, Edge, EngineParts, JobMaker, NoEngine, Settings, Verbs,
};
use dstack_store::encryption::{Encryption, Key};
use dstack_store::{Database, DatabaseOptions, raw};
use dstack_system::clock::SharedClock;
use dstack_system::{Clock, Random, SystemClock};
use dstack_telemetry::Telemetry;
use dstack_units::{ProjectId, Time};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::openapi;

/// A server with admin and project `main`.
pub(crate) struct Server {
    pub(crate) router: Router,
    pub(crate) state: Arc<AppState>,
    /// Settings, output and the database, if it is a file.
    pub(crate) folder: tempfile::TempDir,
    /// Of the database.
    url: String,
}

pub(crate) const ADMIN: &str = "admin-token";

/// Failed logins until further ones are refused: more than the test of all routes makes.
pub(crate) const LOGINS: u32 = 500;

/// Valid for tests only: making real keys takes seconds in a debug build.
pub(crate) const PUBLIC_KEY: &str = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQC7 test\n";

#[derive(Debug)]
pub(crate) struct HandClock(Mutex<Time>);

impl HandClock {
    /// Stands still at this time until it is moved.
    pub(crate) fn at(now: Time) -> Arc<Self> {
        Arc::new(Self(Mutex::new(now)))
    }

    /// Stands still at the time of the call.
    pub(crate) fn stopped() -> Arc<Self> {
        Self::at(SystemClock.now())
    }

    pub(crate) fn advance(&self, seconds: u64) {
        let mut now = self.0.lock().unwrap();
        *now = *now + Duration::from_secs(seconds);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Time {
        *self.0.lock().unwrap()
    }
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: axum::http::HeaderMap,
    pub(crate) body: Value,
}

impl Answer {
    /// The body of a success.
    pub(crate) fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.body
    }

    /// Message and code of a 400.
    pub(crate) fn refused(&self) -> (&str, Option<&str>) {
        assert_eq!(self.status, 400, "{}", self.body);
        let detail = &self.body["detail"][0];
        (detail["msg"].as_str().unwrap(), detail["code"].as_str())
    }
}

/// How the server of a test differs from others:
/// `TestServer::new().settings(|settings| settings.prometheus = true).start().await`.
pub(crate) struct TestServer {
    permissions: DefaultPermissions,
    kinds: Registry,
    backends: Arc<dyn Backends>,
    settings: Settings,
    clock: SharedClock,
    limits: Limits,
    passed_on: dstack_proxy::Limits,
    bucket: Option<Bucket>,
    doctor: Doctor,
    site: Site,
}

impl TestServer {
    /// As the environment says, without kinds of backends.
    pub(crate) fn new() -> Self {
        Self {
            permissions: DefaultPermissions::default(),
            kinds: Registry::default(),
            backends: Arc::new(NoBackends),
            settings: Settings::from_env(),
            clock: Arc::new(SystemClock),
            limits: Limits::default(),
            passed_on: dstack_proxy::Limits::default(),
            bucket: None,
            doctor: Doctor::default(),
            site: Site::default(),
        }
    }

    /// With other permissions of those who are no admins.
    pub(crate) fn permissions(mut self, permissions: DefaultPermissions) -> Self {
        self.permissions = permissions;
        self
    }

    /// With kinds of backends.
    pub(crate) fn kinds(mut self, kinds: Registry) -> Self {
        self.kinds = kinds;
        self
    }

    /// With these backends, whatever projects have configured.
    pub(crate) fn backends(mut self, backends: Arc<dyn Backends>) -> Self {
        self.backends = backends;
        self
    }

    /// With other settings.
    pub(crate) fn settings(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        set(&mut self.settings);
        self
    }

    /// With a clock that the test moves.
    pub(crate) fn clock(mut self, clock: &Arc<HandClock>) -> Self {
        self.clock = Arc::clone(clock) as SharedClock;
        self
    }

    /// That lets in only so many calls at a time.
    pub(crate) fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// That passes only so many requests on at a time.
    pub(crate) fn passed_on(mut self, limits: dstack_proxy::Limits) -> Self {
        self.passed_on = limits;
        self
    }

    /// That keeps uploads in this bucket.
    pub(crate) fn bucket(mut self, bucket: Bucket) -> Self {
        self.bucket = Some(bucket);
        self
    }

    /// Whose diagnoses take no longer than this.
    pub(crate) fn diagnosed_within(mut self, limit: Duration) -> Self {
        self.doctor = Doctor::within(limit);
        self
    }

    /// That was started with these files that describe backends.
    pub(crate) fn backend_files(mut self, files: BackendFiles) -> Self {
        self.doctor = self.doctor.with_files(files);
        self
    }

    /// That has a web page.
    pub(crate) fn site(mut self, site: Site) -> Self {
        self.site = site;
        self
    }

    /// On a database of its own, with admin and project `main`.
    pub(crate) async fn start(self) -> Server {
        let (folder, encryption) = (tempfile::tempdir().unwrap(), encryption());
        let url = database_url(folder.path()).await;
        let database = open_database(&url, &encryption).await;
        let server = self.on(database, url, encryption, folder);
        server.seed_user("admin", "admin", ADMIN).await;
        server.project(ADMIN, "main").await;
        server
    }

    fn on(
        self,
        database: Database,
        url: String,
        encryption: Encryption,
        folder: tempfile::TempDir,
    ) -> Server {
        let settings = Settings {
            dir: folder.path().to_owned(),
            ..self.settings
        };
        let logs = Arc::new(FileLogStore::new(folder.path(), Durability::Written));
        let (clock, random) = (self.clock, Random::system());
        let data = Data::new(database, encryption, self.bucket, logs, clock, random);
        let failed_logins = FailedLogins::new(LOGINS, Duration::from_secs(60));
        let logins = Logins::new(&LoginConfig::default(), settings.login_patience());
        let auth = Auth::new(&data, failed_logins, logins, self.permissions);
        let runs = Arc::default();
        let verbs = Verbs::new(&data, &auth, &runs, self.kinds, &settings);
        let engine = EngineParts {
            handle: Arc::new(NoEngine(data.store())),
            jobs: JobMaker::new(&data, Arc::new(UnknownImages), &settings),
        };
        let control = Control {
            doctor: self.doctor,
            ..Control::new(&data, engine, self.backends, verbs, &settings)
        };
        let edge =
            Edge::new(settings, Overload::from(self.limits), Telemetry::default(), runs).with_site(self.site);
        let services = ServiceRoutes::new(&data, &edge.settings, self.passed_on, Renderer::new("", []));
        let state = Arc::new(AppState {
            data: Arc::new(data),
            auth: Arc::new(auth),
            control: Arc::new(control),
            services,
            edge: Arc::new(edge),
        });
        Server {
            router: handlers::router(Arc::clone(&state)),
            state,
            folder,
            url,
        }
    }
}

impl Server {
    /// As most tests want it: see [`TestServer`] for others.
    pub(crate) async fn new() -> Self {
        TestServer::new().start().await
    }

    /// A second server on the database of this one.
    pub(crate) fn beside(&self) -> Self {
        let data = &self.state.data;
        let folder = tempfile::tempdir().unwrap();
        let (database, url) = (data.database.clone(), self.url.clone());
        TestServer::new().on(database, url, data.encryption.clone(), folder)
    }

    /// A server of another process: with connections of its own to the database of this one.
    pub(crate) async fn elsewhere(&self) -> Self {
        let encryption = self.state.data.encryption.clone();
        let database = open_database(&self.url, &encryption).await;
        let folder = tempfile::tempdir().unwrap();
        TestServer::new().on(database, self.url.clone(), encryption, folder)
    }

    /// A user with a key pair that was not made for the occasion.
    pub(crate) async fn seed_user(&self, name: &str, role: &str, token: &str) {
        let sealed = self.state.data.encryption.encrypt(token).unwrap();
        let private = self.state.data.encryption.encrypt("private").unwrap();
        let (id, hash) = (
            self.state.data.random.uuid().to_string(),
            dstack_server::access::token_hash(token),
        );
        let (name, role) = (name.to_owned(), role.to_owned());
        let now = dstack_system::Clock::now(&SystemClock).as_micros();
        self.state
            .data
            .database
            .write(move |tx| {
                Box::pin(
                    async move { insert_user(tx, &id, &name, now, &role, &sealed, &hash, &private).await },
                )
            })
            .await
            .unwrap();
        self.state.auth.access.changed();
    }

    pub(crate) async fn user(&self, name: &str) -> String {
        let token = format!("{name}-token");
        self.seed_user(name, "user", &token).await;
        token
    }

    /// A project whose admin is the caller.
    pub(crate) async fn project(&self, token: &str, name: &str) -> Value {
        let create = json!({"project_name": name});
        self.post(token, "/api/projects/create", create).await.ok()
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        // Clients of other versions get other shapes.
        let is_current = request.headers().get("x-api-version").is_none();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        // A stream has no end: see `changes.rs`.
        let is_stream = headers
            .get("content-type")
            .is_some_and(|kind| kind == "text/event-stream");
        let bytes = match is_stream {
            true => Bytes::new(),
            false => response.into_body().collect().await.unwrap().to_bytes(),
        };
        if is_current && !is_stream {
            let exchange = Exchange {
                method: method.as_str(),
                path: &path,
                status,
                body: &bytes,
            };
            if let Err(problem) = openapi::DOCUMENT.check(exchange) {
                panic!("{problem}");
            }
        }
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        Answer {
            status,
            headers,
            body,
        }
    }

    pub(crate) async fn post(&self, token: &str, path: &str, body: Value) -> Answer {
        self.send(request("POST", path, Some(token), Some(&body))).await
    }

    /// Ends the runs that are being stopped, as an engine would.
    pub(crate) async fn finish_runs(&self) {
        use dstack_model::runs::RunStatus;
        use dstack_store::{Commit, EngineStore, Put};
        let project = self.main_project().await;
        let found = self
            .state
            .data
            .database
            .run_by_name(project, "hello")
            .await
            .unwrap();
        let mut run = found.unwrap().run;
        run.finish(RunStatus::Terminated).unwrap();
        let commit = Commit::unchecked(vec![Put::Run(run)], Vec::new());
        self.state.data.store().commit(commit).await.unwrap();
    }

    /// The id of project `main`.
    pub(crate) async fn main_project(&self) -> ProjectId {
        let project = self
            .state
            .auth
            .access
            .project("main", Freshness::Current)
            .await
            .unwrap();
        project.unwrap().row.id
    }

    /// Below project `main`.
    pub(crate) async fn main(&self, path: &str, body: Value) -> Answer {
        self.post(ADMIN, &format!("/api/project/main/{path}"), body).await
    }
}

/// The key of all test servers.
pub(crate) fn encryption() -> Encryption {
    let key = Key::Aes {
        name: "k".into(),
        secret: [7; 32],
    };
    Encryption::new(vec![key], Random::system())
}

/// Of a database of the test's own.
async fn database_url(dir: &std::path::Path) -> String {
    match on_postgres() {
        true => new_postgres().await,
        false => format!("sqlite://{}", dir.join("t.db").display()),
    }
}

async fn open_database(url: &str, encryption: &Encryption) -> Database {
    let options = DatabaseOptions::default();
    let database = Database::open_on(url, options, encryption.into(), None).await;
    database.unwrap()
}

pub(crate) fn on_postgres() -> bool {
    dstack_system::env::var("DSTACK_TEST_DATABASE").as_deref() == Some("postgres")
}

/// Makes an empty PostgreSQL database and gives its URL.
pub(crate) async fn new_postgres() -> String {
    let url = dstack_system::env::var("DSTACK_TEST_POSTGRES_URL")
        .expect("a PostgreSQL server in DSTACK_TEST_POSTGRES_URL");
    let name = format!("api_{}", Random::system().uuid().simple());
    let server = Database::open(&url).await.unwrap();
    let create = format!("CREATE DATABASE {name}");
    raw::execute(&server, &create).await.unwrap();
    server.close().await;
    let (base, _) = url.rsplit_once('/').unwrap();
    format!("{base}/{name}")
}

#[allow(clippy::too_many_arguments)]
async fn insert_user(
    tx: &mut dstack_store::Tx,
    id: &str,
    name: &str,
    now: i64,
    role: &str,
    token: &str,
    hash: &str,
    private: &str,
) -> dstack_store::Result<()> {
    use dstack_store::queries::users::{self, UserRow};
    let user = UserRow {
        id: id.parse().unwrap(),
        name: name.to_owned(),
        created_at: dstack_units::Time::from_micros(now),
        global_role: role.parse().unwrap(),
        email: Some(format!("{name}@example.com")),
        active: true,
        token: token.to_owned(),
        ssh_private_key: Some(private.to_owned()),
        ssh_public_key: Some(PUBLIC_KEY.to_owned()),
        projects_quota: 10,
        deleted: false,
        original_name: None,
    };
    users::insert(tx, &user, hash).await
}

pub(crate) fn request(method: &str, path: &str, token: Option<&str>, body: Option<&Value>) -> Request<Body> {
    let mut builder = Request::builder().method(method).uri(path);
    if let Some(token) = token {
        builder = builder.header("authorization", format!("Bearer {token}"));
    }
    match body {
        None => builder.body(Body::empty()).unwrap(),
        Some(body) => builder
            .header("content-type", "application/json")
            .body(Body::from(serde_json::to_vec(body).unwrap()))
            .unwrap(),
    }
}

pub(crate) fn multipart(path: &str, token: &str, hash: &str, content: &[u8]) -> Request<Body> {
    let mut body = format!(
        "--X\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{hash}\"\r\nContent-Type: application/octet-stream\r\n\r\n"
    )
    .into_bytes();
    body.extend_from_slice(content);
    body.extend_from_slice(b"\r\n--X--\r\n");
    Request::post(path)
        .header("authorization", format!("Bearer {token}"))
        .header("content-type", "multipart/form-data; boundary=X")
        .header("content-length", body.len())
        .body(Body::from(body))
        .unwrap()
}

/// The answer for a snapshot: without ids and times, which differ from run to run. `INSTA_UPDATE=always` in the environment
/// of the tests writes snapshots anew.
pub(crate) fn redacted(answer: &Value) -> Value {
    match answer {
        Value::Array(items) => items.iter().map(redacted).collect(),
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| (name.clone(), redacted(value));
            fields.iter().map(field).collect()
        }
        Value::String(text) if text.parse::<uuid::Uuid>().is_ok() => json!("[id]"),
        Value::String(text) if text.parse::<jiff::Timestamp>().is_ok() => json!("[time]"),
        other => other.clone(),
    }
}
