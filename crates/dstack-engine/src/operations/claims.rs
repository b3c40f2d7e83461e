//! Network volumes that are taken while something is made of one of several offers: others than those that were taken first, where no
//! offer works that has these.

use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_plan::offers::AvailableOffers;
use dstack_store::rows::{InstanceRow, JobRow, OperationRow};
use dstack_store::{Changes, EventMaker};

use super::clouds::so_far;
use super::instances::{NotAsked, OfOffers, OfferAttempts};
use crate::Result;
use crate::context::Context;
use crate::inputs::InputsError;
use crate::job_volumes::{ProjectVolumes, not_attached};

const FAILPOINTS: (&str, &str) = ("claims.commit.before", "claims.commit.after");

/// No offer works that has the volumes of the jobs: they are given back, and in the same commit others are taken, and the offers that
/// have these are tried next. False: there are none, and nothing was changed.
pub(super) async fn take_others(
    ctx: &Context,
    subject: &dyn OfOffers,
    operation: &OperationRow,
    attempts: &OfferAttempts,
) -> Result<bool> {
    let offers = attempts.elsewhere();
    let waiting = subject.waiting(ctx).await?;
    if offers.best.is_empty() || waiting.is_empty() {
        return Ok(false);
    }
    let now = ctx.now();
    let mut changes = Changes::new(EventMaker::system(now, ctx.deps.random.clone()));
    let mut volumes = ProjectVolumes::load(ctx, subject.project(), now).await?;
    for (instance, job) in &waiting {
        volumes.give_back(&mut changes, instance.id, job.id);
        // One that ends meanwhile takes nothing.
        changes.touch(job.clone());
    }
    let jobs: Vec<(&InstanceRow, &JobRow)> = waiting.iter().map(|(instance, job)| (instance, job)).collect();
    let claimed = match volumes.claim(ctx, &mut changes, &jobs, &offers) {
        Ok(claimed) => claimed,
        Err(why) => {
            tracing::info!(
                instance.name = subject.name(),
                why,
                "there are no other volumes to be tried"
            );
            return Ok(false);
        }
    };
    tracing::info!(
        instance.name = subject.name(),
        "no offer works: other volumes are tried"
    );
    let next = attempts.with_other_volumes(claimed);
    changes.intend(so_far(operation.clone(), next.to_json()));
    ctx.commit(FAILPOINTS, changes.into_commit()).await?;
    Ok(true)
}

/// The job takes the volumes that it can have where the offer is.
///
/// # Errors
/// It does not get them, or they cannot be taken now.
pub(super) async fn take_late(
    ctx: &Context,
    (instance, job): (&InstanceRow, &JobRow),
    offer: &Offer,
) -> Result<(), NotAsked> {
    let now = ctx.now();
    let mut changes = Changes::new(EventMaker::system(now, ctx.deps.random.clone()));
    let mut volumes = ProjectVolumes::load(ctx, job.project_id, now).await?;
    let offers = AvailableOffers {
        best: vec![offer.clone()],
        total: 1,
        late: Vec::new(),
    };
    volumes
        .claim(ctx, &mut changes, &[(instance, job)], &offers)
        .map_err(|why| InputsError::Refused(not_attached(&why)))?;
    changes.touch(job.clone());
    ctx.commit(FAILPOINTS, changes.into_commit()).await?;
    Ok(())
}
