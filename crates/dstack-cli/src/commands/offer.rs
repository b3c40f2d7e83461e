//! `dstack offer`: instances that could be had.

use std::process::ExitCode;

use dstack_api::routes::{GpusList, RunsGetPlan};
use dstack_model::configurations::{AnyRunConfiguration, TaskConfiguration};
use dstack_model::offers::{GpuGroup, InstanceOfferWithAvailability};
use dstack_model::profiles::SpotPolicy;
use dstack_model::requests::{GetRunPlanRequest, ListGpusRequest, OfferGrouping};
use dstack_model::resources::ResourcesSpec;
use dstack_model::runs::{JobPlan, Requirements, RunSpec};
use serde::Serialize;

use super::apply::plan::{max_price, no_offers, notices, notices_beside, spot_policy};
use super::print_line;
use crate::args::OfferArgs;
use crate::context::{Context, Project};
use crate::error::{CliError, ErrorKind};
use crate::format::{self, resources};
use crate::profiles;
use crate::tables::{explanations, offers};
use crate::ui::{Table, Text};

const FLEET_HINT: &str = "Hint: Existing fleets are ignored, and all available offers are shown. To filter by fleet, pass --fleet NAME.";
/// Ways to group, in the order of messages.
const GROUPINGS: [&str; 4] = ["backend", "count", "gpu", "region"];

#[derive(Serialize)]
struct Asked<'a> {
    resources: &'a ResourcesSpec,
    max_price: Option<f64>,
    spot: Option<bool>,
    reservation: Option<&'a str>,
}

#[derive(Serialize)]
struct OffersOutput<'a> {
    project: &'a str,
    user: &'a str,
    requirements: Asked<'a>,
    offers: &'a [InstanceOfferWithAvailability],
    total_offers: u64,
}

#[derive(Serialize)]
struct GpusOutput<'a> {
    project: &'a str,
    requirements: Asked<'a>,
    group_by: &'a [String],
    gpus: Vec<FullGpuGroup<'a>>,
}

/// A group with all its fields, unset ones as null.
#[derive(Serialize)]
struct FullGpuGroup<'a> {
    name: &'a str,
    memory_mib: i64,
    vendor: dstack_units::AcceleratorVendor,
    availability: &'a [dstack_model::instances::InstanceAvailability],
    spot: &'a [dstack_model::offers::SpotKind],
    count: dstack_units::Range<i64>,
    price: dstack_units::Range<f64>,
    offer_price: Option<dstack_units::Range<f64>>,
    backends: Option<&'a [dstack_model::backends::BackendType]>,
    backend: Option<dstack_model::backends::BackendType>,
    regions: Option<&'a [String]>,
    region: Option<&'a str>,
}

impl<'a> From<&'a GpuGroup> for FullGpuGroup<'a> {
    fn from(group: &'a GpuGroup) -> Self {
        Self {
            name: &group.name,
            memory_mib: group.memory_mib,
            vendor: group.vendor,
            availability: &group.availability,
            spot: &group.spot,
            count: group.count,
            price: group.price,
            offer_price: group.offer_price,
            backends: group.backends.as_deref(),
            backend: group.backend,
            regions: group.regions.as_deref(),
            region: group.region.as_deref(),
        }
    }
}

/// Runs the command.
pub(crate) async fn run(context: &Context, args: &OfferArgs) -> Result<ExitCode, CliError> {
    let group_by = group_by(&args.group_by)?;
    let project = context.project(args.project.name.as_deref())?;
    let spec = spec(context, args)?;
    if group_by.is_empty() {
        list_offers(context, &project, args, spec).await?;
    } else {
        list_gpus(context, &project, args, spec, &group_by).await?;
    }
    Ok(ExitCode::SUCCESS)
}

fn group_by(args: &[String]) -> Result<Vec<String>, CliError> {
    let words = args
        .iter()
        .flat_map(|arg| arg.split(','))
        .map(str::trim)
        .filter(|word| !word.is_empty());
    let words: Vec<String> = words.map(str::to_owned).collect();
    if let Some(bad) = words.iter().find(|word| !GROUPINGS.contains(&word.as_str())) {
        return Err(CliError::new(
            ErrorKind::Argument,
            format!(
                "Invalid group-by value: '{bad}'. Valid choices are: {}",
                GROUPINGS.join(", ")
            ),
        ));
    }
    if !words.is_empty() && !words.iter().any(|word| word == "gpu") {
        return Err(CliError::new(
            ErrorKind::Argument,
            format!(
                "Cannot group by '{}' without also grouping by 'gpu'",
                words.join(", ")
            ),
        ));
    }
    Ok(words)
}

/// A task that could run anywhere; the image `scratch` is never looked up.
fn spec(context: &Context, args: &OfferArgs) -> Result<RunSpec, CliError> {
    let mut task = TaskConfiguration {
        commands: vec![":".to_owned()],
        ..TaskConfiguration::default()
    };
    task.base.image = Some("scratch".to_owned());
    task.base.user = Some("root".to_owned());
    task.base.resources = ResourcesSpec::unconstrained();
    args.resources.apply(&mut task.base.resources);
    args.profile.apply(&mut task.params);
    let mut spec = RunSpec::new(AnyRunConfiguration::Task(Box::new(task)));
    spec.profile = Some(profiles::choose(context, &args.profile)?);
    Ok(spec)
}

