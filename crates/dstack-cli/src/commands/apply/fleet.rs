//! Applying and deleting a fleet.

use std::process::ExitCode;

use dstack_api::routes::{FleetsApply, FleetsDelete, FleetsGetPlan};
use dstack_model::common::ApplyAction;
use dstack_model::fleets::{
    ApplyFleetPlanInput, Fleet, FleetConfiguration, FleetPlan, FleetSpec, InstanceGroupPlacement, SshHost,
};
use dstack_model::instances::{Instance, InstanceStatus, SshKey};
use dstack_model::requests::{ApplyFleetPlanRequest, GetFleetPlanRequest, NamesRequest};

use super::prepare::apply_env;
use super::resource::{ApplyResource, Change, Existing, delete_and_wait};
use super::{diff, plan};
use crate::args::ApplyArgs;
use crate::commands::{self, exiting};
use crate::context::{Context, Project};
use crate::error::{CliError, ErrorKind};
use crate::format::resources;
use crate::profiles;
use crate::ssh::keys;
use crate::tables::{Dates, fleets, offers};
use crate::ui::{Table, Text, Ui};

/// Offers shown in a plan.
const SHOWN_OFFERS: usize = 3;

/// A fleet that is about to be applied.
pub(crate) struct FleetApply {
    spec: FleetSpec,
}

impl FleetApply {
    /// Fills in what the command line, the environment and key files say.
    ///
    /// # Errors
    /// A variable is not set, or a key file cannot be read.
    pub(crate) fn new(
        context: &Context,
        args: &ApplyArgs,
        mut configuration: FleetConfiguration,
        path: String,
    ) -> Result<Self, CliError> {
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
        let spec = FleetSpec {
            configuration,
            configuration_path: Some(path),
            profile: profiles::load(context, None)?,
            autocreated: false,
        };
        Ok(Self { spec })
    }
}

impl ApplyResource for FleetApply {
    type Resource = Fleet;
    type Plan = FleetPlan;

    const NOUN: &'static str = "fleet";
    const UPDATE_QUESTION: &'static str = "Update the fleet in-place?";

    async fn plan(&self, project: &Project) -> Result<FleetPlan, CliError> {
        let request = GetFleetPlanRequest {
            spec: self.spec.clone(),
        };
        Ok(project
            .client
            .call::<FleetsGetPlan>(&project.name, &request)
            .await?)
    }

    fn print_plan(&self, ui: &Ui, _project: &Project, plan: &FleetPlan) {
        print_plan(ui, plan);
    }

    fn configured_name(&self, plan: &FleetPlan) -> Option<String> {
        plan.spec.configuration.name.clone()
    }

    fn existing(&self, plan: &FleetPlan) -> Option<Existing> {
        let current = plan.current_resource.as_ref()?;
        let effective = plan.effective_spec.as_ref().unwrap_or(&plan.spec);
        let change = match (diff::others(effective, &current.spec), plan.action) {
            (None, _) => Change::Nothing,
            (Some(diff), Some(ApplyAction::Update)) => Change::InPlace(diff),
            (Some(diff), _) => Change::NotInPlace(diff),
        };
        Some(Existing {
            name: current.name.clone(),
            change,
        })
    }

    async fn submit(self, project: &Project, plan: FleetPlan) -> Result<Fleet, CliError> {
        let request = ApplyFleetPlanRequest {
            plan: ApplyFleetPlanInput {
                spec: plan.spec,
                current_resource: plan.current_resource,
            },
            force: false,
        };
        Ok(project
            .client
            .call::<FleetsApply>(&project.name, &request)
            .await?)
    }

    async fn find(project: &Project, name: &str) -> Result<Option<Fleet>, CliError> {
        commands::fleet::find(project, name).await
    }

    async fn delete(project: &Project, name: &str) -> Result<(), CliError> {
        Ok(project
            .client
            .call::<FleetsDelete>(&project.name, &NamesRequest::one(name))
            .await?)
    }

    fn name(fleet: &Fleet) -> &str {
        &fleet.name
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

    fn failure(fleet: &Fleet) -> Option<String> {
        let mut instances = fleet.instances.iter();
        if !instances.any(|instance| instance.status == InstanceStatus::Terminated) {
            return None;
        }
        let is_active = |instance: &&Instance| instance.status.is_active();
        let active = fleet.instances.iter().filter(is_active).count();
        let wanted = fleet.spec.configuration.nodes.map_or(0, |nodes| nodes.min);
        let rest = match i64::try_from(active).unwrap_or(i64::MAX) < wanted {
            true => "Provisioning will be retried in the background.",
            false => "Check the table above for errors.",
        };
        Some(format!("Some instances failed. {rest}"))
    }

    fn table(fleet: &Fleet, project: &Project, verbose: bool, dates: Dates) -> Table {
        fleets::table(std::slice::from_ref(fleet), &project.name, verbose, dates)
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
    plan::notices(ui, &fleet.notices);
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

/// `dstack delete -f` of a fleet: waits until it is gone.
pub(crate) async fn delete(
    context: &Context,
    project: &Project,
    name: &str,
    yes: bool,
) -> Result<ExitCode, CliError> {
    let ui = &context.ui;
    if FleetApply::find(project, name).await?.is_none() {
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
    delete_and_wait::<FleetApply>(project, name).await?;
    drop(spinner);
    ui.say(Text::from("Fleet ").code(name).push(" deleted"));
    Ok(ExitCode::SUCCESS)
}
