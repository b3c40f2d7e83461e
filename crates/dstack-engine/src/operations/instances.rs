//! Durable calls to clouds: instances are made and ended.
//!
//! Offers are tried one after the other. What a backend is about to make for an offer it notes before; when the offer does not
//! work, all that was noted is removed before the next one is tried: nothing is made twice, and nothing is forgotten.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_compute::{
    Backend, ComputeError, Container, ContainerRequest, GroupRequest, Known, Lifecycle, Machine,
    MachineRequest, Marks, Removal, Step as Progress,
};
use dstack_model::Decode;
use dstack_model::backends::BackendType;
use dstack_model::compute_groups::ComputeGroupProvisioningData;
use dstack_model::decode::decode_strict;
use dstack_model::instances::InstanceStatus;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::runs::{JobProvisioningData, JobStatus};
use dstack_plan::fleets::{Failure, add_failure, all_failed, none_for_fleet};
use dstack_plan::lifecycle::instance::{CREATION_TIMEOUT, Purpose};
use dstack_plan::offers::{AvailableOffers, Unanswered};
use dstack_store::rows::{FleetRow, InstanceRow, JobRow, OperationKind, OperationRow};
use dstack_store::{EntityRef, InstanceSnapshot};
use dstack_system::chain;
use dstack_units::{ProjectId, Time};
use serde::Serialize;
use serde_json::Value;

use super::clouds::{OperationJournal, backend, done, keep, keep_changed, not_yet, refused, remove};
use super::placement_groups::{self, GROUP_INTERVAL, GroupForMachine};
use super::{Step, Subject, claims, containers, hosts, last_of, late_offers, note_error};
use crate::context::Context;
use crate::inputs::InputsError;
use crate::job_volumes::Claimed;
use crate::{EngineError, Result};

/// How far the making of an instance is.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct OfferAttempts {
    /// Offers that are still to be tried, best first.
    remaining: Vec<Offer>,
    /// Offers where the network volumes are not that were taken, best first: when none of `remaining` works, they are tried with other
    /// volumes.
    #[decode(default = Vec::new())]
    // Servers before this one cannot read it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    elsewhere: Vec<Offer>,
    /// Who had not answered when the offers were taken: when none of these works, what the others offer meanwhile is tried.
    // Servers before this one cannot read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    unanswered: Option<Unanswered>,
    /// How many there were.
    total: u64,
    /// How many were tried.
    tried: u64,
    /// What clouds said, each once.
    errors: Vec<OfferError>,
    /// The first of `remaining` is being tried, or was made.
    trial: Option<Trial>,
    /// How long the instance may be idle, in seconds; unset: for ever.
    idle_secs: Option<u64>,
    /// It is the fleet that wants the instance, and not a job.
    #[decode(default = false)]
    for_fleet: bool,
    /// The reservation that it is to be made of.
    reservation: Option<String>,
    /// What was made, of the first of `remaining`.
    created: Option<JobProvisioningData>,
    /// The compute group that was made, of the first of `remaining`.
    created_group: Option<ComputeGroupProvisioningData>,
}

/// One offer that is being tried.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
struct Trial {
    /// Since when.
    since: Time,
    /// What the backend has noted.
    pieces: Option<Value>,
    /// Why it does not work: what was noted is being removed.
    failure: Option<String>,
}

impl Trial {
    fn pieces(&self) -> Value {
        self.pieces.clone().unwrap_or_default()
    }
}

/// See [`Failure`].
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
struct OfferError {
    offer: String,
    error: String,
}

impl OfferAttempts {
    /// Of these offers.
    pub fn of(offers: &AvailableOffers, idle_for: Option<Duration>) -> Self {
        Self {
            remaining: offers.best.clone(),
            elsewhere: Vec::new(),
            unanswered: None,
            total: u64::try_from(offers.total).unwrap_or(u64::MAX),
            tried: 0,
            errors: Vec::new(),
            trial: None,
            idle_secs: idle_for.map(|idle| idle.as_secs()),
            for_fleet: false,
            reservation: None,
            created: None,
            created_group: None,
        }
    }

