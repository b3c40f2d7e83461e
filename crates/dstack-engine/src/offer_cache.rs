//! What clouds offer for the jobs that wait, and for fleets that want instances.
//!
//! Nobody waits for a cloud: whoever wants offers takes those that are known, or has them asked for and is woken when they
//! are there. One cloud that is slow delays nobody for whom others have something: after `LATE_AFTER` what is known so far is the
//! answer. It says which backends are late, and each of these changes it when it answers; those that have not by `DEADLINE` offer
//! nothing. Nobody is refused for lack of offers as long as a backend is late. Kept in memory only: after a restart they are asked for again.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dstack_compute::{Backend, Capabilities, ComputeError};
use dstack_model::backends::BackendType;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::runs::{JobProvisioningData, Requirements};
use dstack_plan::offers::{AvailableOffers, Needs, Query};
use dstack_system::clock::sleep_until;
use dstack_system::task;
use dstack_units::{ProjectId, Time};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::context::Context;
use crate::wakes::Key;

/// A backend that does not answer by then is late: whoever finds something among the offers of the others does not wait for it.
const LATE_AFTER: Duration = Duration::from_secs(5);
/// A backend that does not answer by then is left out.
const DEADLINE: Duration = Duration::from_secs(20);
/// How long an answer is taken for true, once it is complete. What has changed meanwhile shows when the offer is tried.
const FRESH: Duration = Duration::from_secs(15);

/// Pause before backends that could not be read are read again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Answers, and questions under way.
#[derive(Debug, Default)]
pub struct OfferCache {
    asked: Mutex<Vec<Asked>>,
}

/// What backends have told.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// Their offers that count, cheapest first, the available ones first.
    pub offers: Arc<Vec<Offer>>,
    /// Backends that have not answered yet: whoever asks now is woken when one of them does.
    pub late: Arc<[BackendType]>,
}

#[derive(Debug)]
struct Asked {
    project: ProjectId,
    query: Query,
    /// The newest, and when it came; unset at first.
    answer: Option<(Time, Answer)>,
    /// Who is woken by the next one.
    askers: BTreeSet<Key>,
}

impl Asked {
    fn is(&self, project: ProjectId, query: &Query) -> bool {
        self.project == project && self.query == *query
    }

    /// Whether backends are still to answer.
    fn is_under_way(&self) -> bool {
        self.answer
            .as_ref()
            .is_none_or(|(_, answer)| !answer.late.is_empty())
    }

    fn outdated(&self, now: Time) -> bool {
        let at = self.answer.as_ref().map(|(at, _)| *at);
        !self.is_under_way() && at.is_some_and(|at| now >= at + FRESH)
    }
}

