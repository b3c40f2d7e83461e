//! What every backend has to do, as tests in virtual time.
//!
//! An [`Emulator`] plays a cloud by its vendor's description. [`EmulatedTransport`] carries requests to it, and does to them what
//! networks and clouds do ([`Fault`]). [`Driver`] is a small control plane that makes and removes things as the engine does, and
//! may be killed at any call. [`checks`] are the tests: each takes a function that makes a fresh [`Cloud`]. [`soak`] is all of it at once.

#![warn(missing_docs)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    clippy::print_stdout
)] // tests

pub mod checks;
mod checks_of;
mod cloud;
mod containers;
mod driver;
mod exchange;
mod faults;
mod ledger;
mod notes;
mod reference;
mod serve;
mod soak;
mod subject;
mod transport;

pub use cloud::{CANARY, Cloud, env, extended, installation, network_env, requirements, sizes_of_catalog};
pub use containers::{ContainerStart, Containers};
pub use driver::Driver;
pub use exchange::Exchange;
pub use faults::{Fault, Faults};
pub use ledger::{Entry, Ledger};
pub use notes::Notes;
pub use reference::{passes_with_the_reference, reference_python, run, served};
pub use serve::serve;
pub use soak::soak;
pub use subject::{
    Subject, attachment, container, container_in, container_of, gateway, group, group_of, load_balancer,
    machine, machine_in, machine_of, marks, placement, volume, with_container, with_containers, with_machine,
    with_machines, with_machines_in,
};
pub use transport::EmulatedTransport;

use std::time::Duration;

/// A cloud that is played in this process.
pub trait Emulator: Send + Sync + std::fmt::Debug {
    /// Its API.
    fn router(&self) -> axum::Router;

    /// What was ever made in it.
    fn ledger(&self) -> &Ledger;

    /// Nothing more is to be had, or there is something again.
    fn sell_out(&self, sold_out: bool);

    /// How long it takes until what is made is listed.
    fn lag(&self, lag: Duration);

    /// Everything that runs breaks.
    fn lose_all(&self);
}
