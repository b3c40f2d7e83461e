//! Which networks users may have the server contact (`docs/adr/021-outbound-guard.md`).

use dstack_http::{OUTBOUND_ALLOW, OutboundPolicy};
use dstack_images::registry_of;

use super::Settings;

impl Settings {
    /// What users may have the server contact besides public addresses: what the list allows, and the registries that the
    /// administrator configures himself. Entries that cannot be used are reported and left out.
    pub fn outbound_policy(&self) -> OutboundPolicy {
        let mut policy = OutboundPolicy::new();
        let list = self.outbound_allow.as_deref().unwrap_or_default();
        for invalid in policy.allow_list(list) {
            tracing::warn!("{OUTBOUND_ALLOW}: {invalid}; the entry is left out");
        }
        let registry = self.default_docker_registry.as_ref();
        let registry = registry.map(|registry| format!("{registry}/image"));
        let configured = [
            registry.as_deref(),
            Some(&self.docker_base_image),
            Some(&self.dind_image),
        ];
        for host in configured.into_iter().flatten().filter_map(registry_of) {
            if let Err(invalid) = policy.allow(host) {
                tracing::warn!("the registry of an image in the settings: {invalid}");
            }
        }
        policy
    }
}

#[cfg(test)]
mod tests {
    use dstack_images::{Images, Limits, Registry};

    use super::*;

    /// Whether a registry that nobody serves is asked: it is refused by the policy, or by this machine.
    async fn is_asked(settings: &Settings, image: &str) -> bool {
        let registry = Registry::new(Limits::default(), settings.outbound_policy());
        let error = registry.config(image, None).await.unwrap_err();
        !error.to_string().contains(OUTBOUND_ALLOW)
    }

    fn settings() -> Settings {
        Settings {
            outbound_allow: None,
            default_docker_registry: None,
            docker_base_image: "dstackai/base".to_owned(),
            dind_image: "dstackai/dind".to_owned(),
            ..Settings::from_env()
        }
    }

    #[tokio::test]
    async fn registries_inside_are_refused_unless_the_list_or_a_setting_names_them() {
        // Port 1 of this machine: nobody is there.
        let image = "127.0.0.1:1/team/image";
        assert!(!is_asked(&settings(), image).await);
        let listed = Settings {
            outbound_allow: Some("10.0.0.0/8, nonsense://x, 127.0.0.1".to_owned()),
            ..settings()
        };
        assert!(is_asked(&listed, image).await);
        let default = Settings {
            default_docker_registry: Some("127.0.0.1:1/mirror".to_owned()),
            ..settings()
        };
        assert!(is_asked(&default, image).await);
        assert!(!is_asked(&default, "127.0.0.2:1/team/image").await);
        let base = Settings {
            docker_base_image: "127.0.0.1:1/dstackai/base".to_owned(),
            ..settings()
        };
        assert!(is_asked(&base, image).await);
    }
}
