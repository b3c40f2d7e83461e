//! What happens next to a run, a job, an instance, a fleet, a volume, an attachment, a gateway, a placement or compute group: functions of facts and the time.
//!
//! Every decision names the next status, the operations to intend, and, where something is waited for, until
//! when and for what. The tables of allowed transitions are in [`transitions`].

pub mod attachment;
pub mod compute_group;
pub mod fleet;
pub mod gateway;
pub mod gateway_replica;
pub mod instance;
pub mod job;
pub mod placement_group;
pub mod policies;
pub mod retry;
pub mod run;
pub mod transitions;
pub mod volume;
pub mod waiting;

pub use waiting::{Wait, WaitReason};
