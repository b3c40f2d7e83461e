//! Network volumes: the configurations of each backend, and their status.

use dstack_units::{IdleDuration, Memory, Time, VolumeId};
use serde::Serialize;

use crate::backends::BackendType;
use crate::common::{Tags, check_tags};
use crate::decode::units::idle_duration;
use crate::{Decode, string_enum, tag};

string_enum! {
    /// State of a volume.
    pub enum VolumeStatus {
        /// To be made.
        Submitted = "submitted",
        /// Being made (not used).
        Provisioning = "provisioning",
        /// Exists, and can be mounted.
        Active = "active",
        /// Could not be made.
        Failed = "failed",
    }
}

tag!(
    /// The value of `type` in the configuration of a volume.
    pub VolumeTag = "volume"
);
tag!(
    /// The value of `backend` for volumes of AWS.
    pub AwsTag = "aws"
);
tag!(
    /// The value of `backend` for volumes of GCP.
    pub GcpTag = "gcp"
);
tag!(
    /// The value of `backend` for volumes of Runpod.
    pub RunpodTag = "runpod"
);
tag!(
    /// The value of `backend` for volumes of Kubernetes.
    pub KubernetesTag = "kubernetes"
);
tag!(
    /// The value of `backend` for volumes of Daytona.
    pub DaytonaTag = "daytona"
);
tag!(
    /// The value of `backend` for volumes of Lium.
    pub LiumTag = "lium"
);

macro_rules! zonal_volume {
    ($(#[$meta:meta])* $name:ident, $tag:ident) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Serialize, Decode)]
        pub struct $name {
            /// The configuration type.
            #[serde(rename = "type")]
            #[decode(default)]
            pub kind: VolumeTag,
            /// The volume backend.
            #[decode(default)]
            pub backend: $tag,
            /// The volume name.
            pub name: Option<String>,
            /// Time to wait after volume is no longer used by any job before deleting it.
            #[decode(with = idle_duration)]
            pub auto_cleanup_duration: Option<IdleDuration>,
            /// The custom tags to associate with the volume.
            #[decode(check = check_tags)]
            pub tags: Option<Tags>,
            /// The volume size. Must be specified when creating new volumes.
            pub size: Option<Memory>,
            /// The volume ID. Must be specified when registering external volumes.
            pub volume_id: Option<String>,
            /// The volume region.
            pub region: String,
            /// The volume availability zone.
            pub availability_zone: Option<String>,
        }
    };
}

zonal_volume!(
    /// An EBS volume.
    AwsVolumeConfiguration,
    AwsTag
);
zonal_volume!(
    /// A persistent disk.
    GcpVolumeConfiguration,
    GcpTag
);

/// A Runpod network volume.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
#[decode(ignore("availability_zone"))]
pub struct RunpodVolumeConfiguration {
    /// The configuration type.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: VolumeTag,
    /// The volume backend.
    #[decode(default)]
    pub backend: RunpodTag,
    /// The volume name.
    pub name: Option<String>,
    /// Time to wait after volume is no longer used by any job before deleting it.
    #[decode(with = idle_duration)]
    pub auto_cleanup_duration: Option<IdleDuration>,
    /// The custom tags to associate with the volume.
    #[decode(check = check_tags)]
    pub tags: Option<Tags>,
    /// The volume size. Must be specified when creating new volumes.
    pub size: Option<Memory>,
    /// The volume ID. Must be specified when registering external volumes.
    pub volume_id: Option<String>,
    /// The volume region.
    pub region: String,
}

/// A persistent volume claim.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct KubernetesVolumeConfiguration {
    /// The configuration type.
    #[serde(rename = "type")]
    #[decode(default)]
    pub kind: VolumeTag,
    /// The volume backend.
    #[decode(default)]
    pub backend: KubernetesTag,
    /// The volume name.
    pub name: Option<String>,
    /// Time to wait after volume is no longer used by any job before deleting it.
    #[decode(with = idle_duration)]
    pub auto_cleanup_duration: Option<IdleDuration>,
    /// The custom tags to associate with the volume.
    #[decode(check = check_tags)]
    pub tags: Option<Tags>,
    /// The requested volume size. Must be specified when creating new PVCs. Ignored if `claim_name` is set.
    pub size: Option<Memory>,
    /// The volume region (cluster).
    #[decode(default)]
    pub region: String,
    /// The `PersistentVolumeClaim` name. Must be specified when registering the existing PVC.
    pub claim_name: Option<String>,
    /// The `StorageClass` name. Ignored if `claim_name` is set.
    pub storage_class_name: Option<String>,
    /// A list of accepted access modes. Ignored if `claim_name` is set.
    #[decode(default = vec!["ReadWriteOnce".to_owned()])]
    pub access_modes: Vec<String>,
    /// If `true`, enforces the volume to be mounted as read-only.
    #[decode(default)]
    pub read_only: bool,
}

