//! Applying and deleting a fleet.

use std::process::ExitCode;

use dstack_api::routes::{FleetsApply, FleetsDelete, FleetsGet, FleetsGetPlan};
use dstack_model::common::ApplyAction;
use dstack_model::fleets::{
    ApplyFleetPlanInput, Fleet, FleetConfiguration, FleetPlan, FleetSpec, InstanceGroupPlacement, SshHost,
};
use dstack_model::instances::{InstanceStatus, SshKey};
use dstack_model::requests::{ApplyFleetPlanRequest, GetFleetPlanRequest, GetFleetRequest, NamesRequest};

use super::prepare::apply_env;
use super::provision::{self, Kind, until_gone};
use super::{diff, plan};
use crate::args::ApplyArgs;
use crate::commands::exiting;
use crate::commands::fleet::exists;
use crate::context::{Context, Project};
use crate::error::{CliError, ErrorKind};
use crate::format::resources;
use crate::profiles;
use crate::ssh::keys;
use crate::tables::{Dates, fleets, offers};
use crate::ui::{Role, Table, Text, Ui};

/// Offers shown in a plan.
const SHOWN_OFFERS: usize = 3;

/// Applies a fleet.
pub(crate) async fn apply(
    context: &Context,
    project: &Project,
    args: &ApplyArgs,
    configuration: FleetConfiguration,
    path: String,
) -> Result<ExitCode, CliError> {
    let submitting = submit(context, project, args, configuration, path);
    let fleet = match provision::before(context, submitting).await? {
        Ok(fleet) => fleet,
        Err(code) => return Ok(code),
    };
    if args.detach {
        context.ui.say("Fleet configuration submitted. Exiting...");
        return Ok(ExitCode::SUCCESS);
    }
    let name = fleet.name.clone();
    let table = |fleet: &Fleet| fleets::table(std::slice::from_ref(fleet), &project.name, false, Dates::Ago);
    let kind = Kind {
        noun: "fleet",
        is_done,
    };
    let fetch = async || get(project, &name).await;
    let delete = async || call_delete(project, &name).await;
    let waited = provision::wait(context, args, &kind, &name, fleet, table, fetch, delete).await?;
    Ok(waited.map_or(ExitCode::SUCCESS, |fleet| finish(&context.ui, project, &fleet)))
}

async fn submit(
    context: &Context,
    project: &Project,
    args: &ApplyArgs,
    mut configuration: FleetConfiguration,
    path: String,
) -> Result<Result<Fleet, ExitCode>, CliError> {
    if let Some(name) = &args.name {
        configuration.name = Some(name.clone());
    }
    apply_env(&mut configuration.env, &args.kind.env, &context.env)?;
    if configuration.ssh_config.is_none() && !configuration.env.is_empty() {
        return Err(CliError::new(
            ErrorKind::Configuration,
            "`env` is currently supported for SSH fleets only",
        ));
    }
    load_keys(context, &mut configuration)?;
    let profile = profiles::load(context, None)?;
    let spec = FleetSpec {
        configuration,
        configuration_path: Some(path),
        profile,
        autocreated: false,
    };
    let plan = {
        let _spinner = context.ui.spin("Getting apply plan...");
        project
            .client
            .call::<FleetsGetPlan>(&project.name, &GetFleetPlanRequest { spec })
            .await?
    };
    print_plan(&context.ui, &plan);
    let Some((question, recreate)) = decide(&context.ui, args, &plan) else {
        return Ok(Err(ExitCode::SUCCESS));
    };
    if let Some(code) = provision::confirm(context, args, question).await? {
        return Ok(Err(code));
    }
    if let Some(name) = recreate {
        let _spinner = context.ui.spin("Deleting existing fleet...");
        call_delete(project, &name).await?;
        until_gone(async || exists(project, &name).await).await?;
    }
    let _spinner = context.ui.spin("Applying plan...");
    let input = ApplyFleetPlanInput {
        spec: plan.spec,
        current_resource: plan.current_resource,
    };
    let request = ApplyFleetPlanRequest {
        plan: input,
        force: false,
    };
    Ok(Ok(project
        .client
        .call::<FleetsApply>(&project.name, &request)
        .await?))
}