impl OfferCache {
    fn lock(&self) -> MutexGuard<'_, Vec<Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of a query; `None` when it is not, and must be asked by the caller if the second is true.
    fn known(&self, asker: Key, project: ProjectId, query: &Query, now: Time) -> (Option<Answer>, bool) {
        let mut asked = self.lock();
        asked.retain(|one| !one.outdated(now));
        if let Some(one) = asked.iter_mut().find(|one| one.is(project, query)) {
            if one.is_under_way() {
                one.askers.insert(asker);
            }
            return (one.answer.as_ref().map(|(_, answer)| answer.clone()), false);
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

    /// There is one, or a newer one; who waited for it.
    fn answered(&self, project: ProjectId, query: &Query, now: Time, answer: Answer) -> BTreeSet<Key> {
        let mut asked = self.lock();
        let Some(one) = asked.iter_mut().find(|one| one.is(project, query)) else {
            return BTreeSet::new();
        };
        one.answer = Some((now, answer));
        std::mem::take(&mut one.askers)
    }
}

/// What of the offers for a query is to be tried, beside `master` if that is given. `None`: nothing is known yet. `asker` is woken when
/// something is, and whenever a backend answers that is late.
pub fn available(
    ctx: &Arc<Context>,
    asker: Key,
    project: ProjectId,
    query: &Query,
    master: Option<&JobProvisioningData>,
) -> Option<AvailableOffers> {
    let answer = offers(ctx, asker, project, query)?;
    let limit = ctx.deps.settings.offers_tried;
    let available = AvailableOffers::select(&answer.offers, master, query.volumes(), limit);
    Some(available.without(&answer.late))
}

/// What is known of the offers for a query; `None`: they are being asked for. `asker` is woken when more is known.
pub fn offers(ctx: &Arc<Context>, asker: Key, project: ProjectId, query: &Query) -> Option<Answer> {
    let (known, ask) = ctx.offer_cache.known(asker, project, query, ctx.now());
    if ask {
        let (context, query) = (Arc::clone(ctx), query.clone());
        ctx.spawn("offers", async move {
            let asked = task::contained("ask for offers", ask_all(&context, project, &query)).await;
            let asked = asked.unwrap_or_else(|panicked| Err(ComputeError::Unclear(panicked.to_string())));
            if let Err(error) = asked {
                tracing::warn!(project.id = %project, %error, "the backends of a project are not known now: asked again");
                sleep_until(context.deps.clock.as_ref(), context.now() + RETRY_INTERVAL).await;
                wake(&context, context.offer_cache.forget(project, &query));
            }
        });
    }
    known
}

fn wake(ctx: &Context, askers: BTreeSet<Key>) {
    for asker in askers {
        ctx.wakes.wake(asker);
    }
}

/// Asks the backends of a project, and keeps what is known of their offers: once all have answered, or some are late, and whenever one
/// of these answers.
async fn ask_all(ctx: &Context, project: ProjectId, query: &Query) -> Result<(), ComputeError> {
    let backends = ctx.deps.backends.of_project(project).await?;
    let asked: Vec<&Arc<dyn Backend>> = backends
        .iter()
        .filter(|backend| query.asks(backend.kind()) && able(query.needs, backend.capabilities()))
        .collect();
    let mut told = Told::nothing(asked.iter().map(|backend| backend.kind()));
    let mut answers: FuturesUnordered<_> = asked
        .into_iter()
        .enumerate()
        .map(|(at, backend)| async move { (at, ask(backend.as_ref(), &query.requirements).await) })
        .collect();
    let late = tokio::time::sleep(LATE_AFTER);
    tokio::pin!(late);
    let mut some_are_late = false;
    loop {
        if told.is_complete() || some_are_late {
            let answer = told.answer(query);
            wake(ctx, ctx.offer_cache.answered(project, query, ctx.now(), answer));
        }
        tokio::select! {
            biased;
            answer = answers.next() => match answer {
                // Those without an answer offer nothing.
                Some((at, offers)) => told.add(at, offers.unwrap_or_default()),
                None => return Ok(()),
            },
            () = &mut late, if !some_are_late => some_are_late = true,
        }
    }
}

/// What the backends that are asked have told, in their order.
struct Told(Vec<(BackendType, Option<Vec<Offer>>)>);

impl Told {
    fn nothing(by: impl Iterator<Item = BackendType>) -> Self {
        Self(by.map(|backend| (backend, None)).collect())
    }

    fn add(&mut self, at: usize, offers: Vec<Offer>) {
        if let Some((_, told)) = self.0.get_mut(at) {
            *told = Some(offers);
        }
    }

    fn is_complete(&self) -> bool {
        self.0.iter().all(|(_, told)| told.is_some())
    }

    fn answer(&self, query: &Query) -> Answer {
        let told = self.0.iter().filter_map(|(_, told)| told.as_deref());
        let late = self.0.iter().filter(|(_, told)| told.is_none());
        Answer {
            offers: Arc::new(query.select(told, None)),
            late: late.map(|(backend, _)| *backend).collect(),
        }
    }
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

#[cfg(test)]
mod tests {
    use dstack_model::decode::decode_strict;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    const PROJECT: ProjectId = ProjectId::new(Uuid::nil());

    fn query() -> Query {
        let profile = decode_strict(&json!({"name": "any"})).unwrap();
        let requirements = decode_strict(&json!({"resources": {}})).unwrap();
        Query::new(&profile, requirements)
    }

    fn offer(backend: &str, price: f64) -> Offer {
        let resources = json!({"cpus": 8, "memory_mib": 32768, "gpus": [], "spot": false});
        let instance = json!({"name": "any", "resources": resources});
        let offer = json!({"backend": backend, "region": "here", "price": price, "availability": "available", "instance": instance});
        decode_strict(&offer).unwrap()
    }

    fn key(number: u128) -> Key {
        Key::Schedule(Uuid::from_u128(number).into())
    }

    #[test]
    fn what_is_told_is_in_order_and_says_who_is_late() {
        let (query, all) = (query(), [BackendType::Aws, BackendType::Gcp, BackendType::Lambda]);
        let mut told = Told::nothing(all.into_iter());
        let nothing = told.answer(&query);
        assert_eq!((nothing.offers.len(), &*nothing.late), (0, &all[..]));
        told.add(2, vec![offer("lambda", 2.0)]);
        told.add(0, vec![offer("aws", 2.0)]);
        let some = told.answer(&query);
        assert_eq!(*some.offers, [offer("aws", 2.0), offer("lambda", 2.0)]);
        assert_eq!(
            (&*some.late, told.is_complete()),
            (&[BackendType::Gcp][..], false)
        );
        told.add(1, vec![offer("gcp", 1.0)]);
        assert_eq!(told.answer(&query).offers[0], offer("gcp", 1.0));
        assert!(told.answer(&query).late.is_empty() && told.is_complete());
    }

    #[test]
    fn whoever_asks_while_backends_are_late_gets_what_is_known_and_is_woken_by_more() {
        let (cache, query, begun) = (OfferCache::default(), query(), Time::from_millis(0));
        let at = |seconds| begun + Duration::from_secs(seconds);
        let known = |asker, now| cache.known(key(asker), PROJECT, &query, now);
        assert_eq!(known(1, begun), (None, true));
        assert_eq!(known(2, begun), (None, false));
        let some = Answer {
            offers: Arc::new(vec![offer("aws", 2.0)]),
            late: [BackendType::Gcp].into(),
        };
        let woken = cache.answered(PROJECT, &query, at(5), some.clone());
        assert_eq!(woken, BTreeSet::from([key(1), key(2)]));
        // It is not asked again for while the rest is awaited, however old it is.
        assert_eq!(known(2, at(5) + 2 * FRESH), (Some(some), false));
        let all = Answer {
            offers: Arc::new(vec![offer("gcp", 1.0), offer("aws", 2.0)]),
            late: [].into(),
        };
        assert_eq!(
            cache.answered(PROJECT, &query, at(20), all.clone()),
            BTreeSet::from([key(2)])
        );
        assert_eq!(known(3, at(19) + FRESH), (Some(all.clone()), false));
        assert_eq!(
            cache.answered(PROJECT, &query, at(20), all),
            BTreeSet::new(),
            "nobody waits"
        );
        assert_eq!(known(3, at(20) + FRESH), (None, true));
    }

    #[test]
    fn an_answer_that_will_not_be_complete_is_forgotten() {
        let (cache, query, now) = (OfferCache::default(), query(), Time::from_millis(0));
        cache.known(key(1), PROJECT, &query, now);
        let some = Answer {
            offers: Arc::default(),
            late: [BackendType::Gcp].into(),
        };
        cache.answered(PROJECT, &query, now, some);
        cache.known(key(2), PROJECT, &query, now);
        assert_eq!(cache.forget(PROJECT, &query), BTreeSet::from([key(2)]));
        assert_eq!(cache.known(key(2), PROJECT, &query, now), (None, true));
    }
}
