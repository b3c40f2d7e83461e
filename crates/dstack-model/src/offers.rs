//! Offers: instances that could be had.
//!
//! Few types of instances are sold in many places, and plans look at tens of thousands of offers: what many have in common is
//! shared.

use std::sync::Arc;

use dstack_units::{AcceleratorVendor, CpuArchitecture, Range};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::backends::BackendType;
use crate::instances::{InstanceAvailability, InstanceRuntime, InstanceType};
use crate::{Decode, string_enum};

/// An instance that a backend offers.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct InstanceOffer {
    /// Who offers it.
    pub backend: BackendType,
    /// What it is.
    pub instance: Arc<InstanceType>,
    /// Region of the backend.
    pub region: Arc<str>,
    /// Dollars an hour.
    pub price: f64,
    /// Known to the backend only.
    #[decode(default)]
    pub backend_data: Arc<Map<String, Value>>,
}

/// An offer, and its availability.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct InstanceOfferWithAvailability {
    /// Who offers it.
    pub backend: BackendType,
    /// What it is.
    pub instance: Arc<InstanceType>,
    /// Region of the backend.
    pub region: Arc<str>,
    /// Dollars an hour.
    pub price: f64,
    /// Known to the backend only.
    #[decode(default)]
    pub backend_data: Arc<Map<String, Value>>,
    /// Whether it is available.
    pub availability: InstanceAvailability,
    /// The zones it is available in; any when unset.
    pub availability_zones: Option<Vec<String>>,
    /// What will run on it for us.
    #[decode(default = InstanceRuntime::Shim)]
    pub instance_runtime: InstanceRuntime,
    /// Number of blocks that are offered; less than all for a share of an instance.
    #[decode(default = 1)]
    pub blocks: u32,
    /// Blocks of the instance.
    #[decode(default = 1)]
    pub total_blocks: u32,
    /// Number of instances that its backend makes of it as one, where that is fixed: it is for runs of so many nodes. Left out of
    /// answers when unset, as dstack 0.22.5 has no such offers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_size: Option<u32>,
}

impl InstanceOffer {
    /// With its availability.
    pub fn with_availability(
        self,
        availability: InstanceAvailability,
        instance_runtime: InstanceRuntime,
    ) -> InstanceOfferWithAvailability {
        InstanceOfferWithAvailability {
            backend: self.backend,
            instance: self.instance,
            region: self.region,
            price: self.price,
            backend_data: self.backend_data,
            availability,
            availability_zones: None,
            instance_runtime,
            blocks: 1,
            total_blocks: 1,
            group_size: None,
        }
    }
}

string_enum! {
    /// Kinds of instances in a group of offers.
    literal pub enum SpotKind {
        /// Spot instances, which the cloud may take away.
        Spot = "spot",
        /// Instances that stay until they are ended.
        OnDemand = "on-demand",
    }
}

/// Offers with the same GPU. Unset fields are left out of answers.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct GpuGroup {
    /// The GPU's name.
    pub name: String,
    /// Memory of one GPU in MiB.
    pub memory_mib: i64,
    /// Who makes it.
    pub vendor: AcceleratorVendor,
    /// Availabilities of the offers.
    pub availability: Vec<InstanceAvailability>,
    /// Kinds of the offers.
    pub spot: Vec<SpotKind>,
    /// GPUs of one offer.
    pub count: Range<i64>,
    /// Dollars an hour of one GPU.
    pub price: Range<f64>,
    /// Dollars an hour of a whole offer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offer_price: Option<Range<f64>>,
    /// Backends, when not grouped by them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backends: Option<Vec<BackendType>>,
    /// Backend, when grouped by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendType>,
    /// Regions, when not grouped by them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regions: Option<Vec<String>>,
    /// Region, when grouped by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
}

/// Offers without GPUs. Unset fields are left out of answers.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct CpuGroup {
    /// Architectures of the offers.
    pub cpu_arch: Vec<CpuArchitecture>,
    /// CPUs of one offer.
    pub count: Range<i64>,
    /// Memory of one offer in MiB.
    pub memory_mib: Range<i64>,
    /// Dollars an hour of a whole offer.
    pub price: Range<f64>,
    /// Availabilities of the offers.
    pub availability: Vec<InstanceAvailability>,
    /// Kinds of the offers.
    pub spot: Vec<SpotKind>,
    /// Backends, when not grouped by them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backends: Option<Vec<BackendType>>,
    /// Backend, when grouped by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendType>,
    /// Regions, when not grouped by them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regions: Option<Vec<String>>,
    /// Region, when grouped by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
}
