//! How machines and containers of clouds are, asked of their clouds now and then: one that broke, one that is to be taken away.
//!
//! Clouds are asked for many at once. One that takes long holds up no other.

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

use crate::context::Context;
use crate::operations::clouds::{backend, in_time};
use crate::operations::compute_groups;
use crate::operations::instances::marks;

/// Pause between two looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);

/// So many are asked for in one call.
const AT_ONCE: usize = 100;

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
    for (rows, looked) in [
        (&members, look_at_groups(ctx, account, &members).await),
        (&machines, look_at_all::<Machine>(ctx, account, &machines).await),
        (
            &containers,
            look_at_all::<Container>(ctx, account, &containers).await,
        ),
    ] {
        if let Err(error) = looked {
            let (project, kind) = account;
            tracing::debug!(project.id = %project, backend.r#type = %kind, count = rows.len(), %error, "a cloud does not tell how instances are");
        }
    }
}

/// A kind of instances.
trait Instances: Resource<Site = String, Place = JobProvisioningData> {
    /// What of a backend makes them.
    fn lifecycle(backend: &dyn Backend) -> Option<&dyn Lifecycle<Self>>
    where
        Self: Sized;
}

impl Instances for Machine {
    fn lifecycle(backend: &dyn Backend) -> Option<&dyn Lifecycle<Self>> {
        backend.machines()
    }
}

impl Instances for Container {
    fn lifecycle(backend: &dyn Backend) -> Option<&dyn Lifecycle<Self>> {
        backend.containers()
    }
}

async fn look_at_all<R: Instances>(
    ctx: &Context,
    (project, kind): Account,
    rows: &[InstanceRow],
) -> Result<(), ComputeError> {
    if rows.is_empty() {
        return Ok(());
    }
    let able = |backend: &dyn Backend| R::lifecycle(backend).is_some();
    let cloud = backend(ctx, project, kind, "instances", able).await;
    let mut failed = None;
    for rows in rows.chunks(AT_ONCE) {
        let pairs = rows.iter().filter_map(|row| Some((row.id, known(ctx, row)?)));
        let (ids, known): (Vec<InstanceId>, Vec<Known<R>>) = pairs.unzip();
        let told = match &cloud {
            Ok(cloud) => ask(cloud.as_ref(), &known).await,
            Err(error) => Err(error.clone()),
        };
        let (signs, error) = concluded(ids, told);
        for (id, sign) in signs {
            take(ctx, id, sign);
        }
        failed = error.or(failed);
    }
    failed.map_or(Ok(()), Err)
}

async fn ask<R: Instances>(
    cloud: &dyn Backend,
    known: &[Known<R>],
) -> Result<Vec<Sign<R::Place>>, ComputeError> {
    match R::lifecycle(cloud) {
        Some(lifecycle) => in_time(lifecycle.look(known)).await,
        None => Err(ComputeError::Unsupported("instances")),
    }
}

/// What follows for each. Of what a cloud does not tell, nothing is concluded, and nothing that was concluded before stands.
fn concluded<I, P>(
    ids: Vec<I>,
    told: Result<Vec<Sign<P>>, ComputeError>,
) -> (Vec<(I, Sign<P>)>, Option<ComputeError>) {
    let told = told.and_then(|signs| match signs.len() == ids.len() {
        true => Ok(signs),
        false => Err(ComputeError::Unclear(format!(
            "it told of {} instances and not of {}",
            signs.len(),
            ids.len()
        ))),
    });
    match told {
        Ok(signs) => (ids.into_iter().zip(signs).collect(), None),
        Err(error) => (ids.into_iter().map(|id| (id, Sign::Well)).collect(), Some(error)),
    }
}

/// As [`look_at_all`], of containers that were made as one.
async fn look_at_groups(
    ctx: &Context,
    (project, kind): Account,
    rows: &[InstanceRow],
) -> Result<(), ComputeError> {
    let groups: BTreeSet<ComputeGroupId> = rows.iter().filter_map(|row| row.compute_group_id).collect();
    if groups.is_empty() {
        return Ok(());
    }
    let able = |backend: &dyn Backend| backend.groups().is_some();
    let cloud = backend(ctx, project, kind, "groups of containers", able).await?;
    let Some(lifecycle) = cloud.groups() else {
        return Ok(());
    };
    let (mut found, mut known) = (Vec::new(), Vec::<Known<Group>>::new());
    for id in groups {
        let group = ctx.deps.store.compute_group(id).await;
        let group = group.map_err(|error| ComputeError::Unclear(error.to_string()))?;
        let Some((group, place)) = group.and_then(|group| {
            let place = group.group.provisioning_data.as_deref()?.clone();
            Some((group.group, place))
        }) else {
            continue;
        };
        known.push(Known {
            marks: compute_groups::marks(ctx, &group),
            site: place.region.clone(),
            place: Some(place),
        });
        found.push(group);
    }
    let told = in_time(lifecycle.look(&known)).await;
    let failed = told.as_ref().err().cloned();
    // Nothing is concluded from an error, and nothing that was concluded before stands.
    let signs = told.unwrap_or_else(|_| vec![Sign::Well; found.len()]);
    for (group, sign) in found.iter().zip(signs) {
        for (node, member) in group.members.iter().enumerate() {
            if let Some(row) = rows.iter().find(|row| row.id == *member) {
                take(ctx, *member, sign_of_member(row, node, &sign));
            }
        }
    }
    failed.map_or(Ok(()), Err)
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

fn known<R: Instances>(ctx: &Context, row: &InstanceRow) -> Option<Known<R>> {
    let place = row.job_provisioning_data.as_deref()?;
    Some(Known {
        marks: marks(ctx, row),
        site: place.region.clone(),
        place: Some(place.clone()),
    })
}

/// The row follows what the cloud says.
fn take(ctx: &Context, id: InstanceId, sign: Sign<JobProvisioningData>) {
    if !ctx.leases.contains(EntityRef::Instance(id)) {
        // Another server looks for itself.
        return;
    }
    // A cloud that does not know a machine whose agent answers is wrong: what it says now is not held against the machine later,
    // when the connection is away for a moment.
    let (answers, _) = ctx.seen.instance(id);
    let is_believed = !(answers && matches!(sign, Sign::Lost(_)));
    let sign = Some(sign).filter(|sign| *sign != Sign::Well && is_believed);
    let is_new = ctx.seen.update_instance(id, |seen| {
        let is_new = seen.sign != sign;
        seen.sign = sign;
        is_new
    });
    if is_new {
        ctx.wakes.wake(EntityRef::Instance(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_was_concluded_before_stands_while_a_cloud_does_not_tell() {
        let lost = || Sign::<()>::Lost("it is gone".to_owned());
        let (signs, error) = concluded(vec![1, 2], Ok(vec![Sign::Well, lost()]));
        assert_eq!(signs, [(1, Sign::Well), (2, lost())]);
        assert!(error.is_none());
        let away = ComputeError::Configuration("its backend is not configured".to_owned());
        for told in [Err(away), Ok(vec![lost()])] {
            let (signs, error) = concluded(vec![1, 2], told);
            assert_eq!(signs, [(1, Sign::Well), (2, Sign::Well)]);
            assert!(error.is_some());
        }
    }
}
