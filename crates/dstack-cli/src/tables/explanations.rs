//! Why a job would be placed where it would, and what to change when it cannot be placed.

use dstack_model::explanations::{ChangeSet, FleetVerdict, InstanceVerdict, JobExplanation, OfferVerdict};

use crate::format;
use crate::ui::{Column, Role, Style, Table, Text, Ui};

/// How to learn why nothing fits.
pub(crate) fn hint(ui: &Ui, command: &str) {
    let hint = Text::styled("hint:", Style::bold(Role::Moving)).push(" see why, and what would help, with ");
    ui.complain(hint.code(command));
}

/// Says what else may help.
pub(crate) fn hint_with(ui: &Ui, text: &str) {
    ui.complain(Text::styled("hint:", Style::bold(Role::Moving)).push(format!(" {text}")));
}

/// Says where jobs can run while the project has no fleets.
pub(crate) fn no_fleets(ui: &Ui, project: &str) {
    hint_with(
        ui,
        match project {
            "main" => {
                "a server that is started with `--local` offers its own machine, as a fleet of this project"
            }
            _ => {
                "use project main: its fleet is the server's own machine, if the server offers that (`--local`)"
            }
        },
    );
}

/// Prints what the server says of each job. Jobs that differ in nothing but their number are shown once.
pub(crate) fn print(ui: &Ui, explanations: Option<&[JobExplanation]>) {
    let Some(explanations) = explanations else {
        ui.complain(Text::new().role(Role::Warning, "This server does not explain its plans."));
        return;
    };
    let mut shown: Vec<JobExplanation> = Vec::new();
    for explanation in explanations {
        let unnamed = JobExplanation {
            job_name: String::new(),
            ..explanation.clone()
        };
        if shown.contains(&unnamed) {
            continue;
        }
        shown.push(unnamed);
        print_one(ui, explanation);
    }
}

fn print_one(ui: &Ui, job: &JobExplanation) {
    let verdict = if job.fits {
        Text::new().role(Role::Success, "can be placed")
    } else {
        Text::new().role(Role::Warning, "cannot be placed")
    };
    ui.say(Text::from("Job ").code(&job.job_name).push(" ").append(verdict));
    ui.table(&candidates(job));
    let left = job
        .total_refused_offers
        .saturating_sub(job.refused_offers.len() as u64);
    if left > 0 {
        let plural = if left == 1 { "offer was" } else { "offers were" };
        ui.say(Text::new().secondary(format!(" {left} more {plural} not taken")));
    }
    ui.blank();
    if !job.changes.is_empty() {
        ui.say("What would help, any one of:");
        for change in &job.changes {
            ui.say(help(change));
        }
        ui.blank();
    }
}

fn candidates(job: &JobExplanation) -> Table {
    let mut table = Table::new(vec![
        Column::new("CANDIDATE").style(Style::SECONDARY).no_wrap(),
        Column::new("NAME").no_wrap(),
        Column::new("PRICE").style(Style::SECONDARY).no_wrap(),
        Column::new("VERDICT"),
    ]);
    for fleet in &job.fleets {
        table.row(vec![
            "fleet".into(),
            fleet.name.clone().into(),
            Text::new(),
            of_fleet(fleet, job.fits),
        ]);
    }
    for instance in &job.instances {
        let name = format!("{} of {}", instance.name, instance.fleet);
        table.row(vec![
            "instance".into(),
            name.into(),
            Text::new(),
            of_instance(instance),
        ]);
    }
    for offer in &job.refused_offers {
        let spot = if offer.spot { " (spot)" } else { "" };
        let price = format!("{}{spot}", format::price(offer.price));
        table.row(vec![
            "offer".into(),
            name_of(offer).into(),
            price.into(),
            no(&offer.reasons),
        ]);
    }
    table
}

fn name_of(offer: &OfferVerdict) -> String {
    let place = format::backend(Some(offer.backend.as_str()), Some(&offer.region));
    format!("{} {place}", offer.instance)
}

/// A fleet is chosen also where nothing of it is available: its instances say so.
fn of_fleet(fleet: &FleetVerdict, fits: bool) -> Text {
    let mut text = match (&fleet.reason, fleet.chosen && fits) {
        (Some(reason), _) => return no(std::slice::from_ref(reason)),
        (None, true) => Text::new().role(Role::Success, "chosen"),
        (None, false) => Text::from("possible"),
    };
    if let Some(reason) = &fleet.no_new_instances {
        text = text.push(format!("; {reason}"));
    }
    text
}

fn of_instance(instance: &InstanceVerdict) -> Text {
    if instance.available {
        Text::new().role(Role::Success, "fits")
    } else {
        no(&instance.reasons)
    }
}

fn no(reasons: &[String]) -> Text {
    Text::new()
        .role(Role::Warning, "no")
        .push(format!(": {}", reasons.join("; ")))
}

fn help(change: &ChangeSet) -> Text {
    let mut text = Text::from(" - ");
    for (index, field) in change.fields.iter().enumerate() {
        if index > 0 {
            text = text.push(" and ");
        }
        if field.to == "unset" {
            text = text.push("without ").code(&field.field);
            continue;
        }
        text = text.code(format!("{}: {}", field.field, field.to));
        if let Some(from) = &field.from {
            text = text.push(format!(" instead of {from}"));
        }
    }
    text.secondary(format!(
        " gives {} at {} an hour",
        change.gives,
        format::price(change.price)
    ))
}
