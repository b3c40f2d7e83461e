//! One lookup's requests to one repository of one registry.

use dstack_system::Secret;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::auth::Challenge;
use super::error::LookupError;
use super::manifest::{self, Manifest};
use crate::{Reference, RegistryCredentials};

/// How requests prove who asks.
#[derive(Debug)]
enum Proof {
    Nothing,
    Basic,
    Token(Secret),
}

#[derive(Debug)]
pub(super) struct Session<'a> {
    client: &'a Client,
    limit: usize,
    /// `https://HOST/v2/REPOSITORY`.
    base: String,
    reference: &'a Reference,
    credentials: Option<&'a RegistryCredentials>,
    proof: Proof,
}

/// `token`, or `access_token` where the registry is an OAuth 2 server.
#[derive(Debug, Deserialize)]
struct TokenAnswer {
    token: Option<Secret>,
    access_token: Option<Secret>,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        client: &'a Client,
        limit: usize,
        reference: &'a Reference,
        credentials: Option<&'a RegistryCredentials>,
    ) -> Self {
        Self {
            client,
            limit,
            base: format!("https://{}/v2/{}", reference.host(), reference.repository),
            reference,
            credentials,
            proof: Proof::Nothing,
        }
    }

    /// What a tag or a digest stands for.
    pub(super) async fn manifest(&mut self, name: &str) -> Result<Manifest, LookupError> {
        let (body, kind) = self.get(&format!("/manifests/{name}")).await?;
        verify(name, &body)?;
        let what = "an image manifest";
        Manifest::parse(&body)?.ok_or(LookupError::NotRegistry { what, kind })
    }

    /// The configuration blob.
    pub(super) async fn config<T: DeserializeOwned>(&mut self, digest: &str) -> Result<T, LookupError> {
        let (body, kind) = self.get(&format!("/blobs/{digest}")).await?;
        verify(digest, &body)?;
        let what = "an image configuration";
        serde_json::from_slice(&body).map_err(|_| LookupError::NotRegistry { what, kind })
    }

    /// A document and what the registry calls it.
    async fn get(&mut self, path: &str) -> Result<(Vec<u8>, String), LookupError> {
        let mut answer = self.send_somehow(path).await?;
        if answer.status() == StatusCode::UNAUTHORIZED && matches!(self.proof, Proof::Nothing) {
            self.authenticate(&answer).await?;
            answer = self.send(path).await?;
        }
        let answer = successful(answer)?;
        let kind = answer
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|kind| kind.to_str().ok())
            .map_or("something unnamed", |kind| kind.split(';').next().unwrap_or(kind))
            .to_owned();
        Ok((read(answer, self.limit).await?, kind))
    }

    /// With TLS; a registry on this machine may do without.
    async fn send_somehow(&mut self, path: &str) -> Result<Response, LookupError> {
        match self.send(path).await {
            Err(LookupError::Unreachable(_)) if self.reference.is_loopback() => {
                self.base = self.base.replacen("https:", "http:", 1);
                self.send(path).await
            }
            answer => answer,
        }
    }

    async fn send(&self, path: &str) -> Result<Response, LookupError> {
        let url = format!("{}{path}", self.base);
        let request = self.client.get(url).header(ACCEPT, manifest::ACCEPT);
        let request = match &self.proof {
            Proof::Nothing => request,
            Proof::Basic => self.with_credentials(request),
            Proof::Token(token) => request.header(AUTHORIZATION, format!("Bearer {}", token.expose())),
        };
        send(request).await
    }

    fn with_credentials(&self, request: RequestBuilder) -> RequestBuilder {
        match self.credentials {
            Some(credentials) => {
                request.basic_auth(&credentials.username, Some(credentials.password.expose()))
            }
            None => request,
        }
    }

    /// Makes further requests carry what the registry asked for with its 401.
    async fn authenticate(&mut self, refused: &Response) -> Result<(), LookupError> {
        self.proof = match Challenge::of(refused.headers()) {
            Some(Challenge::Basic) if self.credentials.is_some() => Proof::Basic,
            Some(Challenge::Bearer {
                realm,
                service,
                scope,
            }) => Proof::Token(self.token(&realm, service, scope).await?),
            _ => return Err(LookupError::Status(StatusCode::UNAUTHORIZED)),
        };
        Ok(())
    }

    async fn token(
        &self,
        realm: &str,
        service: Option<String>,
        scope: Option<String>,
    ) -> Result<Secret, LookupError> {
        let not_a_realm = || LookupError::NotRegistry {
            what: "a usable place to get a token at",
            kind: format!("`{realm}`"),
        };
        let url = Url::parse(realm).map_err(|_| not_a_realm())?;
        match url.scheme() {
            "https" => {}
            // A registry that is asked without encryption may name such a place, too.
            "http" if self.base.starts_with("http:") || self.credentials.is_none() => {}
            "http" => return Err(LookupError::PlainRealm(realm.to_owned())),
            _ => return Err(not_a_realm()),
        }
        let scope = scope.unwrap_or_else(|| format!("repository:{}:pull", self.reference.repository));
        let mut request = self.client.get(url).query(&[("scope", &scope)]);
        if let Some(service) = service {
            request = request.query(&[("service", &service)]);
        }
        let answer = successful(send(self.with_credentials(request)).await?)?;
        let body = read(answer, self.limit).await?;
        let answer: Option<TokenAnswer> = serde_json::from_slice(&body).ok();
        answer
            .and_then(|answer| answer.token.or(answer.access_token))
            .ok_or(LookupError::NotRegistry {
                what: "a token",
                kind: "something else".to_owned(),
            })
    }
}

async fn send(request: RequestBuilder) -> Result<Response, LookupError> {
    let answer = request.send().await;
    answer.map_err(|error| LookupError::Unreachable(error.without_url()))
}

fn successful(answer: Response) -> Result<Response, LookupError> {
    let status = answer.status();
    if status.is_success() {
        Ok(answer)
    } else {
        Err(LookupError::Status(status))
    }
}

async fn read(mut answer: Response, limit: usize) -> Result<Vec<u8>, LookupError> {
    let mut body = Vec::new();
    loop {
        let chunk = answer.chunk().await;
        match chunk.map_err(|error| LookupError::Unreachable(error.without_url()))? {
            Some(chunk) if body.len() + chunk.len() > limit => return Err(LookupError::TooLarge(limit)),
            Some(chunk) => body.extend_from_slice(&chunk),
            None => return Ok(body),
        }
    }
}

/// Content that is asked for by digest must have it.
fn verify(name: &str, content: &[u8]) -> Result<(), LookupError> {
    let Some(expected) = name.strip_prefix("sha256:") else {
        return Ok(());
    };
    if hex::encode(Sha256::digest(content)).eq_ignore_ascii_case(expected) {
        Ok(())
    } else {
        Err(LookupError::Digest(name.to_owned()))
    }
}
