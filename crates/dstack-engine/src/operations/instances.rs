//! Durable calls to clouds: instances are made and ended.
//!
//! Before a cloud is asked to make an instance, it is written down which offer of which cloud it is asked for. Whatever
//! happens then, the same cloud is asked what became of it before anything else is tried: nothing is made twice, and
//! nothing is forgotten.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dstack_compute::{Backend, ComputeError, InstanceRequest, LISTED_WITHIN};
use dstack_model::Decode;
use dstack_model::backends::BackendType;
use dstack_model::decode::decode_strict;
use dstack_model::instances::InstanceStatus;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::runs::JobProvisioningData;
use dstack_plan::fleets::{Failure, add_failure, all_failed, none_for_fleet};
use dstack_plan::lifecycle::instance::{CREATION_TIMEOUT, Purpose};
use dstack_plan::offers::AvailableOffers;
use dstack_store::rows::{OperationKind, OperationRow};
use dstack_store::{EntityRef, InstanceSnapshot};
use dstack_units::Time;
use serde::Serialize;
use serde_json::Value;

use super::clouds::{
    backend, done, in_time, keep, keep_with_backend, not_configured, refused, remove, settled_at,
};
use super::{Step, Subject, hosts, note_error};
use crate::Result;
use crate::context::Context;

/// Calls for one offer that may come to nothing.
const MAX_LOST_CALLS: u64 = 2;

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
    /// The first of `remaining` may have been taken already.
    #[decode(default = false)]
    in_flight: bool,
    /// When it was asked for, if it was.
    asked_at: Option<Time>,
    /// How often nobody knew what became of a call for the first of `remaining`, and nothing had.
    #[decode(default = 0)]
    lost_calls: u64,
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
            in_flight: false,
            asked_at: None,
            lost_calls: 0,
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
        decode_strict(&with_present_names(operation.notes.as_deref()?)).ok()
    }

    /// What was made, and of which offer.
    pub fn created(&self) -> Option<(&Offer, &JobProvisioningData)> {
        Some((self.remaining.first()?, self.created.as_ref()?))
    }

    /// How long the instance may be idle; `None`: for ever.
    pub fn idle_for(&self) -> Option<Duration> {
        self.idle_secs.map(Duration::from_secs)
    }

    /// The first offer is about to be asked for.
    fn begin_call(&mut self, now: Time) {
        self.in_flight = true;
        self.asked_at = Some(now);
    }

    /// From when on nothing can come of the last call that a cloud does not list, if it lists what it has made within this
    /// time.
    fn settled_at(&self, listed_within: Duration) -> Option<Time> {
        Some(settled_at(self.asked_at?, listed_within))
    }

    /// The first offer did not work.
    fn failed(&mut self, error: &ComputeError) {
        self.in_flight = false;
        self.lost_calls = 0;
        if self.remaining.is_empty() {
            return;
        }
        self.tried += 1;
        let offer = self.remaining.remove(0);
        let mut failures: Vec<Failure> = self.errors.drain(..).map(Failure::from).collect();
        add_failure(&mut failures, Failure::new(&offer, &error.details()));
        self.errors.extend(failures.into_iter().map(OfferError::from));
    }

    /// A call for the first offer made nothing, or never reached the cloud: it is made again, up to [`MAX_LOST_CALLS`] times.
    fn came_to_nothing(&mut self, said: Option<String>) {
        self.in_flight = false;
        self.lost_calls += 1;
        if self.lost_calls > MAX_LOST_CALLS {
            let said = said.unwrap_or_else(|| "the cloud did not answer".to_owned());
            self.failed(&ComputeError::Unavailable(said));
        }
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
            OperationKind::Prepare => hosts::prepare(ctx, self, operation).await,
            OperationKind::Release => hosts::release(ctx, self, operation).await,
            _ => refused(ctx, operation, "nothing that a cloud does".to_owned()).await,
        }
    }
}

/// One call on the way to an instance.
async fn create(ctx: &Context, snapshot: &InstanceSnapshot, operation: OperationRow) -> Result<Step> {
    let Some(mut attempts) = OfferAttempts::read(&operation) else {
        // Something may have been made: not given up.
        let error = "what was to be made is stored in a form that this version cannot read";
        note_error(ctx, operation, error.to_owned()).await?;
        return Ok(Step::Again);
    };
    if attempts.in_flight {
        return find(ctx, snapshot, operation, attempts).await;
    }
    let row = &snapshot.instance;
    let wanted =
        row.status() == InstanceStatus::Pending && ctx.now() < operation.created_at + CREATION_TIMEOUT;
    let Some(offer) = attempts.remaining.first().filter(|_| wanted).cloned() else {
        let fleet = snapshot.fleet.as_ref().map_or("", |fleet| &fleet.name);
        return refused(ctx, operation, attempts.failure(fleet)).await;
    };
    let request = request(snapshot, &attempts, offer);
    let backend = match cloud_of(ctx, snapshot, request.offer.backend).await {
        Ok(backend) => backend,
        Err(error @ ComputeError::Unavailable(_)) => {
            note_error(ctx, operation, error.details()).await?;
            return Ok(Step::Again);
        }
        // Nothing was asked.
        Err(error) => return next_offer(ctx, operation, attempts, &error).await,
    };
    attempts.begin_call(ctx.now());
    let (notes, project, kind) = (attempts.to_json(), row.project_id, request.offer.backend);
    let operation = keep_with_backend(ctx, operation, notes, project, kind).await?;
    ctx.before_effect("cloud.create.before", EntityRef::Instance(row.id))?;
    let made = match backend.instances() {
        Some(cloud) => in_time(cloud.create(&request)).await,
        None => Err(not_configured(request.offer.backend, "instances")),
    };
    ctx.reached("cloud.create.after")?;
    match made {
        Ok(place) => {
            attempts.created = Some(place);
            done(ctx, operation, attempts.to_json()).await
        }
        Err(error @ ComputeError::Unavailable(_)) => {
            tracing::warn!(instance.name = row.name, %error, "a cloud does not say whether it made an instance");
            note_error(ctx, operation, error.details()).await?;
            Ok(Step::Next)
        }
        Err(error) => {
            tracing::info!(instance.name = row.name, offer = request.offer.instance.name, %error, "an offer did not work");
            next_offer(ctx, operation, attempts, &error).await
        }
    }
}

