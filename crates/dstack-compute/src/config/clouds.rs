//! Configurations of the backends of large clouds, such as AWS and Azure.

use dstack_decode::Decode;
use dstack_decode::{string_enum, tag};
use dstack_model::common::Tags;
use serde::Serialize;

use super::Credential;

tag!(
    /// The value of `type` for the server's own credentials.
    pub DefaultTag = "default"
);
tag!(
    /// The value of `type` for keys with a secret.
    pub AccessKeyTag = "access_key"
);
tag!(
    /// The value of `type` for credentials of a client.
    pub ClientTag = "client"
);
tag!(
    /// The value of `type` for credentials of a service account.
    pub ServiceAccountTag = "service_account"
);
tag!(
    /// The value of `type` for [`AwsConfig`].
    pub AwsTag = "aws"
);
tag!(
    /// The value of `type` for [`AzureConfig`].
    pub AzureTag = "azure"
);
tag!(
    /// The value of `type` for [`CrusoeConfig`].
    pub CrusoeTag = "crusoe"
);
tag!(
    /// The value of `type` for [`GcpConfig`].
    pub GcpTag = "gcp"
);
tag!(
    /// The value of `type` for [`NebiusConfig`].
    pub NebiusTag = "nebius"
);
tag!(
    /// The value of `type` for [`OciConfig`].
    pub OciTag = "oci"
);

/// The credentials that the server finds around itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct DefaultCreds {
    /// The kind of credentials: `default`.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: DefaultTag,
}

/// A key's id and secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct AccessKeyCreds {
    /// The kind of credentials: `access_key`.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: AccessKeyTag,
    /// The key's id.
    pub access_key: Credential,
    /// The secret that belongs to the key.
    pub secret_key: Credential,
}

/// A role that credentials of AWS assume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Decode)]
pub struct AwsRole {
    /// ARN of a role that is assumed with these credentials, for all calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[decode(pattern = r"^arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]+$")]
    pub role_arn: Option<String>,
    /// The external id that the trust policy of the role asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[decode(min_len = 2, max_len = 1224, pattern = r"^[\w+=,.@:/-]*$")]
    pub external_id: Option<String>,
}

/// An access key of AWS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct AwsAccessKeyCreds {
    /// The kind of credentials: `access_key`.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: AccessKeyTag,
    /// The key's id.
    pub access_key: Credential,
    /// The secret that belongs to the key.
    pub secret_key: Credential,
    /// What is assumed with them.
    #[serde(flatten)]
    #[decode(flatten)]
    pub role: AwsRole,
}

/// The credentials of AWS that the server finds around itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct AwsDefaultCreds {
    /// The kind of credentials: `default`.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: DefaultTag,
    /// What is assumed with them.
    #[serde(flatten)]
    #[decode(flatten)]
    pub role: AwsRole,
}

/// Credentials of AWS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
#[serde(untagged)]
#[decode(tag = "type")]
pub enum AwsCreds {
    /// An access key with its secret.
    #[decode(rename = "access_key")]
    AccessKey(AwsAccessKeyCreds),
    /// Those of the server.
    #[decode(rename = "default")]
    Default(AwsDefaultCreds),
}

impl AwsCreds {
    /// What is assumed with them.
    pub const fn role(&self) -> &AwsRole {
        match self {
            Self::AccessKey(creds) => &creds.role,
            Self::Default(creds) => &creds.role,
        }
    }
}

/// Amazon Web Services.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct AwsConfig {
    /// The type of the backend.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: AwsTag,
    /// Regions to use; a default set when unset.
    pub regions: Option<Vec<String>>,
    /// The VPC's name in each region.
    pub vpc_name: Option<String>,
    /// VPCs by region.
    pub vpc_ids: Option<Tags>,
    /// Whether default VPCs are used where none is named.
    pub default_vpcs: Option<bool>,
    /// Whether instances get public addresses.
    pub public_ips: Option<bool>,
    /// Profile of the instances.
    pub iam_instance_profile: Option<String>,
    /// Tags of everything that is created.
    pub tags: Option<Tags>,
    /// Images of instances.
    pub os_images: Option<AwsOsImages>,
    /// Instance types to be offered although they are not tested.
    pub experimental_instance_types: Option<Vec<String>>,
    /// How the server authenticates.
    pub creds: AwsCreds,
}

