//! Single sign-on: OAuth 2.0 with GitHub, OpenID Connect with Google, Okta and Entra ID.
//!
//! ```text
//! authorize ─► attempt (state, PKCE verifier, nonce) ─► browser ─► provider ─► /auth/{provider}/callback
//!                                                                                   │ page, or the port of a command line
//! token ◄─ user ◄─ policy ◄─ person ◄─ provider: code for id_token ◄─ callback(code, state) ◄┘
//! ```
//!
//! Which user an account is stands in a table of identities: names and e-mail addresses may change, and e-mail addresses may
//! be claimed by anyone.

pub(crate) mod attempt;
pub mod config;
mod error;
mod github;
mod oidc;
pub(crate) mod page;
mod policy;

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use dstack_control::login::LoginPolicy;
use dstack_units::Time;

pub(crate) use attempt::Attempt;
pub(crate) use error::LoginError;
pub(crate) use policy::{Person, Policy};

use config::{LoginConfig, ProviderConfig};
use github::Github;
use oidc::Oidc;

use crate::outbound::Http;

/// The configured providers.
#[derive(Debug)]
pub struct Logins {
    providers: RwLock<Arc<[Arc<Provider>]>>,
    http: Http,
    patience: Duration,
}

impl Logins {
    /// With these providers, which may take so long for all that one call needs of them.
    pub fn new(config: &LoginConfig, patience: Duration) -> Self {
        Self {
            providers: RwLock::new(providers(config)),
            http: Http::default(),
            patience,
        }
    }

    /// Other providers from now on. Logins under way are finished with them, if they still go together.
    pub fn replace(&self, config: &LoginConfig) {
        *self.providers.write().unwrap_or_else(PoisonError::into_inner) = providers(config);
    }

    fn all(&self) -> Arc<[Arc<Provider>]> {
        Arc::clone(&self.providers.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// What clients call the providers.
    pub fn names(&self) -> Vec<&'static str> {
        self.all().iter().map(|provider| provider.name).collect()
    }

    /// The provider of this name.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Provider>> {
        self.all().iter().find(|provider| provider.name == name).cloned()
    }

    /// Where the browser must go.
    pub(crate) async fn authorization_url(
        &self,
        provider: &Provider,
        attempt: &Attempt,
    ) -> Result<String, LoginError> {
        let url = async {
            match &provider.kind {
                Kind::Github(github) => github.authorization_url(attempt),
                Kind::Oidc(oidc) => oidc.authorization_url(&self.http, attempt).await,
            }
        };
        self.in_time(provider, url).await
    }

    /// Who came back with this code.
    pub(crate) async fn identify(
        &self,
        provider: &Provider,
        attempt: &Attempt,
        code: String,
        now: Time,
    ) -> Result<Person, LoginError> {
        let person = async {
            match &provider.kind {
                Kind::Github(github) => {
                    let wanted = &provider.policy.allowed_organizations;
                    github.identify(&self.http, attempt, code, wanted).await
                }
                Kind::Oidc(oidc) => oidc.identify(&self.http, attempt, code, now).await,
            }
        };
        self.in_time(provider, person).await
    }

    async fn in_time<T>(
        &self,
        provider: &Provider,
        work: impl Future<Output = Result<T, LoginError>>,
    ) -> Result<T, LoginError> {
        let done = tokio::time::timeout(self.patience, work).await;
        done.unwrap_or(Err(LoginError::Slow {
            provider: provider.title,
        }))
    }
}

/// A provider, and who may come from there.
#[derive(Debug)]
pub(crate) struct Provider {
    /// What clients call it: a part of paths.
    pub(crate) name: &'static str,
    /// What people call it.
    pub(crate) title: &'static str,
    /// Who may come.
    pub(crate) policy: Policy,
    kind: Kind,
}

impl Provider {
    /// What becomes of people who come from there.
    pub(crate) fn login_policy(&self) -> LoginPolicy {
        LoginPolicy {
            provider: self.title.to_owned(),
            sign_up: self.policy.sign_up,
            link_by_email: self.policy.link_by_email,
            global_role: self.policy.global_role,
            projects: self.policy.projects.clone(),
        }
    }
}

#[derive(Debug)]
enum Kind {
    Github(Github),
    Oidc(Box<Oidc>),
}

fn providers(config: &LoginConfig) -> Arc<[Arc<Provider>]> {
    let provider = |config: &ProviderConfig| {
        let (name, title) = (config.name(), config.title());
        let kind = match config {
            ProviderConfig::Github(config) => Kind::Github(Github::new(title, config)),
            ProviderConfig::Google(config) => Kind::Oidc(Box::new(Oidc::new(
                title,
                oidc::Flavor::Google,
                config.issuer(),
                &config.client,
            ))),
            ProviderConfig::Okta(config) => Kind::Oidc(Box::new(Oidc::new(
                title,
                oidc::Flavor::Okta,
                config.issuer.clone(),
                &config.client,
            ))),
            ProviderConfig::Entra(config) => Kind::Oidc(Box::new(Oidc::new(
                title,
                oidc::Flavor::Entra,
                config.issuer(),
                &config.client,
            ))),
        };
        Arc::new(Provider {
            name,
            title,
            policy: Policy::new(config),
            kind,
        })
    };
    config.providers.iter().map(provider).collect()
}
