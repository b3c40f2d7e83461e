//! OpenID Connect: the provider describes itself, and signs who somebody is.

use std::time::Duration;

use axum::http::{Request, StatusCode, header};
use chrono::DateTime;
use dstack_store::queries::identities::Identity;
use dstack_system::{Locked, Secret};
use dstack_units::Time;
use openidconnect::core::{
    CoreAuthDisplay, CoreAuthPrompt, CoreClientAuthMethod, CoreErrorResponseType, CoreGenderClaim,
    CoreJsonWebKey, CoreJweContentEncryptionAlgorithm, CoreJwsSigningAlgorithm, CoreProviderMetadata,
    CoreResponseType, CoreRevocableToken, CoreRevocationErrorResponse, CoreTokenIntrospectionResponse,
    CoreTokenType,
};
use openidconnect::{
    AdditionalClaims, AuthType, AuthenticationFlow, AuthorizationCode, ClientId, ClientSecret, CsrfToken,
    DiscoveryError, EmptyExtraTokenFields, EndpointMaybeSet, EndpointNotSet, EndpointSet, IdTokenFields,
    IssuerUrl, Nonce, OAuth2TokenResponse, PkceCodeChallenge, PkceCodeVerifier, RedirectUrl, Scope,
    StandardErrorResponse, StandardTokenResponse, TokenResponse, TokenUrl, UserInfoUrl,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;
use url::Url;

use super::config::{ClientConfig, is_secure};
use super::error::LoginError;
use super::policy::domain;
use super::{Attempt, Person};
use crate::outbound::{Http, HttpError};

/// How long it is believed where the provider wants browsers to go. Its keys are asked for at each login.
const DESCRIPTION_LIFETIME: Duration = Duration::from_secs(3600);

/// So far clocks may differ.
const LEEWAY: Duration = Duration::from_secs(60);

/// Signatures that only the provider can make: none with a shared secret.
const ALGORITHMS: [CoreJwsSigningAlgorithm; 9] = [
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha256,
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha384,
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha512,
    CoreJwsSigningAlgorithm::RsaSsaPssSha256,
    CoreJwsSigningAlgorithm::RsaSsaPssSha384,
    CoreJwsSigningAlgorithm::RsaSsaPssSha512,
    CoreJwsSigningAlgorithm::EcdsaP256Sha256,
    CoreJwsSigningAlgorithm::EcdsaP384Sha384,
    CoreJwsSigningAlgorithm::EdDsa,
];

/// Whose dialect it is: what proves an e-mail address differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flavor {
    Google,
    Okta,
    /// Microsoft Entra ID.
    Entra,
}

/// Claims that some providers add to the standard ones.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Claims {
    /// Google: the domain of the organisation that the account belongs to.
    #[serde(default)]
    hd: Option<String>,
    /// Entra: whether the owner of the e-mail address's domain has been verified; `true`, `1` or `"1"`.
    #[serde(default)]
    xms_edov: Option<Value>,
}

impl AdditionalClaims for Claims {}

type Tokens = StandardTokenResponse<
    IdTokenFields<
        Claims,
        EmptyExtraTokenFields,
        CoreGenderClaim,
        CoreJweContentEncryptionAlgorithm,
        CoreJwsSigningAlgorithm,
    >,
    CoreTokenType,
>;

type Client = openidconnect::Client<
    Claims,
    CoreAuthDisplay,
    CoreGenderClaim,
    CoreJweContentEncryptionAlgorithm,
    CoreJsonWebKey,
    CoreAuthPrompt,
    StandardErrorResponse<CoreErrorResponseType>,
    Tokens,
    CoreTokenIntrospectionResponse,
    CoreRevocableToken,
    CoreRevocationErrorResponse,
    EndpointSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointMaybeSet,
    EndpointMaybeSet,
>;

/// What is known of somebody: from the token, or from where the provider tells the rest.
#[derive(Debug, Clone, Default, Deserialize)]
struct About {
    sub: String,
    #[serde(default)]
    email: Option<String>,
    #[serde(default)]
    email_verified: Option<Value>,
    #[serde(default)]
    preferred_username: Option<String>,
    #[serde(flatten)]
    claims: Claims,
}

/// A client of an application registered with the provider.
#[derive(Debug)]
pub(super) struct Oidc {
    title: &'static str,
    flavor: Flavor,
    issuer: String,
    client_id: String,
    client_secret: Secret,
    described: Locked<Option<(Instant, CoreProviderMetadata)>>,
}

impl Oidc {
    pub(super) fn new(title: &'static str, flavor: Flavor, issuer: String, config: &ClientConfig) -> Self {
        Self {
            title,
            flavor,
            issuer,
            client_id: config.client_id.clone(),
            client_secret: config.client_secret.clone(),
            described: Locked::default(),
        }
    }