/// The first offer did not work.
async fn next_offer(
    ctx: &Context,
    operation: OperationRow,
    mut attempts: OfferAttempts,
    error: &ComputeError,
) -> Result<Step> {
    attempts.failed(error);
    keep(ctx, operation, attempts.to_json()).await?;
    Ok(Step::Next)
}

/// A call may have made something: the cloud is asked.
async fn find(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    operation: OperationRow,
    mut attempts: OfferAttempts,
) -> Result<Step> {
    let Some(offer) = attempts.remaining.first().cloned() else {
        attempts.in_flight = false;
        keep(ctx, operation, attempts.to_json()).await?;
        return Ok(Step::Next);
    };
    let request = request(snapshot, &attempts, offer);
    let (found, listed_within) = match cloud_of(ctx, snapshot, request.offer.backend).await {
        Err(error) => (Err(error), LISTED_WITHIN),
        Ok(backend) => match backend.instances() {
            Some(cloud) => (in_time(cloud.find(&request)).await, cloud.listed_within()),
            None => (
                Err(not_configured(request.offer.backend, "instances")),
                LISTED_WITHIN,
            ),
        },
    };
    ctx.reached("cloud.find.after")?;
    match found {
        Ok(Some(place)) => {
            attempts.created = Some(place);
            done(ctx, operation, attempts.to_json()).await
        }
        Ok(None) => match attempts.settled_at(listed_within) {
            Some(settled_at) if ctx.now() >= settled_at => {
                attempts.came_to_nothing(operation.error.clone());
                keep(ctx, operation, attempts.to_json()).await?;
                Ok(Step::Next)
            }
            // The call may still be on its way, or what it made not be listed yet.
            Some(_) => Ok(Step::Again),
            None => {
                attempts.begin_call(ctx.now());
                keep(ctx, operation, attempts.to_json()).await?;
                Ok(Step::Again)
            }
        },
        Err(error) => {
            note_error(ctx, operation, error.details()).await?;
            Ok(Step::Again)
        }
    }
}

/// Has the cloud end what it made.
async fn terminate(ctx: &Context, snapshot: &InstanceSnapshot, operation: OperationRow) -> Result<Step> {
    let row = &snapshot.instance;
    let Some(place) = row.job_provisioning_data.as_deref() else {
        return done(ctx, operation, Value::Null).await;
    };
    let cloud = cloud_of(ctx, snapshot, place.backend).await;
    remove(
        ctx,
        EntityRef::Instance(row.id),
        operation,
        cloud,
        |cloud| async move {
            match cloud.instances() {
                Some(instances) => instances.terminate(row.id, place).await,
                None => Err(not_configured(place.backend, "instances")),
            }
        },
    )
    .await
}

fn request(snapshot: &InstanceSnapshot, attempts: &OfferAttempts, offer: Offer) -> InstanceRequest {
    InstanceRequest {
        id: snapshot.instance.id,
        name: snapshot.instance.name.clone(),
        project: snapshot.instance.project_id,
        reservation: attempts.reservation.clone(),
        offer,
    }
}

/// The backend that makes and ends such instances; see [`backend`].
async fn cloud_of(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    kind: BackendType,
) -> Result<Arc<dyn Backend>, ComputeError> {
    let able = |backend: &dyn Backend| backend.instances().is_some();
    backend(ctx, snapshot.instance.project_id, kind, "instances", able).await
}

/// What operations written by earlier versions call the fields of [`OfferAttempts`].
const EARLIER_NAMES: [(&str, &str); 4] = [
    ("left", "remaining"),
    ("asked", "in_flight"),
    ("lost", "lost_calls"),
    ("made", "created"),
];

/// Notes as this version writes them.
fn with_present_names(notes: &Value) -> Value {
    let mut notes = notes.clone();
    if let Value::Object(fields) = &mut notes {
        for (earlier, present) in EARLIER_NAMES {
            if let Some(value) = fields.remove(earlier) {
                fields.insert(present.to_owned(), value);
            }
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_an_earlier_version_was_about_to_make_is_not_forgotten() {
        let notes = json!({"left": [], "total": 2, "tried": 1, "errors": [], "asked": true, "lost": 1, "for_fleet": true});
        let attempts: OfferAttempts = decode_strict(&with_present_names(&notes)).unwrap();
        assert!(attempts.in_flight && attempts.lost_calls == 1 && attempts.created.is_none());
        assert_eq!(with_present_names(&attempts.to_json()), attempts.to_json());
    }
}
