//! Ids, times, durations, sizes, ranges and the small grammars of the configuration language.
//!
//! Everything here parses from and prints to the exact normal form of the dstack 0.22.5 API, and knows
//! nothing of the types that are built from it. A refused text answers a [`ParseError`], whose message is
//! the one that users of dstack 0.22.5 know.

#![warn(missing_docs)]

pub mod accelerators;
pub mod compute_capability;
pub mod cpu;
pub mod cron;
pub mod duration;
pub mod error;
pub mod gpu;
pub mod human;
pub mod id;
pub mod login;
pub mod memory;
pub mod name;
pub mod number;
pub mod path;
pub mod port;
pub mod python;
pub mod quoting;
pub mod range;
pub mod tag;
pub mod time;

pub use compute_capability::ComputeCapability;
pub use cpu::{CpuArchitecture, CpuSpec};
pub use cron::Cron;
pub use duration::{IdleDuration, OffDuration, Seconds};
pub use error::ParseError;
pub use gpu::{AcceleratorVendor, GpuSpec};
pub use id::{
    ArchiveId, AttachmentId, ComputeGroupId, EventId, ExportId, FleetId, GatewayId, GatewayReplicaId,
    ImportId, InstallationId, InstanceId, JobId, OperationId, PlacementGroupId, ProjectId, PublicKeyId,
    RepoRowId, RunId, SecretId, TokenId, UserId, VolumeId,
};
pub use login::{HostName, LoginName};
pub use memory::Memory;
pub use port::PortMapping;
pub use python::PythonVersion;
pub use range::Range;
pub use time::Time;
