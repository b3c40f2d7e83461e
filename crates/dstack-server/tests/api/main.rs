//! The API through the router, in process, without an engine: on SQLite, or with `DSTACK_TEST_DATABASE=postgres` on
//! PostgreSQL.

// Helpers of tests may panic.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::needless_pass_by_value,
    clippy::panic
)]

mod access;
mod backends;
mod blobs;
mod effects;
mod errors;
mod events;
mod fleets;
mod health;
mod import;
mod log_store;
mod login;
mod logs;
mod matrix;
mod metrics;
mod openapi;
mod others;
mod overload;
mod own_machine;
mod patience;
mod plugins;
mod projects;
mod reload;
mod repos;
mod retention;
mod root;
mod runner_tokens;
mod runs;
mod secrets;
mod server;
mod services;
mod shared_access;
mod sizes;
mod startup;
mod tokens;
mod users;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use dstack_conformance::Exchange;
use dstack_logs::{Durability, FileLogStore};
use dstack_server::access::{FailedLogins, Freshness};
use dstack_server::blobs::Bucket;
use dstack_server::handlers;
use dstack_server::images::UnknownImages;
use dstack_server::login::Logins;
use dstack_server::login::config::LoginConfig;
use dstack_server::overload::Overload;
use dstack_server::{
    AppState, Auth, Control, Data, DefaultPermissions, Edge, EngineParts, JobMaker, NoEngine, Settings, Verbs,
};
use dstack_store::encryption::{Encryption, Key};
use dstack_store::{Database, DatabaseOptions, raw};
use dstack_system::clock::SharedClock;
use dstack_system::{Clock, Random, SystemClock};
use dstack_telemetry::Telemetry;
use dstack_units::ProjectId;
use dstack_units::Time;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

/// A server with admin and project `main`.
struct Server {
    router: Router,
    state: Arc<AppState>,
    _dir: tempfile::TempDir,
}

const ADMIN: &str = "admin-token";

/// Failed logins until further ones are refused: more than the test of all routes makes.
const LOGINS: u32 = 500;

/// Valid for tests only: making real keys takes seconds in a debug build.
const PUBLIC_KEY: &str = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQC7 test\n";

#[derive(Debug)]
struct HandClock(Mutex<Time>);

impl HandClock {
    fn advance(&self, seconds: u64) {
        let mut now = self.0.lock().unwrap();
        *now = *now + Duration::from_secs(seconds);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Time {
        *self.0.lock().unwrap()
    }
}

struct Answer {
    status: u16,
    headers: axum::http::HeaderMap,
    body: Value,
}

impl Answer {
    /// The body of a success.
    fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.body
    }

    /// Message and code of a 400.
    fn refused(&self) -> (&str, Option<&str>) {
        assert_eq!(self.status, 400, "{}", self.body);
        let detail = &self.body["detail"][0];
        (detail["msg"].as_str().unwrap(), detail["code"].as_str())
    }
}

impl Server {
    async fn new() -> Self {
        Self::with(DefaultPermissions::default()).await
    }

    async fn with(permissions: DefaultPermissions) -> Self {
        Self::made(permissions, dstack_compute::Registry::default()).await
    }

    /// With kinds of backends.
    async fn with_registry(registry: dstack_compute::Registry) -> Self {
        Self::made(DefaultPermissions::default(), registry).await
    }

    /// With a clock that stands still until it is moved.
    async fn with_clock() -> (Self, Arc<HandClock>) {
        let clock = Arc::new(HandClock(Mutex::new(SystemClock.now())));
        let (permissions, registry) = (DefaultPermissions::default(), dstack_compute::Registry::default());
        let overload = Overload::default();
        let shared = Arc::clone(&clock) as SharedClock;
        let server = Self::with_all(
            permissions,
            registry,
            Settings::from_env(),
            shared,
            overload,
            None,
        )
        .await;
        (server, clock)
    }

    async fn made(permissions: DefaultPermissions, registry: dstack_compute::Registry) -> Self {
        Self::set(permissions, registry, Settings::from_env()).await
    }

    async fn set(
        permissions: DefaultPermissions,
        registry: dstack_compute::Registry,
        settings: Settings,
    ) -> Self {
        let clock = Arc::new(SystemClock);
        Self::with_all(permissions, registry, settings, clock, Overload::default(), None).await
    }

    /// That keeps uploads in this bucket.
    async fn with_bucket(bucket: Option<Bucket>) -> Self {
        let (permissions, registry) = (DefaultPermissions::default(), dstack_compute::Registry::default());
        let (settings, clock) = (Settings::from_env(), Arc::new(SystemClock));
        Self::with_all(
            permissions,
            registry,
            settings,
            clock,
            Overload::default(),
            bucket,
        )
        .await
    }

    /// That lets in only so many calls at a time.
    async fn with_overload(overload: Overload) -> Self {
        let (permissions, registry) = (DefaultPermissions::default(), dstack_compute::Registry::default());
        let clock = Arc::new(SystemClock);
        Self::with_all(permissions, registry, Settings::from_env(), clock, overload, None).await
    }

