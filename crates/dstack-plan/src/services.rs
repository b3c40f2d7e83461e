//! How many replicas a service has, and how they are replaced (dstack 0.22.5: pipelines §4).
//!
//! * [`autoscaling`] — how many there should be.
//! * [`signals`] — how many other signals than requests per second need.
//! * [`pages`] — what replicas tell of themselves.
//! * [`rollout`] — which are started and stopped to get there, without fewer of them being ready than promised.
//! * [`replicas`] — both for all groups of a service, from its jobs.
//! * [`registration`] — which of them get requests.
//! * [`publish`] — where it is reached.
//! * [`gateways`] — what is to be told to a gateway so that it passes requests on as wanted.
//! * [`routers`] — which replicas a router among them is to pass requests on to.
//! * [`workers`] — what it is told of each of those.

pub mod autoscaling;
pub mod gateways;
pub mod pages;
pub mod publish;
pub mod registration;
pub mod replicas;
pub mod rollout;
pub mod routers;
pub mod signals;
pub mod workers;

#[cfg(test)]
mod testing;
