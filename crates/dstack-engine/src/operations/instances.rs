//! Durable calls to clouds: instances are made and ended.
//!
//! Before a cloud is asked to make an instance, it is written down which offer of which cloud it is asked for. Whatever
//! happens then, the same cloud is asked what became of it before anything else is tried: nothing is made twice, and
//! nothing is forgotten.

use std::sync::Arc;
use std::time::Duration;

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
use dstack_store::rows::{OperationKind, OperationRow, OperationState};
use dstack_store::{EntityRef, InstanceSnapshot, Sealed};
use dstack_system::observe;
use dstack_units::{InstanceId, Time};
use serde::Serialize;
use serde_json::Value;

use super::{Attempt, FIRST_PAUSE, LONGEST_PAUSE, intended, record, span};
use crate::Result;
use crate::context::Context;
use crate::running::{Begun, Work};
use crate::wakes::Key;

/// How long a cloud may take to answer a call; what it did then is asked for.
const DEADLINE: Duration = Duration::from_secs(120);

/// Calls for one offer that may come to nothing.
const LOST: u64 = 2;

/// How far the making of an instance is.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct Creation {
    /// Offers that are still to be tried, best first.
    left: Vec<Offer>,
    /// How many there were.
    total: u64,
    /// How many were tried.
    tried: u64,
    /// What clouds said, each once.
    errors: Vec<OfferError>,
    /// The first of `left` may have been taken already.
    #[decode(default = false)]
    asked: bool,
    /// When it was asked for, if it was.
    asked_at: Option<Time>,
    /// How often nobody knew what became of a call for the first of `left`, and nothing had.
    #[decode(default = 0)]
    lost: u64,
    /// How long the instance may be idle, in seconds; unset: for ever.
    idle_secs: Option<u64>,
    /// It is the fleet that wants the instance, and not a job.
    #[decode(default = false)]
    for_fleet: bool,
    /// The reservation that it is to be made of.
    reservation: Option<String>,
    /// What was made, of the first of `left`.
    made: Option<JobProvisioningData>,
}

/// See [`Failure`].
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
struct OfferError {
    offer: String,
    error: String,
}

