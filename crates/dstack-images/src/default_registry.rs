//! Where images come from that name no registry themselves (dstack 0.22.5: `DSTACK_SERVER_DEFAULT_DOCKER_REGISTRY`).

use crate::{RegistryCredentials, with_default_registry};

/// The registry of images without one; by default there is none, and the container engine decides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DefaultRegistry {
    /// Its host, and a path perhaps.
    pub name: Option<String>,
    /// For images without a registry of their own, of jobs without credentials of their own.
    pub credentials: Option<RegistryCredentials>,
}

impl DefaultRegistry {
    /// The image under the name by which it is pulled, with the credentials for it.
    pub fn apply(
        &self,
        image: &str,
        own: Option<RegistryCredentials>,
    ) -> (String, Option<RegistryCredentials>) {
        if names_registry(image) {
            return (image.to_owned(), own);
        }
        let name = match &self.name {
            Some(registry) => with_default_registry(image, registry),
            None => image.to_owned(),
        };
        (name, own.or_else(|| self.credentials.clone()))
    }
}

fn names_registry(image: &str) -> bool {
    with_default_registry(image, "") == image
}

#[cfg(test)]
mod tests {
    use dstack_system::Secret;

    use super::*;

    fn credentials(user: &str) -> RegistryCredentials {
        RegistryCredentials {
            username: user.to_owned(),
            password: Secret::new("p".to_owned()),
        }
    }

    #[test]
    fn only_images_without_a_registry_change() {
        let default = DefaultRegistry {
            name: Some("my.reg/x".to_owned()),
            credentials: Some(credentials("robot")),
        };
        let of = |image, own| default.apply(image, own);
        assert_eq!(
            of("ubuntu:24.04", None),
            ("my.reg/x/ubuntu:24.04".to_owned(), Some(credentials("robot")))
        );
        assert_eq!(of("ubuntu", Some(credentials("me"))).1, Some(credentials("me")));
        assert_eq!(of("ghcr.io/a/b", None), ("ghcr.io/a/b".to_owned(), None));
    }

    #[test]
    fn credentials_alone_are_for_the_engines_own_registry() {
        let default = DefaultRegistry {
            name: None,
            credentials: Some(credentials("robot")),
        };
        let (name, found) = default.apply("a/b", None);
        assert_eq!((name.as_str(), found), ("a/b", Some(credentials("robot"))));
    }
}
