//! GitHub: OAuth 2.0, and its REST API says who it is. It has no OpenID Connect for people.

use axum::http::{Request, StatusCode, header};
use dstack_store::queries::identities::Identity;
use dstack_system::Secret;
use oauth2::basic::BasicClient;
use oauth2::{
    AuthType, AuthUrl, AuthorizationCode, ClientId, ClientSecret, CsrfToken, EndpointNotSet, EndpointSet,
    PkceCodeChallenge, PkceCodeVerifier, RedirectUrl, Scope, TokenResponse, TokenUrl,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use url::Url;

use super::config::GithubConfig;
use super::error::LoginError;
use super::policy::domain;
use super::{Attempt, Person};
use crate::outbound::Http;

/// A client of an application registered with GitHub.
#[derive(Debug)]
pub(super) struct Github {
    title: &'static str,
    client_id: String,
    client_secret: Secret,
    url: String,
    scopes: &'static [&'static str],
}

type Client = BasicClient<EndpointSet, EndpointNotSet, EndpointNotSet, EndpointNotSet, EndpointSet>;

/// Answer of GitHub's `GET /user`.
#[derive(Debug, Deserialize)]
struct Account {
    id: u64,
    login: String,
}

/// An item of `GET /user/emails`.
#[derive(Debug, Deserialize)]
struct Email {
    email: String,
    primary: bool,
    verified: bool,
}

/// Answer of GitHub's `GET /user/memberships/orgs/{org}`.
#[derive(Debug, Deserialize)]
struct Membership {
    state: String,
}

impl Github {
    pub(super) fn new(title: &'static str, config: &GithubConfig) -> Self {
        Self {
            title,
            client_id: config.client.client_id.clone(),
            client_secret: config.client.client_secret.clone(),
            url: config.url.clone(),
            scopes: match config.allowed_organizations.is_empty() {
                true => &["read:user", "user:email"],
                false => &["read:user", "user:email", "read:org"],
            },
        }
    }

    fn odd(&self, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> LoginError {
        LoginError::Odd {
            provider: self.title,
            cause: cause.into(),
        }
    }

    fn client(&self, attempt: &Attempt) -> Result<Client, LoginError> {
        let of = |path: &str| format!("{}/login/oauth/{path}", self.url);
        let odd = |error| self.odd(error);
        Ok(BasicClient::new(ClientId::new(self.client_id.clone()))
            .set_client_secret(ClientSecret::new(self.client_secret.expose().to_owned()))
            .set_auth_type(AuthType::RequestBody)
            .set_auth_uri(AuthUrl::new(of("authorize")).map_err(odd)?)
            .set_token_uri(TokenUrl::new(of("access_token")).map_err(odd)?)
            .set_redirect_uri(RedirectUrl::new(attempt.redirect_url.clone()).map_err(odd)?))
    }

    pub(super) fn authorization_url(&self, attempt: &Attempt) -> Result<String, LoginError> {
        let verifier = PkceCodeVerifier::new(attempt.verifier().expose().to_owned());
        let state = attempt.state.clone();
        let client = self.client(attempt)?;
        let request = client
            .authorize_url(|| CsrfToken::new(state))
            .add_scopes(self.scopes.iter().map(|scope| Scope::new((*scope).to_owned())))
            .set_pkce_challenge(PkceCodeChallenge::from_code_verifier_sha256(&verifier));
        Ok(request.url().0.into())
    }

    /// Who it is, and which of the `wanted` organisations they are in.
    pub(super) async fn identify(
        &self,
        http: &Http,
        attempt: &Attempt,
        code: String,
        wanted: &[String],
    ) -> Result<Person, LoginError> {
        let answer = self
            .client(attempt)?
            .exchange_code(AuthorizationCode::new(code))
            .set_pkce_verifier(PkceCodeVerifier::new(attempt.verifier().expose().to_owned()))
            .request_async(http)
            .await
            .map_err(|error| LoginError::from_exchange(self.title, error))?;
        let token = Secret::new(answer.access_token().secret().clone());
        let account: Account = self.required(http, &token, &["user"]).await?;
        let emails: Vec<Email> = self.required(http, &token, &["user", "emails"]).await?;
        let mut organizations = Vec::new();
        for organization in wanted {
            let path = ["user", "memberships", "orgs", organization];
            let membership: Option<Membership> = self.get(http, &token, &path).await?;
            if membership.is_some_and(|membership| membership.state == "active") {
                organizations.push(organization.clone());
            }
        }
        let verified = || emails.iter().filter(|email| email.verified);
        Ok(Person {
            identity: Identity {
                issuer: self.url.clone(),
                subject: account.id.to_string(),
            },
            login: account.login,
            email: verified()
                .find(|email| email.primary)
                .map(|email| email.email.clone()),
            domains: verified()
                .filter_map(|email| domain(&email.email))
                .map(str::to_owned)
                .collect(),
            organizations,
        })
    }

    async fn required<T: DeserializeOwned>(
        &self,
        http: &Http,
        token: &Secret,
        path: &[&str],
    ) -> Result<T, LoginError> {
        let found = self.get(http, token, path).await?;
        found.ok_or_else(|| self.odd(format!("{} is denied", path.join("/"))))
    }

    /// `None`: there is no such thing, or it is not to be seen.
    async fn get<T: DeserializeOwned>(
        &self,
        http: &Http,
        token: &Secret,
        path: &[&str],
    ) -> Result<Option<T>, LoginError> {
        let request = Request::get(self.api(path)?.as_str())
            .header(header::AUTHORIZATION, format!("Bearer {}", token.expose()))
            .header(header::ACCEPT, "application/vnd.github+json")
            .header("x-github-api-version", "2022-11-28")
            .body(Vec::new())
            .map_err(|error| self.odd(error))?;
        let answer = http
            .send(request)
            .await
            .map_err(|error| LoginError::Unreachable {
                provider: self.title,
                cause: error.into(),
            })?;
        match answer.status() {
            StatusCode::OK => serde_json::from_slice(answer.body())
                .map(Some)
                .map_err(|error| self.odd(error)),
            StatusCode::NOT_FOUND | StatusCode::FORBIDDEN => Ok(None),
            status => Err(self.odd(format!("{}: status {status}", path.join("/")))),
        }
    }

    /// github.com has a host for its API, others a path.
    fn api(&self, path: &[&str]) -> Result<Url, LoginError> {
        let base = match self.url.as_str() {
            "https://github.com" => "https://api.github.com".to_owned(),
            other => format!("{other}/api/v3"),
        };
        let mut url = Url::parse(&base).map_err(|error| self.odd(error))?;
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.extend(path);
        }
        Ok(url)
    }
}
