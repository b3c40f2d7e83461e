//! Hosts that are set up by looking at them.

use async_trait::async_trait;
use dstack_agent_api::shim::{HostInfo, HostReport};
use dstack_compute::JobNeeds;
use dstack_engine::{HostError, HostRef, Hosts, Preparation, ReadyHost};
use dstack_plan::hosts::reach;
use serde_json::Value;

/// The agent that they have; there is no later one.
const BUILD: &str = "simulated";

#[derive(Debug)]
pub(crate) struct ReadyHosts;

#[async_trait]
impl Hosts for ReadyHosts {
    async fn prepare(
        &self,
        host: HostRef<'_>,
        _: JobNeeds,
        _: Option<&Value>,
    ) -> Result<Preparation, HostError> {
        let place = host.instance.job_provisioning_data.as_deref();
        let way = place.and_then(|place| reach(host.fleet.id, &host.fleet.spec, place));
        let mut reach =
            way.ok_or_else(|| HostError::Refused("the fleet does not have this host any more".to_owned()))?;
        let name = reach.host.host.clone();
        reach.host.host_keys = vec![format!("key of {name}")];
        Ok(Preparation::Ready(Box::new(ReadyHost {
            reach,
            shim_port: 10_998,
            report: HostReport {
                host_info: HostInfo {
                    cpus: 64,
                    memory: 512 << 30,
                    disk_size: 1 << 40,
                    addresses: vec![format!("{name}/8")],
                    ..HostInfo::default()
                },
                runtime: "docker".to_owned(),
                arch: "amd64".to_owned(),
                ..HostReport::default()
            },
            build: Some(BUILD.to_owned()),
            machine: Some(name),
        })))
    }

    async fn release(&self, _: HostRef<'_>, _: Option<&Value>) -> Result<(), HostError> {
        Ok(())
    }

    fn build(&self, _: &str) -> Option<String> {
        Some(BUILD.to_owned())
    }
}
