//! Durable calls to clouds: instances are made and ended.
//!
//! Offers are tried one after the other. What a backend is about to make for an offer it notes before; when the offer does not
//! work, all that was noted is removed before the next one is tried: nothing is made twice, and nothing is forgotten.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_compute::{
    Backend, ComputeError, Container, ContainerRequest, Known, Lifecycle, Machine, MachineRequest, Marks,
    Removal, Step as Progress,
};
use dstack_model::Decode;
use dstack_model::backends::BackendType;
use dstack_model::decode::decode_strict;
use dstack_model::instances::InstanceStatus;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::runs::JobProvisioningData;
use dstack_plan::fleets::{Failure, add_failure, all_failed, none_for_fleet};
use dstack_plan::lifecycle::instance::{CREATION_TIMEOUT, Purpose, provisioning_timeout};
use dstack_plan::offers::AvailableOffers;
use dstack_store::rows::{InstanceRow, OperationKind, OperationRow};
use dstack_store::{EntityRef, InstanceSnapshot};
use dstack_system::chain;
use dstack_units::Time;
use serde::Serialize;
use serde_json::Value;

use super::clouds::{OperationJournal, backend, done, keep, keep_changed, not_yet, refused, remove};
use super::{Step, Subject, containers, hosts, last_of, note_error};
use crate::Result;
use crate::context::Context;
use crate::inputs::InputsError;

