//! Lookups at a registry in this process, and at a real engine where one answers.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::print_stderr)]

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Response, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dstack_http::{Network, OutboundPolicy};
use dstack_images::{Chain, Images, Limits, LocalEngine, Registry, RegistryCredentials};
use dstack_plan::ImageConfig;
use dstack_system::{Locked, Secret, task};
use dstack_units::CpuArchitecture;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// How the double behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Answers anybody.
    Open,
    /// Wants a token, which it gives to anybody.
    Token,
    /// Wants a token, which it gives to `user:secret` only.
    PrivateToken,
    /// Wants `user:secret` in each request.
    Basic,
    /// 200 and a page.
    Html,
    /// Accepts and says nothing.
    Silent,
    /// A manifest without end.
    Endless,
    /// Blobs that are not what was asked for.
    Forged,
    /// Broken in the usual way.
    Status(u16),
    /// Wants a token, to be had at another double.
    RealmAt,
    /// Sends everybody to another double.
    RedirectTo,
}

#[derive(Debug)]
struct Double {
    mode: Mode,
    address: String,
    /// Where it leads to.
    other: String,
    asked: Locked<Vec<String>>,
}

/// A registry on this machine; the host and port at which it is.
async fn registry(mode: Mode) -> Arc<Double> {
    registry_at("127.0.0.1", mode, "").await
}

async fn registry_at(host: &str, mode: Mode, other: &str) -> Arc<Double> {
    let listener = tokio::net::TcpListener::bind((host, 0)).await.unwrap();
    let double = Arc::new(Double {
        mode,
        address: listener.local_addr().unwrap().to_string(),
        other: other.to_owned(),
        asked: Locked::default(),
    });
    let app = Router::new().fallback(answer).with_state(Arc::clone(&double));
    drop(task::spawn("test.registry", async move {
        axum::serve(listener, app).await.unwrap();
    }));
    double
}

impl Double {
    fn image(&self, name: &str) -> String {
        format!("{}/{name}", self.address)
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().clone()
    }
}

fn digest(document: &Value) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(document.to_string())))
}

fn config(architecture: &str) -> Value {
    json!({"architecture": architecture, "os": "linux", "config": {
        "User": format!("of-{architecture}"), "Entrypoint": ["/entry"], "Cmd": ["a", "b c"],
    }})
}

fn image(architecture: &str) -> Value {
    json!({"schemaVersion": 2, "config": {"digest": digest(&config(architecture)), "size": 1}, "layers": []})
}

fn index() -> Value {
    let entry = |os: &str, architecture: &str| json!({"digest": digest(&image(architecture)), "size": 1, "platform": {"os": os, "architecture": architecture}});
    json!({"schemaVersion": 2, "manifests": [
        entry("linux", "s390x"), entry("linux", "arm64"), entry("linux", "amd64"), entry("unknown", "unknown"),
    ]})
}

fn documents() -> Vec<(String, Value)> {
    let mut all = vec![
        ("/v2/one/manifests/latest".to_owned(), image("arm64")),
        ("/v2/team/many/manifests/1.0".to_owned(), index()),
        ("/v2/mainframe/manifests/latest".to_owned(), image("s390x")),
        (
            "/v2/tricky/manifests/latest".to_owned(),
            json!({"config": {"digest": "../../../token"}}),
        ),
    ];
    for architecture in ["amd64", "arm64", "s390x"] {
        for repository in ["one", "team/many", "mainframe"] {
            let (config, image) = (config(architecture), image(architecture));
            all.push((format!("/v2/{repository}/blobs/{}", digest(&config)), config));
            all.push((format!("/v2/{repository}/manifests/{}", digest(&image)), image));
        }
    }
    all
}

