//! `login` of `config.yml`.

use std::net::IpAddr;

use dstack_model::Decode;
use dstack_model::decode::{Cx, Value};
use dstack_model::schema::{Schema as _, Schemas};
use dstack_model::users::GlobalRole;
use dstack_system::Secret;
use serde::Serialize;
use url::{Host, Url};

/// The section.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Decode)]
#[decode(after = each_once)]
pub struct LoginConfig {
    /// At most one of each type.
    #[decode(default)]
    pub providers: Vec<ProviderConfig>,
}

/// A provider, told apart by `type`.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
#[serde(untagged)]
#[decode(tag = "type")]
pub enum ProviderConfig {
    /// `type: github`.
    #[decode(rename = "github")]
    Github(GithubConfig),
    /// `type: google`.
    #[decode(rename = "google")]
    Google(GoogleConfig),
    /// `type: okta`.
    #[decode(rename = "okta")]
    Okta(OktaConfig),
    /// `type: entra`.
    #[decode(rename = "entra")]
    Entra(EntraConfig),
}

/// What the provider knows this server by.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct ClientConfig {
    /// The id of the registered application.
    #[decode(min_len = 1)]
    pub client_id: String,
    /// Its secret.
    #[decode(with = secret, schema = text)]
    pub client_secret: Secret,
}

/// Who may log in, and as what.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct PolicyConfig {
    /// E-mail domains, of which the account must have one; `*`: anyone.
    #[decode(default)]
    pub allowed_domains: Vec<String>,
    /// Whether whoever logs in for the first time becomes a user.
    #[decode(default = true)]
    pub sign_up: bool,
    /// Whether an existing user with the e-mail address of the account, as the provider has verified it, is who logs in.
    #[decode(default)]
    pub link_by_email: bool,
    /// The role of new users in the whole server.
    #[decode(default = GlobalRole::User)]
    pub global_role: GlobalRole,
    /// Projects that new users join.
    #[decode(default)]
    pub projects: Vec<String>,
}

/// GitHub.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
#[decode(after = GithubConfig::checked, ignore("type"))]
pub struct GithubConfig {
    /// The application.
    #[serde(flatten)]
    #[decode(flatten)]
    pub client: ClientConfig,
    /// Another GitHub than github.com.
    #[decode(default = "https://github.com".to_owned(), check = secure_url)]
    pub url: String,
    /// Organisations, of which the account must be a member of one.
    #[decode(default)]
    pub allowed_organizations: Vec<String>,
    /// Who may come.
    #[serde(flatten)]
    #[decode(flatten)]
    pub policy: PolicyConfig,
}

/// Google.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
#[decode(after = GoogleConfig::checked, ignore("type"))]
pub struct GoogleConfig {
    /// The application.
    #[serde(flatten)]
    #[decode(flatten)]
    pub client: ClientConfig,
    /// Who may come.
    #[serde(flatten)]
    #[decode(flatten)]
    pub policy: PolicyConfig,
}

/// Okta.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
#[decode(ignore("type"))]
pub struct OktaConfig {
    /// The application.
    #[serde(flatten)]
    #[decode(flatten)]
    pub client: ClientConfig,
    /// The authorization server, such as `https://acme.okta.com`.
    #[decode(check = secure_url)]
    pub issuer: String,
    /// Who may come.
    #[serde(flatten)]
    #[decode(flatten)]
    pub policy: PolicyConfig,
}

/// Microsoft Entra ID.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
#[decode(ignore("type"))]
pub struct EntraConfig {
    /// The application.
    #[serde(flatten)]
    #[decode(flatten)]
    pub client: ClientConfig,
    /// The directory.
    #[decode(check = directory_id)]
    pub tenant_id: String,
    /// Another cloud than the public one.
    #[decode(default = "https://login.microsoftonline.com".to_owned(), check = secure_url)]
    pub authority: String,
    /// Who may come.
    #[serde(flatten)]
    #[decode(flatten)]
    pub policy: PolicyConfig,
}

impl ProviderConfig {
    /// What clients call it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Github(_) => "github",
            Self::Google(_) => "google",
            Self::Okta(_) => "okta",
            Self::Entra(_) => "entra",
        }
    }

    /// What people call it.
    pub fn title(&self) -> &'static str {
        match self {
            Self::Github(_) => "GitHub",
            Self::Google(_) => "Google",
            Self::Okta(_) => "Okta",
            Self::Entra(_) => "Entra ID",
        }
    }

    /// Who may come.
    pub fn policy(&self) -> &PolicyConfig {
        match self {
            Self::Github(config) => &config.policy,
            Self::Google(config) => &config.policy,
            Self::Okta(config) => &config.policy,
            Self::Entra(config) => &config.policy,
        }
    }

    /// Organisations, of which the account must be a member of one.
    pub fn allowed_organizations(&self) -> &[String] {
        match self {
            Self::Github(config) => &config.allowed_organizations,
            _ => &[],
        }
    }
}

impl GithubConfig {
    fn checked(self) -> Result<Self, String> {
        let open = self.policy.sign_up
            && self.policy.allowed_domains.is_empty()
            && self.allowed_organizations.is_empty();
        match open {
            true => Err(
                "anyone with a GitHub account could become a user: set `allowed_organizations` or `allowed_domains` (to \
                 [\"*\"] if that is meant), or `sign_up: false`"
                    .to_owned(),
            ),
            false => Ok(self),
        }
    }
}

impl GoogleConfig {
    fn checked(self) -> Result<Self, String> {
        match self.policy.sign_up && self.policy.allowed_domains.is_empty() {
            true => Err(
                "anyone with a Google account could become a user: set `allowed_domains` (to [\"*\"] if that is meant), \
                 or `sign_up: false`"
                    .to_owned(),
            ),
            false => Ok(self),
        }
    }