    /// Wanted by the fleet itself.
    #[must_use]
    pub fn for_fleet(self) -> Self {
        Self {
            for_fleet: true,
            ..self
        }
    }

    /// Of that reservation, if one is given.
    #[must_use]
    pub fn reserved(self, reservation: Option<String>) -> Self {
        Self { reservation, ..self }
    }

    /// After them these, with other network volumes.
    #[must_use]
    pub fn then_elsewhere(self, elsewhere: Vec<Offer>) -> Self {
        Self { elsewhere, ..self }
    }

    /// After all of these what backends offer that had not answered.
    #[must_use]
    pub fn then_late(self, unanswered: Option<Unanswered>) -> Self {
        Self { unanswered, ..self }
    }

    /// With offers that came late, after which these backends are still to answer. Volumes that were taken are where the earlier ones are:
    /// others are taken for these.
    pub(super) fn with_late(&self, offers: AvailableOffers, unanswered: Option<Unanswered>) -> Self {
        let mut next = self.clone().then_late(unanswered);
        let query = self.unanswered.as_ref().map(|unanswered| &unanswered.query);
        if query.is_some_and(|query| !query.volumes().is_empty()) {
            next.elsewhere.extend(offers.best);
        } else {
            next.total = self
                .total
                .saturating_add(u64::try_from(offers.total).unwrap_or(u64::MAX));
            next.remaining.extend(offers.best);
        }
        next
    }

    /// What is tried with other network volumes.
    pub(super) fn elsewhere(&self) -> AvailableOffers {
        AvailableOffers {
            best: self.elsewhere.clone(),
            total: self.elsewhere.len(),
            late: Vec::new(),
        }
    }

    /// With other network volumes, and with the offers that have these.
    pub(super) fn with_other_volumes(&self, claimed: Claimed) -> Self {
        let more = u64::try_from(claimed.offers.total).unwrap_or(u64::MAX);
        Self {
            remaining: claimed.offers.best,
            elsewhere: claimed.elsewhere,
            total: self.total.saturating_add(more),
            ..self.clone()
        }
    }

    /// Who wants the instance.
    pub const fn purpose(&self) -> Purpose {
        if self.for_fleet {
            Purpose::Fleet
        } else {
            Purpose::Job
        }
    }

    /// As it is kept with its operation.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// As an operation has it.
    pub fn read(operation: &OperationRow) -> Option<Self> {
        decode_strict(operation.notes.as_deref()?).ok()
    }

    /// What was made, and of which offer.
    pub fn created(&self) -> Option<(&Offer, &JobProvisioningData)> {
        Some((self.remaining.first()?, self.created.as_ref()?))
    }

    /// The compute group that was made.
    pub const fn created_group(&self) -> Option<&ComputeGroupProvisioningData> {
        self.created_group.as_ref()
    }

    /// The same for a member of the group that was made, by the number of its node.
    #[must_use]
    pub fn of_member(&self, node: usize) -> Self {
        let members = self
            .created_group
            .as_ref()
            .map(|group| &group.job_provisioning_datas);
        Self {
            created: members.and_then(|members| members.get(node).cloned()),
            ..self.clone()
        }
    }

    /// How long the instance may be idle; `None`: for ever.
    pub fn idle_for(&self) -> Option<Duration> {
        self.idle_secs.map(Duration::from_secs)
    }

    /// What the backend has noted of what was made.
    pub(super) fn pieces(&self) -> Value {
        self.trial.as_ref().map(Trial::pieces).unwrap_or_default()
    }

    /// With these notes of the backend.
    fn with_pieces(&self, pieces: &Value) -> Self {
        let mut attempts = self.clone();
        if let Some(trial) = &mut attempts.trial {
            trial.pieces = Some(pieces.clone()).filter(|pieces| !pieces.is_null());
        }
        attempts
    }

