//! Why a job would be placed where it would, and what to change when it cannot be placed. Only sent when asked for
//! (`explain: true`): dstack 0.22.5 does not know it.

use serde::Serialize;

use crate::Decode;
use crate::backends::BackendType;
use crate::string_enum;

/// Of one job of a plan.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Decode)]
pub struct JobExplanation {
    /// Name of the job: `<run>-<job>-<replica>`.
    pub job_name: String,
    /// Whether something is available for it.
    pub fits: bool,
    /// The fleets that were looked at.
    pub fleets: Vec<FleetVerdict>,
    /// The instances of these fleets.
    pub instances: Vec<InstanceVerdict>,
    /// Offers of backends that were not taken, the nearest first; not all of them.
    pub refused_offers: Vec<OfferVerdict>,
    /// How many offers were not taken.
    pub total_refused_offers: u64,
    /// What becomes of all that each backend offers, whatever fleets ask for.
    #[decode(default)]
    pub backends: Vec<BackendOffers>,
    /// The smallest changes of the configuration by which something could be had, the cheapest first.
    pub changes: Vec<ChangeSet>,
}

/// What was decided about a fleet.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct FleetVerdict {
    /// Name of the fleet.
    pub name: String,
    /// Whether it is the one.
    pub chosen: bool,
    /// Why it is out of the question; unset when it is not.
    pub reason: Option<String>,
    /// Why it gets no new instances for the job; unset when it could.
    pub no_new_instances: Option<String>,
}

/// An existing instance.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct InstanceVerdict {
    /// Name of the instance.
    pub name: String,
    /// Name of the fleet that it belongs to.
    pub fleet: String,
    /// Whether the job could start on it now.
    pub available: bool,
    /// Why the job cannot start on it.
    pub reasons: Vec<String>,
}

/// An offer of a backend.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct OfferVerdict {
    /// Backend that makes the offer.
    pub backend: BackendType,
    /// Region of the backend that the instance would be in.
    pub region: String,
    /// The instance's type.
    pub instance: String,
    /// Whether it is a spot instance.
    pub spot: bool,
    /// Dollars an hour.
    pub price: f64,
    /// Why it was not taken.
    pub reasons: Vec<String>,
}

string_enum! {
    /// What an offer is looked at for, in this order.
    pub enum OfferCheck {
        /// Its backend, region, zone, and where volumes are.
        Place = "place",
        /// Its instance type, and whether that can be divided into `blocks`.
        InstanceType = "instance_type",
        /// Its GPUs.
        Gpu = "gpu",
        /// Its CPUs, and their architecture.
        Cpu = "cpu",
        /// How much memory it has.
        Memory = "memory",
        /// How large its disk is.
        Disk = "disk",
        /// Whether it is a spot instance.
        Spot = "spot",
        /// What it costs, in dollars an hour.
        Price = "price",
        /// Whether it can be had now.
        Availability = "availability",
    }
}

/// What becomes of what a backend offers.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct BackendOffers {
    /// Backend that makes the offers.
    pub backend: BackendType,
    /// How many offers it makes.
    pub total: u64,
    /// How many of them are as asked for, and can be had.
    pub fit: u64,
    /// Dollars an hour of the cheapest of those that fit.
    pub cheapest: Option<f64>,
    /// How many fall out, by the first check that they do not pass; in the order of the checks.
    pub refused: Vec<RefusedOffers>,
}

/// Offers that fall out at the same check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Decode)]
pub struct RefusedOffers {
    /// The first check that they do not pass.
    pub check: OfferCheck,
    /// How many they are.
    pub offers: u64,
}

/// Changes that help together.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct ChangeSet {
    /// What to change.
    pub fields: Vec<FieldChange>,
    /// What could be had then.
    pub gives: String,
    /// Dollars an hour.
    pub price: f64,
}

/// A change of one field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Decode)]
pub struct FieldChange {
    /// As in the configuration: `resources.gpu.count`.
    pub field: String,
    /// As it is; unset when it is not set.
    pub from: Option<String>,
    /// As it would have to be.
    pub to: String,
}
