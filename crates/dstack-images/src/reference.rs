//! `[registry/]name[:tag][@digest]`, by Docker's rules.

use std::net::IpAddr;

use crate::ImageError;

/// The registry of images that name none.
pub const DEFAULT_REGISTRY: &str = "docker.io";

/// Where a registry is that calls itself `docker.io`.
const DEFAULT_REGISTRY_HOST: &str = "registry-1.docker.io";

/// A parsed image reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// Host and port; `None` = Docker Hub.
    pub registry: Option<String>,
    /// Repository in the registry, e.g. `library/ubuntu`.
    pub repository: String,
    /// The tag; `latest` when none is given.
    pub tag: String,
    /// The digest, e.g. `sha256:…`; wins over the tag.
    pub digest: Option<String>,
}

impl Reference {
    /// Parses a reference.
    ///
    /// # Errors
    /// It is none: the text names the part that is wrong.
    pub fn parse(text: &str) -> Result<Self, ImageError> {
        let wrong = |what: String| {
            Err(ImageError::Refused(format!(
                "{what}. An image is written [REGISTRY/]NAME[:TAG][@DIGEST], e.g. ubuntu:24.04"
            )))
        };
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (text, None),
        };
        if let Some(digest) = digest
            && !is_digest(digest)
        {
            return wrong(format!("`{digest}` is not a digest"));
        }
        let (rest, tag) = match rest.rsplit_once(':') {
            Some((rest, tag)) if !tag.contains('/') => (rest, Some(tag)),
            _ => (rest, None),
        };
        if let Some(tag) = tag
            && !is_tag(tag)
        {
            return wrong(format!("`{tag}` is not a tag"));
        }
        let (registry, repository) = match rest.split_once('/') {
            Some((first, repository)) if is_host(first) => (Some(first), repository),
            _ => (None, rest),
        };
        let registry = registry.filter(|host| !matches!(*host, DEFAULT_REGISTRY | "index.docker.io"));
        if let Some(host) = registry
            && !is_valid_host(host)
        {
            return wrong(format!("`{host}` is not the address of a registry"));
        }
        if let Some(part) = repository.split('/').find(|part| !is_component(part)) {
            return wrong(if part.chars().any(char::is_uppercase) {
                format!("the image's name has capital letters: `{part}`")
            } else {
                format!("`{part}` cannot be part of an image's name")
            });
        }
        let official = registry.is_none() && !repository.contains('/');
        Ok(Self {
            registry: registry.map(str::to_owned),
            repository: if official {
                format!("library/{repository}")
            } else {
                repository.to_owned()
            },
            tag: tag.unwrap_or("latest").to_owned(),
            digest: digest.map(str::to_owned),
        })
    }

    /// What users call the registry.
    pub fn registry_name(&self) -> &str {
        self.registry.as_deref().unwrap_or(DEFAULT_REGISTRY)
    }

    /// Host and port at which it answers.
    pub fn host(&self) -> &str {
        self.registry.as_deref().unwrap_or(DEFAULT_REGISTRY_HOST)
    }

    /// The host without the port.
    pub fn host_name(&self) -> &str {
        host_name(self.host())
    }

    /// What names the manifest in the registry: the digest, else the tag.
    pub fn manifest(&self) -> &str {
        self.digest.as_deref().unwrap_or(&self.tag)
    }

    /// Whether the registry is on this machine, where registries may speak plain HTTP (Docker's rule).
    pub fn is_loopback(&self) -> bool {
        let name = self.host_name();
        let address = name.trim_start_matches('[').trim_end_matches(']');
        let address = address.parse::<IpAddr>();
        name == "localhost" || address.is_ok_and(|address| address.is_loopback())
    }
}

/// The host without its port.
fn host_name(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => name,
        _ => host,
    }
}

/// Returns the host of the registry that an image names, without its port; `None` when it names none.
pub fn registry_of(image: &str) -> Option<&str> {
    let (first, _) = image.split_once('/')?;
    is_host(first).then(|| host_name(first))
}

/// `image` in the registry `registry`, unless it names one itself (dstack 0.22.5: `DSTACK_SERVER_DEFAULT_DOCKER_REGISTRY`).
pub fn with_default_registry(image: &str, registry: &str) -> String {
    match image.split_once('/') {
        Some((first, _)) if is_host(first) => image.to_owned(),
        _ => format!("{registry}/{image}"),
    }
}

/// The first part is a host when it cannot be part of a name.
fn is_host(part: &str) -> bool {
    part == "localhost" || part.contains(['.', ':']) || part.chars().any(char::is_uppercase)
}

/// `NAME`, `IPV4` or `[IPV6]`, and a port perhaps.
fn is_valid_host(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    };
    let name_is_valid = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            !name.is_empty()
                && name.split('.').all(|label| {
                    !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
                })
        }
    };
    name_is_valid && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

/// Small letters and digits, separated by `.`, `_`, `__`, or dashes.
fn is_component(part: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let separators = part
        .split(alphanumeric)
        .filter(|separator| !separator.is_empty())
        .all(|separator| matches!(separator, "." | "_" | "__") || separator.chars().all(|c| c == '-'));
    separators && part.starts_with(alphanumeric) && part.ends_with(alphanumeric)
}

fn is_tag(text: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.len() <= 128 && text.starts_with(word) && text.chars().all(|c| word(c) || matches!(c, '.' | '-'))
}

