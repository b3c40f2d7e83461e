//! `dstack event`: what happened.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use dstack_api::client::ClientError;
use dstack_api::endpoint::Nothing;
use dstack_api::routes::{EventsList, FleetsGet, GatewaysGet, ProjectsGet, RunsGet, SecretsGet, VolumesGet};
use dstack_model::common::EntityReference;
use dstack_model::events::{Event, EventTarget};
use dstack_model::requests::{GetFleetRequest, GetRunRequest, ListEventsRequest, NameRequest};
use dstack_units::{EventId, Time};
use uuid::Uuid;

use super::{REFRESH, since, unless_interrupted};
use crate::args::{EventAction, EventArgs, EventListArgs};
use crate::context::{Context, Project};
use crate::error::{CliError, ErrorKind};
use crate::format::date;
use crate::ui::{Text, Ui};

const PAGE: i64 = 100;
/// Events may be committed this much later than they say.
const LATE: Duration = Duration::from_secs(20);

/// Runs the command.
pub(crate) async fn run(context: &Context, args: EventArgs) -> Result<ExitCode, CliError> {
    let list = match args.action {
        Some(EventAction::List(list)) => merged(args.list, list),
        None => args.list,
    };
    let start = since(list.since.as_deref())?;
    let project = context.project(args.project.name.as_deref())?;
    let filters = filters(&project, &list).await?;
    let printing = async {
        if list.watch {
            watch(&context.ui, &project, &filters, start).await
        } else {
            print_once(&context.ui, &project, &filters, start).await
        }
    };
    unless_interrupted(printing, || ExitCode::SUCCESS).await
}

/// Options before the subcommand count unless it has its own.
fn merged(before: EventListArgs, after: EventListArgs) -> EventListArgs {
    EventListArgs {
        watch: before.watch || after.watch,
        since: after.since.or(before.since),
        ..after
    }
}

fn empty() -> ListEventsRequest {
    ListEventsRequest {
        target_projects: None,
        target_users: None,
        target_fleets: None,
        target_instances: None,
        target_runs: None,
        target_jobs: None,
        target_volumes: None,
        target_gateways: None,
        target_gateway_replicas: None,
        target_secrets: None,
        target_presets: None,
        within_projects: None,
        within_fleets: None,
        within_runs: None,
        within_gateways: None,
        include_target_types: None,
        actors: None,
        prev_recorded_at: None,
        prev_id: None,
        limit: PAGE,
        ascending: false,
    }
}

async fn filters(project: &Project, args: &EventListArgs) -> Result<ListEventsRequest, CliError> {
    let mut request = empty();
    request.target_fleets = fleet_ids(project, &args.target_fleets).await?;
    request.target_runs = run_ids(project, &args.target_runs).await?;
    request.target_volumes = volume_ids(project, &args.target_volumes).await?;
    let target_gateways: Vec<EntityReference> = args
        .target_gateways
        .iter()
        .map(|name| EntityReference {
            project: None,
            name: name.clone(),
        })
        .collect();
    request.target_gateways = gateway_ids(project, &target_gateways).await?;
    request.target_secrets = secret_ids(project, &args.target_secrets).await?;
    request.within_fleets = fleet_ids(project, &args.within_fleets).await?;
    request.within_runs = run_ids(project, &args.within_runs).await?;
    request.within_gateways = gateway_ids(project, &args.within_gateways).await?;
    let targets = [
        &request.target_fleets,
        &request.target_runs,
        &request.target_volumes,
        &request.target_gateways,
        &request.target_secrets,
    ];
    let within = [
        &request.within_fleets,
        &request.within_runs,
        &request.within_gateways,
    ];
    if targets.into_iter().chain(within).all(Option::is_none) {
        let current = project
            .client
            .call::<ProjectsGet>(&project.name, &Nothing)
            .await?;
        request.within_projects = Some(vec![uuid(current.project_id)?]);
    }
    if !args.include_target_types.is_empty() {
        request.include_target_types = Some(args.include_target_types.clone());
    }
    Ok(request)
}

/// Names what is not there.
fn missing(kind: &str, name: &str, error: ClientError) -> CliError {
    if error.is_not_exists() {
        let command = match kind {
            "Run" => "ps -a".to_owned(),
            kind => kind.to_lowercase(),
        };
        CliError::new(ErrorKind::NotFound, format!("{kind} {name} not found"))
            .hint(format!("see `dstack {command}`"))
    } else {
        error.into()
    }
}

/// An id as the server's filters take it.
fn uuid(id: impl std::fmt::Display) -> Result<Uuid, CliError> {
    super::parse_id(&id.to_string())
}

async fn fleet_ids(project: &Project, names: &[EntityReference]) -> Result<Option<Vec<Uuid>>, CliError> {
    let mut ids = Vec::new();
    for name in names {
        let owner = name.project.as_ref().unwrap_or(&project.name);
        let request = GetFleetRequest {
            name: Some(name.name.clone()),
            id: None,
        };
        let found = project.client.call::<FleetsGet>(owner, &request).await;
        ids.push(uuid(
            found.map_err(|error| missing("Fleet", &name.name, error))?.id,
        )?);
    }
    Ok((!ids.is_empty()).then_some(ids))
}

