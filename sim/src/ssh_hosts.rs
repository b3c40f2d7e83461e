//! Simulated hosts of SSH fleets, before and after they have an agent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use dstack_agent_api::shim::{HostInfo, HostReport};
use dstack_engine::{HostError, HostRef, Hosts, Preparation, ReadyHost};
use dstack_plan::hosts::reach;
use dstack_system::Random;
use serde_json::{Value, json};

use crate::output::shim_token;

/// Steps of a preparation; the last one makes the agent answer.
const STEPS: u64 = 4;

#[derive(Debug, Default)]
struct State {
    /// What is in the way at a host, by name.
    trouble: BTreeMap<String, HostError>,
    /// Hosts on which something of ours is.
    installed: BTreeSet<String>,
    /// How long each step takes.
    step: Duration,
    /// Chance that a step takes effect and its answer is lost.
    lost_answer: f64,
    /// Steps that were begun, by host.
    begun: BTreeMap<String, u64>,
}

/// All hosts that fleets may name.
#[derive(Debug, Clone)]
pub struct SshHosts {
    state: Arc<Mutex<State>>,
    random: Random,
    agents: crate::hosts::Hosts,
}

impl SshHosts {
    /// Hosts that can be reached and have no agent; the agents that they get are these.
    pub fn new(random: Random, agents: crate::hosts::Hosts) -> Self {
        Self {
            state: Arc::default(),
            random,
            agents,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on this is in the way at a host; `None`: nothing.
    pub fn trouble(&self, host: &str, trouble: Option<HostError>) {
        let mut state = self.lock();
        match trouble {
            Some(error) => state.trouble.insert(host.to_owned(), error),
            None => state.trouble.remove(host),
        };
    }

    /// How long each step takes from now on.
    pub fn step_takes(&self, time: Duration) {
        self.lock().step = time;
    }

    /// Chance that a step takes effect and its answer is lost.
    pub fn lose_answers(&self, chance: f64) {
        self.lock().lost_answer = chance;
    }

    /// Hosts on which something of ours is.
    pub fn installed(&self) -> BTreeSet<String> {
        self.lock().installed.clone()
    }

    /// Steps that were begun at a host.
    pub fn steps_begun(&self, host: &str) -> u64 {
        self.lock().begun.get(host).copied().unwrap_or_default()
    }

    /// A step that may fail as the host wants, or be lost on the way back.
    async fn step(&self, host: &str, effect: impl FnOnce(&mut State)) -> Result<(), HostError> {
        let time = {
            let mut state = self.lock();
            *state.begun.entry(host.to_owned()).or_default() += 1;
            state.step
        };
        tokio::time::sleep(time).await;
        let dice = self.random.fraction();
        let mut state = self.lock();
        if let Some(error) = state.trouble.get(host) {
            return Err(error.clone());
        }
        effect(&mut state);
        match dice < state.lost_answer {
            true => Err(HostError::Transient("the connection broke".to_owned())),
            false => Ok(()),
        }
    }
}

fn name(host: HostRef<'_>) -> String {
    let place = host.instance.job_provisioning_data.as_deref();
    place.and_then(|place| place.hostname.clone()).unwrap_or_default()
}

#[async_trait]
impl Hosts for SshHosts {
    async fn prepare(&self, host: HostRef<'_>, progress: Option<&Value>) -> Result<Preparation, HostError> {
        let name = name(host);
        let done = progress
            .and_then(|progress| progress["done"].as_u64())
            .unwrap_or(0);
        // The first step only looks.
        let leaves_something = done > 0;
        self.step(&name, |state| {
            if leaves_something {
                state.installed.insert(name.clone());
                self.agents.shim_token(&name, Some(shim_token(host.instance.id)));
            }
        })
        .await?;
        if done + 1 < STEPS {
            return Ok(Preparation::Underway {
                progress: json!({"done": done + 1}),
                done: format!("step {}", done + 1),
            });
        }
        let reach = reach(host.fleet.id, &host.fleet.spec, &name);
        let gone = || HostError::Refused("the fleet does not have this host any more".to_owned());
        Ok(Preparation::Ready(Box::new(ReadyHost {
            reach: reach.ok_or_else(gone)?,
            shim_port: 10_998,
            report: HostReport {
                host_info: HostInfo {
                    cpus: 8,
                    memory: 64 << 30,
                    disk_size: 512 << 30,
                    addresses: vec![format!("10.0.0.{}/24", 1 + name.len())],
                    ..HostInfo::default()
                },
                runtime: "docker".to_owned(),
                arch: "amd64".to_owned(),
                ..HostReport::default()
            },
        })))
    }

    async fn release(&self, host: HostRef<'_>, preparation: Option<&Value>) -> Result<(), HostError> {
        let name = name(host);
        let named = reach(host.fleet.id, &host.fleet.spec, &name).is_some();
        if !named && preparation.is_none() && host.instance.agent.is_none() {
            return Err(HostError::Refused(
                "nobody knows how the host is reached".to_owned(),
            ));
        }
        self.step(&name, |state| {
            state.installed.remove(&name);
            self.agents.shim_token(&name, None);
        })
        .await
    }
}
