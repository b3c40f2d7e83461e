//! One lookup's requests to one repository of one registry.
//!
//! A registry leads to two other places: the service that gives out tokens, and the store of blobs. Neither may be closer to
//! this machine than the registry is, so that one on the internet cannot have services inside asked and answered.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dstack_http::{Answer, GuardedClient, GuardedRedirects, GuardedRequest, Network, OutboundError};
use dstack_system::Secret;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Response, StatusCode, Url};
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
    client: &'a GuardedClient,
    limit: usize,
    /// Address of the repository: `https://HOST/v2/REPOSITORY`.
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
        client: &'a GuardedClient,
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
        if answer.response.status() == StatusCode::UNAUTHORIZED && matches!(self.proof, Proof::Nothing) {
            self.authenticate(&answer).await?;
            answer = self.send(path).await?;
        }
        let answer = successful(answer.response)?;
        let kind = answer
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|kind| kind.to_str().ok())
            .map_or("something unnamed", |kind| kind.split(';').next().unwrap_or(kind))
            .to_owned();
        Ok((read(answer, self.limit).await?, kind))
    }

    /// With TLS; a registry on this machine may do without.
    async fn send_somehow(&mut self, path: &str) -> Result<Answer, LookupError> {
        match self.send(path).await {
            Err(LookupError::Unreachable(_)) if self.reference.is_loopback() => {
                self.base = self.base.replacen("https:", "http:", 1);
                self.send(path).await
            }
            answer => answer,
        }
    }

    /// Blobs are mostly kept elsewhere: redirects to any host are followed.
    async fn send(&self, path: &str) -> Result<Answer, LookupError> {
        let url = format!("{}{path}", self.base);
        let url = Url::parse(&url).map_err(|_| OutboundError::NotHttp)?;
        let request = self.client.get(url).redirects(GuardedRedirects::AnyHost);
        let request = request.header(ACCEPT, HeaderValue::from_static(manifest::ACCEPT));
        let request = match &self.proof {
            Proof::Nothing => request,
            Proof::Basic => self.with_credentials(request)?,
            Proof::Token(token) => authorized(request, &format!("Bearer {}", token.expose()))?,
        };
        Ok(request.send().await?)
    }

    fn with_credentials<'r>(&self, request: GuardedRequest<'r>) -> Result<GuardedRequest<'r>, LookupError> {
        let Some(credentials) = self.credentials else {
            return Ok(request);
        };
        let pair = format!("{}:{}", credentials.username, credentials.password.expose());
        authorized(request, &format!("Basic {}", STANDARD.encode(pair)))
    }

    /// Makes further requests carry what the registry asked for with its 401.
    async fn authenticate(&mut self, refused: &Answer) -> Result<(), LookupError> {
        let unauthorized = || status_error(&refused.response);
        // Somebody to whom the registry redirected has no say in where its credentials go.
        let own = Url::parse(&self.base).map_err(|_| OutboundError::NotHttp)?;
        if refused.response.url().origin() != own.origin() {
            return Err(unauthorized());
        }
        self.proof = match Challenge::of(refused.response.headers()) {
            Some(Challenge::Basic) if self.credentials.is_some() => Proof::Basic,
            Some(Challenge::Bearer {
                realm,
                service,
                scope,
            }) => {
                let url = self.token_url(&realm, service, scope)?;
                Proof::Token(self.token(url, refused.network).await?)
            }
            _ => return Err(unauthorized()),
        };
        Ok(())
    }

    /// Where a token is to be had.
    fn token_url(
        &self,
        realm: &str,
        service: Option<String>,
        scope: Option<String>,
    ) -> Result<Url, LookupError> {
        let not_a_realm = || LookupError::NotRegistry {
            what: "a usable place to get a token at",
            kind: format!("`{realm}`"),
        };
        let mut url = Url::parse(realm).map_err(|_| not_a_realm())?;
        match url.scheme() {
            "https" => {}
            // A registry that is asked without encryption may name such a place, too.
            "http" if self.base.starts_with("http:") => {}
            "http" => return Err(LookupError::PlainRealm),
            _ => return Err(not_a_realm()),
        }
        let scope = scope.unwrap_or_else(|| format!("repository:{}:pull", self.reference.repository));
        let mut query = url.query_pairs_mut();
        query.append_pair("scope", &scope);
        if let Some(service) = service {
            query.append_pair("service", &service);
        }
        drop(query);
        Ok(url)
    }

    /// Gets a token from a place that is named by an answer from `network`.
    async fn token(&self, url: Url, network: Network) -> Result<Secret, LookupError> {
        let request = self.client.get(url).redirects(GuardedRedirects::SameHost);
        let request = self.with_credentials(request.no_closer_than(network))?;
        let answer = request.send().await.map_err(|error| match error {
            OutboundError::Refused(refused) => LookupError::RefusedRealm(refused),
            other => other.into(),
        })?;
        let answer = successful(answer.response).map_err(|error| match error {
            // Wrong credentials, which is what users must know of: other services are not asked like this.
            LookupError::Status {
                status: status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN),
                ..
            } => LookupError::Status {
                status,
                of_registry: true,
            },
            other => other,
        })?;
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

fn authorized<'r>(request: GuardedRequest<'r>, credentials: &str) -> Result<GuardedRequest<'r>, LookupError> {
    let value = HeaderValue::from_str(credentials);
    let mut value = value.map_err(|_| LookupError::NotRegistry {
        what: "a token",
        kind: "something that cannot be sent back".to_owned(),
    })?;
    value.set_sensitive(true);
    Ok(request.header(AUTHORIZATION, value))
}

fn successful(answer: Response) -> Result<Response, LookupError> {
    if answer.status().is_success() {
        Ok(answer)
    } else {
        Err(status_error(&answer))
    }
}

fn status_error(answer: &Response) -> LookupError {
    let wants_token = || matches!(Challenge::of(answer.headers()), Some(Challenge::Bearer { .. }));
    LookupError::Status {
        status: answer.status(),
        of_registry: answer.headers().contains_key("docker-distribution-api-version") || wants_token(),
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

#[cfg(test)]
mod tests {
    use dstack_http::{ClientOptions, OutboundPolicy};

    use super::*;

    #[test]
    fn tokens_of_a_registry_with_tls_are_not_fetched_without() {
        let client = GuardedClient::new(OutboundPolicy::new(), ClientOptions::default());
        let reference = Reference::parse("reg.example/a").unwrap();
        let mut session = Session::new(&client, 1, &reference, None);
        let url = |session: &Session, realm: &str| session.token_url(realm, Some("s".to_owned()), None);
        let plain = "http://reg.example/token";
        assert!(matches!(url(&session, plain), Err(LookupError::PlainRealm)));
        assert!(matches!(
            url(&session, "file:///etc/passwd"),
            Err(LookupError::NotRegistry { .. })
        ));
        assert_eq!(
            url(&session, "https://auth.example/t?x=1").unwrap().as_str(),
            "https://auth.example/t?x=1&scope=repository%3Aa%3Apull&service=s"
        );
        session.base = "http://localhost:5000/v2/a".to_owned();
        assert!(url(&session, plain).is_ok());
    }
}