macro_rules! plain_volume {
    ($(#[$meta:meta])* $name:ident, $tag:ident) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Serialize, Decode)]
        pub struct $name {
            /// The configuration type.
            #[serde(rename = "type")]
            #[decode(default)]
            pub kind: VolumeTag,
            /// The volume backend.
            #[decode(default)]
            pub backend: $tag,
            /// The volume name.
            pub name: Option<String>,
            /// Time to wait after volume is no longer used by any job before deleting it.
            #[decode(with = idle_duration)]
            pub auto_cleanup_duration: Option<IdleDuration>,
            /// The custom tags to associate with the volume.
            #[decode(check = check_tags)]
            pub tags: Option<Tags>,
            /// The volume ID. Must be specified when registering external volumes.
            pub volume_id: Option<String>,
        }
    };
}

plain_volume!(
    /// A Daytona volume.
    DaytonaVolumeConfiguration,
    DaytonaTag
);
plain_volume!(
    /// A Lium volume.
    LiumVolumeConfiguration,
    LiumTag
);

/// A volume, told apart by `backend`.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
#[serde(untagged)]
#[decode(tag = "backend")]
pub enum AnyVolumeConfiguration {
    /// A volume of AWS (`backend: aws`).
    #[decode(rename = "aws", shown = "<BackendType.AWS: 'aws'>")]
    Aws(AwsVolumeConfiguration),
    /// A volume of GCP (`backend: gcp`).
    #[decode(rename = "gcp", shown = "<BackendType.GCP: 'gcp'>")]
    Gcp(GcpVolumeConfiguration),
    /// A volume of Runpod (`backend: runpod`).
    #[decode(rename = "runpod", shown = "<BackendType.RUNPOD: 'runpod'>")]
    Runpod(RunpodVolumeConfiguration),
    /// A persistent volume claim of Kubernetes (`backend: kubernetes`).
    #[decode(rename = "kubernetes", shown = "<BackendType.KUBERNETES: 'kubernetes'>")]
    Kubernetes(KubernetesVolumeConfiguration),
    /// A volume of Daytona (`backend: daytona`).
    #[decode(rename = "daytona", shown = "<BackendType.DAYTONA: 'daytona'>")]
    Daytona(DaytonaVolumeConfiguration),
    /// A volume of Lium (`backend: lium`).
    #[decode(rename = "lium", shown = "<BackendType.LIUM: 'lium'>")]
    Lium(LiumVolumeConfiguration),
}

/// Answers a field that every volume has.
macro_rules! of_each {
    ($self:expr, $configuration:ident => $field:expr) => {
        match $self {
            AnyVolumeConfiguration::Aws($configuration) => $field,
            AnyVolumeConfiguration::Gcp($configuration) => $field,
            AnyVolumeConfiguration::Runpod($configuration) => $field,
            AnyVolumeConfiguration::Kubernetes($configuration) => $field,
            AnyVolumeConfiguration::Daytona($configuration) => $field,
            AnyVolumeConfiguration::Lium($configuration) => $field,
        }
    };
}

impl AnyVolumeConfiguration {
    /// Returns the backend that it is for.
    pub const fn backend(&self) -> BackendType {
        match self {
            Self::Aws(_) => BackendType::Aws,
            Self::Gcp(_) => BackendType::Gcp,
            Self::Runpod(_) => BackendType::Runpod,
            Self::Kubernetes(_) => BackendType::Kubernetes,
            Self::Daytona(_) => BackendType::Daytona,
            Self::Lium(_) => BackendType::Lium,
        }
    }

    /// Returns the name; `None` when one is to be made up.
    pub fn name(&self) -> Option<&str> {
        of_each!(self, configuration => configuration.name.as_deref())
    }

    /// Sets the name.
    pub fn set_name(&mut self, name: Option<String>) {
        of_each!(self, configuration => configuration.name = name);
    }

    /// When an unused volume is deleted.
    pub fn auto_cleanup_duration(&self) -> Option<IdleDuration> {
        of_each!(self, configuration => configuration.auto_cleanup_duration)
    }

    /// Returns the tags for the cloud resources.
    pub fn tags(&self) -> Option<&Tags> {
        of_each!(self, configuration => configuration.tags.as_ref())
    }

    /// The size, where there is one.
    pub const fn size(&self) -> Option<Memory> {
        match self {
            Self::Aws(configuration) => configuration.size,
            Self::Gcp(configuration) => configuration.size,
            Self::Runpod(configuration) => configuration.size,
            Self::Kubernetes(configuration) => configuration.size,
            Self::Daytona(_) | Self::Lium(_) => None,
        }
    }

    /// Whether the backend's volumes have a size.
    pub const fn has_size(&self) -> bool {
        !matches!(self, Self::Daytona(_) | Self::Lium(_))
    }

    /// The region; `None` where there is no such thing.
    pub fn region(&self) -> Option<&str> {
        match self {
            Self::Aws(configuration) => Some(&configuration.region),
            Self::Gcp(configuration) => Some(&configuration.region),
            Self::Runpod(configuration) => Some(&configuration.region),
            Self::Kubernetes(configuration) => Some(&configuration.region),
            Self::Daytona(_) | Self::Lium(_) => None,
        }
    }

    /// The zone that is asked for.
    pub fn availability_zone(&self) -> Option<&str> {
        match self {
            Self::Aws(configuration) => configuration.availability_zone.as_deref(),
            Self::Gcp(configuration) => configuration.availability_zone.as_deref(),
            _ => None,
        }
    }

    /// What names an existing volume to be registered.
    pub fn external_volume_id(&self) -> Option<&str> {
        match self {
            Self::Aws(configuration) => configuration.volume_id.as_deref(),
            Self::Gcp(configuration) => configuration.volume_id.as_deref(),
            Self::Runpod(configuration) => configuration.volume_id.as_deref(),
            Self::Kubernetes(configuration) => configuration.claim_name.as_deref(),
            Self::Daytona(configuration) => configuration.volume_id.as_deref(),
            Self::Lium(configuration) => configuration.volume_id.as_deref(),
        }
    }

    /// Whether an existing volume is registered.
    pub fn is_external(&self) -> bool {
        self.external_volume_id().is_some()
    }
}

/// What a volume is made from.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct VolumeSpec {
    /// The volume's configuration, as the user wrote it.
    pub configuration: AnyVolumeConfiguration,
    /// Where the configuration's file is.
    pub configuration_path: Option<String>,
}

