//! Addresses of git remotes.

use std::fmt;

use dstack_system::Secret;
use url::Url;

/// Where a remote is, as far as the transports need to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Remote {
    /// `https://` or `http://`.
    Http {
        /// The address without user and password.
        url: Url,
        /// User and password from the address.
        login: Option<(String, Secret)>,
    },
    /// `ssh://` or `user@host:path`.
    Ssh {
        /// Login name, `git` when the address has none.
        user: String,
        /// Name or IP address of the host.
        host: String,
        /// TCP port of its SSH server.
        port: u16,
        /// Path as the remote side shall see it.
        path: String,
    },
}

/// The address cannot be used. Does not show it: it may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not the address of a git repository: https://…, http://…, ssh://… or user@host:path is needed")]
pub struct RemoteError;

impl Remote {
    /// Parses a clone URL.
    pub(super) fn parse(text: &str) -> Result<Self, RemoteError> {
        if !text.contains("://") {
            return Self::parse_scp(text).ok_or(RemoteError);
        }
        let mut url = Url::parse(text).map_err(|_| RemoteError)?;
        let host = url.host_str().ok_or(RemoteError)?.to_owned();
        let decode = |text: &str| percent_decode(text).ok_or(RemoteError);
        match url.scheme() {
            "http" | "https" => {
                let user = decode(url.username())?;
                let password = url.password().map(decode).transpose()?;
                let login = (!user.is_empty() || password.is_some())
                    .then(|| (user, Secret::new(password.unwrap_or_default())));
                url.set_username("").map_err(|()| RemoteError)?;
                url.set_password(None).map_err(|()| RemoteError)?;
                Ok(Self::Http { url, login })
            }
            "ssh" | "git+ssh" | "ssh+git" => {
                let user = decode(url.username())?;
                let path = decode(url.path())?;
                Ok(Self::Ssh {
                    user: if user.is_empty() { "git".to_owned() } else { user },
                    host: host.trim_matches(['[', ']']).to_owned(),
                    port: url.port().unwrap_or(22),
                    // `/~user/x` is below the home of that user.
                    path: if path.starts_with("/~") {
                        path.trim_start_matches('/').to_owned()
                    } else {
                        path
                    },
                })
            }
            _ => Err(RemoteError),
        }
    }

    fn parse_scp(text: &str) -> Option<Self> {
        let (place, path) = text.split_once(':')?;
        let (user, host) = place.split_once('@').unwrap_or(("git", place));
        if host.is_empty() || path.is_empty() || place.contains('/') {
            return None;
        }
        Some(Self::Ssh {
            user: user.to_owned(),
            host: host.to_owned(),
            port: 22,
            path: path.to_owned(),
        })
    }

    /// Name of the host.
    pub(super) fn host(&self) -> &str {
        match self {
            Remote::Http { url, .. } => url.host_str().unwrap_or_default(),
            Remote::Ssh { host, .. } => host,
        }
    }

    /// Whether a secret for `self` may be shown to `other`: same kind, host and port.
    pub(super) fn same_place(&self, other: &Remote) -> bool {
        match (self, other) {
            (Remote::Http { url: a, .. }, Remote::Http { url: b, .. }) => a.origin() == b.origin(),
            (Remote::Ssh { host: a, port: p, .. }, Remote::Ssh { host: b, port: q, .. }) => {
                a.eq_ignore_ascii_case(b) && p == q
            }
            _ => false,
        }
    }
}

/// Prints the address without user and password.
impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remote::Http { url, .. } => f.write_str(url.as_str()),
            Remote::Ssh {
                user,
                host,
                port,
                path,
            } => write!(f, "ssh://{user}@{host}:{port} {path}"),
        }
    }
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ssh(user: &str, host: &str, port: u16, path: &str) -> Remote {
        let (user, host, path) = (user.to_owned(), host.to_owned(), path.to_owned());
        Remote::Ssh {
            user,
            host,
            port,
            path,
        }
    }

    #[test]
    fn all_forms() {
        let parse = |text| Remote::parse(text).unwrap();
        assert_eq!(
            parse("git@github.com:a/b.git"),
            ssh("git", "github.com", 22, "a/b.git")
        );
        assert_eq!(parse("host:/abs/x"), ssh("git", "host", 22, "/abs/x"));
        assert_eq!(parse("ssh://me@h:2222/a%20b"), ssh("me", "h", 2222, "/a b"));
        assert_eq!(parse("ssh://h/~me/x"), ssh("git", "h", 22, "~me/x"));
        assert_eq!(parse("ssh://git@[::1]:5/x"), ssh("git", "::1", 5, "/x"));
        let Remote::Http { url, login } = parse("https://u:p%40ss@Host.com/a/b.git") else {
            panic!()
        };
        assert_eq!(url.as_str(), "https://host.com/a/b.git");
        assert_eq!(login, Some(("u".to_owned(), Secret::new("p@ss"))));
        for bad in [
            "",
            "/path",
            "ftp://h/x",
            "file:///x",
            "https://",
            "nothing",
            "./a:b",
            "a/b:c",
        ] {
            assert_eq!(Remote::parse(bad), Err(RemoteError), "{bad}");
        }
    }

    #[test]
    fn secrets_stay_at_their_place() {
        let parse = |text| Remote::parse(text).unwrap();
        assert!(parse("https://h/a").same_place(&parse("https://x@h:443/b")));
        assert!(!parse("https://h/a").same_place(&parse("http://h/a")));
        assert!(!parse("https://h/a").same_place(&parse("https://h:8443/a")));
        assert!(parse("git@h:a").same_place(&parse("ssh://H/b")));
        assert!(!parse("git@h:a").same_place(&parse("git@i:a")));
        assert!(!format!("{:?} {0}", parse("https://u:hush@h/a")).contains("hush"));
    }
}