async fn run_ids(project: &Project, names: &[String]) -> Result<Option<Vec<Uuid>>, CliError> {
    let mut ids = Vec::new();
    for name in names {
        let request = GetRunRequest {
            run_name: Some(name.clone()),
            id: None,
        };
        let found = project.client.call::<RunsGet>(&project.name, &request).await;
        ids.push(uuid(found.map_err(|error| missing("Run", name, error))?.id)?);
    }
    Ok((!ids.is_empty()).then_some(ids))
}

async fn volume_ids(project: &Project, names: &[String]) -> Result<Option<Vec<Uuid>>, CliError> {
    let mut ids = Vec::new();
    for name in names {
        let request = NameRequest { name: name.clone() };
        let found = project.client.call::<VolumesGet>(&project.name, &request).await;
        ids.push(uuid(found.map_err(|error| missing("Volume", name, error))?.id)?);
    }
    Ok((!ids.is_empty()).then_some(ids))
}

async fn gateway_ids(project: &Project, names: &[EntityReference]) -> Result<Option<Vec<Uuid>>, CliError> {
    let mut ids = Vec::new();
    for name in names {
        let owner = name.project.as_ref().unwrap_or(&project.name);
        let request = NameRequest {
            name: name.name.clone(),
        };
        let found = project.client.call::<GatewaysGet>(owner, &request).await;
        ids.push(uuid(
            found.map_err(|error| missing("Gateway", &name.name, error))?.id,
        )?);
    }
    Ok((!ids.is_empty()).then_some(ids))
}

async fn secret_ids(project: &Project, names: &[String]) -> Result<Option<Vec<Uuid>>, CliError> {
    let mut ids = Vec::new();
    for name in names {
        let request = NameRequest { name: name.clone() };
        let found = project.client.call::<SecretsGet>(&project.name, &request).await;
        ids.push(uuid(found.map_err(|error| missing("Secret", name, error))?.id)?);
    }
    Ok((!ids.is_empty()).then_some(ids))
}

async fn print_once(
    ui: &Ui,
    project: &Project,
    filters: &ListEventsRequest,
    start: Option<Time>,
) -> Result<ExitCode, CliError> {
    let events = match start {
        Some(start) => all_since(project, filters, start).await?,
        None => latest(project, filters).await?,
    };
    for event in &events {
        print(ui, &project.name, event);
    }
    Ok(ExitCode::SUCCESS)
}

/// The last page, oldest first.
async fn latest(project: &Project, filters: &ListEventsRequest) -> Result<Vec<Event>, CliError> {
    let mut events = project.client.call::<EventsList>((), filters).await?;
    events.reverse();
    Ok(events)
}

async fn all_since(
    project: &Project,
    filters: &ListEventsRequest,
    start: Time,
) -> Result<Vec<Event>, CliError> {
    let mut request = ListEventsRequest {
        ascending: true,
        prev_recorded_at: Some(start),
        ..filters.clone()
    };
    let mut events: Vec<Event> = Vec::new();
    loop {
        let page = project.client.call::<EventsList>((), &request).await?;
        let full = i64::try_from(page.len()).unwrap_or(i64::MAX) >= PAGE;
        events.extend(page);
        let Some(last) = events.last().filter(|_| full) else {
            return Ok(events);
        };
        request.prev_id = Some(last.id);
        request.prev_recorded_at = Some(last.recorded_at);
    }
}

async fn watch(
    ui: &Ui,
    project: &Project,
    filters: &ListEventsRequest,
    start: Option<Time>,
) -> Result<ExitCode, CliError> {
    let mut seen: BTreeMap<EventId, Time> = BTreeMap::new();
    let mut newest: Option<Time> = None;
    loop {
        let from = newest.map(|newest| newest - LATE).into_iter().chain(start).max();
        let events = match from {
            None => latest(project, filters).await?,
            Some(from) => {
                seen.retain(|_, recorded_at| *recorded_at >= from);
                all_since(project, filters, from).await?
            }
        };
        for event in &events {
            newest = newest.max(Some(event.recorded_at));
            if seen.insert(event.id, event.recorded_at).is_none() {
                print(ui, &project.name, event);
            }
        }
        tokio::time::sleep(REFRESH).await;
    }
}

fn print(ui: &Ui, project: &str, event: &Event) {
    let targets: Vec<String> = event
        .targets
        .iter()
        .map(|target| show_target(project, target))
        .collect();
    let time = format!("[{}] ", date::full(event.recorded_at));
    let indent = time.chars().count();
    let mut text = Text::new().push(time);
    if let Some(user) = &event.actor_user {
        text = text.secondary(format!("[👤{user}]")).push(" ");
    }
    let text = text
        .secondary(format!("[{}]", targets.join(", ")))
        .push(format!(" {}", one_line(&event.message)));
    ui.say_hanging(&text, indent);
}

/// One line per event, whatever its message: so that the output can be searched.
fn one_line(message: &str) -> String {
    message
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

fn show_target(project: &str, target: &EventTarget) -> String {
    match target
        .project_name
        .as_deref()
        .filter(|owner| target.kind != "project" && *owner != project)
    {
        Some(owner) => format!("{} {owner}/{}", target.kind, target.name),
        None => format!("{} {}", target.kind, target.name),
    }
}
