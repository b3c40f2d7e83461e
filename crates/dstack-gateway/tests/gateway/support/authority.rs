//! A certificate authority that speaks ACME (RFC 8555), written by that document: it asks the gateway for the answers of its
//! challenges over HTTP, checks nonces, and signs what it is asked to.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path as UrlPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use dstack_system::Locked;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::client::ask;

/// A certificate authority.
pub(crate) struct Authority {
    pub(crate) shared: Arc<Shared>,
    pub(crate) directory: String,
    /// By which its server and its certificates are trusted.
    pub(crate) root: String,
    pub(crate) root_file: PathBuf,
    _dir: TempDir,
}

pub(crate) struct Shared {
    issuer: Issuer<'static, KeyPair>,
    base: String,
    nonces: Locked<HashSet<String>>,
    next: AtomicUsize,
    orders: Locked<HashMap<usize, Order>>,
    thumbprint: Locked<String>,
    /// Where host names lead to.
    pub(crate) gateway: Locked<Option<SocketAddr>>,
    /// Certificates hold for so many days from now on.
    pub(crate) days: AtomicI64,
    /// Certificates that were signed.
    signed: watch::Sender<usize>,
    /// Orders that were made.
    ordered: AtomicUsize,
    /// Accounts that were made, with what proves to whom they belong.
    pub(crate) accounts: Locked<Vec<Value>>,
}

#[derive(Default)]
struct Order {
    domain: String,
    token: String,
    /// Why it was refused.
    problem: Option<String>,
    is_ready: bool,
    chain: Option<String>,
}

type App = State<Arc<Shared>>;

/// Midnight so many days from now.
fn day(days: i64) -> (i32, u8, u8) {
    let date = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    let date = date.checked_add(jiff::Span::new().days(days)).unwrap();
    (
        date.year().into(),
        date.month().unsigned_abs(),
        date.day().unsigned_abs(),
    )
}

/// A certificate of an authority, with its key.
pub(crate) fn new_root() -> (String, Issuer<'static, KeyPair>) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let root = params.self_signed(&key).unwrap().pem();
    (root, Issuer::new(params, key))
}

/// A certificate for this name that holds from one day to another, and its key.
pub(crate) fn certificate(
    issuer: &Issuer<'static, KeyPair>,
    name: &str,
    days: std::ops::Range<i64>,
) -> (String, String) {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    let (from, until) = (day(days.start), day(days.end));
    params.not_before = date_time_ymd(from.0, from.1, from.2);
    params.not_after = date_time_ymd(until.0, until.1, until.2);
    let key = KeyPair::generate().unwrap();
    let signed = params.signed_by(&key, issuer).unwrap();
    (signed.pem(), key.serialize_pem())
}

/// An authority whose connections the system accepts, and that never says anything: its directory, for as long as the listener is there.
pub(crate) fn silent() -> (std::net::TcpListener, String) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, format!("https://localhost:{port}/directory"))
}

impl Authority {
    pub(crate) async fn start() -> Self {
        let (root, issuer) = new_root();
        let dir = tempfile::tempdir().unwrap();
        let root_file = dir.path().join("root.pem");
        std::fs::write(&root_file, &root).unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let base = format!("https://localhost:{}", listener.local_addr().unwrap().port());
        let acceptor = acceptor(&issuer);
        let shared = Arc::new(Shared {
            issuer,
            base: base.clone(),
            nonces: Locked::default(),
            next: AtomicUsize::new(1),
            orders: Locked::default(),
            thumbprint: Locked::default(),
            gateway: Locked::default(),
            days: AtomicI64::new(90),
            signed: watch::Sender::new(0),
            ordered: AtomicUsize::new(0),
            accounts: Locked::default(),
        });
        let router = router(Arc::clone(&shared));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, service) = (acceptor.clone(), TowerToHyperService::new(router.clone()));
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        let builder = Builder::new(TokioExecutor::new());
                        let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                    }
                });
            }
        });
        Self {
            shared,
            directory: format!("{base}/directory"),
            root,
            root_file,
            _dir: dir,
        }
    }

    pub(crate) fn leads_to(&self, gateway: SocketAddr) {
        *self.shared.gateway.lock() = Some(gateway);
    }

    pub(crate) fn signed(&self) -> usize {
        *self.shared.signed.borrow()
    }

    /// Waits until so many certificates were signed.
    pub(crate) async fn has_signed(&self, count: usize) {
        let mut signed = self.shared.signed.subscribe();
        super::soon(signed.wait_for(|signed| *signed >= count))
            .await
            .unwrap();
    }

    /// Orders that were made, also of certificates that were not signed.
    pub(crate) fn ordered(&self) -> usize {
        self.shared.ordered.load(Ordering::Relaxed)
    }
}

