//! Applying a gateway.

use std::process::ExitCode;

use dstack_api::routes::{GatewaysApply, GatewaysGetPlan};
use dstack_model::common::ApplyAction;
use dstack_model::gateways::{
    ApplyGatewayPlanInput, Gateway, GatewayConfiguration, GatewayPlan, GatewaySpec, GatewayStatus,
};
use dstack_model::requests::{ApplyGatewayPlanRequest, GetGatewayPlanRequest};

use super::diff;
use super::provision::{self, Kind, until_gone};
use crate::args::ApplyArgs;
use crate::commands::gateway::{call_delete, find};
use crate::context::{Context, Project};
use crate::error::{CliError, ErrorKind};
use crate::tables::{Dates, gateways};
use crate::ui::{Role, Table, Text, Ui};

/// What submitting led to.
struct Submitted {
    gateway: Gateway,
    updated: bool,
}

/// Applies a gateway.
pub(crate) async fn apply(
    context: &Context,
    project: &Project,
    args: &ApplyArgs,
    configuration: GatewayConfiguration,
    path: String,
) -> Result<ExitCode, CliError> {
    let ui = &context.ui;
    let Submitted { gateway, updated } =
        match provision::before(context, submit(context, project, args, configuration, path)).await? {
            Ok(submitted) => submitted,
            Err(code) => return Ok(code),
        };
    if updated {
        ui.table(&gateways::table(
            std::slice::from_ref(&gateway),
            &project.name,
            false,
            false,
            Dates::Ago,
        ));
        return Ok(ExitCode::SUCCESS);
    }
    if args.detach {
        ui.say("Gateway configuration submitted. Exiting...");
        return Ok(ExitCode::SUCCESS);
    }
    let name = gateway.name.clone();
    let table = |gateway: &Gateway| {
        gateways::table(
            std::slice::from_ref(gateway),
            &project.name,
            false,
            true,
            Dates::Ago,
        )
    };
    let is_done =
        |gateway: &Gateway| matches!(gateway.status, GatewayStatus::Running | GatewayStatus::Failed);
    let kind = Kind {
        noun: "gateway",
        is_done,
    };
    let fetch = async || {
        find(project, &name)
            .await?
            .ok_or_else(|| CliError::new(ErrorKind::Vanished, format!("Gateway {name} was deleted")))
    };
    let delete = async || call_delete(project, &name).await;
    let waited = provision::wait(context, args, &kind, &name, gateway, table, fetch, delete).await?;
    Ok(waited.map_or(ExitCode::SUCCESS, |gateway| finish(ui, project, &gateway)))
}

async fn submit(
    context: &Context,
    project: &Project,
    args: &ApplyArgs,
    mut configuration: GatewayConfiguration,
    path: String,
) -> Result<Result<Submitted, ExitCode>, CliError> {
    if let Some(name) = &args.name {
        configuration.name = Some(name.clone());
    }
    let spec = GatewaySpec {
        configuration,
        configuration_path: Some(path),
    };
    let plan = {
        let _spinner = context.ui.spin("Getting apply plan...");
        project
            .client
            .call::<GatewaysGetPlan>(&project.name, &GetGatewayPlanRequest { spec: spec.clone() })
            .await?
    };
    context.ui.table(&properties(&plan));
    context.ui.blank();
    let Some((question, recreate)) = decide(&context.ui, args, &plan) else {
        return Ok(Err(ExitCode::SUCCESS));
    };
    if let Some(code) = provision::confirm(context, args, question).await? {
        return Ok(Err(code));
    }
    let updated = plan.action == ApplyAction::Update && recreate.is_none();
    if let Some(name) = recreate {
        let _spinner = context.ui.spin("Deleting existing gateway...");
        call_delete(project, &name).await?;
        until_gone(async || Ok(find(project, &name).await?.is_some())).await?;
    }
    let _spinner = context.ui.spin("Applying plan...");
    let input = ApplyGatewayPlanInput {
        spec,
        current_resource: plan.current_resource,
    };
    let request = ApplyGatewayPlanRequest {
        plan: input,
        force: false,
    };
    let gateway = project
        .client
        .call::<GatewaysApply>(&project.name, &request)
        .await?;
    Ok(Ok(Submitted { gateway, updated }))
}

fn decide(ui: &Ui, args: &ApplyArgs, plan: &GatewayPlan) -> Option<(&'static str, Option<String>)> {
    let configuration = &plan.effective_spec.configuration;
    let name = configuration.name.clone();
    let Some(current) = &plan.current_resource else {
        let message = name.map(|name| Text::from("Gateway ").code(name).push(" does not exist yet."));
        ui.say(message.unwrap_or_default());
        return Some(("Create the gateway?", None));
    };
    let found = Text::from("Found gateway ")
        .code(name.unwrap_or_default())
        .push(".");
    let recreate = Some(current.name.clone());
    match (diff::fields(configuration, &current.configuration), plan.action) {
        (None, _) => {
            if args.yes && !args.force {
                ui.say("No configuration changes detected. Use --force to apply anyway.");
                return None;
            }
            ui.say(found.push(" No configuration changes detected."));
            Some(("Re-create the gateway?", recreate))
        }
        (Some(diff), ApplyAction::Update) => {
            ui.say(
                found
                    .push(" Detected changes that ")
                    .code("can")
                    .push(format!(" be updated in-place:\n{diff}")),
            );
            Some(("Update the gateway?", None))
        }
        (Some(diff), ApplyAction::Create) => {
            ui.say(
                found
                    .push(" Detected changes that ")
                    .role(Role::Error, "cannot")
                    .push(format!(" be updated in-place:\n{diff}")),
            );
            Some(("Re-create the gateway?", recreate))
        }
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

fn finish(ui: &Ui, project: &Project, gateway: &Gateway) -> ExitCode {
    let failed = gateway.status == GatewayStatus::Failed;
    ui.table(&gateways::table(
        std::slice::from_ref(gateway),
        &project.name,
        failed,
        true,
        Dates::Clock,
    ));
    if !failed {
        return ExitCode::SUCCESS;
    }
    let reason = gateway.status_message.as_deref().unwrap_or("unknown");
    ui.say(Text::new().role(Role::Error, format!("\nProvisioning failed. Error: {reason}")));
    ExitCode::FAILURE
}
