//! What backends of clouds have in common: what they are handed, errors of APIs, cached answers, the first script of machines.
//!
//! The contract itself is `dstack-compute`. Backends live in `backends/`, one folder each; `docs/adding-a-backend.md` tells how
//! one is added.

#![warn(missing_docs)]

mod api;
mod cached;
mod cloud_config;
mod env;
mod failures;
mod gateways;
mod keys;
mod kind;
mod look;
mod made;
mod offers;
mod one_line;
mod place;

pub use api::{compute_error, configure_error, not_asked};
pub use cached::Cached;
pub use cloud_config::{KEEP_GPUS, apt_install, cloud_config};
pub use env::Env;
pub use failures::RecentFailures;
pub use gateways::{gateway_machine, gateway_sign, gateway_step, known_gateway_machine};
pub use keys::bare_key;
pub use kind::{CloudKind, Kind};
pub use look::{listed_signs, look_by_place};
pub use made::Made;
pub use offers::{find_offers, offers_in, offers_of_provider, tell_uncatalogued, vendor_offers};
pub use one_line::one_line;
pub use place::machine_place;
