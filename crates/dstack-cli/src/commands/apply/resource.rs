//! Applying what is made once and then kept: fleets, gateways, volumes.
//!
//! [`apply`] is the flow: plan, decide, confirm, delete what is in the way, submit, wait, finish. [`ApplyResource`] is
//! what differs.

use std::process::ExitCode;
use std::time::Duration;

use super::interrupted;
use crate::args::ApplyArgs;
use crate::commands::{REFRESH, exiting};
use crate::context::{Context, Project};
use crate::error::{CliError, ErrorKind};
use crate::format::capitalize;
use crate::tables::Dates;
use crate::ui::{Role, Table, Text, Ui};

/// How long to wait between two questions whether a resource is deleted.
const DELETION_POLL: Duration = Duration::from_millis(500);

/// A configuration that is about to be applied.
pub(crate) trait ApplyResource: Sized {
    /// What the server makes of it.
    type Resource;
    /// What the server says about it beforehand.
    type Plan;

    /// The word for it in sentences: `fleet`.
    const NOUN: &'static str;
    /// The question before an update in place.
    const UPDATE_QUESTION: &'static str;
    /// What the spinner says while the server makes it.
    const SUBMITTING: &'static str = "Applying plan...";

    /// Asks the server what applying would do.
    async fn plan(&self, project: &Project) -> Result<Self::Plan, CliError>;

    /// Prints the plan.
    fn print_plan(&self, ui: &Ui, project: &Project, plan: &Self::Plan);

    /// Returns the name that the configuration gives, if it gives one.
    fn configured_name(&self, plan: &Self::Plan) -> Option<String>;

    /// Returns what there is of this name already.
    fn existing(&self, plan: &Self::Plan) -> Option<Existing>;

    /// Makes or updates it.
    async fn submit(self, project: &Project, plan: Self::Plan) -> Result<Self::Resource, CliError>;

    /// Returns the resource of this name; `None` when there is none.
    async fn find(project: &Project, name: &str) -> Result<Option<Self::Resource>, CliError>;

    /// Asks the server to delete the resource of this name; does not wait for it.
    async fn delete(project: &Project, name: &str) -> Result<(), CliError>;

    /// Returns the resource's name.
    fn name(resource: &Self::Resource) -> &str;

    /// Returns whether nothing will change any more.
    fn is_done(resource: &Self::Resource) -> bool;

    /// Returns what went wrong with a resource that is done.
    fn failure(resource: &Self::Resource) -> Option<String>;

    /// Returns the table of one resource.
    fn table(resource: &Self::Resource, project: &Project, verbose: bool, dates: Dates) -> Table;

    /// Returns the table to print after an update in place that is not waited for; `None` where it is.
    fn updated_table(_resource: &Self::Resource, _project: &Project) -> Option<Table> {
        None
    }
}

/// What there is of a name already.
pub(crate) struct Existing {
    pub(crate) name: String,
    pub(crate) change: Change,
}

/// How a configuration differs from what there is.
pub(crate) enum Change {
    /// Not at all.
    Nothing,
    /// In this list of fields, all of which can be updated in place.
    InPlace(String),
    /// In this list of fields, at least one of which cannot be updated in place.
    NotInPlace(String),
    /// Somehow: it is not known in which fields.
    Unknown,
}

/// What will be done when the user says yes.
struct Decision {
    question: String,
    /// The resource to delete first.
    recreated: Option<String>,
    in_place: bool,
}

/// A resource that the server has made or updated.
struct Submitted<T> {
    resource: T,
    in_place: bool,
}

/// Applies a configuration and waits until the resource is there.
pub(crate) async fn apply<A: ApplyResource>(
    context: &Context,
    project: &Project,
    args: &ApplyArgs,
    wanted: A,
) -> Result<ExitCode, CliError> {
    let ui = &context.ui;
    let submitted = tokio::select! {
        biased;
        submitted = submit(ui, project, args, wanted) => submitted?,
        () = crate::interrupt::ctrl_c() => return Ok(interrupted(&context.ui)),
    };
    let Some(Submitted { resource, in_place }) = submitted else {
        return Ok(ExitCode::SUCCESS);
    };
    if let Some(table) = A::updated_table(&resource, project).filter(|_| in_place) {
        ui.table(&table);
        return Ok(ExitCode::SUCCESS);
    }
    if args.detach {
        let noun = capitalize(A::NOUN);
        ui.say(format!("{noun} configuration submitted. Exiting..."));
        return Ok(ExitCode::SUCCESS);
    }
    let name = A::name(&resource).to_owned();
    let waited = tokio::select! {
        waited = wait::<A>(ui, project, resource) => Some(waited?),
        () = crate::interrupt::ctrl_c() => None,
    };
    match waited {
        Some(resource) => finish::<A>(ui, project, &resource),
        None => leave::<A>(ui, project, args, &name).await,
    }
}