fn acceptor(issuer: &Issuer<'static, KeyPair>) -> TlsAcceptor {
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let key = KeyPair::generate().unwrap();
    let signed = params.signed_by(&key, issuer).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(vec![signed.der().clone()], key).unwrap();
    TlsAcceptor::from(Arc::new(config))
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/directory", get(directory))
        .route("/nonce", get(async || StatusCode::OK))
        .route("/account", post(account))
        .route("/order", post(new_order))
        .route("/order/{id}", post(order))
        .route("/authz/{id}", post(authorization))
        .route("/chall/{id}", post(challenge))
        .route("/finalize/{id}", post(finalize))
        .route("/cert/{id}", post(chain))
        .layer(from_fn_with_state(Arc::clone(&shared), with_nonce))
        .with_state(shared)
}

/// Takes the nonce of a call, and gives one for the next.
async fn with_nonce(State(shared): App, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let bytes = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let mut response = match head.method == axum::http::Method::POST && !shared.take_nonce(&bytes) {
        true => problem("badNonce", "the nonce is not known"),
        false => next.run(Request::from_parts(head, bytes.into())).await,
    };
    let nonce = format!("nonce{}", shared.next());
    shared.nonces.lock().insert(nonce.clone());
    let nonce = HeaderValue::from_str(&nonce).unwrap();
    response.headers_mut().insert("replay-nonce", nonce);
    response
}

fn problem(kind: &str, detail: &str) -> Response {
    let kind = format!("urn:ietf:params:acme:error:{kind}");
    let body = json!({ "type": kind, "detail": detail, "status": 400 });
    (StatusCode::BAD_REQUEST, Json(body)).into_response()
}

fn part(body: &[u8], name: &str) -> Value {
    let body: Value = serde_json::from_slice(body).unwrap();
    let bytes = URL_SAFE_NO_PAD.decode(body[name].as_str().unwrap()).unwrap();
    serde_json::from_slice(&bytes).unwrap_or(Value::Null)
}

