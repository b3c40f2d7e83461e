//! How machines and containers of clouds are, asked of their clouds now and then: one that broke, one that is to be taken away.
//!
//! Clouds are asked for many at once, some calls at a time: one that takes long holds up few others of its account.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dstack_compute::{
    Backend, ComputeError, Container, Group, Known, LISTED_WITHIN, Lifecycle, Machine, Resource, Sign,
};
use dstack_model::backends::BackendType;
use dstack_model::compute_groups::ComputeGroupProvisioningData;
use dstack_model::runs::JobProvisioningData;
use dstack_store::EntityRef;
use dstack_store::rows::InstanceRow;
use dstack_units::{ComputeGroupId, InstanceId, ProjectId, Time};
use futures_util::StreamExt as _;
use futures_util::stream;

use crate::context::Context;
use crate::operations::clouds::{backend, in_time};
use crate::operations::compute_groups;
use crate::operations::instances::marks;

/// Pause between two looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);

/// So many are asked for in one call.
const AT_ONCE: usize = 100;

/// So many calls to one account are under way, that a slow one holds up few others.
const CALLS_AT_ONCE: usize = 4;

/// One backend of one project.
type Account = (ProjectId, BackendType);

/// The instances that are looked at, as far as this server drives them.
#[derive(Debug, Default)]
pub struct Looks(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    instances: HashMap<InstanceId, Looked>,
    /// Those that are being asked.
    asked: BTreeSet<Account>,
}

#[derive(Debug, Clone)]
struct Looked {
    row: InstanceRow,
    /// Clouds list new machines late: it is not looked at before.
    from: Time,
}

impl Looks {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at an instance that a cloud has made from now on.
    pub fn follow(&self, row: &InstanceRow) {
        let from = row.started_at.unwrap_or(row.created_at) + LISTED_WITHIN;
        let looked = Looked {
            row: row.clone(),
            from,
        };
        self.lock().instances.insert(row.id, looked);
    }

    /// It is looked at no more.
    pub fn forget(&self, id: InstanceId) {
        self.lock().instances.remove(&id);
    }

    /// Whom to ask for what, of those who are not being asked; they are from now on.
    fn take_due(
        &self,
        now: Time,
        is_driven: impl Fn(InstanceId) -> bool,
    ) -> BTreeMap<Account, Vec<InstanceRow>> {
        let mut state = self.lock();
        // Others look at what they have taken over.
        state.instances.retain(|id, _| is_driven(*id));
        let mut due: BTreeMap<Account, Vec<InstanceRow>> = BTreeMap::new();
        for looked in state.instances.values().filter(|looked| now >= looked.from) {
            if let Some(place) = looked.row.job_provisioning_data.as_deref() {
                let account = (looked.row.project_id, place.backend);
                due.entry(account).or_default().push(looked.row.clone());
            }
        }
        due.retain(|account, _| state.asked.insert(*account));
        due
    }

    fn answered(&self, account: Account) {
        self.lock().asked.remove(&account);
    }
}

/// An account that is being asked, until this is dropped: also where that ends in a panic.
struct Asked<'a>(&'a Looks, Account);

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.0.answered(self.1);
    }
}

/// Looks now and then, as long as the engine runs.
pub fn start(ctx: &Arc<Context>) {
    ctx.spawn_service("looks at clouds", |ctx| async move {
        loop {
            let jitter = ctx.deps.random.fraction() * 0.2 + 0.9;
            tokio::time::sleep(LOOK_INTERVAL.mul_f64(jitter)).await;
            let is_driven = |id| ctx.leases.contains(EntityRef::Instance(id));
            for (account, rows) in ctx.looks.take_due(ctx.now(), is_driven) {
                let context = Arc::clone(&ctx);
                ctx.spawn("look at a cloud", async move {
                    let _asked = Asked(&context.looks, account);
                    look_at(&context, account, rows).await;
                });
            }
        }
    });
}