    /// Who signs its tokens.
    pub(super) fn issuer(&self) -> String {
        "https://accounts.google.com".to_owned()
    }
}

impl EntraConfig {
    /// Who signs the tokens of the directory.
    pub(super) fn issuer(&self) -> String {
        format!("{}/{}/v2.0", self.authority, self.tenant_id)
    }
}

fn each_once(config: LoginConfig) -> Result<LoginConfig, String> {
    let mut names: Vec<&str> = config.providers.iter().map(ProviderConfig::name).collect();
    names.sort_unstable();
    let twice = names.windows(2).find_map(|pair| match pair {
        [one, other] if one == other => Some((*one).to_owned()),
        _ => None,
    });
    match twice {
        Some(name) => Err(format!("there can be one provider of type {name}")),
        None => Ok(config),
    }
}

/// Without a slash at its end. What is secret goes there: it must be encrypted unless it stays on this machine.
#[allow(clippy::needless_pass_by_value)] // the form of a check
fn secure_url(text: String) -> Result<String, String> {
    let url = Url::parse(&text).map_err(|_| "must be a URL such as https://example.com".to_owned())?;
    match is_secure(&url) {
        true => Ok(text.trim_end_matches('/').to_owned()),
        false => Err("must begin with https://".to_owned()),
    }
}

/// HTTPS, or this machine.
pub(crate) fn is_secure(url: &Url) -> bool {
    let is_here = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => IpAddr::from(address).is_loopback(),
        Some(Host::Ipv6(address)) => IpAddr::from(address).is_loopback(),
        None => false,
    };
    url.scheme() == "https" || (url.scheme() == "http" && is_here)
}

/// The tokens of a directory name it by its id, whatever it was asked by; `common` would let in everyone of every directory.
#[allow(clippy::needless_pass_by_value)] // the form of a check
fn directory_id(text: String) -> Result<String, String> {
    match text.parse::<uuid::Uuid>() {
        Ok(id) => Ok(id.to_string()),
        Err(_) => Err("must be the Directory (tenant) ID, a UUID".to_owned()),
    }
}

fn secret(value: &Value, cx: &mut Cx) -> Option<Secret> {
    String::decode(value, cx).map(Secret::new)
}

fn text(schemas: &mut Schemas) -> Value {
    String::schema(schemas)
}

#[cfg(test)]
mod tests {
    use dstack_model::yaml;

    use super::*;

    fn read(text: &str) -> Result<LoginConfig, String> {
        yaml::parse::<LoginConfig>(text, "config.yml")
            .map(|(config, _)| config)
            .map_err(|errors| errors.to_string())
    }

    const APP: &str = "client_id: id, client_secret: s3cret";

    #[test]
    fn each_provider_is_read() {
        let text = format!(
            "providers:\n\
             - {{type: github, {APP}, allowed_organizations: [acme]}}\n\
             - {{type: google, {APP}, allowed_domains: [acme.com], projects: [main]}}\n\
             - {{type: okta, {APP}, issuer: 'https://acme.okta.com/', sign_up: false}}\n\
             - {{type: entra, {APP}, tenant_id: 6F1E1B0C-6f0a-4d55-9b6b-0a1a4f5f5a11, global_role: admin}}\n"
        );
        let config = read(&text).unwrap();
        let names: Vec<&str> = config.providers.iter().map(ProviderConfig::name).collect();
        assert_eq!(names, ["github", "google", "okta", "entra"]);
        let ProviderConfig::Github(github) = &config.providers[0] else {
            panic!("{config:?}")
        };
        assert_eq!(github.url, "https://github.com");
        let ProviderConfig::Okta(okta) = &config.providers[2] else {
            panic!("{config:?}")
        };
        assert_eq!(okta.issuer, "https://acme.okta.com");
        let ProviderConfig::Entra(entra) = &config.providers[3] else {
            panic!("{config:?}")
        };
        assert_eq!(
            entra.issuer(),
            "https://login.microsoftonline.com/6f1e1b0c-6f0a-4d55-9b6b-0a1a4f5f5a11/v2.0"
        );
        assert_eq!(entra.policy.global_role, GlobalRole::Admin);
        assert!(!format!("{config:?}").contains("s3cret"));
    }

    #[test]
    fn what_would_let_everyone_in_is_refused() {
        for (provider, says) in [
            (format!("{{type: github, {APP}}}"), "anyone with a GitHub account"),
            (format!("{{type: google, {APP}}}"), "anyone with a Google account"),
            (format!("{{type: entra, {APP}, tenant_id: common}}"), "tenant"),
            (
                format!("{{type: okta, {APP}, issuer: 'http://acme.okta.com'}}"),
                "https://",
            ),
            (format!("{{type: okta, {APP}}}"), "issuer"),
            (
                "{type: okta, issuer: 'https://a.okta.com'}".to_owned(),
                "client_id",
            ),
            (format!("{{type: gitlab, {APP}}}"), "gitlab"),
        ] {
            let error = read(&format!("providers:\n- {provider}\n")).unwrap_err();
            assert!(error.contains(says) && error.contains("config.yml:2:"), "{error}");
        }
        for open in [
            format!("{{type: github, {APP}, allowed_domains: ['*']}}"),
            format!("{{type: google, {APP}, sign_up: false}}"),
        ] {
            read(&format!("providers:\n- {open}\n")).unwrap();
        }
        let twice = format!("{{type: google, {APP}, sign_up: false}}");
        let error = read(&format!("providers: [{twice}, {twice}]\n")).unwrap_err();
        assert!(error.contains("one provider of type google"), "{error}");
    }
}
