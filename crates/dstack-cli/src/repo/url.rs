//! URLs of repositories: https, ssh and `user@host:path`.

use sha2::{Digest, Sha256};

use crate::ssh::config::HostSettings;

/// A repository's URL, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepoUrl {
    /// User for ssh.
    pub ssh_user: Option<String>,
    /// Host, lower case, ssh aliases resolved.
    pub host: String,
    /// Port for https when it is not the usual one.
    pub https_port: Option<u16>,
    /// Port for ssh.
    pub ssh_port: Option<u16>,
    /// Path with a leading slash.
    pub path: String,
    /// Host as written.
    pub original_host: String,
}

/// Why a text is not the URL of a repository.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RepoUrlError {
    /// Not a URL at all.
    #[error("Could not parse git URL {0}")]
    Malformed(String),
    /// Neither https nor ssh.
    #[error("Unsupported URL scheme {0}")]
    Scheme(String),
}

impl RepoUrl {
    /// Parses a URL; `settings` says what the user's ssh configuration knows about a host.
    ///
    /// # Errors
    /// See [`RepoUrlError`].
    pub fn parse(text: &str, settings: impl Fn(&str) -> HostSettings) -> Result<Self, RepoUrlError> {
        let malformed = || RepoUrlError::Malformed(text.to_owned());
        let parsed = match ::url::Url::parse(text) {
            Ok(parsed) if parsed.has_host() => parsed,
            _ => scp_like(text).ok_or_else(malformed)?,
        };
        let original_host = parsed.host_str().ok_or_else(malformed)?.to_lowercase();
        let known = settings(&original_host);
        let path = if parsed.path().is_empty() {
            "/"
        } else {
            parsed.path()
        }
        .to_owned();
        match parsed.scheme() {
            "https" => Ok(Self {
                ssh_user: known.user,
                host: original_host.clone(),
                https_port: parsed.port(),
                ssh_port: known.port,
                path,
                original_host,
            }),
            "ssh" => Ok(Self {
                ssh_user: Some(parsed.username().to_owned())
                    .filter(|user| !user.is_empty())
                    .or(known.user),
                host: known
                    .hostname
                    .map_or_else(|| original_host.clone(), |host| host.to_lowercase()),
                https_port: None,
                ssh_port: parsed.port().or(known.port),
                path,
                original_host,
            }),
            other => Err(RepoUrlError::Scheme(other.to_owned())),
        }
    }

    /// As an https URL, with a token when there is one.
    pub fn https(&self, token: Option<&str>) -> String {
        let credentials = token
            .map(|token| format!("anything:{token}@"))
            .unwrap_or_default();
        format!(
            "https://{credentials}{}{}{}",
            self.host,
            port(self.https_port),
            self.path
        )
    }

    /// As an ssh URL.
    pub fn ssh(&self) -> String {
        let user = self.ssh_user.as_deref().unwrap_or("git");
        format!("ssh://{user}@{}{}{}", self.host, port(self.ssh_port), self.path)
    }

    fn clean_path(&self) -> &str {
        let path = self.path.trim_end_matches('/');
        path.strip_suffix(".git").unwrap_or(path)
    }

    /// The last part of the path.
    pub fn name(&self) -> &str {
        self.clean_path()
            .rsplit('/')
            .next()
            .filter(|name| !name.is_empty())
            .unwrap_or("unknown")
    }

    /// The id under which the server knows it: its name and a hash of its place.
    pub fn repo_id(&self) -> String {
        let digest = Sha256::digest(format!("{}{}", self.host, self.clean_path()).as_bytes());
        let text = base36(&digest);
        format!("{}-{}", self.name(), text.get(..8).unwrap_or(&text))
    }
}

fn port(port: Option<u16>) -> String {
    port.map(|port| format!(":{port}")).unwrap_or_default()
}

/// `user@host:path` as an ssh URL.
fn scp_like(text: &str) -> Option<::url::Url> {
    let (user, rest) = text.split_once('@')?;
    let (host, path) = rest.split_once(':')?;
    if user.is_empty() || user.contains('/') || host.is_empty() || host.contains('/') || path.is_empty() {
        return None;
    }
    ::url::Url::parse(&format!("ssh://{user}@{host}/{path}")).ok()
}

/// The low 32 base-36 digits of a little-endian number, most significant first.
fn base36(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut number = bytes.to_vec();
    let mut digits = Vec::new();
    for _ in 0..bytes.len() {
        let mut rest: u32 = 0;
        for byte in number.iter_mut().rev() {
            let value = rest * 256 + u32::from(*byte);
            *byte = u8::try_from(value / 36).unwrap_or(u8::MAX);
            rest = value % 36;
        }
        let digit = usize::try_from(rest)
            .ok()
            .and_then(|index| DIGITS.get(index))
            .copied()
            .unwrap_or(b'0');
        digits.push(char::from(digit));
    }
    digits.into_iter().rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> RepoUrl {
        RepoUrl::parse(text, |_| HostSettings::default()).unwrap()
    }

    #[test]
    fn all_forms_of_a_place_have_one_id() {
        let id = parse("https://github.com/dstackai/dstack-examples").repo_id();
        for text in [
            "https://GitHub.com/dstackai/dstack-examples.git",
            "git@github.com:dstackai/dstack-examples.git",
            "ssh://git@github.com/dstackai/dstack-examples/",
        ] {
            assert_eq!(parse(text).repo_id(), id, "{text}");
        }
        assert_eq!(id, "dstack-examples-2aut8wsk");
    }

    #[test]
    fn both_ways() {
        let url = parse("git@github.com:a/b.git");
        assert_eq!(url.https(None), "https://github.com/a/b.git");
        assert_eq!(url.https(Some("t")), "https://anything:t@github.com/a/b.git");
        assert_eq!(url.ssh(), "ssh://git@github.com/a/b.git");
        let url = parse("https://example.com:8443/a/b");
        assert_eq!(url.https(None), "https://example.com:8443/a/b");
        assert_eq!(url.ssh(), "ssh://git@example.com/a/b");
    }

    #[test]
    fn aliases_are_resolved_for_ssh() {
        let settings = |_: &str| HostSettings {
            hostname: Some("GitHub.com".to_owned()),
            user: Some("me".to_owned()),
            port: Some(443),
            identity_file: None,
        };
        let url = RepoUrl::parse("ssh://gh/a/b", settings).unwrap();
        assert_eq!(url.ssh(), "ssh://me@github.com:443/a/b");
    }

    #[test]
    fn folders_are_no_urls() {
        for text in ["./repo", "repo", "/abs/repo", "~/x", "C:\\x", ""] {
            assert!(
                RepoUrl::parse(text, |_| HostSettings::default()).is_err(),
                "{text}"
            );
        }
        assert_eq!(
            RepoUrl::parse("ftp://h/x", |_| HostSettings::default()).unwrap_err(),
            RepoUrlError::Scheme("ftp".to_owned())
        );
    }
}