async fn look_at(ctx: &Context, account: Account, rows: Vec<InstanceRow>) {
    let (members, rows): (Vec<_>, Vec<_>) = rows
        .into_iter()
        .partition(|row: &InstanceRow| row.compute_group_id.is_some());
    let is_machine = |row: &InstanceRow| {
        row.job_provisioning_data
            .as_deref()
            .is_some_and(|place| place.dockerized)
    };
    let (machines, containers): (Vec<_>, Vec<_>) = rows.into_iter().partition(is_machine);
    tokio::join!(
        look_at_groups(ctx, account, &members),
        look_at_instances::<Machine>(ctx, account, &machines),
        look_at_instances::<Container>(ctx, account, &containers),
    );
}

/// A kind of what is looked at.
trait LookedAt: Resource {
    /// What they are, for people.
    const NAME: &'static str;

    /// What of a backend makes them.
    fn lifecycle(backend: &dyn Backend) -> Option<&dyn Lifecycle<Self>>
    where
        Self: Sized;
}

impl LookedAt for Machine {
    const NAME: &'static str = "instances";

    fn lifecycle(backend: &dyn Backend) -> Option<&dyn Lifecycle<Self>> {
        backend.machines()
    }
}

impl LookedAt for Container {
    const NAME: &'static str = "instances";

    fn lifecycle(backend: &dyn Backend) -> Option<&dyn Lifecycle<Self>> {
        backend.containers()
    }
}

impl LookedAt for Group {
    const NAME: &'static str = "groups of containers";

    fn lifecycle(backend: &dyn Backend) -> Option<&dyn Lifecycle<Self>> {
        backend.groups()
    }
}

async fn look_at_instances<R>(ctx: &Context, account: Account, rows: &[InstanceRow])
where
    R: LookedAt<Site = String, Place = JobProvisioningData>,
{
    let known = |row: &InstanceRow| -> Option<Known<R>> {
        let place = row.job_provisioning_data.as_deref()?;
        Some(Known {
            marks: marks(ctx, row),
            site: place.region.clone(),
            place: Some(place.clone()),
        })
    };
    let pairs = rows.iter().filter_map(|row| Some((row, known(row)?)));
    look_at_all(ctx, account, pairs.collect(), |row, sign| take(ctx, row, sign)).await;
}

/// As [`look_at_instances`], of containers that were made as one.
async fn look_at_groups(ctx: &Context, account: Account, rows: &[InstanceRow]) {
    let mut groups: BTreeMap<ComputeGroupId, Vec<&InstanceRow>> = BTreeMap::new();
    for row in rows {
        if let Some(id) = row.compute_group_id {
            groups.entry(id).or_default().push(row);
        }
    }
    let mut pairs = Vec::new();
    for (id, rows) in groups {
        match group(ctx, id).await {
            Ok(Some((members, known))) => pairs.push(((rows, members), known)),
            Ok(None) => {}
            Err(error) => {
                not_told::<Group>(account, rows.len(), &error);
                for row in rows {
                    take(ctx, row, None);
                }
            }
        }
    }
    look_at_all(ctx, account, pairs, |(rows, members), sign| {
        for row in rows {
            // One that is not of the group any more is not spoken of.
            if let Some(node) = members.iter().position(|member| *member == row.id) {
                let sign = sign.as_ref().map(|sign| sign_of_member(row, node, sign));
                take(ctx, row, sign);
            }
        }
    })
    .await;
}

/// A group by what is known of it, with its members in order; `None`: it is over, or its cloud has not made it.
async fn group(
    ctx: &Context,
    id: ComputeGroupId,
) -> Result<Option<(Vec<InstanceId>, Known<Group>)>, ComputeError> {
    let found = ctx.deps.store.compute_group(id).await;
    let found = found.map_err(|error| ComputeError::Unclear(error.to_string()))?;
    Ok(found.and_then(|found| {
        let place = found.group.provisioning_data.as_deref()?.clone();
        let known = Known {
            marks: compute_groups::marks(ctx, &found.group),
            site: place.region.clone(),
            place: Some(place),
        };
        Some((found.group.members.to_vec(), known))
    }))
}