/// Whether the text is of the form `ALGORITHM:HEX`.
pub(crate) fn is_digest(text: &str) -> bool {
    text.split_once(':').is_some_and(|(algorithm, hex)| {
        algorithm.starts_with(|c: char| c.is_ascii_alphabetic())
            && algorithm
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '.' | '_' | '-'))
            && hex.len() >= 32
            && hex.chars().all(|c| c.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn parsed(text: &str) -> (Option<String>, String, String) {
        let reference = Reference::parse(text).unwrap();
        let manifest = reference.manifest().to_owned();
        (reference.registry, reference.repository, manifest)
    }

    fn expected(
        registry: Option<&str>,
        repository: &str,
        manifest: &str,
    ) -> (Option<String>, String, String) {
        (
            registry.map(str::to_owned),
            repository.to_owned(),
            manifest.to_owned(),
        )
    }

    #[test]
    fn dockers_defaults() {
        assert_eq!(parsed("ubuntu"), expected(None, "library/ubuntu", "latest"));
        assert_eq!(parsed("ubuntu:24.04"), expected(None, "library/ubuntu", "24.04"));
        assert_eq!(
            parsed("vllm/vllm-openai"),
            expected(None, "vllm/vllm-openai", "latest")
        );
        assert_eq!(
            parsed("docker.io/ubuntu"),
            expected(None, "library/ubuntu", "latest")
        );
        assert_eq!(parsed("index.docker.io/a/b:1"), expected(None, "a/b", "1"));
        assert_eq!(Reference::parse("ubuntu").unwrap().host(), "registry-1.docker.io");
    }

    #[test]
    fn hosts_and_ports() {
        assert_eq!(
            parsed("ghcr.io/a/b/c:1.2"),
            expected(Some("ghcr.io"), "a/b/c", "1.2")
        );
        assert_eq!(parsed("localhost/a"), expected(Some("localhost"), "a", "latest"));
        assert_eq!(
            parsed("10.0.0.1:5000/a:b"),
            expected(Some("10.0.0.1:5000"), "a", "b")
        );
        assert_eq!(parsed("host:5000/a"), expected(Some("host:5000"), "a", "latest"));
        for (image, loopback) in [
            ("127.0.0.1:5000/a", true),
            ("localhost:1/a", true),
            ("[::1]:5000/a", true),
            ("[::1]/a", true),
            ("127.evil.example/a", false),
            ("ghcr.io/a", false),
            ("a", false),
        ] {
            assert_eq!(
                Reference::parse(image).unwrap().is_loopback(),
                loopback,
                "{image}"
            );
        }
    }

    #[test]
    fn the_registry_of_an_image() {
        assert_eq!(registry_of("reg.corp:5000/a/b:1"), Some("reg.corp"));
        assert_eq!(registry_of("[fd12::1]:5000/a"), Some("[fd12::1]"));
        assert_eq!(registry_of("dstackai/base"), None);
        assert_eq!(registry_of("ubuntu"), None);
    }

    #[test]
    fn a_digest_wins_over_the_tag() {
        let image = format!("quay.io/a/b:1@{DIGEST}");
        assert_eq!(parsed(&image), expected(Some("quay.io"), "a/b", DIGEST));
        assert_eq!(
            parsed(&format!("a@{DIGEST}")),
            expected(None, "library/a", DIGEST)
        );
    }

    #[test]
    fn what_is_no_reference_is_named() {
        for (text, part) in [
            ("", "``"),
            ("Ubuntu", "capital letters: `Ubuntu`"),
            ("a//b", "``"),
            ("a/b c", "`b c`"),
            ("-a", "`-a`"),
            ("a__b___c", "`a__b___c`"),
            ("a:", "`` is not a tag"),
            ("a:b:c", "`a:b`"),
            ("a:-x", "`-x` is not a tag"),
            ("a@sha256:12", "`sha256:12` is not a digest"),
            ("https://ghcr.io/a", "`https:` is not the address"),
            ("a.b?c/d", "`a.b?c` is not the address"),
            ("host:99999/a", "`host:99999` is not the address"),
            ("a/../b", "`..`"),
            ("a?b=c", "`a?b=c`"),
        ] {
            let error = Reference::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_default_registry_is_for_images_that_name_none() {
        assert_eq!(with_default_registry("ubuntu", "my.reg"), "my.reg/ubuntu");
        assert_eq!(with_default_registry("a/b:1", "my.reg/x"), "my.reg/x/a/b:1");
        assert_eq!(with_default_registry("ghcr.io/a", "my.reg"), "ghcr.io/a");
        assert_eq!(with_default_registry("localhost/a", "my.reg"), "localhost/a");
    }

    proptest! {
        /// What is accepted goes into a URL as it is: nothing in it may have a meaning there.
        #[test]
        fn accepted_references_are_safe_in_urls(text in ".{0,60}") {
            if let Ok(reference) = Reference::parse(&text) {
                let safe = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
                prop_assert!(reference.repository.chars().all(safe));
                prop_assert!(!reference.repository.contains(".."));
                let in_host = |c: char| c.is_ascii_alphanumeric() || ".-:[]".contains(c);
                prop_assert!(reference.host().chars().all(in_host));
                prop_assert!(reference.tag.chars().all(safe));
            }
        }
    }
}