/// Images of instances.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct AwsOsImages {
    /// Of instances without GPUs.
    pub cpu: Option<AwsOsImage>,
    /// Of instances with NVIDIA GPUs.
    pub nvidia: Option<AwsOsImage>,
}

/// An image that instances start from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct AwsOsImage {
    /// Name of the image (AMI).
    pub name: String,
    /// The owning account.
    #[decode(default = "self".to_owned(), pattern = r"^(\d{12}|self)$")]
    pub owner: String,
    /// The user to log in as.
    pub user: String,
}

/// An application of Azure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct AzureClientCreds {
    /// The kind of credentials: `client`.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: ClientTag,
    /// The application's id.
    pub client_id: String,
    /// The application's secret.
    pub client_secret: Credential,
    /// Id of the tenant that the application belongs to.
    pub tenant_id: Option<String>,
}

/// Credentials of Azure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
#[serde(untagged)]
#[decode(tag = "type")]
pub enum AzureCreds {
    /// An application with a secret.
    #[decode(rename = "client")]
    Client(AzureClientCreds),
    /// Those of the server.
    #[decode(rename = "default")]
    Default(DefaultCreds),
}

/// The configuration of the backend for Microsoft Azure.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct AzureConfig {
    /// The type of the backend.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: AzureTag,
    /// Id of the tenant.
    pub tenant_id: String,
    /// Id of the subscription that resources are created in.
    pub subscription_id: String,
    /// The resource group; one is made when unset.
    pub resource_group: Option<String>,
    /// Regions to use; a default set when unset.
    pub regions: Option<Vec<String>>,
    /// Networks by region.
    pub vpc_ids: Option<Tags>,
    /// Subnets by region.
    pub subnet_ids: Option<Tags>,
    /// Whether instances get public addresses.
    pub public_ips: Option<bool>,
    /// Identity of the instances.
    pub vm_managed_identity: Option<String>,
    /// Tags of everything that is created.
    pub tags: Option<Tags>,
    /// How the server authenticates.
    pub creds: AzureCreds,
}

/// The configuration of the backend for Crusoe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct CrusoeConfig {
    /// The type of the backend.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: CrusoeTag,
    /// Id of the project that instances are created in.
    pub project_id: String,
    /// Regions to use; all when unset.
    pub regions: Option<Vec<String>>,
    /// How the server authenticates.
    pub creds: AccessKeyCreds,
}

/// A service account of GCP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct GcpServiceAccountCreds {
    /// The kind of credentials: `service_account`.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: ServiceAccountTag,
    /// Where the key was read from.
    #[decode(default = Some(String::new()))]
    pub filename: Option<String>,
    /// Its key, JSON.
    pub data: Credential,
}

/// Credentials of GCP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
#[serde(untagged)]
#[decode(tag = "type")]
pub enum GcpCreds {
    /// A service account.
    #[decode(rename = "service_account")]
    ServiceAccount(GcpServiceAccountCreds),
    /// Those of the server.
    #[decode(rename = "default")]
    Default(DefaultCreds),
}

string_enum! {
    /// Features of GCP that are not generally available.
    literal pub enum GcpPreviewFeature {
        /// Instances of the family G4.
        G4 = "g4",
    }
}