/// Asks an account how things are, so many at once, and hands on what it says of each as it comes; `None`: it does not tell.
async fn look_at_all<T: Send, R: LookedAt>(
    ctx: &Context,
    account: Account,
    things: Vec<(T, Known<R>)>,
    hand_on: impl Fn(T, Told<R>),
) {
    if things.is_empty() {
        return;
    }
    let able = |backend: &dyn Backend| R::lifecycle(backend).is_some();
    let (project, kind) = account;
    let cloud = &backend(ctx, project, kind, R::NAME, able).await;
    let asked = chunks(things).into_iter().map(|(of, known)| async move {
        let told = match cloud {
            Ok(cloud) => ask(cloud.as_ref(), &known).await,
            Err(error) => Err(error.clone()),
        };
        (of, told)
    });
    let failed = |count, error: &ComputeError| not_told::<R>(account, count, error);
    hand_on_as_told(asked, hand_on, failed).await;
}

/// Makes calls, some at a time, and hands on what each tells as it comes; `failed`: of so many it tells nothing, and why.
async fn hand_on_as_told<I, P>(
    calls: impl Iterator<Item = impl Future<Output = (Vec<I>, Result<Vec<Option<Sign<P>>>, ComputeError>)>>,
    hand_on: impl Fn(I, Option<Sign<P>>),
    failed: impl Fn(usize, &ComputeError),
) {
    let mut answers = stream::iter(calls).buffer_unordered(CALLS_AT_ONCE);
    while let Some((of, told)) = answers.next().await {
        let (signs, error) = concluded(of, told);
        if let Some(error) = error {
            failed(signs.len(), &error);
        }
        for (thing, sign) in signs {
            hand_on(thing, sign);
        }
    }
}

/// Things by what is asked for in one call.
fn chunks<T, R: LookedAt>(mut things: Vec<(T, Known<R>)>) -> Vec<(Vec<T>, Vec<Known<R>>)> {
    let mut chunks = Vec::new();
    while !things.is_empty() {
        let later = things.split_off(things.len().min(AT_ONCE));
        chunks.push(things.into_iter().unzip());
        things = later;
    }
    chunks
}

