//! Load balancers before the machines of gateways.

use std::time::Duration;

use async_trait::async_trait;
use dstack_model::gateways::{
    AnyGatewayCertificate, GatewayLoadBalancerData, GatewayReplicaProvisioningData,
};

use crate::lifecycle::Resource;
use crate::{ComputeError, Known, Lifecycle, Marks, Owner};

/// Application load balancers, with what they consist of. They take HTTP or, with a certificate, HTTPS from clients, and pass requests
/// on to port 80 of the machines of a gateway.
#[derive(Debug, Clone, PartialEq)]
pub enum LoadBalancer {}

impl Resource for LoadBalancer {
    type Want = LoadBalancerRequest;
    /// The region in which it is, as the backend names it.
    type Site = String;
    type Place = GatewayLoadBalancerData;
}

/// A load balancer that is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadBalancerRequest {
    /// What it carries: whatever is made for the request is found by them.
    pub marks: Marks,
    /// For whom it is.
    pub owner: Owner,
    /// Region that it is made in.
    pub region: String,
    /// It is reached from everywhere, and not from private networks only.
    pub is_public: bool,
    /// What clients are shown; unset: they speak HTTP.
    pub certificate: Option<AnyGatewayCertificate>,
}

/// Makes and removes load balancers, and chooses what is behind them.
#[async_trait]
pub trait LoadBalancers: Lifecycle<LoadBalancer> {
    /// Sees to it that requests go to these machines, and to no others. Level-triggered as the verbs of [`Lifecycle`]: it may be cut
    /// off anywhere, and is asked again until the answer is [`Balancing::Set`].
    ///
    /// # Errors
    /// Of definite ones ([`ComputeError::is_definite`]), nothing changes by asking again. After all others the same is asked again.
    async fn set_machines(
        &self,
        balancer: &Known<LoadBalancer>,
        machines: &[GatewayReplicaProvisioningData],
    ) -> Result<Balancing, ComputeError>;
}

/// How far it is that requests go to the machines to which they are to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Balancing {
    /// It is so, and no other machine has requests of it any more.
    Set,
    /// The cloud is at it.
    Underway {
        /// What is waited for, for people, such as `the load balancer to be set up`.
        doing: String,
        /// Pause before the next call.
        again: Duration,
    },
}