/// How far the making of an instance is.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct OfferAttempts {
    /// Offers that are still to be tried, best first.
    remaining: Vec<Offer>,
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
            total: u64::try_from(offers.total).unwrap_or(u64::MAX),
            tried: 0,
            errors: Vec::new(),
            trial: None,
            idle_secs: idle_for.map(|idle| idle.as_secs()),
            for_fleet: false,
            reservation: None,
            created: None,
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

    async fn call(&self, ctx: &Context, operation: OperationRow) -> Result<Step> {
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

/// One call on the way to an instance.
async fn create(ctx: &Context, snapshot: &InstanceSnapshot, operation: OperationRow) -> Result<Step> {
    let Some(attempts) = OfferAttempts::read(&operation) else {
        // Something may have been made: not given up.
        let error = "what was to be made is stored in a form that this version cannot read";
        note_error(ctx, operation, error.to_owned()).await?;
        return Ok(Step::Again);
    };
    let offer = attempts.remaining.first().cloned();
    match (&attempts.trial, offer) {
        (Some(trial), Some(offer)) => match trial
            .failure
            .clone()
            .or_else(|| too_late(ctx, snapshot, trial, &offer, &operation))
        {
            Some(failure) => clear(ctx, snapshot, operation, attempts, (&offer, failure)).await,
            None => ensure(ctx, snapshot, operation, attempts, &offer).await,
        },
        (None, Some(offer)) if is_wanted(snapshot) && ctx.now() < operation.created_at + CREATION_TIMEOUT => {
            let trial = Trial {
                since: ctx.now(),
                pieces: None,
                failure: None,
            };
            let attempts = OfferAttempts {
                trial: Some(trial),
                ..attempts
            };
            ensure(ctx, snapshot, operation, attempts, &offer).await
        }
        _ => {
            let fleet = snapshot.fleet.as_ref().map_or("", |fleet| &fleet.name);
            refused(ctx, operation, attempts.failure(fleet)).await
        }
    }
}

fn is_wanted(snapshot: &InstanceSnapshot) -> bool {
    snapshot.instance.status() == InstanceStatus::Pending
}

/// Why an offer is not tried any further.
fn too_late(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    trial: &Trial,
    offer: &Offer,
    operation: &OperationRow,
) -> Option<String> {
    if !is_wanted(snapshot) {
        return Some("not wanted any more".to_owned());
    }
    let limit = provisioning_timeout(offer.backend, &offer.instance.name);
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
    snapshot: &InstanceSnapshot,
    operation: OperationRow,
    mut attempts: OfferAttempts,
    offer: &Offer,
) -> Result<Step> {
    let row = &snapshot.instance;
    let is_begun = !attempts.pieces().is_null();
    let cloud = match cloud_of(ctx, snapshot, offer.backend).await {
        Ok(cloud) => cloud,
        Err(error) if is_begun || error.is_transient() => return not_yet(ctx, operation, &error).await,
        Err(error) => return next_offer(ctx, operation, attempts, &error.details(), true).await,
    };
    let request = match request(ctx, snapshot, &attempts, offer.clone()).await {
        Ok(request) => request,
        Err(InputsError::Transient(error)) => {
            let error = ComputeError::Unclear(chain(error.as_ref()).to_string());
            return not_yet(ctx, operation, &error).await;
        }
        Err(InputsError::Refused(error)) => return next_offer(ctx, operation, attempts, &error, true).await,
    };
    let embed = |pieces: &Value| attempts.with_pieces(pieces).to_json();
    let journal = OperationJournal::new(ctx, operation, attempts.pieces(), "cloud.create.before", embed)
        .expecting(row.project_id, offer.backend);
    let made = request.ensure(&journal, cloud.as_ref()).await;
    ctx.reached("cloud.create.after")?;
    let (operation, pieces) = journal.end()?;
    attempts = attempts.with_pieces(&pieces);
    match made {
        Ok(Progress::Ready(place)) => {
            attempts.created = Some(place);
            done(ctx, operation, attempts.to_json()).await
        }
        Ok(Progress::Underway { again, .. }) => {
            keep_changed(ctx, operation, attempts.to_json()).await?;
            Ok(Step::After(again))
        }
        Err(error) if error.is_transient() => {
            tracing::warn!(instance.name = row.name, %error, "a cloud does not say whether it made an instance");
            not_yet(ctx, operation, &error).await
        }
        Err(error) => {
            tracing::info!(instance.name = row.name, offer = offer.instance.name, %error, "an offer did not work");
            let counts = !matches!(error, ComputeError::Skipped(_));
            next_offer(ctx, operation, attempts, &error.details(), counts).await
        }
    }
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
    snapshot: &InstanceSnapshot,
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
    let cloud = match cloud_of(ctx, snapshot, offer.backend).await {
        Ok(cloud) => cloud,
        Err(error) => return not_yet(ctx, operation, &error).await,
    };
    let embed = |pieces: &Value| attempts.with_pieces(pieces).to_json();
    let journal = OperationJournal::new(ctx, operation, attempts.pieces(), "cloud.remove.noted", embed);
    ctx.before_effect("cloud.clear.before", EntityRef::Instance(snapshot.instance.id))?;
    let removed = clear_pieces(&journal, cloud.as_ref(), marks(ctx, &snapshot.instance), offer).await;
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

/// Has the cloud end what it made.
async fn terminate(ctx: &Context, snapshot: &InstanceSnapshot, operation: OperationRow) -> Result<Step> {
    let Some(place) = snapshot.instance.job_provisioning_data.as_deref() else {
        return done(ctx, operation, Value::Null).await;
    };
    let created = last_of(&snapshot.operations, OperationKind::Create).and_then(OfferAttempts::read);
    let pieces = created.map(|attempts| attempts.pieces()).unwrap_or_default();
    let cloud = cloud_of(ctx, snapshot, place.backend).await;
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
enum Request {
    Machine(Box<MachineRequest>),
    Container(Box<ContainerRequest>),
}

impl Request {
    /// The backend makes the next piece of it.
    async fn ensure(
        &self,
        journal: &OperationJournal<'_>,
        cloud: &dyn Backend,
    ) -> Result<Progress<JobProvisioningData>, ComputeError> {
        match self {
            Self::Container(request) => containers::ensure(journal, cloud, request).await,
            Self::Machine(request) => match cloud.machines() {
                Some(machines) => journal.ensure(machines, request).await,
                None => Err(ComputeError::Unsupported("to make machines")),
            },
        }
    }
}

async fn request(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    attempts: &OfferAttempts,
    offer: Offer,
) -> Result<Request, InputsError> {
    if containers::is_offered(&offer) {
        let request = containers::request(ctx, snapshot, marks(ctx, &snapshot.instance), offer).await?;
        return Ok(Request::Container(Box::new(request)));
    }
    let inputs = ctx
        .deps
        .inputs
        .machine(&snapshot.instance, snapshot.fleet.as_ref())
        .await?;
    Ok(Request::Machine(Box::new(MachineRequest {
        marks: marks(ctx, &snapshot.instance),
        owner: inputs.owner,
        reservation: attempts.reservation.clone(),
        offer,
        authorized_keys: inputs.authorized_keys,
        placement_group: None,
    })))
}

/// The backend that makes and ends such instances; see [`backend`].
async fn cloud_of(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    kind: BackendType,
) -> Result<Arc<dyn Backend>, ComputeError> {
    let able = |backend: &dyn Backend| backend.machines().is_some() || backend.containers().is_some();
    backend(ctx, snapshot.instance.project_id, kind, "instances", able).await
}
