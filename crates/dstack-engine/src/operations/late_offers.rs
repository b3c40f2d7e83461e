//! Offers of backends that had not answered when something was begun to be made of the offers of others.

use std::sync::Arc;
use std::time::Duration;

use dstack_compute::ComputeError;
use dstack_plan::compute_groups::made_so;
use dstack_plan::offers::{AvailableOffers, Unanswered};
use dstack_store::EntityRef;
use dstack_store::rows::OperationRow;

use super::Step;
use super::clouds::{keep, not_yet};
use super::instances::{OfOffers, OfferAttempts};
use crate::Result;
use crate::context::Context;
use crate::offer_cache::{group_backends, offers};
use crate::wakes::Key;

/// How often it is looked for answers that nobody has told of.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// No offer works that was known: those are tried next that backends have told of meanwhile. They are waited for as long as the
/// offer cache waits for them.
pub(super) async fn take(
    ctx: &Arc<Context>,
    subject: &dyn OfOffers,
    operation: OperationRow,
    attempts: &OfferAttempts,
    unanswered: &Unanswered,
) -> Result<Step> {
    let nodes = subject
        .waiting(ctx)
        .await?
        .iter()
        .map(|(_, job)| job.job_spec.jobs_per_replica)
        .max();
    let mut unanswered = unanswered.clone();
    unanswered.query.set_nodes(nodes.unwrap_or(1));
    let asker = Key::Entity(subject.entity());
    let Some(answer) = offers(ctx, asker, subject.project(), &unanswered.query) else {
        return Ok(Step::Woken(LOOK_INTERVAL));
    };
    let limit = ctx.deps.settings.offers_tried;
    let (new, rest) = unanswered.answered(&answer.offers, &answer.late, limit);
    let new = match made_as(ctx, subject, new).await? {
        Ok(new) => new,
        Err(error) => return not_yet(ctx, operation, &error).await,
    };
    if new.are_awaited() {
        return Ok(Step::Woken(LOOK_INTERVAL));
    }
    tracing::info!(
        instance.name = subject.name(),
        offers = new.best.len(),
        "no offer works: what backends offer that were late is tried"
    );
    keep(ctx, operation, attempts.with_late(new, rest).to_json()).await?;
    Ok(Step::Next)
}

/// Those of the offers of which is made what the subject is: the nodes of a run as one, or one after the other.
async fn made_as(
    ctx: &Context,
    subject: &dyn OfOffers,
    offers: AvailableOffers,
) -> Result<Result<AvailableOffers, ComputeError>> {
    let waiting = subject.waiting(ctx).await?;
    if !waiting.iter().any(|(_, job)| job.job_spec.jobs_per_replica > 1) {
        return Ok(Ok(offers));
    }
    let as_one = matches!(subject.entity(), EntityRef::ComputeGroup(_));
    let backends = ctx.deps.backends.of_project(subject.project()).await;
    Ok(backends.map(|backends| {
        let groups = group_backends(&backends);
        made_so(&offers, as_one, |offer| groups.contains(&offer.backend))
    }))
}

#[cfg(test)]
mod tests {
    use dstack_model::backends::BackendType;
    use dstack_model::decode::decode_strict;
    use dstack_model::offers::InstanceOfferWithAvailability as Offer;
    use dstack_plan::offers::Query;
    use dstack_plan::volumes::Location;
    use serde_json::{Value, json};

    use super::*;

    fn offer(backend: &str) -> Offer {
        let resources = json!({"cpus": 8, "memory_mib": 32768, "gpus": [], "spot": false});
        let instance = json!({"name": "any", "resources": resources});
        let offer = json!({"backend": backend, "region": "here", "price": 1.0, "availability": "available", "instance": instance});
        decode_strict(&offer).unwrap()
    }

    fn offers(backend: &str) -> AvailableOffers {
        AvailableOffers::select(&[offer(backend)], None, &[], 5)
    }

    /// What is tried, and what is tried with other volumes, once the offers of a late backend are there.
    fn tried(volumes: &[Location]) -> (Value, Value) {
        let profile = decode_strict(&json!({"name": "any"})).unwrap();
        let requirements = decode_strict(&json!({"resources": {}})).unwrap();
        let query = Query::new(&profile, requirements).at(volumes);
        let late = offers("aws").without(&[BackendType::Gcp]);
        let attempts = OfferAttempts::of(&AvailableOffers::default(), None);
        let notes = attempts.then_late(Unanswered::after(&query, &late));
        let next = notes.with_late(offers("gcp"), None).to_json();
        assert!(next.get("unanswered").is_none(), "{next}");
        let backends = |of: &str| {
            next.pointer(&format!("/{of}/0/backend"))
                .cloned()
                .unwrap_or_default()
        };
        (backends("remaining"), backends("elsewhere"))
    }

    #[test]
    fn volumes_that_were_taken_are_changed_for_offers_that_came_late() {
        assert_eq!(tried(&[]), (json!("gcp"), Value::Null));
        let place = Location {
            backend: BackendType::Gcp,
            region: None,
            zone: None,
        };
        assert_eq!(tried(&[place]), (Value::Null, json!("gcp")));
    }
}
