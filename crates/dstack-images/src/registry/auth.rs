//! How a registry wants to be asked: nothing, basic credentials, or a token from elsewhere.

use reqwest::header::{HeaderMap, WWW_AUTHENTICATE};

/// What the answer 401 asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// Credentials in each request.
    Basic,
    /// A token, to be had at `realm`.
    Bearer {
        realm: String,
        service: Option<String>,
        scope: Option<String>,
    },
}

impl Challenge {
    /// The one to answer: a token where one is available.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut basic = None;
        for header in headers.get_all(WWW_AUTHENTICATE) {
            let Ok(text) = header.to_str() else { continue };
            for challenge in http_auth::parse_challenges(text).unwrap_or_default() {
                if challenge.scheme.eq_ignore_ascii_case("basic") {
                    basic = Some(Self::Basic);
                }
                if !challenge.scheme.eq_ignore_ascii_case("bearer") {
                    continue;
                }
                let parameter = |name: &str| {
                    let mut all = challenge.params.iter();
                    let (_, value) = all.find(|(key, _)| key.eq_ignore_ascii_case(name))?;
                    Some(value.to_unescaped())
                };
                if let Some(realm) = parameter("realm") {
                    let (service, scope) = (parameter("service"), parameter("scope"));
                    return Some(Self::Bearer {
                        realm,
                        service,
                        scope,
                    });
                }
            }
        }
        basic
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn challenge(headers: &[&'static str]) -> Option<Challenge> {
        let mut map = HeaderMap::new();
        for header in headers {
            map.append(WWW_AUTHENTICATE, header.parse().unwrap());
        }
        Challenge::of(&map)
    }

    #[test]
    fn docker_hubs_challenge() {
        let header = r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:library/ubuntu:pull""#;
        let expected = Challenge::Bearer {
            realm: "https://auth.docker.io/token".to_owned(),
            service: Some("registry.docker.io".to_owned()),
            scope: Some("repository:library/ubuntu:pull".to_owned()),
        };
        assert_eq!(challenge(&[header]), Some(expected));
    }

    #[test]
    fn a_token_is_preferred_to_basic() {
        let bearer = r#"Bearer realm="https://a/t""#;
        assert!(matches!(
            challenge(&["Basic realm=\"x\"", bearer]),
            Some(Challenge::Bearer { .. })
        ));
        assert_eq!(challenge(&["Basic realm=\"x\""]), Some(Challenge::Basic));
    }

    #[test]
    fn what_cannot_be_answered_is_none() {
        assert_eq!(challenge(&[]), None);
        assert_eq!(challenge(&["Negotiate"]), None);
        assert_eq!(challenge(&["Bearer service=\"x\""]), None);
        assert_eq!(challenge(&["=,=\"\""]), None);
    }
}