/// Google Cloud Platform.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct GcpConfig {
    /// The type of the backend.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: GcpTag,
    /// Id of the project that instances are created in.
    pub project_id: String,
    /// Regions to use; a default set when unset.
    pub regions: Option<Vec<String>>,
    /// Whether TPUs are offered.
    pub tpu: Option<bool>,
    /// Name of the VPC that instances are connected to.
    pub vpc_name: Option<String>,
    /// Subnetworks by region.
    pub subnetworks: Option<Tags>,
    /// VPCs of further interfaces.
    pub extra_vpcs: Option<Vec<String>>,
    /// VPCs of RDMA interfaces.
    pub roce_vpcs: Option<Vec<String>>,
    /// The project that owns a shared VPC.
    pub vpc_project_id: Option<String>,
    /// Whether instances get public addresses.
    pub public_ips: Option<bool>,
    /// Whether there must be a Cloud NAT for instances without public addresses.
    pub nat_check: Option<bool>,
    /// Service account of the instances.
    pub vm_service_account: Option<String>,
    /// Labels of everything that is created.
    pub tags: Option<Tags>,
    /// Features that are not generally available.
    pub preview_features: Option<Vec<GcpPreviewFeature>>,
    /// How the server authenticates.
    pub creds: GcpCreds,
}

/// A service account of Nebius.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct NebiusCreds {
    /// The kind of credentials: `service_account`.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: ServiceAccountTag,
    /// Id of the service account.
    pub service_account_id: String,
    /// Its public key.
    pub public_key_id: String,
    /// Where the private key was read from.
    pub private_key_file: Option<String>,
    /// Its private key.
    pub private_key_content: Credential,
    /// Where all of it was read from.
    pub filename: Option<String>,
}

/// Nebius AI Cloud.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct NebiusConfig {
    /// The type of the backend.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: NebiusTag,
    /// Projects to use, one a region.
    pub projects: Option<Vec<String>>,
    /// Regions to use; all when unset.
    pub regions: Option<Vec<String>>,
    /// InfiniBand fabrics to use; all when unset.
    pub fabrics: Option<Vec<String>>,
    /// Labels of everything that is created.
    pub tags: Option<Tags>,
    /// How the server authenticates.
    pub creds: NebiusCreds,
}

/// A user of OCI.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
#[decode(after = one_key)]
pub struct OciClientCreds {
    /// The kind of credentials: `client`.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: ClientTag,
    /// OCID of the user.
    pub user: String,
    /// OCID of the tenancy.
    pub tenancy: String,
    /// Where the key is; on the server.
    pub key_file: Option<String>,
    /// The private key, in PEM.
    pub key_content: Option<Credential>,
    /// Passphrase of the private key.
    pub pass_phrase: Option<Credential>,
    /// Fingerprint of the public key.
    pub fingerprint: String,
    /// The home region.
    pub region: String,
}

fn one_key(creds: OciClientCreds) -> Result<OciClientCreds, String> {
    let file = creds.key_file.as_deref().is_some_and(|file| !file.is_empty());
    let content = creds
        .key_content
        .as_ref()
        .is_some_and(|content| !content.expose().is_empty());
    match (file, content) {
        (true, true) => Err("key_file and key_content are mutually exclusive".to_owned()),
        (false, false) => Err("Either key_file or key_content should be set".to_owned()),
        _ => Ok(creds),
    }
}

/// A profile of OCI's configuration file on the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct OciDefaultCreds {
    /// The kind of credentials: `default`.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: DefaultTag,
    /// Path of the configuration file on the server's machine.
    #[decode(default = "~/.oci/config".to_owned())]
    pub file: String,
    /// Profile within the file.
    #[decode(default = "DEFAULT".to_owned())]
    pub profile: String,
}

/// Credentials of OCI.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
#[serde(untagged)]
#[decode(tag = "type")]
pub enum OciCreds {
    /// A user with an API key.
    #[decode(rename = "client")]
    Client(OciClientCreds),
    /// Those of the server.
    #[decode(rename = "default")]
    Default(OciDefaultCreds),
}

/// Oracle Cloud Infrastructure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct OciConfig {
    /// The type of the backend.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: OciTag,
    /// Regions to use; all subscribed ones when unset.
    pub regions: Option<Vec<String>>,
    /// The compartment; one is made when unset.
    pub compartment_id: Option<String>,
    /// Instance types to be offered although they are not tested.
    pub experimental_instance_types: Option<Vec<String>>,
    /// How the server authenticates.
    pub creds: OciCreds,
}