impl Shared {
    fn next(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn take_nonce(&self, body: &[u8]) -> bool {
        let protected = part(body, "protected");
        self.nonces.lock().remove(protected["nonce"].as_str().unwrap())
    }

    fn described(&self, id: usize) -> Value {
        let orders = self.orders.lock();
        let order = &orders[&id];
        let status = match (&order.problem, &order.chain, order.is_ready) {
            (Some(_), _, _) => "invalid",
            (_, Some(_), _) => "valid",
            (_, _, true) => "ready",
            _ => "pending",
        };
        json!({
            "status": status, "identifiers": [{"type": "dns", "value": order.domain}],
            "authorizations": [format!("{}/authz/{id}", self.base)],
            "finalize": format!("{}/finalize/{id}", self.base),
            "certificate": order.chain.as_ref().map(|_| format!("{}/cert/{id}", self.base)),
        })
    }

    fn challenge(&self, id: usize) -> Value {
        let orders = self.orders.lock();
        let order = &orders[&id];
        let status = match (&order.problem, order.is_ready) {
            (Some(_), _) => "invalid",
            (None, true) => "valid",
            (None, false) => "pending",
        };
        let error = order.problem.as_ref().map(|detail| {
            json!({ "type": "urn:ietf:params:acme:error:unauthorized", "detail": detail, "status": 403 })
        });
        json!({
            "type": "http-01", "url": format!("{}/chall/{id}", self.base), "token": order.token,
            "status": status, "error": error
        })
    }

    /// Asks where the host name leads to.
    async fn validate(&self, id: usize) {
        let (domain, token) = {
            let orders = self.orders.lock();
            (orders[&id].domain.clone(), orders[&id].token.clone())
        };
        let expected = format!("{token}.{}", self.thumbprint.lock());
        let gateway = *self.gateway.lock();
        let found = match gateway {
            None => "nowhere".to_owned(),
            Some(gateway) => {
                let request = http::Request::get(format!("/.well-known/acme-challenge/{token}"));
                let request = request.header("host", &domain).body(String::new()).unwrap();
                ask(gateway, request).await.body
            }
        };
        let mut orders = self.orders.lock();
        let order = orders.get_mut(&id).unwrap();
        match found == expected {
            true => order.is_ready = true,
            false => order.problem = Some(format!("{domain} answers {found}")),
        }
    }
}

async fn directory(State(shared): App) -> Json<Value> {
    let url = |path: &str| format!("{}/{path}", shared.base);
    Json(json!({
        "newNonce": url("nonce"), "newAccount": url("account"), "newOrder": url("order"),
        "revokeCert": url("revoke"), "keyChange": url("key")
    }))
}

async fn account(State(shared): App, body: Bytes) -> Response {
    let key = part(&body, "protected")["jwk"].clone();
    // RFC 7638: the members that are required, in the order of the alphabet.
    let canonical = format!(
        r#"{{"crv":{},"kty":{},"x":{},"y":{}}}"#,
        key["crv"], key["kty"], key["x"], key["y"]
    );
    *shared.thumbprint.lock() = URL_SAFE_NO_PAD.encode(Sha256::digest(canonical));
    shared.accounts.lock().push(part(&body, "payload"));
    let location = format!("{}/account/1", shared.base);
    let headers = [("location", location)];
    (StatusCode::CREATED, headers, Json(json!({ "status": "valid" }))).into_response()
}

async fn new_order(State(shared): App, body: Bytes) -> Response {
    if shared.accounts.lock().is_empty() {
        return problem("accountDoesNotExist", "the account is not known");
    }
    shared.ordered.fetch_add(1, Ordering::Relaxed);
    let id = shared.next();
    let order = Order {
        domain: part(&body, "payload")["identifiers"][0]["value"]
            .as_str()
            .unwrap()
            .to_owned(),
        token: format!("token{id}"),
        ..Order::default()
    };
    shared.orders.lock().insert(id, order);
    let location = format!("{}/order/{id}", shared.base);
    let headers = [("location", location)];
    (StatusCode::CREATED, headers, Json(shared.described(id))).into_response()
}

async fn order(State(shared): App, UrlPath(id): UrlPath<usize>) -> Json<Value> {
    Json(shared.described(id))
}

async fn authorization(State(shared): App, UrlPath(id): UrlPath<usize>) -> Json<Value> {
    let challenge = shared.challenge(id);
    let domain = shared.orders.lock()[&id].domain.clone();
    let other = json!({"type": "dns-01", "url": "https://localhost/none", "token": "t", "status": "pending"});
    Json(json!({
        "status": challenge["status"], "identifier": {"type": "dns", "value": domain},
        "challenges": [other, challenge]
    }))
}

async fn challenge(State(shared): App, UrlPath(id): UrlPath<usize>) -> Json<Value> {
    let told = shared.challenge(id);
    tokio::spawn(async move { shared.validate(id).await });
    Json(told)
}

async fn finalize(State(shared): App, UrlPath(id): UrlPath<usize>, body: Bytes) -> Response {
    let payload = part(&body, "payload");
    let request = URL_SAFE_NO_PAD.decode(payload["csr"].as_str().unwrap()).unwrap();
    let mut request = CertificateSigningRequestParams::from_der(&request.into()).unwrap();
    let (from, until) = (day(-1), day(shared.days.load(Ordering::Relaxed)));
    request.params.not_before = date_time_ymd(from.0, from.1, from.2);
    request.params.not_after = date_time_ymd(until.0, until.1, until.2);
    let signed = request.signed_by(&shared.issuer).unwrap();
    shared.orders.lock().get_mut(&id).unwrap().chain = Some(signed.pem());
    shared.signed.send_modify(|signed| *signed += 1);
    Json(shared.described(id)).into_response()
}

async fn chain(State(shared): App, UrlPath(id): UrlPath<usize>) -> Response {
    let chain = shared.orders.lock()[&id].chain.clone().unwrap();
    let headers: HeaderMap = HeaderMap::new();
    (headers, chain).into_response()
}