/// Says what applying will do. The question, and the fleet to delete first; `None` when there is nothing to do.
fn decide(ui: &Ui, args: &ApplyArgs, plan: &FleetPlan) -> Option<(&'static str, Option<String>)> {
    let name = plan.spec.configuration.name.clone();
    let Some(current) = &plan.current_resource else {
        let message = name.map(|name| Text::from("Fleet ").code(name).push(" does not exist yet."));
        ui.say(message.unwrap_or_default());
        return Some(("Create the fleet?", None));
    };
    let effective = plan.effective_spec.as_ref().unwrap_or(&plan.spec);
    let found = Text::from("Found fleet ")
        .code(name.unwrap_or_default())
        .push(".");
    let recreate = Some(current.name.clone());
    match (diff::others(effective, &current.spec), plan.action) {
        (None, _) => {
            if args.yes && !args.force {
                ui.say("No configuration changes detected. Use --force to apply anyway.");
                return None;
            }
            ui.say(found.push(" No configuration changes detected."));
            Some(("Re-create the fleet?", recreate))
        }
        (Some(diff), Some(ApplyAction::Update)) => {
            ui.say(
                found
                    .push(" Detected changes that ")
                    .code("can")
                    .push(format!(" be updated in-place:\n{diff}")),
            );
            Some(("Update the fleet in-place?", None))
        }
        (Some(diff), _) => {
            ui.say(
                found
                    .push(" Detected changes that ")
                    .role(Role::Error, "cannot")
                    .push(format!(" be updated in-place:\n{diff}")),
            );
            Some(("Re-create the fleet?", recreate))
        }
    }
}

/// Reads the key files that an SSH fleet names.
fn load_keys(context: &Context, configuration: &mut FleetConfiguration) -> Result<(), CliError> {
    let Some(ssh) = &mut configuration.ssh_config else {
        return Ok(());
    };
    let load = |path: Option<&String>| path.map(|path| load_key(context, path)).transpose();
    ssh.ssh_key = load(ssh.identity_file.as_ref())?;
    if let Some(proxy) = &mut ssh.proxy_jump {
        proxy.ssh_key = load(Some(&proxy.identity_file))?;
    }
    for host in &mut ssh.hosts {
        let SshHost::Params(host) = host else { continue };
        host.ssh_key = load(host.identity_file.as_ref())?;
        if let Some(proxy) = &mut host.proxy_jump {
            proxy.ssh_key = load(Some(&proxy.identity_file))?;
        }
    }
    Ok(())
}

fn load_key(context: &Context, path: &str) -> Result<SshKey, CliError> {
    let path = context.resolve(path, &context.folder);
    let key = keys::read(&path)?;
    let private =
        fs_err::read_to_string(&path).map_err(|error| CliError::from_error(ErrorKind::SshKey, error))?;
    Ok(SshKey {
        public: key.public,
        private: Some(private),
    })
}

fn print_plan(ui: &Ui, fleet: &FleetPlan) {
    ui.table(&properties(fleet));
    ui.blank();
    let shown = fleet
        .offers
        .get(..SHOWN_OFFERS.min(fleet.offers.len()))
        .unwrap_or_default();
    if !shown.is_empty() {
        let more = fleet.offers.len() > SHOWN_OFFERS;
        ui.table(&offers::fleet_table(shown, more));
        if more {
            let price = fleet.max_offer_price.unwrap_or_default();
            let text = format!(
                " Shown {} of {} offers, ${price} max",
                shown.len(),
                fleet.total_offers
            );
            ui.say(Text::new().secondary(text));
        }
        ui.blank();
    } else if fleet.spec.configuration.ssh_config.is_none() {
        plan::no_offers(ui);
    }
}

