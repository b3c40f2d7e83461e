//! What older clients get instead of the newest shapes (dstack 0.22.5: `server/compatibility`).

use dstack_model::configurations::AnyRunConfiguration;
use dstack_model::gateways::{Gateway, GatewayConfiguration, GatewayPlan};
use dstack_model::runs::{Run, RunPlan, RunSpec};

use crate::version::ClientVersion;

pub(crate) mod foreign;
pub(crate) mod older;

/// Where clients before 0.19.27 expect the code, and the commands to start.
const LEGACY_WORKING_DIR: &str = "/workflow";

/// Changes a run as it was asked for: older clients do not say where their commands start.
pub(crate) fn run_request(spec: &mut RunSpec, version: &ClientVersion) {
    if version.is_before([0, 19, 27]) {
        let base = spec.configuration.base_mut();
        base.working_dir
            .get_or_insert_with(|| LEGACY_WORKING_DIR.to_owned());
    }
}

/// Changes a run.
pub(crate) fn run(run: &mut Run, version: &ClientVersion) {
    if version.is_known() {
        spec(&mut run.run_spec);
    }
}

/// Changes a plan.
pub(crate) fn plan(plan: &mut RunPlan, version: &ClientVersion) {
    if !version.is_known() {
        return;
    }
    spec(&mut plan.run_spec);
    if let Some(effective) = &mut plan.effective_run_spec {
        spec(effective);
    }
    if let Some(current) = &mut plan.current_resource {
        run(current, version);
    }
}

/// Tasks without groups have a number of nodes for everyone who names a version.
fn spec(spec: &mut RunSpec) {
    if let AnyRunConfiguration::Task(task) = &mut spec.configuration
        && task.groups.is_none()
    {
        task.nodes.get_or_insert(1);
    }
}

/// Changes a gateway's configuration as sent: older clients say `false` also for what was not said.
pub(crate) fn gateway_request(configuration: &mut GatewayConfiguration, version: &ClientVersion) {
    if version.is_before([0, 21, 1]) && configuration.default == Some(false) {
        configuration.default = None;
    }
}

/// Changes a gateway.
pub(crate) fn gateway(gateway: &mut Gateway, version: &ClientVersion) {
    gateway_configuration(&mut gateway.configuration, version);
    if version.is_before([0, 20, 25]) {
        let hostnames: Vec<&str> = gateway
            .replicas
            .iter()
            .filter_map(|replica| replica.hostname.as_deref())
            .filter(|name| !name.is_empty())
            .collect();
        let address = hostnames.join("\n");
        gateway.instance_id = Some(String::new());
        gateway.hostname.get_or_insert_with(|| address.clone());
        gateway.ip_address = Some(address);
    }
    let needs_texts = version.is_before([0, 20, 27]) && !version.is_before([0, 20, 25]);
    for replica in gateway.replicas.iter_mut().filter(|_| needs_texts) {
        replica.hostname.get_or_insert_with(String::new);
        replica.region.get_or_insert_with(String::new);
        replica.backend.get_or_insert(gateway.configuration.backend);
    }
}

/// Changes a gateway's plan.
pub(crate) fn gateway_plan(plan: &mut GatewayPlan, version: &ClientVersion) {
    gateway_configuration(&mut plan.spec.configuration, version);
    gateway_configuration(&mut plan.effective_spec.configuration, version);
}

fn gateway_configuration(configuration: &mut GatewayConfiguration, version: &ClientVersion) {
    if version.is_before([0, 21, 1]) {
        configuration.default.get_or_insert(false);
    }
}
