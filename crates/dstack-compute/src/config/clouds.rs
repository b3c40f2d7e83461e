//! Large clouds.

use dstack_decode::Decode;
use dstack_decode::{string_enum, tag};
use dstack_model::common::Tags;
use serde::Serialize;

use super::Credential;

tag!(
    /// `default`.
    pub DefaultTag = "default"
);
tag!(
    /// `access_key`.
    pub AccessKeyTag = "access_key"
);
tag!(
    /// `client`.
    pub ClientTag = "client"
);
tag!(
    /// `service_account`.
    pub ServiceAccountTag = "service_account"
);
tag!(
    /// `aws`.
    pub AwsTag = "aws"
);
tag!(
    /// `azure`.
    pub AzureTag = "azure"
);
tag!(
    /// `crusoe`.
    pub CrusoeTag = "crusoe"
);
tag!(
    /// `gcp`.
    pub GcpTag = "gcp"
);
tag!(
    /// `nebius`.
    pub NebiusTag = "nebius"
);
tag!(
    /// `oci`.
    pub OciTag = "oci"
);

/// The credentials that the server finds around itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct DefaultCreds {
    /// `default`.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: DefaultTag,
}

/// A key's id and secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct AccessKeyCreds {
    /// `access_key`.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: AccessKeyTag,
    /// The key's id.
    pub access_key: Credential,
    /// The key.
    pub secret_key: Credential,
}

/// Credentials of AWS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
#[serde(untagged)]
#[decode(tag = "type")]
pub enum AwsCreds {
    /// A key.
    #[decode(rename = "access_key")]
    AccessKey(AccessKeyCreds),
    /// Those of the server.
    #[decode(rename = "default")]
    Default(DefaultCreds),
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
    /// The credentials.
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

/// An image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct AwsOsImage {
    /// Its name.
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
    /// `client`.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: ClientTag,
    /// The application's id.
    pub client_id: String,
    /// Its secret.
    pub client_secret: Credential,
    /// Its tenant.
    pub tenant_id: Option<String>,
}

/// Credentials of Azure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
#[serde(untagged)]
#[decode(tag = "type")]
pub enum AzureCreds {
    /// An application.
    #[decode(rename = "client")]
    Client(AzureClientCreds),
    /// Those of the server.
    #[decode(rename = "default")]
    Default(DefaultCreds),
}

/// Microsoft Azure.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct AzureConfig {
    /// The type of the backend.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: AzureTag,
    /// The tenant.
    pub tenant_id: String,
    /// The subscription.
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
    /// The credentials.
    pub creds: AzureCreds,
}

/// Crusoe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct CrusoeConfig {
    /// The type of the backend.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: CrusoeTag,
    /// The project.
    pub project_id: String,
    /// Regions to use; all when unset.
    pub regions: Option<Vec<String>>,
    /// The credentials.
    pub creds: AccessKeyCreds,
}

/// A service account of GCP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct GcpServiceAccountCreds {
    /// `service_account`.
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
        /// G4 instances.
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
    /// The project.
    pub project_id: String,
    /// Regions to use; a default set when unset.
    pub regions: Option<Vec<String>>,
    /// Whether TPUs are offered.
    pub tpu: Option<bool>,
    /// The VPC.
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
    /// The credentials.
    pub creds: GcpCreds,
}

/// A service account of Nebius.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct NebiusCreds {
    /// `service_account`.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: ServiceAccountTag,
    /// The account.
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
    /// The credentials.
    pub creds: NebiusCreds,
}

/// A user of OCI.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
#[decode(after = one_key)]
pub struct OciClientCreds {
    /// `client`.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: ClientTag,
    /// The user.
    pub user: String,
    /// The tenancy.
    pub tenancy: String,
    /// Where the key is; on the server.
    pub key_file: Option<String>,
    /// The key.
    pub key_content: Option<Credential>,
    /// Its passphrase.
    pub pass_phrase: Option<Credential>,
    /// Its fingerprint.
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
    /// `default`.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: DefaultTag,
    /// The file.
    #[decode(default = "~/.oci/config".to_owned())]
    pub file: String,
    /// The profile.
    #[decode(default = "DEFAULT".to_owned())]
    pub profile: String,
}

/// Credentials of OCI.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
#[serde(untagged)]
#[decode(tag = "type")]
pub enum OciCreds {
    /// A user.
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
    /// The credentials.
    pub creds: OciCreds,
}