    /// The first offer did not work, and nothing of it is left.
    fn failed(&mut self, error: &str, counts: bool) {
        self.trial = None;
        if self.remaining.is_empty() {
            return;
        }
        self.tried += u64::from(counts);
        let offer = self.remaining.remove(0);
        let mut failures: Vec<Failure> = self.errors.drain(..).map(Failure::from).collect();
        add_failure(&mut failures, Failure::new(&offer, error));
        self.errors.extend(failures.into_iter().map(OfferError::from));
    }

    fn failure(&self, fleet: &str) -> String {
        let failures: Vec<Failure> = self.errors.iter().cloned().map(Failure::from).collect();
        let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        if self.for_fleet {
            return none_for_fleet(count(self.total), &failures);
        }
        all_failed(fleet, count(self.tried), count(self.total), &failures)
    }
}

impl From<OfferError> for Failure {
    fn from(one: OfferError) -> Self {
        Self {
            offer: one.offer,
            error: one.error,
        }
    }
}

impl From<Failure> for OfferError {
    fn from(one: Failure) -> Self {
        Self {
            offer: one.offer,
            error: one.error,
        }
    }
}

#[async_trait]
impl Subject for InstanceSnapshot {
    fn operations(&self) -> &[OperationRow] {
        &self.operations
    }

    async fn call(&self, ctx: &Arc<Context>, operation: OperationRow) -> Result<Step> {
        match operation.kind {
            OperationKind::Create => create(ctx, self, operation).await,
            OperationKind::Remove => terminate(ctx, self, operation).await,
            OperationKind::Prepare if containers::is_made(self) => {
                containers::prepare(ctx, self, operation).await
            }
            OperationKind::Prepare => hosts::prepare(ctx, self, operation).await,
            OperationKind::Release => hosts::release(ctx, self, operation).await,
            _ => refused(ctx, operation, "nothing that a cloud does".to_owned()).await,
        }
    }
}

/// What is made of one of several offers: an instance, or several as one.
#[async_trait]
pub(super) trait OfOffers: Sync {
    /// Whose operation it is.
    fn entity(&self) -> EntityRef;
    /// Name, for people.
    fn name(&self) -> &str;
    /// Project that it is for.
    fn project(&self) -> ProjectId;
    /// Fleet that it is for.
    fn fleet(&self) -> Option<&FleetRow>;
    /// Whether it is still to be made.
    fn is_wanted(&self) -> bool;
    /// The jobs that wait for it, each with its instance.
    async fn waiting(&self, ctx: &Context) -> Result<Vec<(InstanceRow, JobRow)>>;
    /// What a backend is asked for, to make it of an offer.
    async fn ask(
        &self,
        ctx: &Context,
        attempts: &OfferAttempts,
        offer: &Offer,
        cloud: &dyn Backend,
    ) -> Result<Ask, NotAsked>;
    /// Removes what was noted while it was made of an offer.
    async fn clear(
        &self,
        ctx: &Context,
        journal: &OperationJournal<'_>,
        cloud: &dyn Backend,
        offer: &Offer,
    ) -> Result<Removal, ComputeError>;
}

/// Why a backend is not asked for what is to be made of an offer.
pub(super) enum NotAsked {
    /// What it needs cannot be had for this offer: the next one is tried.
    Refused(ComputeError),
    /// Something cannot be read now: it is tried again.
    NotNow(ComputeError),
    /// What it needs first is being made.
    Underway,
    /// Something was written down on the way: on with the next call.
    Next,
    /// The engine cannot go on.
    Failed(EngineError),
}

impl From<EngineError> for NotAsked {
    fn from(error: EngineError) -> Self {
        Self::Failed(error)
    }
}

