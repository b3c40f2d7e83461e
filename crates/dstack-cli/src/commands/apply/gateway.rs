//! Applying a gateway.

use dstack_api::routes::{GatewaysApply, GatewaysGetPlan};
use dstack_model::common::ApplyAction;
use dstack_model::gateways::{
    ApplyGatewayPlanInput, Gateway, GatewayConfiguration, GatewayPlan, GatewaySpec, GatewayStatus,
};
use dstack_model::requests::{ApplyGatewayPlanRequest, GetGatewayPlanRequest};

use super::diff;
use super::resource::{ApplyResource, Change, Existing};
use crate::args::ApplyArgs;
use crate::commands::gateway::{call_delete, find};
use crate::context::Project;
use crate::error::CliError;
use crate::tables::{Dates, gateways};
use crate::ui::{Table, Ui};

/// A gateway that is about to be applied.
pub(crate) struct GatewayApply {
    spec: GatewaySpec,
}

impl GatewayApply {
    /// Fills in what the command line says.
    pub(crate) fn new(args: &ApplyArgs, mut configuration: GatewayConfiguration, path: String) -> Self {
        if let Some(name) = &args.name {
            configuration.name = Some(name.clone());
        }
        let spec = GatewaySpec {
            configuration,
            configuration_path: Some(path),
        };
        Self { spec }
    }
}

impl ApplyResource for GatewayApply {
    type Resource = Gateway;
    type Plan = GatewayPlan;

    const NOUN: &'static str = "gateway";
    const UPDATE_QUESTION: &'static str = "Update the gateway?";

    async fn plan(&self, project: &Project) -> Result<GatewayPlan, CliError> {
        let request = GetGatewayPlanRequest {
            spec: self.spec.clone(),
        };
        Ok(project
            .client
            .call::<GatewaysGetPlan>(&project.name, &request)
            .await?)
    }

    fn print_plan(&self, ui: &Ui, _project: &Project, plan: &GatewayPlan) {
        ui.table(&properties(plan));
        ui.blank();
    }

    fn configured_name(&self, plan: &GatewayPlan) -> Option<String> {
        plan.effective_spec.configuration.name.clone()
    }

    fn existing(&self, plan: &GatewayPlan) -> Option<Existing> {
        let current = plan.current_resource.as_ref()?;
        let configuration = &plan.effective_spec.configuration;
        let change = match (diff::fields(configuration, &current.configuration), plan.action) {
            (None, _) => Change::Nothing,
            (Some(diff), ApplyAction::Update) => Change::InPlace(diff),
            (Some(diff), ApplyAction::Create) => Change::NotInPlace(diff),
        };
        Some(Existing {
            name: current.name.clone(),
            change,
        })
    }

    async fn submit(self, project: &Project, plan: GatewayPlan) -> Result<Gateway, CliError> {
        let request = ApplyGatewayPlanRequest {
            plan: ApplyGatewayPlanInput {
                spec: self.spec,
                current_resource: plan.current_resource,
            },
            force: false,
        };
        Ok(project
            .client
            .call::<GatewaysApply>(&project.name, &request)
            .await?)
    }

    async fn find(project: &Project, name: &str) -> Result<Option<Gateway>, CliError> {
        find(project, name).await
    }

    async fn delete(project: &Project, name: &str) -> Result<(), CliError> {
        call_delete(project, name).await
    }

    fn name(gateway: &Gateway) -> &str {
        &gateway.name
    }

    fn is_done(gateway: &Gateway) -> bool {
        matches!(gateway.status, GatewayStatus::Running | GatewayStatus::Failed)
    }

    fn failure(gateway: &Gateway) -> Option<String> {
        let reason = gateway.status_message.as_deref().unwrap_or("unknown");
        (gateway.status == GatewayStatus::Failed).then(|| format!("Provisioning failed. Error: {reason}"))
    }

    fn table(gateway: &Gateway, project: &Project, verbose: bool, dates: Dates) -> Table {
        gateways::table(std::slice::from_ref(gateway), &project.name, verbose, true, dates)
    }

    fn updated_table(gateway: &Gateway, project: &Project) -> Option<Table> {
        let gateways = std::slice::from_ref(gateway);
        Some(gateways::table(gateways, &project.name, false, false, Dates::Ago))
    }
}

fn properties(plan: &GatewayPlan) -> Table {
    let spec = &plan.effective_spec;
    let mut table = Table::properties();
    table.property("Project", plan.project_name.as_str());
    table.property("User", plan.user.as_str());
    table.property("Configuration", spec.configuration_path.as_deref().unwrap_or("?"));
    table.property("Type", "gateway");
    table.property("Backend", spec.configuration.backend.as_str());
    table.property("Region", spec.configuration.region.as_str());
    table.property("Domain", spec.configuration.domain.as_deref().unwrap_or("-"));
    if let Some(replicas) = spec.configuration.replicas {
        table.property("Replicas", replicas.to_string());
    }
    table
}
