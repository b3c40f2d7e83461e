//! The messages of the API as far as they are used, with the numbers of the vendor's protocol buffers (`nebius/api`, as in its SDK 0.6.29).
//! What is not read stays out: unknown fields are skipped.

use std::collections::HashMap;
use std::fmt;

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Timestamp {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Metadata {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, tag = "2")]
    pub(crate) parent_id: String,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "5")]
    pub(crate) created_at: Option<Timestamp>,
    #[prost(map = "string, string", tag = "7")]
    pub(crate) labels: HashMap<String, String>,
}

/// All requests to get, delete, or follow one thing.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ById {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ByName {
    #[prost(string, tag = "1")]
    pub(crate) parent_id: String,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
}

/// All lists but that of tenants.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct List {
    #[prost(string, tag = "1")]
    pub(crate) parent_id: String,
    #[prost(int64, tag = "2")]
    pub(crate) page_size: i64,
    #[prost(string, tag = "3")]
    pub(crate) page_token: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ListTenants {
    #[prost(int64, tag = "1")]
    pub(crate) page_size: i64,
    #[prost(string, tag = "2")]
    pub(crate) page_token: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ListPlatforms {
    #[prost(int64, tag = "1")]
    pub(crate) page_size: i64,
    #[prost(string, tag = "2")]
    pub(crate) page_token: String,
    #[prost(string, tag = "3")]
    pub(crate) parent_id: String,
}

/// A kind of machines, in several sizes.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SoldPlatform {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<Metadata>,
    #[prost(message, optional, tag = "2")]
    pub(crate) spec: Option<PlatformSpec>,
    #[prost(message, optional, tag = "3")]
    pub(crate) status: Option<PlatformStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PlatformSpec {
    #[prost(message, repeated, tag = "1")]
    pub(crate) presets: Vec<Preset>,
    #[prost(int32, tag = "11")]
    pub(crate) gpu_memory_gibibytes: i32,
    #[prost(int32, tag = "12")]
    pub(crate) gpu_memory_gigabytes: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PlatformStatus {
    #[prost(bool, tag = "3")]
    pub(crate) allowed_for_preemptibles: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Preset {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) resources: Option<PresetResources>,
    #[prost(bool, tag = "3")]
    pub(crate) allow_gpu_clustering: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PresetResources {
    #[prost(int32, tag = "1")]
    pub(crate) vcpu_count: i32,
    #[prost(int32, tag = "3")]
    pub(crate) memory_gibibytes: i32,
    #[prost(int32, tag = "4")]
    pub(crate) gpu_count: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Estimate {
    #[prost(message, optional, tag = "1")]
    pub(crate) resource_spec: Option<EstimatedResource>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct EstimatedResource {
    /// As a machine is asked for.
    #[prost(message, optional, tag = "100")]
    pub(crate) compute_instance_spec: Option<Create>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Estimated {
    #[prost(message, optional, tag = "10")]
    pub(crate) hourly_cost: Option<GroupCost>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GroupCost {
    #[prost(message, optional, tag = "10")]
    pub(crate) general: Option<TotalCost>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TotalCost {
    #[prost(message, optional, tag = "1")]
    pub(crate) total: Option<Cost>,
}

/// In dollars, as text.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Cost {
    #[prost(string, tag = "2")]
    pub(crate) cost: String,
}

/// A page of any list. Its entries are read one by one: an odd one hides no other.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Page {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub(crate) items: Vec<Vec<u8>>,
    #[prost(string, tag = "2")]
    pub(crate) next_page_token: String,
}

/// All creations; `spec` is a message of its own.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Create {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<Metadata>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) spec: Vec<u8>,
}

/// Of any kind: what all have.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Thing {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<Metadata>,
    /// A message of its own, which begins with a state but in clusters.
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) status: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Stated {
    #[prost(int32, tag = "1")]
    pub(crate) state: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Project {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<Metadata>,
    #[prost(message, optional, tag = "2")]
    pub(crate) spec: Option<ProjectSpec>,
    #[prost(message, optional, tag = "3")]
    pub(crate) status: Option<Stated>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProjectSpec {
    #[prost(string, tag = "1")]
    pub(crate) region: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DiskSpec {
    #[prost(int64, optional, tag = "3")]
    pub(crate) size_mebibytes: Option<i64>,
    #[prost(int32, tag = "6")]
    pub(crate) kind: i32,
    #[prost(message, optional, tag = "10")]
    pub(crate) source_image_family: Option<SourceImageFamily>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SourceImageFamily {
    #[prost(string, tag = "1")]
    pub(crate) image_family: String,
}

/// `DiskSpec.DiskType`.
pub(crate) const NETWORK_SSD: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PricingPolicySpec {
    #[prost(message, optional, tag = "1")]
    pub(crate) compute_instance_spec: Option<PricedInstances>,
    #[prost(message, optional, tag = "2")]
    pub(crate) pricing: Option<Pricing>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PricedInstances {
    #[prost(message, optional, tag = "1")]
    pub(crate) v1: Option<Platform>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Platform {
    #[prost(string, tag = "1")]
    pub(crate) platform: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Pricing {
    #[prost(message, optional, tag = "1")]
    pub(crate) max_price_v1: Option<MaxPrice>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct MaxPrice {
    #[prost(string, tag = "1")]
    pub(crate) max_price: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct InstanceSpec {
    #[prost(message, optional, tag = "2")]
    pub(crate) resources: Option<Resources>,
    #[prost(message, optional, tag = "3")]
    pub(crate) gpu_cluster: Option<ById>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) network_interfaces: Vec<NewInterface>,
    #[prost(message, optional, tag = "5")]
    pub(crate) boot_disk: Option<AttachedDisk>,
    #[prost(string, tag = "8")]
    pub(crate) cloud_init_user_data: String,
    #[prost(int32, tag = "15")]
    pub(crate) recovery_policy: i32,
    #[prost(message, optional, tag = "19")]
    pub(crate) preemptible: Option<Preemptible>,
    #[prost(message, optional, tag = "26")]
    pub(crate) follows_spot_price: Option<Empty>,
    #[prost(message, optional, tag = "27")]
    pub(crate) spot_pricing_policy: Option<ById>,
}

/// `InstanceRecoveryPolicy`.
pub(crate) const FAIL: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Resources {
    #[prost(string, tag = "1")]
    pub(crate) platform: String,
    #[prost(string, optional, tag = "2")]
    pub(crate) preset: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NewInterface {
    #[prost(string, tag = "1")]
    pub(crate) subnet_id: String,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) ip_address: Option<Empty>,
    #[prost(message, optional, tag = "4")]
    pub(crate) public_ip_address: Option<NewAddress>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NewAddress {
    #[prost(bool, tag = "3")]
    pub(crate) is_static: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AttachedDisk {
    #[prost(int32, tag = "1")]
    pub(crate) attach_mode: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) existing_disk: Option<ById>,
}

/// `AttachedDiskSpec.AttachMode`.
pub(crate) const READ_WRITE: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Preemptible {
    #[prost(int32, tag = "1")]
    pub(crate) on_preemption: i32,
}

/// `PreemptibleSpec.PreemptionPolicy`.
pub(crate) const STOP: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Instance {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<Metadata>,
    #[prost(message, optional, tag = "3")]
    pub(crate) status: Option<InstanceStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct InstanceStatus {
    #[prost(enumeration = "InstanceState", tag = "1")]
    pub(crate) state: i32,
    #[prost(message, repeated, tag = "2")]
    pub(crate) network_interfaces: Vec<Interface>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum InstanceState {
    Unspecified = 0,
    Creating = 1,
    Updating = 2,
    Starting = 3,
    Running = 4,
    Stopping = 5,
    Stopped = 6,
    Deleting = 7,
    Error = 8,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Interface {
    #[prost(message, optional, tag = "3")]
    pub(crate) ip_address: Option<Address>,
    #[prost(message, optional, tag = "4")]
    pub(crate) public_ip_address: Option<Address>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Address {
    /// With a mask: `10.0.0.5/32`.
    #[prost(string, tag = "1")]
    pub(crate) address: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Cluster {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<Metadata>,
    #[prost(message, optional, tag = "2")]
    pub(crate) spec: Option<ClusterSpec>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ClusterSpec {
    #[prost(string, tag = "1")]
    pub(crate) infiniband_fabric: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Operation {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, tag = "7")]
    pub(crate) resource_id: String,
    /// There when it is over.
    #[prost(message, optional, tag = "10")]
    pub(crate) status: Option<Status>,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Status {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) details: Vec<Any>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Any {
    #[prost(string, tag = "1")]
    pub(crate) type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) value: Vec<u8>,
}

/// `nebius.common.v1.ServiceError`: of its details, those that tell what is lacking.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ServiceError {
    #[prost(string, tag = "2")]
    pub(crate) code: String,
    #[prost(message, optional, tag = "140")]
    pub(crate) too_many_requests: Option<Empty>,
    #[prost(message, optional, tag = "141")]
    pub(crate) quota_failure: Option<Violations>,
    #[prost(message, optional, tag = "142")]
    pub(crate) not_enough_resources: Option<Violations>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Violations {
    #[prost(message, repeated, tag = "1")]
    pub(crate) violations: Vec<Violation>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Violation {
    /// The quota, or the type of resource.
    #[prost(string, tag = "1")]
    pub(crate) what: String,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct ExchangeToken {
    #[prost(string, tag = "1")]
    pub(crate) grant_type: String,
    #[prost(string, tag = "2")]
    pub(crate) requested_token_type: String,
    #[prost(string, tag = "3")]
    pub(crate) subject_token: String,
    #[prost(string, tag = "4")]
    pub(crate) subject_token_type: String,
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct NewToken {
    #[prost(string, tag = "1")]
    pub(crate) access_token: String,
    #[prost(int64, tag = "4")]
    pub(crate) expires_in: i64,
}

impl fmt::Debug for ExchangeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExchangeToken").finish_non_exhaustive()
    }
}

impl fmt::Debug for NewToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewToken").finish_non_exhaustive()
    }
}
