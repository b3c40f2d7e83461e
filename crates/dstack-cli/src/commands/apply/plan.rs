//! What a run's plan says.

use dstack_model::configurations::AnyRunConfiguration;
use dstack_model::profiles::{CreationPolicy, DEFAULT_RUN_IDLE_DURATION};
use dstack_model::runs::{JobPlan, Requirements, RunPlan, RunSpec};

use crate::format::{self, resources};
use crate::tables::{explanations, offers};
use crate::ui::{Role, Table, Text, Ui};

const NO_OFFERS: &str = "No matching instance offers available.\n";
const NO_FLEETS: &str = "The project has no fleets: there is nothing that its jobs could run on.\n";

/// Prints the properties of a plan and its offers.
pub(crate) fn print(ui: &Ui, plan: &RunPlan, job: &JobPlan, max_offers: i64, no_fleets: bool, verbose: bool) {
    ui.table(&properties(plan, job, verbose));
    ui.blank();
    let limit = usize::try_from(max_offers).unwrap_or(usize::MAX);
    let shown = job.offers.get(..limit.min(job.offers.len())).unwrap_or_default();
    if shown.is_empty() {
        if no_fleets {
            ui.say(Text::new().role(Role::Error, NO_FLEETS));
            explanations::no_fleets(ui, &plan.project_name);
        } else {
            no_offers(ui);
        }
        notices(ui, &plan.notices);
        return;
    }
    offers::print(
        ui,
        shown,
        job.total_offers,
        job.max_price.unwrap_or_default(),
        true,
    );
    if let Some(note) = shown
        .first()
        .and_then(|first| offers::shortfall(&job.job_spec.requirements.resources, first))
    {
        ui.say(Text::new().secondary(note));
    }
    ui.blank();
    notices(ui, &plan.notices);
}

/// Says what will not be as the configuration says, and what is missing of the offers.
pub(crate) fn notices(ui: &Ui, notices: &[String]) {
    for notice in notices {
        ui.say(Text::new().role(Role::Warning, format!("Note: {notice}")));
    }
    if !notices.is_empty() {
        ui.blank();
    }
}

/// Says it beside output that programs read.
pub(crate) fn notices_beside(ui: &Ui, notices: &[String]) {
    for notice in notices {
        ui.complain(Text::new().role(Role::Warning, format!("Note: {notice}")));
    }
}

/// Says that nothing matches.
pub(crate) fn no_offers(ui: &Ui) {
    ui.say(Text::new().role(Role::Warning, NO_OFFERS));
}

fn properties(plan: &RunPlan, job: &JobPlan, verbose: bool) -> Table {
    let spec = plan.effective_run_spec();
    let profile = spec.merged_profile().params;
    let requirements = &job.job_spec.requirements;
    let mut table = Table::properties();
    table.property("Project", plan.project_name.as_str());
    table.property("User", plan.user.as_str());
    table.property("Type", kind(&spec.configuration));
    table.property("Resources", resources::requirements(&requirements.resources));
    table.property("Spot policy", spot_policy(requirements));
    table.property("Max price", max_price(requirements));
    let retry = job.job_spec.retry.as_ref().map_or_else(off, |retry| {
        let events: Vec<&str> = retry.on_events.iter().map(|event| event.as_str()).collect();
        format!("{}[{}]", format::duration(retry.duration), events.join(", "))
    });
    table.property("Retry policy", retry);
    let creation = profile.creation_policy.unwrap_or(CreationPolicy::ReuseOrCreate);
    if verbose || creation != CreationPolicy::ReuseOrCreate {
        table.property("Creation policy", creation.as_str());
    }
    let idle = match profile.idle_duration {
        Some(duration) if duration.is_off() => "-".to_owned(),
        Some(duration) => format::duration(duration.0),
        None => format::duration(DEFAULT_RUN_IDLE_DURATION.0),
    };
    table.property("Idle duration", idle);
    let max_duration = job
        .job_spec
        .max_duration
        .filter(|seconds| *seconds != 0)
        .map_or_else(off, format::duration);
    table.property("Max duration", max_duration);
    if let AnyRunConfiguration::DevEnvironment(environment) = &spec.configuration {
        table.property("Inactivity duration", inactivity(environment.inactivity_duration));
    }
    reservation(&mut table, spec, verbose);
    table
}

fn off() -> String {
    "off".to_owned()
}

fn inactivity(seconds: Option<i64>) -> String {
    seconds.map_or_else(off, format::duration)
}

fn kind(configuration: &AnyRunConfiguration) -> String {
    let Some(task) = configuration.task() else {
        return configuration.type_name().to_owned();
    };
    let nodes = match &task.groups {
        Some(groups) => groups.iter().map(|group| group.nodes).sum(),
        None => task.nodes.unwrap_or(1),
    };
    format!("task (nodes={nodes})")
}

fn reservation(table: &mut Table, spec: &RunSpec, verbose: bool) {
    let reservation = spec.configuration.params().reservation.as_deref();
    if verbose || reservation.is_some() {
        table.property("Reservation", reservation.unwrap_or("no"));
    }
}

/// `auto`, `spot` or `on-demand`.
pub(crate) const fn spot_policy(requirements: &Requirements) -> &'static str {
    match requirements.spot {
        None => "auto",
        Some(true) => "spot",
        Some(false) => "on-demand",
    }
}

/// `$2`, or `off`.
pub(crate) fn max_price(requirements: &Requirements) -> String {
    requirements
        .max_price
        .filter(|price| *price != 0.0)
        .map_or_else(off, format::limit)
}
