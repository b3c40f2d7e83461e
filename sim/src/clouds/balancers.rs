//! Load balancers of the simulated cloud.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use dstack_compute::{
    Balancing, Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, LoadBalancer, LoadBalancerRequest,
    LoadBalancers, Removal, Step,
};
use dstack_model::gateways::{GatewayLoadBalancerData, GatewayReplicaProvisioningData};
use dstack_units::GatewayId;
use serde_json::Value;
use tokio::time::Instant;

use super::{Clouds, State};

/// How long requests under way keep a machine that is taken out.
const DRAINING: Duration = Duration::from_secs(60);

/// A load balancer that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BalancerAtCloud {
    /// Whose it is.
    pub gateway: GatewayId,
    /// Ids of the machines behind it, sorted.
    pub machines: Vec<String>,
    /// Those that were taken out, and until when requests of them are under way.
    draining: Vec<(String, Instant)>,
    /// When it is listed.
    pub(super) listed_at: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Balancers {
    pub(super) all: Vec<BalancerAtCloud>,
    /// Load balancers ever made, by gateway.
    made: HashMap<GatewayId, usize>,
    /// Machines that ended while requests were sent to them.
    pub(super) cut_off: Vec<String>,
    refuses: Option<String>,
    refuses_machines: bool,
    is_never_ready: bool,
}

impl Balancers {
    /// A machine ends: requests that are sent there are lost.
    pub(super) fn machine_ends(&mut self, machine: &str) {
        let now = Instant::now();
        let sends = |one: &BalancerAtCloud| {
            let is_draining = |(id, until): &(String, Instant)| id == machine && *until > now;
            one.machines.iter().any(|id| id == machine) || one.draining.iter().any(is_draining)
        };
        if self.all.iter().any(sends) {
            self.cut_off.push(machine.to_owned());
        }
    }
}

impl Clouds {
    /// Load balancers that exist.
    pub fn load_balancers(&self) -> Vec<BalancerAtCloud> {
        self.lock().balancers.all.clone()
    }

    /// The most load balancers that were ever made for one gateway.
    pub fn most_load_balancers_made(&self) -> usize {
        self.lock().balancers.made.values().copied().max().unwrap_or(0)
    }

    /// Machines that ended while requests were sent to them, since this was asked last.
    pub fn cut_off(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().balancers.cut_off)
    }

    /// No load balancer is to be had, in these words.
    pub fn refuse_load_balancers(&self, why: &str) {
        self.change(|state| state.balancers.refuses = Some(why.to_owned()));
    }

    /// No load balancer takes other machines, from now on or no longer.
    pub fn refuse_to_balance(&self, refuses: bool) {
        self.change(|state| state.balancers.refuses_machines = refuses);
    }

    /// What is made of a load balancer from now on is never finished.
    pub fn never_finish_load_balancers(&self) {
        self.change(|state| state.balancers.is_never_ready = true);
    }

    /// Makes another one at each call, as with machines.
    async fn make_balancer(&self, gateway: GatewayId) -> Result<Value, ComputeError> {
        self.order(move |state: &mut State| {
            if let Some(why) = &state.balancers.refuses {
                return Err(ComputeError::Refused(why.clone()));
            }
            let listed_at = Instant::now() + state.delays.unlisted;
            state.balancers.all.push(BalancerAtCloud {
                gateway,
                machines: Vec::new(),
                draining: Vec::new(),
                listed_at,
            });
            *state.balancers.made.entry(gateway).or_default() += 1;
            Ok(Value::Null)
        })
        .await
    }

    async fn find_balancer(&self, gateway: GatewayId) -> Result<Option<Value>, ComputeError> {
        self.ask(move |state: &mut State| {
            let mut all = state.balancers.all.iter();
            let is_it = |one: &BalancerAtCloud| one.gateway == gateway && one.listed_at <= Instant::now();
            Ok(all.any(is_it).then_some(Value::Null))
        })
        .await
    }

    pub(super) async fn end_balancer(&self, gateway: GatewayId) -> Result<Removal, ComputeError> {
        self.order(move |state: &mut State| {
            state.balancers.all.retain(|one| one.gateway != gateway);
            Ok(Removal::Gone)
        })
        .await
    }
}

#[async_trait]
impl Lifecycle<LoadBalancer> for Clouds {
    async fn ensure(
        &self,
        want: &LoadBalancerRequest,
        call: &Call<'_>,
    ) -> Result<Step<GatewayLoadBalancerData>, ComputeError> {
        let gateway = GatewayId::from(want.marks.key);
        let (make, find) = (|| self.make_balancer(gateway), || self.find_balancer(gateway));
        call.make("load balancer", LISTED_WITHIN, make, find).await?;
        if self.lock().balancers.is_never_ready {
            return Ok(Step::Underway {
                seen: None,
                doing: "an address".to_owned(),
                again: Duration::from_secs(5),
            });
        }
        Ok(Step::Ready(GatewayLoadBalancerData {
            hostname: format!("{gateway}.lb.example"),
            backend_data: "{}".to_owned(),
        }))
    }

    async fn remove(&self, known: &Known<LoadBalancer>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let gateway = GatewayId::from(known.marks.key);
        let made = known.place.as_ref().map(|_| Value::Null);
        let find = || self.find_balancer(gateway);
        call.unmake("load balancer", made, LISTED_WITHIN, find, |_| {
            self.end_balancer(gateway)
        })
        .await
    }
}

#[async_trait]
impl LoadBalancers for Clouds {
    async fn set_machines(
        &self,
        balancer: &Known<LoadBalancer>,
        machines: &[GatewayReplicaProvisioningData],
    ) -> Result<Balancing, ComputeError> {
        let gateway = GatewayId::from(balancer.marks.key);
        let mut wanted: Vec<String> = machines
            .iter()
            .map(|machine| machine.instance_id.clone())
            .collect();
        wanted.sort_unstable();
        self.order(move |state: &mut State| {
            let now = Instant::now();
            if state.balancers.refuses_machines {
                return Err(ComputeError::Credentials(
                    "not allowed to register targets".to_owned(),
                ));
            }
            let Some(one) = state.balancers.all.iter_mut().find(|one| one.gateway == gateway) else {
                return Err(ComputeError::Refused("the load balancer is gone".to_owned()));
            };
            let out = one.machines.iter().filter(|id| !wanted.contains(id)).cloned();
            one.draining.extend(out.map(|id| (id, now + DRAINING)));
            one.draining
                .retain(|(id, until)| *until > now && !wanted.contains(id));
            one.machines.clone_from(&wanted);
            Ok(match one.draining.is_empty() {
                true => Balancing::Set,
                false => Balancing::Underway {
                    doing: "requests to end".to_owned(),
                    again: Duration::from_secs(10),
                },
            })
        })
        .await
    }
}