async fn answer(State(double): State<Arc<Double>>, request: Request) -> Response<Body> {
    let target = request.uri().to_string();
    let authorization = request
        .headers()
        .get("authorization")
        .map(|value| value.to_str().unwrap().to_owned());
    double.asked.lock().push(match (&authorization, double.mode) {
        (Some(authorization), Mode::RealmAt) => format!("{target} {authorization}"),
        _ => target.clone(),
    });
    let basic = format!("Basic {}", STANDARD.encode("user:secret"));
    let plain = |status: u16, text: &str| {
        Response::builder()
            .status(status)
            .body(Body::from(text.to_owned()))
            .unwrap()
    };
    let refused = |challenge: String| {
        let builder = Response::builder().status(StatusCode::UNAUTHORIZED);
        builder
            .header("www-authenticate", challenge)
            .body(Body::empty())
            .unwrap()
    };
    if target.starts_with("/token") {
        let allowed = double.mode == Mode::Token || authorization == Some(basic);
        return if allowed {
            plain(200, r#"{"token": "a-token"}"#)
        } else {
            plain(401, "")
        };
    }
    match double.mode {
        Mode::Token | Mode::PrivateToken if authorization.as_deref() != Some("Bearer a-token") => {
            return refused(format!(
                r#"Bearer realm="http://{}/token",service="the registry",scope="repository:x:pull""#,
                double.address
            ));
        }
        Mode::RealmAt => {
            let realm = format!(r#"Bearer realm="http://{}/token""#, double.other);
            return refused(realm);
        }
        Mode::RedirectTo => {
            let builder = Response::builder().status(StatusCode::FOUND);
            let target = format!("http://{}{target}", double.other);
            return builder.header("location", target).body(Body::empty()).unwrap();
        }
        Mode::Basic if authorization != Some(basic) => return refused("Basic realm=\"r\"".to_owned()),
        Mode::Html => {
            let builder = Response::builder().header("content-type", "text/html; charset=utf-8");
            return builder.body(Body::from("<html>Welcome</html>")).unwrap();
        }
        Mode::Silent => return std::future::pending().await,
        Mode::Status(status) => return plain(status, "sorry"),
        Mode::Endless => {
            let chunks = futures(vec![b' '; 1 << 16]);
            return Response::new(Body::from_stream(chunks));
        }
        Mode::Forged if target.contains("/blobs/") => return plain(200, &config("amd64").to_string()),
        _ => {}
    }
    match documents().into_iter().find(|(path, _)| *path == target) {
        Some((_, document)) => plain(200, &document.to_string()),
        None => plain(404, r#"{"errors": [{"code": "MANIFEST_UNKNOWN"}]}"#),
    }
}

/// The same chunk for ever.
fn futures(chunk: Vec<u8>) -> impl futures_util::Stream<Item = Result<Vec<u8>, std::io::Error>> {
    futures_util::stream::repeat_with(move || Ok(chunk.clone()))
}

/// Takes this machine for the internet.
fn public() -> OutboundPolicy {
    let here = "127.0.0.0/8".parse().unwrap();
    OutboundPolicy::new().with_network(here, Network::Public)
}

fn client() -> Registry {
    Registry::new(Limits::default(), public())
}

fn credentials() -> RegistryCredentials {
    RegistryCredentials {
        username: "user".to_owned(),
        password: Secret::new("secret"),
    }
}

async fn error(mode: Mode, name: &str, credentials: Option<&RegistryCredentials>) -> String {
    let double = registry(mode).await;
    let result = client().config(&double.image(name), credentials).await;
    result
        .unwrap_err()
        .to_string()
        .replace(&double.address, "REGISTRY")
}

fn expected(architecture: &str, architectures: &[CpuArchitecture]) -> ImageConfig {
    ImageConfig {
        user: Some(format!("of-{architecture}")),
        entrypoint: vec!["/entry".to_owned()],
        cmd: vec!["a".to_owned(), "b c".to_owned()],
        architectures: architectures.to_vec(),
    }
}

#[tokio::test]
async fn one_image() {
    let double = registry(Mode::Open).await;
    let config = client().config(&double.image("one"), None).await.unwrap();
    assert_eq!(config, expected("arm64", &[CpuArchitecture::Arm]));
    assert_eq!(
        double.asked().len(),
        2,
        "manifest and configuration: {:?}",
        double.asked()
    );
}

#[tokio::test]
async fn many_architectures() {
    let double = registry(Mode::Open).await;
    let config = client()
        .config(&double.image("team/many:1.0"), None)
        .await
        .unwrap();
    assert_eq!(
        config,
        expected("amd64", &[CpuArchitecture::X86, CpuArchitecture::Arm])
    );
}

#[tokio::test]
async fn a_token_for_anybody() {
    let double = registry(Mode::Token).await;
    let config = client()
        .config(&double.image("team/many:1.0"), None)
        .await
        .unwrap();
    assert_eq!(config.architectures.len(), 2);
    let asked = double.asked();
    let token = asked.iter().find(|target| target.starts_with("/token")).unwrap();
    assert_eq!(token, "/token?scope=repository%3Ax%3Apull&service=the+registry");
    assert_eq!(asked.len(), 5, "one token for all: {asked:?}");
}

#[tokio::test]
async fn credentials_for_a_token_and_for_each_request() {
    for mode in [Mode::PrivateToken, Mode::Basic] {
        let double = registry(mode).await;
        let config = client()
            .config(&double.image("one"), Some(&credentials()))
            .await
            .unwrap();
        assert_eq!(config.entrypoint, ["/entry"], "{mode:?}");
    }
}

#[tokio::test]
async fn no_access() {
    for mode in [Mode::PrivateToken, Mode::Basic, Mode::Status(401)] {
        let error = error(mode, "one", None).await;
        assert_eq!(
            error,
            "401 Client Error: Unauthorized. There is no such image, or it is private: check the name, or set \
             `registry_auth` to a user with access",
            "{mode:?}"
        );
    }
    let mut wrong = credentials();
    wrong.password = Secret::new("wr0ng");
    for mode in [Mode::PrivateToken, Mode::Basic] {
        let error = error(mode, "one", Some(&wrong)).await;
        assert_eq!(
            error,
            "401 Client Error: Unauthorized. There is no such image, or the user of `registry_auth` has no access to \
             it: check both",
            "{mode:?}"
        );
    }
}

#[tokio::test]
async fn what_a_registry_may_answer_instead() {
    for (mode, name, expected) in [
        (
            Mode::Open,
            "none",
            "404 Client Error: Not Found. The registry has no image of this name and tag",
        ),
        (
            Mode::Status(429),
            "one",
            "429 Client Error: Too Many Requests. Too many requests: set `registry_auth`, or try again later",
        ),
        (
            Mode::Status(503),
            "one",
            "503 Server Error: Service Unavailable. The registry has a problem: try again later",
        ),
        (
            Mode::Html,
            "one",
            "REGISTRY did not answer with an image manifest, but with text/html. Is it a container registry?",
        ),
        (
            Mode::Endless,
            "one",
            "REGISTRY answered with more than 4194304 bytes",
        ),
        (
            Mode::Open,
            "mainframe",
            "No supported OS/architectures found: the image must be for Linux on amd64 or arm64",
        ),
        (
            Mode::Open,
            "tricky",
            "REGISTRY did not answer with a manifest with valid digests, but with `../../../token`. Is it a container registry?",
        ),
    ] {
        assert_eq!(error(mode, name, None).await, expected, "{mode:?} {name}");
    }
    let forged = error(Mode::Forged, "one", None).await;
    assert!(
        forged.starts_with("REGISTRY sent something else than what has the digest sha256:"),
        "{forged}"
    );
}

#[tokio::test]
async fn a_silent_registry_is_not_waited_for() {
    let double = registry(Mode::Silent).await;
    let limits = Limits {
        total: Duration::from_millis(200),
        ..Limits::default()
    };
    let error = Registry::new(limits, public())
        .config(&double.image("one"), None)
        .await
        .unwrap_err();
    let expected = format!(
        "{} did not answer within 0.2 s. Try again, or check the server's network",
        double.address
    );
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn nobody_is_there() {
    // Port 1 of this machine: refused at once.
    let error = client().config("127.0.0.1:1/a", None).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "127.0.0.1:1 cannot be reached: Connection refused (os error 111). Check the registry's name and the \
         server's network"
    );
    let error = client().config("UPPER", None).await.unwrap_err();
    assert!(error.to_string().contains("capital letters"), "{error}");
}

/// What a member is told of a registry on this machine that the administrator allows.
async fn error_inside(address: &str) -> String {
    let mut policy = OutboundPolicy::new();
    policy.allow("127.0.0.0/8").unwrap();
    let limits = Limits {
        total: Duration::from_millis(300),
        ..Limits::default()
    };
    let result = Registry::new(limits, policy)
        .config(&format!("{address}/one"), None)
        .await;
    result.unwrap_err().to_string().replace(address, "REGISTRY")
}

#[tokio::test]
async fn a_registry_inside_is_refused_unless_it_is_allowed() {
    let double = registry(Mode::Open).await;
    let strict = Registry::new(Limits::default(), OutboundPolicy::new());
    let error = strict.config(&double.image("one"), None).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "127.0.0.1 is on the server's own machine, which the server does not contact for its users. An administrator can \
         allow it by DSTACK_SERVER_OUTBOUND_ALLOW=127.0.0.1"
    );
    assert_eq!(double.asked(), Vec::<String>::new());
    let mut policy = OutboundPolicy::new();
    policy.allow("127.0.0.1").unwrap();
    let allowed = Registry::new(Limits::default(), policy);
    let config = allowed.config(&double.image("one"), None).await.unwrap();
    assert_eq!(config.user.as_deref(), Some("of-arm64"));
}

#[tokio::test]
async fn what_does_not_answer_inside_is_told_in_the_same_words() {
    let expected = "REGISTRY is not on a public network, and cannot be used as a container registry. Check its name; the \
                    cause is in the server's log, which an administrator can read";
    // Port 1 of this machine: refused at once.
    assert_eq!(error_inside("127.0.0.1:1").await, expected);
    for mode in [
        Mode::Silent,
        Mode::Html,
        Mode::Basic,
        Mode::Endless,
        Mode::Status(200),
        Mode::Status(403),
        Mode::Status(500),
        Mode::Forged,
    ] {
        let double = registry(mode).await;
        assert_eq!(error_inside(&double.address).await, expected, "{mode:?}");
    }
}

#[tokio::test]
async fn a_registry_inside_that_is_one_says_what_is_wrong() {
    let double = registry(Mode::PrivateToken).await;
    let error = error_inside(&double.address).await;
    assert!(error.starts_with("401 Client Error: Unauthorized."), "{error}");
}

/// `127.0.0.2` is the internet, where a registry is that leads elsewhere: to `127.0.0.1`.
#[tokio::test]
async fn a_registry_outside_leads_to_nothing_inside() {
    let inside = registry(Mode::Token).await;
    for mode in [Mode::RealmAt, Mode::RedirectTo] {
        // Also where users may name what is inside.
        for allow in ["", "*", "127.0.0.1"] {
            let outside = registry_at("127.0.0.2", mode, &inside.address).await;
            let internet = "127.0.0.2/32".parse().unwrap();
            let mut policy = OutboundPolicy::new().with_network(internet, Network::Public);
            policy.allow_list(allow);
            let client = Registry::new(Limits::default(), policy);
            let error = client.config(&outside.image("one"), None).await.unwrap_err();
            assert!(
                error
                    .to_string()
                    .contains("127.0.0.1 is on the server's own machine"),
                "{mode:?}: {error}"
            );
            assert!(
                !outside.asked().iter().any(|target| target.contains("Bearer")),
                "{:?}",
                outside.asked()
            );
        }
    }
    assert_eq!(inside.asked(), Vec::<String>::new());
}

#[tokio::test]
async fn without_an_engine_the_registry_is_asked() {
    let double = registry(Mode::Open).await;
    let nowhere = tempfile::tempdir().unwrap();
    let socket = format!("unix://{}/none.sock", nowhere.path().display());
    let chain = Chain::new(LocalEngine::new(Some(&socket)), client());
    let config = chain.config(&double.image("one"), None).await.unwrap();
    assert_eq!(config.user.as_deref(), Some("of-arm64"));
}

/// An image that no registry has, imported into the real engine.
#[tokio::test]
async fn an_imported_image_needs_no_registry() {
    let Some(image) = Imported::new() else {
        eprintln!("skipped: no Docker engine answers");
        return;
    };
    let chain = Chain::new(
        LocalEngine::new(dstack_system::env::var("DOCKER_HOST").as_deref()),
        client(),
    );
    let config = chain.config(&image.0, None).await.unwrap();
    assert_eq!(config.user.as_deref(), Some("nobody"));
    assert_eq!(config.entrypoint, ["/bin/echo"]);
    assert_eq!(config.cmd, ["hello", "big world"]);
    assert_eq!(config.architectures.len(), 1);
}

/// Removed when dropped.
struct Imported(String);

impl Imported {
    fn new() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let tar = dir.path().join("empty.tar");
        // An archive without entries: two blocks of zeros.
        fs_err::write(&tar, vec![0; 1024]).unwrap();
        let name = format!("dstack-images-test-{}:1", std::process::id());
        let changes = [
            "USER nobody",
            "ENTRYPOINT [\"/bin/echo\"]",
            "CMD [\"hello\", \"big world\"]",
        ];
        let mut command = std::process::Command::new("docker");
        command.arg("import");
        for change in changes {
            command.args(["--change", change]);
        }
        let output = command.arg(&tar).arg(&name).output().ok()?;
        output.status.success().then(|| Self(name))
    }
}

impl Drop for Imported {
    fn drop(&mut self) {
        let removed = std::process::Command::new("docker")
            .args(["rmi", &self.0])
            .output();
        assert!(removed.unwrap().status.success());
    }
}
