//! Login providers for tests: OpenID Connect as Google, Okta and Entra ID speak it (OpenID Connect Core and Discovery 1.0),
//! and GitHub's OAuth and REST API (its public documentation). Whoever comes to them is logged in at once.
//!
//! They check what real ones check: client, redirect URI, PKCE, and that a code is used once.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::result_large_err,
    reason = "code of tests"
)]

mod github;
mod oidc;
mod tokens;

use std::collections::HashMap;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use dstack_system::{Random, task};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// What the application is registered as.
pub const CLIENT_ID: &str = "dstack-client";
/// Its secret. Part of it would be changed by careless encoding.
pub const CLIENT_SECRET: &str = "cl1ent:s3cret+/=%of-the-double";

/// What is wrong with a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It never answers.
    Silent,
    /// It answers 500.
    Broken,
    /// Whoever comes says no.
    Denied,
    /// It does not know the application.
    UnknownClient,
    /// It sends a web page instead of JSON.
    Page,
    /// Its answers have no end.
    Endless,
    /// The token is of another login.
    WrongNonce,
    /// The token is for another application.
    WrongAudience,
    /// The token is of another provider.
    WrongIssuer,
    /// The token is out of date.
    Expired,
    /// The token is signed by somebody else.
    ForeignKey,
    /// The token is not signed.
    Unsigned,
    /// The token is signed with what the application knows.
    SharedSecret,
    /// What is told besides the token is of somebody else.
    OtherUserinfo,
}

/// A running provider of both kinds.
#[derive(Debug)]
pub struct Idp {
    /// Its address: the issuer, and GitHub's URL.
    pub url: String,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    url: String,
    random: Random,
    now: fn() -> u64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    account: Value,
    fault: Option<Fault>,
    thin: bool,
    codes: HashMap<String, Grant>,
    tokens: HashMap<String, Value>,
}

/// What a code was given for.
#[derive(Debug, Clone)]
struct Grant {
    account: Value,
    redirect_uri: String,
    challenge: String,
    nonce: Option<String>,
}

impl Idp {
    /// On any port of this machine.
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            url: url.clone(),
            random: Random::system(),
            now: tokens::now,
            inner: Mutex::default(),
        });
        let app = Router::new()
            .merge(oidc::router())
            .merge(github::router())
            .layer(from_fn_with_state(Arc::clone(&shared), faulty))
            .with_state(Arc::clone(&shared));
        task::spawn("login-provider", async move {
            axum::serve(listener, app).await.unwrap();
        });
        Self { url, shared }
    }

    /// Who comes next: claims of OpenID Connect (`sub`, `email`, `email_verified`, `preferred_username`), or GitHub's
    /// `id` and `login` with `emails` (as `GET /user/emails` has them) and `orgs` (names with the state of membership).
    pub fn visitor(&self, account: Value) {
        self.shared.lock().account = account;
    }

    /// From now on; `None`: all is well.
    pub fn fault(&self, fault: Option<Fault>) {
        self.shared.lock().fault = fault;
    }

    /// Tokens with no more than they must have: the rest is told separately.
    pub fn thin(&self) {
        self.shared.lock().thin = true;
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    fn fault(&self) -> Option<Fault> {
        self.lock().fault
    }

    fn random_text(&self) -> String {
        hex::encode(self.random.bytes::<16>())
    }

    /// Sends the browser back with a code, or the words of somebody who does not want to.
    fn authorize(&self, query: &HashMap<String, String>) -> Response {
        let redirect_uri = query["redirect_uri"].clone();
        let mut url = url::Url::parse(&redirect_uri).unwrap();
        if query["client_id"] != CLIENT_ID || query["code_challenge_method"] != "S256" {
            return (StatusCode::BAD_REQUEST, "not registered").into_response();
        }
        if self.fault() == Some(Fault::Denied) {
            url.query_pairs_mut()
                .append_pair("error", "access_denied")
                .append_pair("error_description", "The user said no.");
        } else {
            let code = self.random_text();
            url.query_pairs_mut().append_pair("code", &code);
            let grant = Grant {
                account: self.lock().account.clone(),
                redirect_uri,
                challenge: query["code_challenge"].clone(),
                nonce: query.get("nonce").cloned(),
            };
            self.lock().codes.insert(code, grant);
        }
        url.query_pairs_mut().append_pair("state", &query["state"]);
        (StatusCode::FOUND, [(header::LOCATION, url.to_string())]).into_response()
    }

    /// What the code was given for, once.
    fn redeem(&self, form: &HashMap<String, String>) -> Option<Grant> {
        let grant = self.lock().codes.remove(form.get("code")?)?;
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(form.get("code_verifier")?));
        let fits = grant.challenge == challenge && form.get("redirect_uri")? == &grant.redirect_uri;
        fits.then_some(grant)
    }

    /// A token for reading about the account.
    fn access_token(&self, account: Value) -> String {
        let token = self.random_text();
        self.lock().tokens.insert(token.clone(), account);
        token
    }

    /// The account that the request may read about.
    fn bearer(&self, headers: &axum::http::HeaderMap) -> Option<Value> {
        let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
        self.lock().tokens.get(value.strip_prefix("Bearer ")?).cloned()
    }
}

/// Whether id and secret are those of the application.
fn is_client(id: Option<&str>, secret: Option<&str>) -> bool {
    id == Some(CLIENT_ID) && secret == Some(CLIENT_SECRET)
}

fn form(body: &[u8]) -> HashMap<String, String> {
    url::form_urlencoded::parse(body).into_owned().collect()
}

async fn faulty(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    // Browsers get through.
    if request.uri().path().ends_with("authorize") {
        return next.run(request).await;
    }
    match shared.fault() {
        Some(Fault::Silent) => pending().await,
        Some(Fault::Broken) => (StatusCode::INTERNAL_SERVER_ERROR, "sorry").into_response(),
        Some(Fault::Page) => ([(header::CONTENT_TYPE, "text/html")], "<h1>Hello</h1>").into_response(),
        Some(Fault::Endless) => vec![b' '; 8 << 20].into_response(),
        _ => next.run(request).await,
    }
}