impl Creation {
    /// Of these offers.
    pub fn of(offers: &AvailableOffers, idle_for: Option<Duration>) -> Self {
        Self {
            left: offers.best.clone(),
            total: u64::try_from(offers.total).unwrap_or(u64::MAX),
            tried: 0,
            errors: Vec::new(),
            asked: false,
            asked_at: None,
            lost: 0,
            idle_secs: idle_for.map(|idle| idle.as_secs()),
            for_fleet: false,
            reservation: None,
            made: None,
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
        decode_strict(operation.result.as_deref()?).ok()
    }

    /// What was made, and of which offer.
    pub fn made(&self) -> Option<(&Offer, &JobProvisioningData)> {
        Some((self.left.first()?, self.made.as_ref()?))
    }

    /// How long the instance may be idle; `None`: for ever.
    pub fn idle_for(&self) -> Option<Duration> {
        self.idle_secs.map(Duration::from_secs)
    }

    /// The first offer is about to be asked for.
    fn ask(&mut self, now: Time) {
        self.asked = true;
        self.asked_at = Some(now);
    }

    /// From when on nothing can come of the last call that a cloud does not list, if it lists what it has made within this
    /// time.
    fn settled_at(&self, listed_within: Duration) -> Option<Time> {
        Some(self.asked_at? + DEADLINE + listed_within)
    }

    /// The first offer did not work.
    fn failed(&mut self, error: &ComputeError) {
        self.asked = false;
        self.lost = 0;
        if self.left.is_empty() {
            return;
        }
        self.tried += 1;
        let offer = self.left.remove(0);
        let mut failures: Vec<Failure> = self.errors.drain(..).map(Failure::from).collect();
        add_failure(&mut failures, Failure::new(&offer, &error.details()));
        self.errors.extend(failures.into_iter().map(OfferError::from));
    }

    /// A call for the first offer made nothing, or never reached the cloud: it is made again, up to [`LOST`] times.
    fn came_to_nothing(&mut self, said: Option<String>) {
        self.asked = false;
        self.lost += 1;
        if self.lost > LOST {
            let said = said.unwrap_or_else(|| "the cloud did not answer".to_owned());
            self.failed(&ComputeError::Unavailable(said));
        }
    }

    fn told(&self, fleet: &str) -> String {
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

/// An operation of an instance, about to be written down.
pub fn intend(ctx: &Context, instance: InstanceId, kind: OperationKind, now: Time) -> OperationRow {
    let id = ctx.deps.random.ordered_uuid(now).into();
    OperationRow {
        instance_id: Some(instance),
        ..OperationRow::intended(id, &instance.to_string(), kind, now)
    }
}

/// Makes sure that an intended operation of an instance is being carried out.
pub fn ensure(ctx: &Arc<Context>, instance: InstanceId, kind: OperationKind) {
    let Some(begun) = Begun::new(ctx, Work::InstanceOperation(instance, kind)) else {
        return;
    };
    let context = Arc::clone(ctx);
    ctx.spawn_under_lease("operation", EntityRef::Instance(instance), async move {
        if let Err(error) = carry_out(&context, instance, kind).await {
            context.report("operation", &error);
        }
        drop(begun);
        // Decides on the outcome, or starts again what failed to be recorded.
        context.wakes.wake(Key::Entity(EntityRef::Instance(instance)));
    });
}

async fn carry_out(ctx: &Context, instance: InstanceId, kind: OperationKind) -> Result<()> {
    let mut pause = FIRST_PAUSE;
    loop {
        if !ctx.leases.contains(EntityRef::Instance(instance)) {
            // Whoever drives the instance carries it out.
            return Ok(());
        }
        let Some(snapshot) = ctx.deps.store.instance(instance).await? else {
            return Ok(());
        };
        let Some(operation) = intended(&snapshot.operations, kind) else {
            return Ok(());
        };
        let step = async {
            match kind {
                OperationKind::CreateInstance => create(ctx, &snapshot, operation).await,
                _ => terminate(ctx, &snapshot, operation).await,
            }
        };
        let step = observe::task(span(kind), step).await?;
        match step {
            Step::Ended => return Ok(()),
            Step::Next => pause = FIRST_PAUSE,
            Step::Again => {
                let jitter = ctx.deps.random.fraction() * 0.2 + 0.9;
                tokio::time::sleep(pause.mul_f64(jitter)).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// What follows a call.
enum Step {
    /// The operation is done, or has failed for good.
    Ended,
    /// The next call, at once.
    Next,
    /// The same call, later.
    Again,
}

/// One call on the way to an instance.
async fn create(ctx: &Context, snapshot: &InstanceSnapshot, operation: OperationRow) -> Result<Step> {
    let Some(mut creation) = Creation::read(&operation) else {
        // Something may have been made: not given up.
        let error = "what was to be made is stored in a form that this version cannot read";
        changed(ctx, operation, ComputeError::Unavailable(error.to_owned())).await?;
        return Ok(Step::Again);
    };
    if creation.asked {
        return find(ctx, snapshot, operation, creation).await;
    }
    let row = &snapshot.instance;
    let wanted =
        row.status() == InstanceStatus::Pending && ctx.now() < operation.created_at + CREATION_TIMEOUT;
    let Some(offer) = creation.left.first().filter(|_| wanted).cloned() else {
        let fleet = snapshot.fleet.as_ref().map_or("", |fleet| &fleet.name);
        return settle(ctx, operation, Attempt::Refused(creation.told(fleet))).await;
    };
    let request = request(snapshot, &creation, offer);
    let backend = match backend(ctx, snapshot, request.offer.backend).await {
        Ok(backend) => backend,
        Err(error @ ComputeError::Unavailable(_)) => {
            changed(ctx, operation, error).await?;
            return Ok(Step::Again);
        }
        // Nothing was asked.
        Err(error) => return next_offer(ctx, operation, creation, &error).await,
    };
    creation.ask(ctx.now());
    let operation = keep(ctx, operation, &creation).await?;
    ctx.before_effect("cloud.create.before", EntityRef::Instance(row.id))?;
    let made = match backend.instances() {
        Some(cloud) => in_time(cloud.create(&request)).await,
        None => Err(not_configured(request.offer.backend)),
    };
    ctx.reached("cloud.create.after")?;
    match made {
        Ok(place) => {
            creation.made = Some(place);
            settle(ctx, operation, Attempt::Done(creation.to_json())).await
        }
        Err(error @ ComputeError::Unavailable(_)) => {
            tracing::warn!(instance.name = row.name, %error, "a cloud does not say whether it made an instance");
            changed(ctx, operation, error).await?;
            Ok(Step::Next)
        }
        Err(error) => {
            tracing::info!(instance.name = row.name, offer = request.offer.instance.name, %error, "an offer did not work");
            next_offer(ctx, operation, creation, &error).await
        }
    }
}

/// The first offer did not work.
async fn next_offer(
    ctx: &Context,
    operation: OperationRow,
    mut creation: Creation,
    error: &ComputeError,
) -> Result<Step> {
    creation.failed(error);
    keep(ctx, operation, &creation).await?;
    Ok(Step::Next)
}

/// A call may have made something: the cloud is asked.
async fn find(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    operation: OperationRow,
    mut creation: Creation,
) -> Result<Step> {
    let Some(offer) = creation.left.first().cloned() else {
        creation.asked = false;
        keep(ctx, operation, &creation).await?;
        return Ok(Step::Next);
    };
    let request = request(snapshot, &creation, offer);
    let (found, listed_within) = match backend(ctx, snapshot, request.offer.backend).await {
        Err(error) => (Err(error), LISTED_WITHIN),
        Ok(backend) => match backend.instances() {
            Some(cloud) => (in_time(cloud.find(&request)).await, cloud.listed_within()),
            None => (Err(not_configured(request.offer.backend)), LISTED_WITHIN),
        },
    };
    ctx.reached("cloud.find.after")?;
    match found {
        Ok(Some(place)) => {
            creation.made = Some(place);
            settle(ctx, operation, Attempt::Done(creation.to_json())).await
        }
        Ok(None) => match creation.settled_at(listed_within) {
            Some(settled_at) if ctx.now() >= settled_at => {
                creation.came_to_nothing(operation.error.clone());
                keep(ctx, operation, &creation).await?;
                Ok(Step::Next)
            }
            // The call may still be on its way, or what it made not be listed yet.
            Some(_) => Ok(Step::Again),
            None => {
                creation.ask(ctx.now());
                keep(ctx, operation, &creation).await?;
                Ok(Step::Again)
            }
        },
        Err(error) => {
            changed(ctx, operation, error).await?;
            Ok(Step::Again)
        }
    }
}

/// Has the cloud end what it made.
async fn terminate(ctx: &Context, snapshot: &InstanceSnapshot, operation: OperationRow) -> Result<Step> {
    let row = &snapshot.instance;
    let Some(place) = row.job_provisioning_data.as_deref() else {
        return settle(ctx, operation, Attempt::Done(Value::Null)).await;
    };
    ctx.before_effect("cloud.terminate.before", EntityRef::Instance(row.id))?;
    let ended = match backend(ctx, snapshot, place.backend).await {
        Err(error) => Err(error),
        Ok(backend) => match backend.instances() {
            Some(cloud) => in_time(cloud.terminate(row.id, place)).await,
            None => Err(not_configured(place.backend)),
        },
    };
    ctx.reached("cloud.terminate.after")?;
    match ended {
        Ok(()) => settle(ctx, operation, Attempt::Done(Value::Null)).await,
        Err(error) => {
            changed(ctx, operation, error).await?;
            Ok(Step::Again)
        }
    }
}

fn not_configured(kind: BackendType) -> ComputeError {
    ComputeError::Configuration(format!(
        "the backend {kind} is not configured for instances any more: configure it again"
    ))
}

fn request(snapshot: &InstanceSnapshot, creation: &Creation, offer: Offer) -> InstanceRequest {
    InstanceRequest {
        id: snapshot.instance.id,
        name: snapshot.instance.name.clone(),
        project: snapshot.instance.project_id,
        reservation: creation.reservation.clone(),
        offer,
    }
}

/// The backend that makes and ends such instances.
///
/// `Unavailable`: it is not known now. Any other error: there is none.
async fn backend(
    ctx: &Context,
    snapshot: &InstanceSnapshot,
    kind: BackendType,
) -> Result<Arc<dyn Backend>, ComputeError> {
    let backends = ctx.deps.backends.of_project(snapshot.instance.project_id).await;
    let backends = backends.map_err(|error| ComputeError::Unavailable(error.details()))?;
    let able = |backend: &Arc<dyn Backend>| backend.kind() == kind && backend.instances().is_some();
    backends
        .into_iter()
        .find(able)
        .ok_or_else(|| not_configured(kind))
}

async fn in_time<T>(call: impl Future<Output = Result<T, ComputeError>>) -> Result<T, ComputeError> {
    let late = || ComputeError::Unavailable(format!("no answer within {} s", DEADLINE.as_secs()));
    tokio::time::timeout(DEADLINE, call)
        .await
        .unwrap_or_else(|_| Err(late()))
}

async fn settle(ctx: &Context, operation: OperationRow, attempt: Attempt) -> Result<Step> {
    match attempt {
        Attempt::Done(result) => record(ctx, operation, OperationState::Done, None, Some(result)).await?,
        Attempt::Refused(error) | Attempt::Again(error) => {
            record(ctx, operation, OperationState::Failed, Some(error), None).await?;
        }
    }
    Ok(Step::Ended)
}

/// Writes down how far it is; the row as it is stored then.
async fn keep(ctx: &Context, operation: OperationRow, creation: &Creation) -> Result<OperationRow> {
    let (version, attempt) = (operation.version + 1, operation.attempt + 1);
    let stored = OperationRow {
        result: Some(Sealed::new(creation.to_json())),
        ..operation
    };
    let result = Some(creation.to_json());
    record(
        ctx,
        stored.clone(),
        OperationState::Intended,
        stored.error.clone(),
        result,
    )
    .await?;
    Ok(OperationRow {
        version,
        attempt,
        ..stored
    })
}

/// Writes an error down that was not there before, for users to see what is waited for.
async fn changed(ctx: &Context, operation: OperationRow, error: ComputeError) -> Result<()> {
    let text = Some(error.details());
    if operation.error == text {
        return Ok(());
    }
    let result = operation.result.as_deref().cloned();
    record(ctx, operation, OperationState::Intended, text, result).await
}
