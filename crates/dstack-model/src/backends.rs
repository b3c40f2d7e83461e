//! Types of backends.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::Decode;
use crate::string_enum;

string_enum! {
    /// A kind of place where instances come from.
    pub enum BackendType {
        /// AMD Developer Cloud.
        AmdDevCloud = "amddevcloud",
        /// Amazon Web Services.
        Aws = "aws",
        /// Microsoft Azure.
        Azure = "azure",
        /// CloudRift.
        CloudRift = "cloudrift",
        /// Crusoe.
        Crusoe = "crusoe",
        /// Cudo (dropped; the name is kept).
        Cudo = "cudo",
        /// DataCrunch, the old name of Verda.
        DataCrunch = "datacrunch",
        /// Daytona.
        Daytona = "daytona",
        /// DigitalOcean.
        DigitalOcean = "digitalocean",
        /// dstack Sky.
        Dstack = "dstack",
        /// Google Cloud Platform.
        Gcp = "gcp",
        /// Hot Aisle.
        HotAisle = "hotaisle",
        /// JarvisLabs.
        JarvisLabs = "jarvislabs",
        /// Kubernetes.
        Kubernetes = "kubernetes",
        /// Lambda Cloud.
        Lambda = "lambda",
        /// Lium.
        Lium = "lium",
        /// Hosts of SSH fleets.
        Remote = "remote",
        /// Nebius AI Cloud.
        Nebius = "nebius",
        /// Oracle Cloud Infrastructure.
        Oci = "oci",
        /// Runpod.
        Runpod = "runpod",
        /// Seeweb.
        Seeweb = "seeweb",
        /// TensorDock (dropped; the name is kept).
        TensorDock = "tensordock",
        /// Vast.ai.
        VastAi = "vastai",
        /// Verda.
        Verda = "verda",
        /// Vultr.
        Vultr = "vultr",
        /// Slurm.
        Slurm = "slurm",
    }
}

/// A project's backend as shown to members: its configuration without credentials.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct BackendInfo {
    /// The backend's type.
    pub name: String,
    /// Its configuration, an object with `type`.
    pub config: Map<String, Value>,
}

/// A backend's configuration as YAML text.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct BackendInfoYaml {
    /// The backend's type.
    pub name: String,
    /// The backend's configuration in YAML, with credentials.
    pub config_yaml: String,
}