/// Shows the plan, asks, and has it carried out; `None` when the user does not want it.
async fn submit<A: ApplyResource>(
    ui: &Ui,
    project: &Project,
    args: &ApplyArgs,
    wanted: A,
) -> Result<Option<Submitted<A::Resource>>, CliError> {
    let spinner = ui.spin("Getting apply plan...");
    let plan = wanted.plan(project).await?;
    drop(spinner);
    wanted.print_plan(ui, project, &plan);
    let Some(decision) = decide(&wanted, ui, args, &plan) else {
        return Ok(None);
    };
    if !args.yes && !ui.confirm(decision.question).await? {
        exiting(ui);
        return Ok(None);
    }
    if let Some(name) = decision.recreated {
        let _spinner = ui.spin(format!("Deleting existing {}...", A::NOUN));
        delete_and_wait::<A>(project, &name).await?;
    }
    let _spinner = ui.spin(A::SUBMITTING);
    let resource = wanted.submit(project, plan).await?;
    Ok(Some(Submitted {
        resource,
        in_place: decision.in_place,
    }))
}

/// Says how the plan differs from what there is; `None` when there is nothing to do.
fn decide<A: ApplyResource>(wanted: &A, ui: &Ui, args: &ApplyArgs, plan: &A::Plan) -> Option<Decision> {
    let name = wanted.configured_name(plan);
    let noun = A::NOUN;
    let Some(Existing {
        name: existing,
        change,
    }) = wanted.existing(plan)
    else {
        let text = name.map(|name| {
            Text::from(format!("{} ", capitalize(noun)))
                .code(name)
                .push(" does not exist yet.")
        });
        ui.say(text.unwrap_or_default());
        return Some(Decision {
            question: format!("Create the {noun}?"),
            recreated: None,
            in_place: false,
        });
    };
    if matches!(change, Change::Nothing) && args.yes && !args.force {
        ui.say("No configuration changes detected. Use --force to apply anyway.");
        return None;
    }
    let found = Text::from(format!("Found {noun} "))
        .code(name.unwrap_or_default())
        .push(".");
    let in_place = matches!(change, Change::InPlace(_));
    ui.say(match change {
        Change::Nothing => found.push(" No configuration changes detected."),
        Change::Unknown => found.push(" Configuration changes detected."),
        Change::InPlace(diff) => changes(found, |text| text.code("can"), &diff),
        Change::NotInPlace(diff) => changes(found, |text| text.role(Role::Error, "cannot"), &diff),
    });
    Some(match in_place {
        true => Decision {
            question: A::UPDATE_QUESTION.to_owned(),
            recreated: None,
            in_place,
        },
        false => Decision {
            question: format!("Re-create the {noun}?"),
            recreated: Some(existing),
            in_place,
        },
    })
}

fn changes(found: Text, can: impl FnOnce(Text) -> Text, diff: &str) -> Text {
    can(found.push(" Detected changes that ")).push(format!(" be updated in-place:\n{diff}"))
}

/// Shows a resource live until it is done.
async fn wait<A: ApplyResource>(
    ui: &Ui,
    project: &Project,
    mut resource: A::Resource,
) -> Result<A::Resource, CliError> {
    let name = A::name(&resource).to_owned();
    let live = ui.spin(Text::from("Provisioning ").code(&name).push("..."));
    while !A::is_done(&resource) {
        live.body(&A::table(&resource, project, false, Dates::Ago), &[]);
        tokio::time::sleep(REFRESH).await;
        resource = A::find(project, &name).await?.ok_or_else(|| {
            let noun = capitalize(A::NOUN);
            CliError::new(ErrorKind::Vanished, format!("{noun} {name} was deleted"))
        })?;
    }
    Ok(resource)
}

fn finish<A: ApplyResource>(
    ui: &Ui,
    project: &Project,
    resource: &A::Resource,
) -> Result<ExitCode, CliError> {
    let failure = A::failure(resource);
    ui.table(&A::table(resource, project, failure.is_some(), Dates::Clock));
    let Some(failure) = failure else {
        return Ok(ExitCode::SUCCESS);
    };
    ui.say(Text::new().role(Role::Error, format!("\n{failure}")));
    Err(CliError::printed(ErrorKind::ProvisioningFailed))
}

/// Ctrl-C while waiting: leaves the resource to the server, or deletes it.
async fn leave<A: ApplyResource>(
    ui: &Ui,
    project: &Project,
    args: &ApplyArgs,
    name: &str,
) -> Result<ExitCode, CliError> {
    let noun = A::NOUN;
    if !args.yes && ui.confirm(format!("Delete the {noun} before exiting?")).await? {
        let _spinner = ui.spin(format!("Deleting {noun}..."));
        A::delete(project, name).await?;
    } else {
        let noun = capitalize(noun);
        ui.say(format!(
            "Exiting... {noun} provisioning will continue in the background."
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Deletes a resource, and waits until the server no longer knows it.
pub(crate) async fn delete_and_wait<A: ApplyResource>(project: &Project, name: &str) -> Result<(), CliError> {
    A::delete(project, name).await?;
    while A::find(project, name).await?.is_some() {
        tokio::time::sleep(DELETION_POLL).await;
    }
    Ok(())
}
