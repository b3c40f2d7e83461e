//! GPU clouds with an API key each.

use dstack_decode::Decode;
use dstack_model::tag;
use serde::Serialize;

use super::Credential;

tag!(
    /// The value of `type` for API keys.
    pub ApiKeyTag = "api_key"
);
tag!(
    /// The value of `type` for API tokens.
    pub ApiTokenTag = "api_token"
);

/// An API key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ApiKeyCreds {
    /// The kind of credentials: `api_key`.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: ApiKeyTag,
    /// The API key.
    pub api_key: Credential,
}

macro_rules! cloud {
    ($(#[$meta:meta])* $tag:ident = $text:literal, $name:ident { $($(#[$field_meta:meta])* $field:ident: [$($type:tt)*],)* } $creds:ty) => {
        tag!(
            #[doc = concat!("`", $text, "`.")]
            pub $tag = $text
        );
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
        pub struct $name {
            /// The type of the backend.
            #[serde(rename = "type")]
            #[decode(default)]
            pub kind: $tag,
            $($(#[$field_meta])* pub $field: $($type)*,)*
            /// How the server authenticates.
            pub creds: $creds,
        }
    };
}

cloud!(
    /// The configuration of the backend for CloudRift.
    CloudRiftTag = "cloudrift", CloudRiftConfig {
        /// Regions to use; all when unset.
        regions: [Option<Vec<String>>],
    } ApiKeyCreds
);
cloud!(
    /// Cudo (dropped; the configuration is kept).
    CudoTag = "cudo", CudoConfig {
        /// Regions to use; all when unset.
        regions: [Option<Vec<String>>],
        /// The project's id.
        project_id: [String],
    } ApiKeyCreds
);
cloud!(
    /// The configuration of the backend for Daytona.
    DaytonaTag = "daytona", DaytonaConfig {
        /// Regions to use; all when unset.
        regions: [Option<Vec<String>>],
    } NonEmptyApiKeyCreds
);
cloud!(
    /// The configuration of the backend for DigitalOcean.
    DigitalOceanTag = "digitalocean", DigitalOceanConfig {
        /// The project's name.
        project_name: [Option<String>],
        /// Regions to use; all when unset.
        regions: [Option<Vec<String>>],
    } ApiKeyCreds
);
cloud!(
    /// AMD Developer Cloud.
    AmdDevCloudTag = "amddevcloud", AmdDevCloudConfig {
        /// The project's name.
        project_name: [Option<String>],
        /// Regions to use; all when unset.
        regions: [Option<Vec<String>>],
    } ApiKeyCreds
);
cloud!(
    /// The configuration of the backend for Hot Aisle.
    HotAisleTag = "hotaisle", HotAisleConfig {
        /// The team's handle.
        team_handle: [String],
        /// Regions to use; all when unset.
        regions: [Option<Vec<String>>],
        /// Whether bare metal machines are offered.
        bare_metal: [Option<bool>],
    } ApiKeyCreds
);
cloud!(
    /// The configuration of the backend for JarvisLabs.
    JarvisLabsTag = "jarvislabs", JarvisLabsConfig {
        /// Regions to use; all when unset.
        regions: [Option<Vec<String>>],
    } ApiKeyCreds
);
cloud!(
    /// The configuration of the backend for Lambda.
    LambdaTag = "lambda", LambdaConfig {
        /// Regions to use; all when unset.
        regions: [Option<Vec<String>>],
    } ApiKeyCreds
);
cloud!(
    /// The configuration of the backend for Lium.
    LiumTag = "lium", LiumConfig {
        /// Regions to use; all when unset.
        regions: [Option<Vec<String>>],
    } NonEmptyApiKeyCreds
);
cloud!(
    /// The configuration of the backend for Runpod.
    RunpodTag = "runpod", RunpodConfig {
        /// Regions to use; all when unset.
        regions: [Option<Vec<String>>],
        /// Whether machines of the community are offered; they are not when unset.
        community_cloud: [Option<bool>],
    } ApiKeyCreds
);
cloud!(
    /// The configuration of the backend for Seeweb.
    SeewebTag = "seeweb", SeewebConfig {
        /// Regions to use; all when unset.
        regions: [Option<Vec<String>>],
    } ApiTokenCreds
);
cloud!(
    /// TensorDock (dropped; the configuration is kept).
    TensorDockTag = "tensordock", TensorDockConfig {
        /// Regions to use; all when unset.
        regions: [Option<Vec<String>>],
    } TensorDockCreds
);
cloud!(
    /// The configuration of the backend for Vast.ai.
    VastAiTag = "vastai", VastAiConfig {
        /// Regions to use; all when unset.
        regions: [Option<Vec<String>>],
        /// Whether machines of the community are offered.
        community_cloud: [Option<bool>],
    } ApiKeyCreds
);
cloud!(
    /// The configuration of the backend for Verda.
    VerdaTag = "verda", VerdaConfig {
        /// Regions to use; all when unset.
        regions: [Option<Vec<String>>],
    } ClientKeyCreds
);
cloud!(
    /// Verda under its old name.
    DataCrunchTag = "datacrunch", DataCrunchConfig {
        /// Regions to use; all when unset.
        regions: [Option<Vec<String>>],
    } ClientKeyCreds
);
cloud!(
    /// The configuration of the backend for Vultr.
    VultrTag = "vultr", VultrConfig {
        /// Regions to use; all when unset.
        regions: [Option<Vec<String>>],
    } ApiKeyCreds
);

/// An API key that must not be empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct NonEmptyApiKeyCreds {
    /// The kind of credentials: `api_key`.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: ApiKeyTag,
    /// The API key.
    #[decode(check = not_empty)]
    pub api_key: Credential,
}

fn not_empty(key: Credential) -> Result<Credential, String> {
    match key.expose() {
        "" => Err("String should have at least 1 character".to_owned()),
        _ => Ok(key),
    }
}

/// An API token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ApiTokenCreds {
    /// The kind of credentials: `api_token`.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: ApiTokenTag,
    /// The API token.
    pub api_token: Credential,
}

/// A key and a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct TensorDockCreds {
    /// The kind of credentials: `api_key`.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: ApiKeyTag,
    /// The API key.
    pub api_key: Credential,
    /// The API token.
    pub api_token: Credential,
}

/// A client's id and secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct ClientKeyCreds {
    /// The kind of credentials: `api_key`.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: ApiKeyTag,
    /// The client's id.
    pub client_id: String,
    /// The client's secret.
    pub client_secret: Credential,
}