impl From<InputsError> for NotAsked {
    fn from(error: InputsError) -> Self {
        match error {
            InputsError::Transient(error) => {
                Self::NotNow(ComputeError::Unclear(chain(error.as_ref()).to_string()))
            }
            InputsError::Refused(error) => Self::Refused(ComputeError::Refused(error)),
        }
    }
}

#[async_trait]
impl OfOffers for InstanceSnapshot {
    fn entity(&self) -> EntityRef {
        EntityRef::Instance(self.instance.id)
    }

    fn name(&self) -> &str {
        &self.instance.name
    }

    fn project(&self) -> ProjectId {
        self.instance.project_id
    }

    fn fleet(&self) -> Option<&FleetRow> {
        self.fleet.as_ref()
    }

    fn is_wanted(&self) -> bool {
        self.instance.status() == InstanceStatus::Pending
    }

    async fn waiting(&self, _ctx: &Context) -> Result<Vec<(InstanceRow, JobRow)>> {
        Ok(waiting_for(self).collect())
    }

    async fn ask(
        &self,
        ctx: &Context,
        attempts: &OfferAttempts,
        offer: &Offer,
        cloud: &dyn Backend,
    ) -> Result<Ask, NotAsked> {
        let is_begun = !attempts.pieces().is_null();
        let group = match placement_groups::group_for(ctx, self, offer, cloud, is_begun).await? {
            GroupForMachine::None => None,
            GroupForMachine::In(name) => Some(name),
            GroupForMachine::Chosen => return Err(NotAsked::Next),
            GroupForMachine::Underway => return Err(NotAsked::Underway),
            GroupForMachine::Refused(error) => return Err(NotAsked::Refused(error)),
        };
        Ok(ask(ctx, self, attempts, (offer.clone(), group)).await?)
    }

    async fn clear(
        &self,
        ctx: &Context,
        journal: &OperationJournal<'_>,
        cloud: &dyn Backend,
        offer: &Offer,
    ) -> Result<Removal, ComputeError> {
        clear_pieces(journal, cloud, marks(ctx, &self.instance), offer).await
    }
}

/// The jobs that wait for an instance, each with it.
pub(super) fn waiting_for(snapshot: &InstanceSnapshot) -> impl Iterator<Item = (InstanceRow, JobRow)> {
    let jobs = snapshot.jobs.iter();
    let waiting = jobs.filter(|job| job.status() == JobStatus::Submitted);
    waiting.map(|job| (snapshot.instance.clone(), job.clone()))
}

/// One call on the way to what is made of one of several offers.
pub(super) async fn create(
    ctx: &Arc<Context>,
    subject: &dyn OfOffers,
    operation: OperationRow,
) -> Result<Step> {
    let Some(attempts) = OfferAttempts::read(&operation) else {
        // Something may have been made: not given up.
        return unreadable(ctx, operation).await;
    };
    let offer = attempts.remaining.first().cloned();
    let is_wanted = subject.is_wanted() && ctx.now() < operation.created_at + CREATION_TIMEOUT;
    match (&attempts.trial, offer) {
        (Some(trial), Some(offer)) => match trial
            .failure
            .clone()
            .or_else(|| too_late(ctx, subject, trial, &offer, &operation))
        {
            Some(failure) => clear(ctx, subject, operation, attempts, (&offer, failure)).await,
            None => ensure(ctx, subject, operation, attempts, &offer).await,
        },
        (None, None) if is_wanted && claims::take_others(ctx, subject, &operation, &attempts).await? => {
            Ok(Step::Next)
        }
        (None, None) if is_wanted && let Some(unanswered) = &attempts.unanswered => {
            late_offers::take(ctx, subject, operation, &attempts, unanswered).await
        }
        (None, Some(offer)) if is_wanted => {
            let trial = Trial {
                since: ctx.now(),
                pieces: None,
                failure: None,
            };
            let attempts = OfferAttempts {
                trial: Some(trial),
                ..attempts
            };
            ensure(ctx, subject, operation, attempts, &offer).await
        }
        _ => {
            let fleet = subject.fleet().map_or("", |fleet| &fleet.name);
            refused(ctx, operation, attempts.failure(fleet)).await
        }
    }
}