fn properties(plan: &FleetPlan) -> Table {
    let spec = plan.effective_spec.as_ref().unwrap_or(&plan.spec);
    let configuration = &spec.configuration;
    let merged = spec.merged_profile().params;
    let mut table = Table::properties();
    table.property("Project", plan.project_name.as_str());
    table.property("User", plan.user.as_str());
    table.property("Configuration", spec.configuration_path.as_deref().unwrap_or("?"));
    table.property("Type", "fleet");
    let is_ssh = configuration.ssh_config.is_some();
    table.property("Fleet type", if is_ssh { "ssh" } else { "cloud" });
    let nodes = match (&configuration.ssh_config, &configuration.nodes) {
        (Some(ssh), _) => ssh.hosts.len().to_string(),
        (None, Some(nodes)) => {
            let max = nodes.max.map_or_else(|| "None".to_owned(), |max| max.to_string());
            format!("min={} target={} max={max}", nodes.min, nodes.target)
        }
        (None, None) => "-".to_owned(),
    };
    table.property("Nodes", nodes);
    table.property(
        "Placement",
        configuration
            .placement
            .unwrap_or(InstanceGroupPlacement::Any)
            .as_str(),
    );
    if let Some(backends) = &configuration.backends {
        let names: Vec<&str> = backends.iter().map(|backend| backend.as_str()).collect();
        table.property("Backends", names.join(", "));
    }
    if let Some(regions) = &configuration.regions {
        table.property("Regions", regions.join(", "));
    }
    if !is_ssh {
        if let Some(spec) = &configuration.resources {
            table.property("Resources", resources::requirements(spec));
        }
        if let Some(policy) = merged.spot_policy {
            table.property("Spot policy", policy.as_str());
        }
    }
    if let Some(reservation) = &configuration.reservation {
        table.property("Reservation", reservation.as_str());
    }
    table
}

fn is_done(fleet: &Fleet) -> bool {
    let moving = [
        InstanceStatus::Pending,
        InstanceStatus::Provisioning,
        InstanceStatus::Terminating,
    ];
    !fleet
        .instances
        .iter()
        .any(|instance| moving.contains(&instance.status))
}

fn finish(ui: &Ui, project: &Project, fleet: &Fleet) -> ExitCode {
    let failed = fleet
        .instances
        .iter()
        .any(|instance| instance.status == InstanceStatus::Terminated);
    ui.table(&fleets::table(
        std::slice::from_ref(fleet),
        &project.name,
        failed,
        Dates::Clock,
    ));
    if !failed {
        return ExitCode::SUCCESS;
    }
    let active = fleet
        .instances
        .iter()
        .filter(|instance| instance.status.is_active())
        .count();
    let wanted = fleet.spec.configuration.nodes.map_or(0, |nodes| nodes.min);
    let retried = i64::try_from(active).unwrap_or(i64::MAX) < wanted;
    let rest = if retried {
        "Provisioning will be retried in the background."
    } else {
        "Check the table above for errors."
    };
    ui.say(Text::new().role(Role::Error, format!("\nSome instances failed. {rest}")));
    ExitCode::FAILURE
}

async fn get(project: &Project, name: &str) -> Result<Fleet, CliError> {
    let request = GetFleetRequest {
        name: Some(name.to_owned()),
        id: None,
    };
    Ok(project.client.call::<FleetsGet>(&project.name, &request).await?)
}

async fn call_delete(project: &Project, name: &str) -> Result<(), CliError> {
    Ok(project
        .client
        .call::<FleetsDelete>(&project.name, &NamesRequest::one(name))
        .await?)
}

/// `dstack delete -f` of a fleet: waits until it is gone.
pub(crate) async fn delete(
    context: &Context,
    project: &Project,
    name: &str,
    yes: bool,
) -> Result<ExitCode, CliError> {
    let ui = &context.ui;
    if !exists(project, name).await? {
        return Err(
            CliError::new(ErrorKind::NotFound, format!("Fleet {name} does not exist"))
                .hint("see `dstack fleet`"),
        );
    }
    if !yes
        && !ui
            .confirm(Text::from("Delete the fleet ").code(name).push("?"))
            .await?
    {
        return Ok(exiting(ui));
    }
    let spinner = ui.spin("Deleting fleet...");
    call_delete(project, name).await?;
    until_gone(async || exists(project, name).await).await?;
    drop(spinner);
    ui.say(Text::from("Fleet ").code(name).push(" deleted"));
    Ok(ExitCode::SUCCESS)
}