/// What the backend answered.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct VolumeProvisioningData {
    /// Backend that it was created in.
    pub backend: Option<BackendType>,
    /// The backend's id.
    pub volume_id: String,
    /// Unset for volumes without a fixed size.
    #[decode(required)]
    pub size_gb: Option<i64>,
    /// Availability zone that it is in, where the backend has such.
    pub availability_zone: Option<String>,
    /// Dollars a month.
    pub price: Option<f64>,
    /// Whether it is attached by us.
    #[decode(default = true)]
    pub attachable: bool,
    /// Whether it is detached by us.
    #[decode(default = true)]
    pub detachable: bool,
    /// JSON of the backend.
    pub backend_data: Option<String>,
}

/// What the backend answered on attaching.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct VolumeAttachmentData {
    /// The device on the instance.
    pub device_name: Option<String>,
}

/// An instance that a volume is attached to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct VolumeInstance {
    /// Name of the instance: `<fleet>-<instance_num>`.
    pub name: String,
    /// Name of the fleet that the instance belongs to.
    pub fleet_name: Option<String>,
    /// Its number in the fleet.
    pub instance_num: u32,
    /// The backend's id of it.
    pub instance_id: Option<String>,
}

/// That a volume is attached to an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct VolumeAttachment {
    /// The instance that the volume is attached to.
    pub instance: VolumeInstance,
    /// What the backend answered.
    pub attachment_data: Option<VolumeAttachmentData>,
}

/// A network volume, as the API answers it.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct Volume {
    /// Id of the volume.
    pub id: VolumeId,
    /// Name, unique among the volumes of the project: `^[a-z][a-z0-9-]{1,40}$`.
    pub name: String,
    /// Who made it.
    pub user: String,
    /// Name of the project that owns it.
    pub project_name: String,
    /// What it is made from.
    pub configuration: AnyVolumeConfiguration,
    /// Whether it existed before.
    pub external: bool,
    /// When it was made.
    pub created_at: Time,
    /// When the server last looked at it.
    pub last_processed_at: Time,
    /// How far it is.
    pub status: VolumeStatus,
    /// Why it is in this state.
    pub status_message: Option<String>,
    /// Whether it is deleted.
    pub deleted: bool,
    /// When it was deleted.
    pub deleted_at: Option<Time>,
    /// The backend's id.
    pub volume_id: Option<String>,
    /// What the backend answered.
    pub provisioning_data: Option<VolumeProvisioningData>,
    /// Dollars so far.
    #[decode(default)]
    pub cost: f64,
    /// The instances that it is attached to.
    pub attachments: Option<Vec<VolumeAttachment>>,
    /// Deprecated, never set; see `attachments`.
    pub attachment_data: Option<VolumeAttachmentData>,
}

impl Volume {
    /// What the backend answered on attaching it to an instance, named by the backend's id.
    pub fn attachment_data_for(&self, instance_id: &str) -> Option<&VolumeAttachmentData> {
        let attachment = self
            .attachments
            .iter()
            .flatten()
            .find(|attachment| attachment.instance.instance_id.as_deref() == Some(instance_id));
        match attachment {
            Some(attachment) => attachment.attachment_data.as_ref(),
            None => self.attachment_data.as_ref(),
        }
    }
}

/// What applying a volume would do (made by clients).
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct VolumePlan {
    /// Name of the project that the plan is for.
    pub project_name: String,
    /// Name of the user who asked for the plan.
    pub user: String,
    /// What to apply.
    pub spec: VolumeSpec,
    /// The volume of that name.
    pub current_resource: Option<Volume>,
}