async fn list_offers(
    context: &Context,
    project: &Project,
    args: &OfferArgs,
    spec: RunSpec,
) -> Result<(), CliError> {
    let ui = &context.ui;
    let any_fleet = spec.merged_profile().params.fleets.is_none();
    let spinner = (!args.format.is_json()).then(|| ui.spin("Getting offers..."));
    let request = GetRunPlanRequest {
        run_spec: spec,
        max_offers: Some(args.max_offers),
        reverse_offers: false,
        full_offers: args.full_offers,
        unallocated_resources: args.unallocated,
        for_offers_only: true,
        explain: args.explain,
    };
    let plan = project
        .client
        .call::<RunsGetPlan>(&project.name, &request)
        .await?;
    drop(spinner);
    let job = plan
        .job_plans
        .first()
        .ok_or_else(|| CliError::new(ErrorKind::VersionMismatch, "the server's plan has no jobs"))?;
    let requirements = &job.job_spec.requirements;
    if args.format.is_json() {
        notices_beside(ui, &plan.notices);
        let params = plan.run_spec.configuration.params();
        let asked = Asked {
            resources: &requirements.resources,
            max_price: requirements.max_price,
            spot: params.spot_policy.unwrap_or(SpotPolicy::Auto).requirement(),
            reservation: params.reservation.as_deref(),
        };
        return print_line(
            ui,
            &OffersOutput {
                project: &plan.project_name,
                user: &plan.user,
                requirements: asked,
                offers: &job.offers,
                total_offers: job.total_offers,
            },
        );
    }
    let mut table = Table::properties();
    table.property("Project", project.name.as_str());
    table.property("Resources", resources::requirements(&requirements.resources));
    table.property("Spot policy", spot_policy(requirements));
    table.property("Max price", max_price(requirements));
    ui.table(&table);
    ui.blank();
    print_offers(context, job, any_fleet);
    notices(ui, &plan.notices);
    if args.explain {
        ui.blank();
        explanations::print(ui, plan.explanations.as_deref());
    } else if job.offers.is_empty() {
        explanations::hint(ui, "dstack offer --explain");
    }
    Ok(())
}

fn print_offers(context: &Context, job: &JobPlan, any_fleet: bool) {
    let ui = &context.ui;
    if job.offers.is_empty() {
        no_offers(ui);
        return;
    }
    let shown = u64::try_from(job.offers.len()).unwrap_or(u64::MAX);
    // Below a short table the hint would be overlooked least, above it read first.
    let hint_first = any_fleet && job.total_offers <= shown && shown < 3;
    if hint_first {
        ui.say(Text::new().secondary(FLEET_HINT));
        ui.blank();
    }
    offers::print(
        ui,
        &job.offers,
        job.total_offers,
        job.max_price.unwrap_or_default(),
        false,
    );
    ui.blank();
    if any_fleet && !hint_first {
        ui.say(Text::new().secondary(FLEET_HINT));
    }
}

async fn list_gpus(
    context: &Context,
    project: &Project,
    args: &OfferArgs,
    spec: RunSpec,
    group_by: &[String],
) -> Result<(), CliError> {
    let ui = &context.ui;
    let merged = spec.merged_profile().params;
    let requirements = Requirements {
        resources: spec.configuration.base().resources.clone(),
        max_price: merged.max_price,
        spot: merged.spot_policy.unwrap_or(SpotPolicy::Auto).requirement(),
        reservation: merged.reservation.clone(),
        multinode: None,
        backend_options: None,
    };
    let spinner = (!args.format.is_json()).then(|| ui.spin("Getting offers..."));
    let groupings: Vec<OfferGrouping> = group_by.iter().filter_map(|word| word.parse().ok()).collect();
    let reservation = spec.configuration.params().reservation.clone();
    let request = ListGpusRequest {
        run_spec: spec,
        group_by: Some(groupings),
        reverse: false,
        full_offers: args.full_offers,
        unallocated_resources: args.unallocated,
    };
    let answer = project.client.call::<GpusList>(&project.name, &request).await?;
    let gpus = answer.gpus;
    drop(spinner);
    if args.format.is_json() {
        let asked = Asked {
            resources: &requirements.resources,
            max_price: requirements.max_price,
            spot: requirements.spot,
            reservation: reservation.as_deref(),
        };
        notices_beside(ui, &answer.notices);
        let gpus = gpus.iter().map(FullGpuGroup::from).collect();
        return print_line(
            ui,
            &GpusOutput {
                project: &project.name,
                requirements: asked,
                group_by,
                gpus,
            },
        );
    }
    let mut table = Table::properties();
    table.property("Project", project.name.as_str());
    table.property("Resources", resources::requirements(&requirements.resources));
    table.property("Spot policy", spot_policy(&requirements));
    table.property(
        "Max price",
        requirements
            .max_price
            .map_or_else(|| "-".to_owned(), format::limit),
    );
    table.property("Reservation", reservation.unwrap_or_else(|| "-".to_owned()));
    table.property("Group by", group_by.join(", "));
    ui.table(&table);
    ui.blank();
    ui.table(&offers::gpu_table(&gpus, ui.expands()));
    if !answer.notices.is_empty() {
        ui.blank();
    }
    notices(ui, &answer.notices);
    Ok(())
}