    fn odd(&self, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> LoginError {
        LoginError::Odd {
            provider: self.title,
            cause: cause.into(),
        }
    }

    fn unproven(&self, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> LoginError {
        LoginError::Unproven {
            provider: self.title,
            cause: cause.into(),
        }
    }

    fn unreachable(&self, cause: HttpError) -> LoginError {
        LoginError::Unreachable {
            provider: self.title,
            cause: cause.into(),
        }
    }

    /// Asks the provider for its endpoints and keys. That the answer is of this issuer is checked.
    async fn discover(&self, http: &Http) -> Result<CoreProviderMetadata, LoginError> {
        let issuer = IssuerUrl::new(self.issuer.clone()).map_err(|error| self.odd(error))?;
        let found = CoreProviderMetadata::discover_async(issuer, http).await;
        let found = found.map_err(|error| match error {
            DiscoveryError::Request(error) => self.unreachable(error),
            // With the status, and without the page that came instead.
            DiscoveryError::Response(status, _, text) => self.odd(format!("status {status}: {text}")),
            other => self.odd(other),
        })?;
        let token_endpoint = found.token_endpoint().map(TokenUrl::url);
        if [token_endpoint, found.userinfo_endpoint().map(UserInfoUrl::url)]
            .into_iter()
            .flatten()
            .any(|url| !is_secure(url))
        {
            return Err(self.odd("an endpoint is not https"));
        }
        *self.described.lock() = Some((Instant::now(), found.clone()));
        Ok(found)
    }

    fn known(&self) -> Option<CoreProviderMetadata> {
        let known = self.described.lock();
        let (since, found) = known.as_ref()?;
        (since.elapsed() < DESCRIPTION_LIFETIME).then(|| found.clone())
    }

    fn client(&self, metadata: CoreProviderMetadata, attempt: &Attempt) -> Result<Client, LoginError> {
        let methods = metadata.token_endpoint_auth_methods_supported();
        // Without a list, it is the header.
        let header = methods.is_none_or(|methods| methods.contains(&CoreClientAuthMethod::ClientSecretBasic));
        let secret = ClientSecret::new(self.client_secret.expose().to_owned());
        let redirect = RedirectUrl::new(attempt.redirect_url.clone()).map_err(|error| self.odd(error))?;
        let client =
            Client::from_provider_metadata(metadata, ClientId::new(self.client_id.clone()), Some(secret));
        Ok(client.set_redirect_uri(redirect).set_auth_type(match header {
            true => AuthType::BasicAuth,
            false => AuthType::RequestBody,
        }))
    }

    pub(super) async fn authorization_url(
        &self,
        http: &Http,
        attempt: &Attempt,
    ) -> Result<String, LoginError> {
        let metadata = match self.known() {
            Some(known) => known,
            None => self.discover(http).await?,
        };
        let verifier = PkceCodeVerifier::new(attempt.verifier().expose().to_owned());
        let (state, nonce) = (attempt.state.clone(), attempt.nonce().expose().to_owned());
        let client = self.client(metadata, attempt)?;
        let request = client
            .authorize_url(
                AuthenticationFlow::<CoreResponseType>::AuthorizationCode,
                || CsrfToken::new(state),
                || Nonce::new(nonce),
            )
            .add_scopes(["email", "profile"].map(|scope| Scope::new(scope.to_owned())))
            .set_pkce_challenge(PkceCodeChallenge::from_code_verifier_sha256(&verifier));
        Ok(request.url().0.into())
    }

    pub(super) async fn identify(
        &self,
        http: &Http,
        attempt: &Attempt,
        code: String,
        now: Time,
    ) -> Result<Person, LoginError> {
        // Keys are replaced at any time.
        let metadata = self.discover(http).await?;
        let userinfo = metadata.userinfo_endpoint().map(|url| url.url().clone());
        let client = self.client(metadata, attempt)?;
        let answer = client
            .exchange_code(AuthorizationCode::new(code))
            .map_err(|error| self.odd(error))?
            .set_pkce_verifier(PkceCodeVerifier::new(attempt.verifier().expose().to_owned()))
            .request_async(http)
            .await
            .map_err(|error| LoginError::from_exchange(self.title, error))?;
        let mut about = self.verified(&client, &answer, attempt, now)?;
        if (about.email.is_none() || about.email_verified.is_none())
            && let Some(endpoint) = userinfo
        {
            let access = Secret::new(answer.access_token().secret().clone());
            about = self.more(http, endpoint, &access, about).await?;
        }
        Ok(person(self.flavor, self.issuer.clone(), about))
    }

    /// What the signed token says, if it is of this provider, for this server and this login, and in time.
    fn verified(
        &self,
        client: &Client,
        answer: &Tokens,
        attempt: &Attempt,
        now: Time,
    ) -> Result<About, LoginError> {
        let token = answer
            .id_token()
            .ok_or_else(|| self.odd("there is no id_token"))?;
        let checked_at = DateTime::from_timestamp_micros((now - LEEWAY).as_micros()).unwrap_or_default();
        let verifier = client
            .id_token_verifier()
            .set_allowed_algs(ALGORITHMS)
            .set_time_fn(move || checked_at);
        let nonce = Nonce::new(attempt.nonce().expose().to_owned());
        let claims = token
            .claims(&verifier, &nonce)
            .map_err(|error| self.unproven(error))?;
        Ok(About {
            sub: claims.subject().to_string(),
            email: claims.email().map(|email| email.to_string()),
            email_verified: claims.email_verified().map(Value::Bool),
            preferred_username: claims.preferred_username().map(|name| name.to_string()),
            claims: claims.additional_claims().clone(),
        })
    }

    /// Tokens may be short: the rest is told separately.
    async fn more(&self, http: &Http, url: Url, access: &Secret, known: About) -> Result<About, LoginError> {
        let request = Request::get(url.as_str())
            .header(header::AUTHORIZATION, format!("Bearer {}", access.expose()))
            .header(header::ACCEPT, "application/json")
            .body(Vec::new())
            .map_err(|error| self.odd(error))?;
        let answer = http
            .send(request)
            .await
            .map_err(|error| self.unreachable(error))?;
        if answer.status() != StatusCode::OK {
            return Err(self.odd(format!("userinfo: status {}", answer.status())));
        }
        let told: About = serde_json::from_slice(answer.body()).map_err(|error| self.odd(error))?;
        if told.sub != known.sub {
            return Err(self.unproven("userinfo is of somebody else"));
        }
        // The signed token counts where it says something.
        Ok(About {
            email_verified: match &known.email {
                Some(email) if told.email.as_ref() != Some(email) => known.email_verified,
                _ => known.email_verified.or(told.email_verified),
            },
            email: known.email.or(told.email),
            preferred_username: known.preferred_username.or(told.preferred_username),
            claims: known.claims,
            sub: known.sub,
        })
    }
}

fn is_true(value: Option<&Value>) -> bool {
    match value {
        Some(Value::Bool(value)) => *value,
        Some(Value::Number(number)) => number.as_i64() == Some(1),
        Some(Value::String(text)) => text == "true" || text == "1",
        _ => false,
    }
}

/// What the claims prove.
fn person(flavor: Flavor, issuer: String, about: About) -> Person {
    let verified = is_true(about.email_verified.as_ref())
        // Anybody can put any address into a directory of their own; Entra says separately whether it is theirs.
        || (flavor == Flavor::Entra && is_true(about.claims.xms_edov.as_ref()));
    let email = about.email.clone().filter(|_| verified);
    let of_email = email.as_deref().and_then(domain).map(str::to_owned);
    let proven = match flavor {
        // An account of one's own may have the address of a company that one has left; `hd` is of the company's accounts.
        Flavor::Google => about
            .claims
            .hd
            .or(of_email.filter(|domain| domain == "gmail.com" || domain == "googlemail.com")),
        Flavor::Okta | Flavor::Entra => of_email,
    };
    Person {
        login: about
            .preferred_username
            .or(about.email)
            .unwrap_or_else(|| about.sub.clone()),
        identity: Identity {
            issuer,
            subject: about.sub,
        },
        email,
        domains: proven.into_iter().collect(),
        organizations: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn proven(flavor: Flavor, claims: Value) -> (Option<String>, Vec<String>) {
        let about: About = serde_json::from_value(claims).unwrap();
        let person = person(flavor, "https://idp.example".into(), about);
        (person.email, person.domains)
    }

    #[test]
    fn only_verified_addresses_prove_a_domain() {
        let email = |verified: Value| json!({"sub": "1", "email": "a@acme.com", "email_verified": verified});
        let some = (Some("a@acme.com".to_owned()), vec!["acme.com".to_owned()]);
        assert_eq!(proven(Flavor::Okta, email(json!(true))), some);
        assert_eq!(proven(Flavor::Okta, email(json!("true"))), some);
        for unverified in [json!(false), json!(null), json!("false")] {
            assert_eq!(proven(Flavor::Okta, email(unverified.clone())), (None, vec![]));
            assert_eq!(proven(Flavor::Entra, email(unverified)), (None, vec![]));
        }
        for owned in [json!(true), json!("1"), json!(1)] {
            let claims = json!({"sub": "1", "email": "a@acme.com", "xms_edov": owned});
            assert_eq!(proven(Flavor::Entra, claims.clone()), some);
            assert_eq!(
                proven(Flavor::Okta, claims),
                (None, vec![]),
                "others do not say it"
            );
        }
    }

    #[test]
    fn a_google_account_belongs_to_the_domain_that_manages_it() {
        let google = |claims: Value| proven(Flavor::Google, claims).1;
        let mut claims = json!({"sub": "1", "email": "a@acme.com", "email_verified": true});
        assert_eq!(google(claims.clone()), Vec::<String>::new());
        claims["hd"] = json!("acme.com");
        assert_eq!(google(claims), ["acme.com"]);
        let own = json!({"sub": "1", "email": "a@gmail.com", "email_verified": true});
        assert_eq!(google(own), ["gmail.com"]);
    }
}
