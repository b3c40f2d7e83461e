//! Where the server is.

use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::ClientError;

/// Characters that stay as they are in a path segment.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// A server's URL.
#[derive(Debug, Clone)]
pub(super) struct Address {
    shown: String,
    base: String,
    socket: Option<PathBuf>,
}

impl Address {
    pub(super) fn parse(url: &str) -> Result<Self, ClientError> {
        let shown = url.trim_end_matches('/').to_owned();
        if let Some(rest) = shown.strip_prefix("http+unix://") {
            let (host, path) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
            let socket = percent_decode_str(host).decode_utf8_lossy().into_owned();
            return Ok(Self {
                base: format!("http://localhost{path}"),
                socket: Some(socket.into()),
                shown,
            });
        }
        match url::Url::parse(&shown) {
            Ok(parsed) if matches!(parsed.scheme(), "http" | "https") && parsed.has_host() => Ok(Self {
                base: shown.clone(),
                socket: None,
                shown,
            }),
            _ => Err(ClientError::Url { url: url.to_owned() }),
        }
    }

    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    pub(super) fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    pub(super) fn is_tls(&self) -> bool {
        self.base.starts_with("https:")
    }

    pub(super) fn join(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }
}

/// Puts values in the place of `{parameters}`, in order.
pub(super) fn fill_path(template: &str, values: &[&str]) -> String {
    let mut values = values.iter();
    let segments: Vec<String> = template
        .split('/')
        .map(|segment| match segment.starts_with('{') {
            true => values
                .next()
                .map(|value| utf8_percent_encode(value, SEGMENT).to_string())
                .unwrap_or_default(),
            false => segment.to_owned(),
        })
        .collect();
    segments.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_kept_and_a_trailing_slash_dropped() {
        let address = Address::parse("https://x.example/dstack/").unwrap();
        assert_eq!(
            address.join("/api/server/get_info"),
            "https://x.example/dstack/api/server/get_info"
        );
        assert!(address.is_tls() && address.socket().is_none());
    }

    #[test]
    fn unix_sockets() {
        let address = Address::parse("http+unix://%2Frun%2Fd.sock/p").unwrap();
        assert_eq!(address.socket(), Some(Path::new("/run/d.sock")));
        assert_eq!(address.join("/api"), "http://localhost/p/api");
        assert_eq!(address.shown(), "http+unix://%2Frun%2Fd.sock/p");
    }

    #[test]
    fn other_schemes_are_refused() {
        for url in ["", "127.0.0.1:3000", "ftp://x", "http://"] {
            assert!(
                matches!(Address::parse(url), Err(ClientError::Url { .. })),
                "{url}"
            );
        }
    }

    #[test]
    fn parameters_cannot_leave_their_segment() {
        assert_eq!(
            fill_path("/api/project/{p}/x/{y}", &["a/b c", "z"]),
            "/api/project/a%2Fb%20c/x/z"
        );
    }
}