/// Why an offer is not tried any further.
fn too_late(
    ctx: &Context,
    subject: &dyn OfOffers,
    trial: &Trial,
    offer: &Offer,
    operation: &OperationRow,
) -> Option<String> {
    if !subject.is_wanted() {
        return Some("not wanted any more".to_owned());
    }
    let limit = ctx
        .deps
        .backends
        .provisioning_timeout(offer.backend, &offer.instance.name);
    if ctx.now() < trial.since + limit {
        return None;
    }
    let said = operation.error.as_ref().map(|error| format!(": {error}"));
    let minutes = limit.as_secs() / 60;
    Some(format!(
        "not made within {minutes} minutes{}",
        said.unwrap_or_default()
    ))
}

/// The backend makes the next piece of what is to be had for an offer.
async fn ensure(
    ctx: &Context,
    subject: &dyn OfOffers,
    operation: OperationRow,
    mut attempts: OfferAttempts,
    offer: &Offer,
) -> Result<Step> {
    let is_begun = !attempts.pieces().is_null();
    let cloud = match cloud_of(ctx, subject.project(), offer.backend).await {
        Ok(cloud) => cloud,
        Err(error) if is_begun || error.is_transient() => return not_yet(ctx, operation, &error).await,
        Err(error) => return next_offer(ctx, operation, attempts, &error.details(), true).await,
    };
    let ask = match subject.ask(ctx, &attempts, offer, cloud.as_ref()).await {
        Ok(ask) => ask,
        Err(NotAsked::Next) => return Ok(Step::Next),
        Err(NotAsked::Underway) => {
            // Since when the offer is tried counts from here.
            keep_changed(ctx, operation, attempts.to_json()).await?;
            return Ok(Step::Woken(GROUP_INTERVAL));
        }
        Err(NotAsked::NotNow(error)) => return not_yet(ctx, operation, &error).await,
        Err(NotAsked::Refused(error)) => {
            return next_offer(ctx, operation, attempts, &error.details(), counts(&error)).await;
        }
        Err(NotAsked::Failed(error)) => return Err(error),
    };
    let embed = |pieces: &Value| attempts.with_pieces(pieces).to_json();
    let journal = OperationJournal::new(ctx, operation, attempts.pieces(), "cloud.create.before", embed)
        .expecting(subject.project(), offer.backend);
    let made = ask.ensure(&journal, cloud.as_ref()).await;
    ctx.reached("cloud.create.after")?;
    let (operation, pieces) = journal.end()?;
    attempts = attempts.with_pieces(&pieces);
    match made {
        Ok(Progress::Ready(made)) => {
            match made {
                Made::Instance(place) => attempts.created = Some(*place),
                Made::Group(group) => attempts.created_group = Some(*group),
            }
            // Servers before this one can read what is left, and remove what was made.
            attempts.unanswered = None;
            done(ctx, operation, attempts.to_json()).await
        }
        Ok(Progress::Underway { again, .. }) => {
            keep_changed(ctx, operation, attempts.to_json()).await?;
            Ok(Step::After(again))
        }
        Err(error) if error.is_transient() => {
            tracing::warn!(instance.name = subject.name(), %error, "a cloud does not say whether it made an instance");
            not_yet(ctx, operation, &error).await
        }
        Err(error) => {
            tracing::info!(instance.name = subject.name(), offer = offer.instance.name, %error, "an offer did not work");
            next_offer(ctx, operation, attempts, &error.details(), counts(&error)).await
        }
    }
}

/// Whether an offer was tried that did not work for this reason.
const fn counts(error: &ComputeError) -> bool {
    !matches!(error, ComputeError::Skipped(_))
}