    async fn with_all(
        permissions: DefaultPermissions,
        registry: dstack_compute::Registry,
        settings: Settings,
        clock: SharedClock,
        overload: Overload,
        bucket: Option<Bucket>,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let encryption = encryption();
        let database = database(dir.path(), &encryption).await;
        let server = Self::on(
            database,
            encryption,
            dir,
            permissions,
            registry,
            settings,
            clock,
            overload,
            bucket,
        );
        server.seed_user("admin", "admin", ADMIN).await;
        server
            .post(ADMIN, "/api/projects/create", json!({"project_name": "main"}))
            .await
            .ok();
        server
    }

    /// A second server on the database of this one.
    fn beside(&self) -> Self {
        Self::on(
            self.state.data.database.clone(),
            self.state.data.encryption.clone(),
            tempfile::tempdir().unwrap(),
            DefaultPermissions::default(),
            dstack_compute::Registry::default(),
            Settings::from_env(),
            Arc::new(SystemClock),
            Overload::default(),
            None,
        )
    }

    #[allow(clippy::too_many_arguments)]
    fn on(
        database: Database,
        encryption: Encryption,
        dir: tempfile::TempDir,
        permissions: DefaultPermissions,
        registry: dstack_compute::Registry,
        settings: Settings,
        clock: SharedClock,
        overload: Overload,
        bucket: Option<Bucket>,
    ) -> Self {
        let settings = Settings {
            dir: dir.path().to_owned(),
            ..settings
        };
        let logs = Arc::new(FileLogStore::new(dir.path(), Durability::Written));
        let data = Data::new(database, encryption, bucket, logs, clock, Random::system());
        let failed_logins = FailedLogins::new(LOGINS, Duration::from_secs(60));
        let logins = Logins::new(&LoginConfig::default(), settings.login_patience());
        let auth = Auth::new(&data, failed_logins, logins, permissions);
        let runs = Arc::default();
        let verbs = Verbs::new(&data, &auth, &runs, registry, &settings);
        let engine = EngineParts {
            handle: Arc::new(NoEngine(data.store())),
            jobs: JobMaker::new(&data, Arc::new(UnknownImages), &settings),
        };
        let backends = Arc::new(dstack_compute::NoBackends);
        let control = Control::new(&data, engine, backends, verbs, &settings);
        let edge = Edge::new(settings, overload, Telemetry::default(), runs);
        let state = Arc::new(AppState {
            data: Arc::new(data),
            auth: Arc::new(auth),
            control: Arc::new(control),
            edge: Arc::new(edge),
        });
        Self {
            router: handlers::router(Arc::clone(&state)),
            state,
            _dir: dir,
        }
    }

    /// A user with a key pair that was not made for the occasion.
    async fn seed_user(&self, name: &str, role: &str, token: &str) {
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

    async fn user(&self, name: &str) -> String {
        let token = format!("{name}-token");
        self.seed_user(name, "user", &token).await;
        token
    }

    /// A project whose admin is the caller.
    async fn project(&self, token: &str, name: &str) -> Value {
        let create = json!({"project_name": name});
        self.post(token, "/api/projects/create", create).await.ok()
    }

    async fn send(&self, request: Request<Body>) -> Answer {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        // Clients of other versions get other shapes.
        let is_current = request.headers().get("x-api-version").is_none();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        if is_current {
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

    async fn post(&self, token: &str, path: &str, body: Value) -> Answer {
        self.send(request("POST", path, Some(token), Some(&body))).await
    }

    /// Ends the runs that are being stopped, as an engine would.
    async fn finish_runs(&self) {
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
    async fn main_project(&self) -> ProjectId {
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
    async fn main(&self, path: &str, body: Value) -> Answer {
        self.post(ADMIN, &format!("/api/project/main/{path}"), body).await
    }
}

/// The key of all test servers.
fn encryption() -> Encryption {
    let key = Key::Aes {
        name: "k".into(),
        secret: [7; 32],
    };
    Encryption::new(vec![key], Random::system())
}

/// A database of the test's own.
async fn database(dir: &std::path::Path, encryption: &Encryption) -> Database {
    let url = match on_postgres() {
        true => new_postgres().await,
        false => format!("sqlite://{}", dir.join("t.db").display()),
    };
    let options = DatabaseOptions::default();
    let database = Database::open_on(&url, options, encryption.into(), None).await;
    database.unwrap()
}

fn on_postgres() -> bool {
    dstack_system::env::var("DSTACK_TEST_DATABASE").as_deref() == Some("postgres")
}

/// Makes an empty PostgreSQL database and gives its URL.
async fn new_postgres() -> String {
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

fn request(method: &str, path: &str, token: Option<&str>, body: Option<&Value>) -> Request<Body> {
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

fn multipart(path: &str, token: &str, hash: &str, content: &[u8]) -> Request<Body> {
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