fn not_told<R: LookedAt>((project, kind): Account, count: usize, error: &ComputeError) {
    tracing::debug!(project.id = %project, backend.r#type = %kind, count, %error, "a cloud does not tell how {} are", R::NAME);
}

/// What a cloud says of one thing; `None`: it does not tell.
type Told<R> = Option<Sign<<R as Resource>::Place>>;

async fn ask<R: LookedAt>(cloud: &dyn Backend, known: &[Known<R>]) -> Result<Vec<Told<R>>, ComputeError> {
    match R::lifecycle(cloud) {
        Some(lifecycle) => in_time(lifecycle.look(known)).await,
        None => Err(ComputeError::Unsupported(R::NAME)),
    }
}

/// What is told of each. An answer about others than those that were asked for tells nothing.
#[expect(clippy::type_complexity, reason = "what is told, and why it is not")]
fn concluded<I, P>(
    asked: Vec<I>,
    told: Result<Vec<Option<Sign<P>>>, ComputeError>,
) -> (Vec<(I, Option<Sign<P>>)>, Option<ComputeError>) {
    let told = told.and_then(|signs| match signs.len() == asked.len() {
        true => Ok(signs),
        false => Err(ComputeError::Unclear(format!(
            "it told of {} and not of {}",
            signs.len(),
            asked.len()
        ))),
    });
    match told {
        Ok(signs) => (asked.into_iter().zip(signs).collect(), None),
        Err(error) => (asked.into_iter().map(|of| (of, None)).collect(), Some(error)),
    }
}

/// What is said of a group is said of each of its members.
fn sign_of_member(
    row: &InstanceRow,
    node: usize,
    sign: &Sign<ComputeGroupProvisioningData>,
) -> Sign<JobProvisioningData> {
    match sign {
        Sign::Well => Sign::Well,
        Sign::Ending { at, why } => Sign::Ending {
            at: *at,
            why: why.clone(),
        },
        Sign::Lost(why) => Sign::Lost(why.clone()),
        Sign::Moved(place) => match place.job_provisioning_datas.get(node) {
            Some(moved) if row.job_provisioning_data.as_deref() != Some(moved) => Sign::Moved(moved.clone()),
            _ => Sign::Well,
        },
    }
}

/// The row follows what the cloud says.
fn take(ctx: &Context, row: &InstanceRow, sign: Option<Sign<JobProvisioningData>>) {
    let id = row.id;
    if !ctx.leases.contains(EntityRef::Instance(id)) {
        // Another server looks for itself.
        return;
    }
    let (answers, _) = ctx.seen.instance(id);
    let is_new = ctx.seen.update_instance(id, |seen| {
        let before = seen.sign.take();
        seen.sign = follows(before.clone(), sign, answers);
        let is_denied = row.leaving_because.is_some() && seen.sign == Some(Sign::Well);
        is_denied || before.unwrap_or(Sign::Well) != seen.sign.clone().unwrap_or(Sign::Well)
    });
    if is_new {
        ctx.wakes.wake(EntityRef::Instance(id));
    }
}

/// What is known after a look, which says `now`: nothing, where it failed.
///
/// A cloud that does not know a machine whose agent answers is wrong: what it says now is not held against the machine later, when
/// the connection is away for a moment. Nor is what it said before, while it does not tell. That it will take a machine away stands
/// until it says otherwise.
fn follows<P>(before: Option<Sign<P>>, now: Option<Sign<P>>, answers: bool) -> Option<Sign<P>> {
    match now {
        None => before.filter(|sign| !matches!(sign, Sign::Lost(_))),
        Some(Sign::Lost(_)) if answers => before.filter(|sign| !matches!(sign, Sign::Lost(_))),
        Some(sign) => Some(sign),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost() -> Sign<()> {
        Sign::Lost("it is gone".to_owned())
    }

    #[test]
    fn nothing_is_told_of_any_by_a_cloud_that_fails_or_tells_of_others() {
        let (signs, error) = concluded(vec![1, 2, 3], Ok(vec![Some(Sign::Well), None, Some(lost())]));
        assert_eq!(signs, [(1, Some(Sign::Well)), (2, None), (3, Some(lost()))]);
        assert!(error.is_none());
        let away = ComputeError::Configuration("its backend is not configured".to_owned());
        for told in [Err(away), Ok(vec![Some(lost())])] {
            let (signs, error) = concluded(vec![1, 2], told);
            assert_eq!(signs, [(1, None), (2, None)]);
            assert!(error.is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_answer_holds_up_no_other() {
        let (slow, quick) = (Duration::from_secs(100), Duration::from_secs(1));
        let calls = [(1, slow), (2, quick), (3, quick)]
            .into_iter()
            .map(async |(of, takes)| {
                tokio::time::sleep(takes).await;
                (vec![of], Ok(vec![Some(lost())]))
            });
        let told = Mutex::new(Vec::new());
        let begun = tokio::time::Instant::now();
        let hand_on = |of: i32, _| told.lock().unwrap().push((of, begun.elapsed().as_secs()));
        hand_on_as_told(calls, hand_on, |_, _| panic!("all tell")).await;
        assert_eq!(*told.lock().unwrap(), [(2, 1), (3, 1), (1, 100)]);
    }

    #[test]
    fn a_look_that_fails_takes_back_that_it_is_lost_and_no_notice() {
        let ending = || Sign::<()>::Ending {
            at: None,
            why: "the price went up".to_owned(),
        };
        assert_eq!(follows(Some(lost()), None, false), None);
        assert_eq!(follows(Some(ending()), None, false), Some(ending()));
        assert_eq!(follows(None, None, false), None::<Sign<()>>);
        // Nor does a cloud that forgets a machine that answers.
        assert_eq!(follows(Some(ending()), Some(lost()), true), Some(ending()));
        assert_eq!(follows(Some(lost()), Some(lost()), true), None);
        assert_eq!(follows(Some(ending()), Some(lost()), false), Some(lost()));
        assert_eq!(follows(Some(ending()), Some(Sign::Well), true), Some(Sign::Well));
    }
}