/// The first offer did not work: what was made for it is removed, then comes the next.
async fn next_offer(
    ctx: &Context,
    operation: OperationRow,
    mut attempts: OfferAttempts,
    failure: &str,
    counts: bool,
) -> Result<Step> {
    match &mut attempts.trial {
        Some(trial) if trial.pieces.is_some() => trial.failure = Some(failure.to_owned()),
        _ => attempts.failed(failure, counts),
    }
    keep(ctx, operation, attempts.to_json()).await?;
    Ok(Step::Next)
}

/// Removes what was made for an offer that does not work.
async fn clear(
    ctx: &Context,
    subject: &dyn OfOffers,
    operation: OperationRow,
    mut attempts: OfferAttempts,
    (offer, failure): (&Offer, String),
) -> Result<Step> {
    if let Some(trial) = &mut attempts.trial {
        trial.failure = Some(failure.clone());
    }
    if attempts.pieces().is_null() {
        attempts.failed(&failure, true);
        keep(ctx, operation, attempts.to_json()).await?;
        return Ok(Step::Next);
    }
    let cloud = match cloud_of(ctx, subject.project(), offer.backend).await {
        Ok(cloud) => cloud,
        Err(error) => return not_yet(ctx, operation, &error).await,
    };
    let embed = |pieces: &Value| attempts.with_pieces(pieces).to_json();
    let journal = OperationJournal::new(ctx, operation, attempts.pieces(), "cloud.remove.noted", embed);
    ctx.before_effect("cloud.clear.before", subject.entity())?;
    let removed = subject.clear(ctx, &journal, cloud.as_ref(), offer).await;
    ctx.reached("cloud.clear.after")?;
    let (operation, pieces) = journal.end()?;
    attempts = attempts.with_pieces(&pieces);
    match removed {
        Ok(Removal::Gone) => {
            attempts.failed(&failure, true);
            keep(ctx, operation, attempts.to_json()).await?;
            Ok(Step::Next)
        }
        Ok(Removal::Underway { again }) => {
            keep_changed(ctx, operation, attempts.to_json()).await?;
            Ok(Step::After(again))
        }
        Err(error) => not_yet(ctx, operation, &error).await,
    }
}

async fn clear_pieces(
    journal: &OperationJournal<'_>,
    cloud: &dyn Backend,
    marks: Marks,
    offer: &Offer,
) -> Result<Removal, ComputeError> {
    if containers::is_offered(offer) {
        return containers::clear(journal, cloud, marks, offer).await;
    }
    let machines = cloud
        .machines()
        .ok_or(ComputeError::Unsupported("to remove machines"))?;
    let known = Known {
        marks,
        site: offer.region.to_string(),
        place: None,
    };
    journal.remove(machines, &known).await
}

/// Waits for a version that can read what was made.
pub(super) async fn unreadable(ctx: &Context, operation: OperationRow) -> Result<Step> {
    let error =
        "what was made is stored in a form that this version cannot read: start the version that made it";
    note_error(ctx, operation, error.to_owned()).await?;
    Ok(Step::Again)
}

/// Has the cloud end what it made.
async fn terminate(ctx: &Context, snapshot: &InstanceSnapshot, operation: OperationRow) -> Result<Step> {
    let Some(place) = snapshot.instance.job_provisioning_data.as_deref() else {
        return done(ctx, operation, Value::Null).await;
    };
    let pieces = match last_of(&snapshot.operations, OperationKind::Create) {
        None => Value::Null,
        Some(created) => match OfferAttempts::read(created) {
            Some(attempts) => attempts.pieces(),
            // There may be pieces beside the machine: not forgotten.
            None => return unreadable(ctx, operation).await,
        },
    };
    let cloud = cloud_of(ctx, snapshot.instance.project_id, place.backend).await;
    let (marks, site) = (marks(ctx, &snapshot.instance), place.region.to_string());
    let place = Some(place.clone());
    if containers::is_made(snapshot) {
        let known = Known { marks, site, place };
        let lifecycle = containers::containers_of;
        return remove::<Container>(ctx, operation, pieces, &known, cloud, lifecycle).await;
    }
    let known = Known { marks, site, place };
    remove::<Machine>(ctx, operation, pieces, &known, cloud, machines_of).await
}

