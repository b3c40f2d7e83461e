//! What older clients get instead of the newest shapes (dstack 0.22.5: `server/compatibility`).

use dstack_model::configurations::AnyRunConfiguration;
use dstack_model::runs::{Run, RunPlan, RunSpec};

use crate::version::ClientVersion;

/// Whether runs look different to this client.
pub(crate) fn changes_runs(version: &ClientVersion) -> bool {
    version.is_known() && version.is_before([0, 21, 3])
}

/// Changes a run.
pub(crate) fn run(run: &mut Run, version: &ClientVersion) {
    if version.is_known() {
        spec(&mut run.run_spec, version);
    }
}

/// Changes a plan.
pub(crate) fn plan(plan: &mut RunPlan, version: &ClientVersion) {
    if !version.is_known() {
        return;
    }
    spec(&mut plan.run_spec, version);
    if let Some(effective) = &mut plan.effective_run_spec {
        spec(effective, version);
    }
    if let Some(current) = &mut plan.current_resource {
        run(current, version);
    }
}

/// Tasks without groups have a number of nodes for everyone who names a version.
fn spec(spec: &mut RunSpec, version: &ClientVersion) {
    match &mut spec.configuration {
        AnyRunConfiguration::Task(task) if task.groups.is_none() => {
            task.nodes.get_or_insert(1);
        }
        AnyRunConfiguration::Service(service) if version.is_before([0, 20, 8]) => {
            service.probes.get_or_insert_with(Vec::new);
        }
        _ => {}
    }
}
