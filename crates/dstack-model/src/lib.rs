//! Wire and YAML types of dstack: configurations, profiles, runs, jobs, fleets, instances, offers.
//!
//! Every type serializes to the normal form of the dstack 0.22.5 API (all fields present, `null` when unset, in the
//! reference's order) and is read by the one decoder of [`dstack_decode`], which accepts, coerces and refuses as the
//! reference does.

#![warn(missing_docs)]

pub mod backends;
pub mod changes;
pub mod client_config;
pub mod common;
pub mod compute_groups;
pub mod configurations;
pub mod diagnosis;
pub mod envs;
pub mod errors;
pub mod events;
pub mod explanations;
pub mod exports;
pub mod files;
pub mod fleets;
pub mod gateways;
pub mod health;
pub mod instances;
pub mod interpolate;
pub mod limits;
pub mod logs;
pub mod metrics;
pub mod offers;
pub mod placement;
pub mod profiles;
pub mod projects;
pub mod public_keys;
pub mod reach;
pub mod repos;
pub mod requests;
pub mod resources;
pub mod rollouts;
pub mod runs;
pub mod secrets;
pub mod templates;
pub mod unix;
pub mod users;
pub mod volumes;
pub mod yaml;

pub use dstack_decode as decode;
pub use dstack_decode::{Decode, schema, string_enum, tag};
pub use errors::ErrorCode;
