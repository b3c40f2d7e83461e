//! The version that a client says it has.

use std::str::FromStr;

use axum::body::Body;
use axum::http::{HeaderMap, Response};
use dstack_api::{ErrorCode, VERSION};
use pep440_rs::Version;

use crate::error::version_error;

/// `X-API-VERSION`; newest when absent, `latest` or a development version.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientVersion(Option<Version>);

impl ClientVersion {
    /// From the request's headers.
    ///
    /// # Errors
    /// The answer, if it is no version.
    pub fn from_headers(headers: &HeaderMap) -> Result<Self, Box<Response<Body>>> {
        let Some(value) = headers.get("x-api-version") else {
            return Ok(Self::default());
        };
        let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
        if text == "latest" {
            return Ok(Self::default());
        }
        let version = Version::from_str(&text)
            .map_err(|_| Box::new(version_error(&format!("Invalid version: {text}"), None)))?;
        let development =
            version.release().iter().take(3).all(|number| *number == 0) && version.release().len() >= 3;
        Ok(Self((!development).then_some(version)))
    }

    /// The answer to a client that is newer than this server by more than a patch.
    pub fn refused(&self) -> Option<Response<Body>> {
        let client = self.0.as_ref()?;
        let server = Version::from_str(VERSION).ok()?;
        let part = |version: &Version, place: usize| version.release().get(place).copied().unwrap_or(0);
        let newer =
            *client > server && (part(client, 0) > part(&server, 0) || part(client, 1) > part(&server, 1));
        newer.then(|| {
            let msg = format!(
                "The client/CLI version ({client}) is incompatible with the server version ({VERSION})."
            );
            version_error(&msg, Some(ErrorCode::Error))
        })
    }

    /// Whether the client is older than `version`; the newest is older than nothing.
    pub fn is_before(&self, version: [u64; 3]) -> bool {
        self.0
            .as_ref()
            .is_some_and(|client| *client < Version::new(version))
    }

    /// Whether the client gave a version.
    pub const fn is_known(&self) -> bool {
        self.0.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> ClientVersion {
        let mut headers = HeaderMap::new();
        headers.insert("x-api-version", text.parse().unwrap());
        ClientVersion::from_headers(&headers).unwrap()
    }

    #[test]
    fn newer_minors_are_refused_and_newer_patches_are_not() {
        for accepted in [
            "0.22.5",
            "0.22.9",
            "0.22.6rc1",
            "0.20.5",
            "latest",
            "0.0.0",
            "0.0.0.dev1",
        ] {
            assert!(version(accepted).refused().is_none(), "{accepted}");
        }
        for refused in ["0.23.0", "1.0.0", "1.22.5"] {
            assert!(version(refused).refused().is_some(), "{refused}");
        }
    }

    #[test]
    fn older_is_relative_to_a_known_version() {
        assert!(version("0.20.5").is_before([0, 20, 8]) && !version("0.20.8").is_before([0, 20, 8]));
        assert!(!ClientVersion::default().is_before([9, 0, 0]));
    }

    #[test]
    fn nonsense_is_refused() {
        let mut headers = HeaderMap::new();
        headers.insert("x-api-version", "newest".parse().unwrap());
        assert_eq!(ClientVersion::from_headers(&headers).unwrap_err().status(), 400);
    }
}
