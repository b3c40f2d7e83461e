//! What clouds offer for the jobs that wait, and for fleets that want instances.
//!
//! Nobody waits for a cloud: whoever wants offers takes those that are known, or has them asked for and is woken when they
//! are there. Kept in memory only: after a restart they are asked for again.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dstack_compute::{Backend, Capabilities, ComputeError};
use dstack_model::backends::BackendType;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::runs::Requirements;
use dstack_plan::offers::{Needs, Query};
use dstack_system::clock::sleep_until;
use dstack_system::task;
use dstack_units::{ProjectId, Time};
use futures_util::future::join_all;

use crate::context::Context;
use crate::wakes::Key;

/// A backend that does not answer by then is left out, so that it delays nobody.
const DEADLINE: Duration = Duration::from_secs(20);
/// How long an answer is taken for true. What has changed meanwhile shows when the offer is tried.
const FRESH: Duration = Duration::from_secs(15);

/// Pause before backends that could not be read are read again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Answers, and questions under way.
#[derive(Debug, Default)]
pub struct OfferCache {
    asked: Mutex<Vec<Asked>>,
}

#[derive(Debug)]
struct Asked {
    project: ProjectId,
    query: Query,
    /// Unset while the clouds are being asked.
    answer: Option<(Time, Arc<Vec<Offer>>)>,
    /// Who is woken by the answer.
    askers: BTreeSet<Key>,
}

impl Asked {
    fn is(&self, project: ProjectId, query: &Query) -> bool {
        self.project == project && self.query == *query
    }

    fn outdated(&self, now: Time) -> bool {
        let at = self.answer.as_ref().map(|(at, _)| *at);
        at.is_some_and(|at| now >= at + FRESH)
    }
}

impl OfferCache {
    fn lock(&self) -> MutexGuard<'_, Vec<Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of a query; `None` when it is not, and must be asked by the caller if the second is true.
    fn known(
        &self,
        asker: Key,
        project: ProjectId,
        query: &Query,
        now: Time,
    ) -> (Option<Arc<Vec<Offer>>>, bool) {
        let mut asked = self.lock();
        asked.retain(|one| !one.outdated(now));
        if let Some(one) = asked.iter_mut().find(|one| one.is(project, query)) {
            if one.answer.is_none() {
                one.askers.insert(asker);
            }
            return (one.answer.as_ref().map(|(_, offers)| Arc::clone(offers)), false);
        }
        asked.push(Asked {
            project,
            query: query.clone(),
            answer: None,
            askers: BTreeSet::from([asker]),
        });
        (None, true)
    }

    /// There is no answer; who waited for it.
    fn forget(&self, project: ProjectId, query: &Query) -> BTreeSet<Key> {
        let mut asked = self.lock();
        let at = asked.iter().position(|one| one.is(project, query));
        at.map(|at| asked.swap_remove(at).askers).unwrap_or_default()
    }

    /// There is one; who waited for it.
    fn answered(&self, project: ProjectId, query: &Query, now: Time, offers: Vec<Offer>) -> BTreeSet<Key> {
        let mut asked = self.lock();
        let Some(one) = asked.iter_mut().find(|one| one.is(project, query)) else {
            return BTreeSet::new();
        };
        one.answer = Some((now, Arc::new(offers)));
        std::mem::take(&mut one.askers)
    }
}

/// The offers for a query, cheapest first, the available ones first; `None`: they are being asked for, and
/// `asker` is woken when they are there.
pub fn offers(ctx: &Arc<Context>, asker: Key, project: ProjectId, query: &Query) -> Option<Arc<Vec<Offer>>> {
    let (known, ask) = ctx.offer_cache.known(asker, project, query, ctx.now());
    if ask {
        let (context, query) = (Arc::clone(ctx), query.clone());
        ctx.spawn("offers", async move {
            let asked = task::contained("ask for offers", ask_all(&context, project, &query)).await;
            let asked = asked.unwrap_or_else(|panicked| Err(ComputeError::Unclear(panicked.to_string())));
            let askers = match asked {
                Ok(offers) => context.offer_cache.answered(project, &query, context.now(), offers),
                Err(error) => {
                    tracing::warn!(project.id = %project, %error, "the backends of a project are not known now: asked again");
                    sleep_until(context.deps.clock.as_ref(), context.now() + RETRY_INTERVAL).await;
                    context.offer_cache.forget(project, &query)
                }
            };
            for asker in askers {
                context.wakes.wake(asker);
            }
        });
    }
    known
}

async fn ask_all(ctx: &Context, project: ProjectId, query: &Query) -> Result<Vec<Offer>, ComputeError> {
    let backends = ctx.deps.backends.of_project(project).await?;
    let asked = backends
        .iter()
        .filter(|backend| query.asks(backend.kind()) && able(query.needs, backend.capabilities()))
        .map(|backend| ask(backend.as_ref(), &query.requirements));
    // Those without an answer offer nothing.
    let offers: Vec<Vec<Offer>> = join_all(asked)
        .await
        .into_iter()
        .map(Result::unwrap_or_default)
        .collect();
    Ok(query.select(offers.iter().map(Vec::as_slice), None))
}

/// What a backend offers.
///
/// # Errors
/// It answers with an error, or not within 20 s, which is logged; the text is for people.
pub async fn ask(backend: &dyn Backend, requirements: &Requirements) -> Result<Vec<Offer>, String> {
    let kind = backend.kind();
    match tokio::time::timeout(DEADLINE, backend.offers(requirements)).await {
        Ok(Ok(offers)) => Ok(offers),
        Ok(Err(error)) => {
            tracing::warn!(backend.type = %kind, error = %error, "backend left out: it answers with an error");
            Err(error.to_string())
        }
        Err(_) => {
            let timeout_s = DEADLINE.as_secs();
            tracing::warn!(backend.type = %kind, timeout_s, "backend left out: no answer in time");
            Err(format!("it has not answered within {timeout_s} s"))
        }
    }
}

/// Those backends whose instances reach each other; hosts of SSH fleets do.
pub fn multinode_backends(backends: &[Arc<dyn Backend>]) -> Vec<BackendType> {
    let able = backends.iter().filter(|backend| backend.capabilities().multinode);
    able.map(|backend| backend.kind())
        .chain([BackendType::Remote])
        .collect()
}

/// Those backends that make containers in groups.
pub fn group_backends(backends: &[Arc<dyn Backend>]) -> Vec<BackendType> {
    let able = backends
        .iter()
        .filter(|backend| backend.capabilities().compute_groups);
    able.map(|backend| backend.kind()).collect()
}

/// Whether a backend can do what is needed.
pub const fn able(needs: Needs, can: Capabilities) -> bool {
    (!needs.multinode || can.multinode)
        && (!needs.privileged || can.privileged)
        && (!needs.instance_volumes || can.instance_volumes)
        && (!needs.reservations || can.reservations)
        && (!needs.create_instance || can.create_instance)
}