fn machines_of(backend: &dyn Backend) -> Option<&dyn Lifecycle<Machine>> {
    backend.machines()
}

/// What everything carries that is made for an instance.
pub fn marks(ctx: &Context, row: &InstanceRow) -> Marks {
    Marks {
        installation: ctx.deps.settings.installation,
        key: row.id.uuid(),
        name: row.name.clone(),
        project: row.project_id,
    }
}

/// What is asked for.
pub(super) enum Ask {
    /// A machine that gets an agent, on which jobs run.
    Machine(Box<MachineRequest>),
    /// A container of a cloud, which runs one job.
    Container(Box<ContainerRequest>),
    /// Several containers as one.
    Group(Box<GroupRequest>),
}

/// What was made.
pub(super) enum Made {
    /// Where the one machine or container is that was made.
    Instance(Box<JobProvisioningData>),
    /// Several as one.
    Group(Box<ComputeGroupProvisioningData>),
}

impl Ask {
    /// The backend makes the next piece of it.
    async fn ensure(
        &self,
        journal: &OperationJournal<'_>,
        cloud: &dyn Backend,
    ) -> Result<Progress<Made>, ComputeError> {
        match self {
            Self::Container(request) => {
                let made = containers::ensure(journal, cloud, request).await?;
                Ok(with_place(made, instance))
            }
            Self::Machine(request) => match cloud.machines() {
                Some(machines) => Ok(with_place(journal.ensure(machines, request).await?, instance)),
                None => Err(ComputeError::Unsupported("to make machines")),
            },
            Self::Group(request) => match cloud.groups() {
                Some(groups) => Ok(with_place(journal.ensure(groups, request).await?, |group| {
                    Made::Group(Box::new(group))
                })),
                None => Err(ComputeError::Unsupported("to make groups of containers")),
            },
        }
    }
}

fn instance(place: JobProvisioningData) -> Made {
    Made::Instance(Box::new(place))
}

fn with_place<P>(progress: Progress<P>, place: impl Fn(P) -> Made) -> Progress<Made> {
    match progress {
        Progress::Ready(made) => Progress::Ready(place(made)),
        Progress::Underway { seen, doing, again } => Progress::Underway {
            seen: seen.map(place),
            doing,
            again,
        },
    }
}

async fn ask(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    attempts: &OfferAttempts,
    (offer, placement_group): (Offer, Option<String>),
) -> Result<Ask, NotAsked> {
    if containers::is_offered(&offer) {
        let request = containers::request(ctx, snapshot, marks(ctx, &snapshot.instance), offer).await?;
        return Ok(Ask::Container(Box::new(request)));
    }
    let inputs = ctx
        .deps
        .inputs
        .machine(&snapshot.instance, snapshot.fleet.as_ref())
        .await?;
    Ok(Ask::Machine(Box::new(MachineRequest {
        marks: marks(ctx, &snapshot.instance),
        owner: inputs.owner,
        reservation: attempts.reservation.clone(),
        offer,
        authorized_keys: inputs.authorized_keys,
        placement_group,
    })))
}

/// The backend that makes and ends such instances; see [`backend`].
pub(super) async fn cloud_of(
    ctx: &Context,
    project: ProjectId,
    kind: BackendType,
) -> Result<Arc<dyn Backend>, ComputeError> {
    let able = |backend: &dyn Backend| backend.machines().is_some() || backend.containers().is_some();
    backend(ctx, project, kind, "instances", able).await
}
