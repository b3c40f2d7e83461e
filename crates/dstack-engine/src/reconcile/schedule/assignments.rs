//! What the jobs of a pass get, as one commit.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use dstack_plan::lifecycle::{Wait, WaitReason};
use dstack_plan::placement::Choice;
use dstack_plan::queue::NewInstance;
use dstack_store::rows::{
    ComputeGroupRow, FleetRow, InstanceRow, JobRow, OperationKind, OperationRow, RunRow,
};
use dstack_store::{Changes, EntityRef, EventMaker, PlacementSnapshot, Sealed};
use dstack_units::{ComputeGroupId, FleetId, InstanceId, JobId, ProjectId, RunId, Time};

use crate::Result;
use crate::context::Context;
use crate::job_volumes::{Claimed, ProjectVolumes, not_attached};
use crate::operations::instances::OfferAttempts;
use crate::operations::intend;
use crate::reconcile::fleet_view::counted;
use crate::wakes::Key;

/// Collects what is to be written.
pub(super) struct Assignments<'a> {
    ctx: &'a Arc<Context>,
    now: Time,
    changes: Changes,
    instances: HashMap<InstanceId, &'a InstanceRow>,
    /// Those that have got jobs, as they are then.
    occupied: HashMap<InstanceId, InstanceRow>,
    fleets: HashMap<FleetId, &'a FleetRow>,
    /// Numbers of instances that are taken, by fleet.
    numbers: HashMap<FleetId, BTreeSet<i64>>,
    placed: Vec<Placed>,
}

/// A job that has got an instance.
struct Placed {
    job: JobId,
    name: String,
    run: RunId,
    project: ProjectId,
    /// Other nodes may wait for it.
    multinode: bool,
    instance: String,
    /// Whether this server drives the instance. The commit hands the job over to whoever does.
    ours: bool,
}

impl<'a> Assignments<'a> {
    /// Assigns nothing yet; instances and fleets are those of `placement`.
    pub(super) fn new(ctx: &'a Arc<Context>, placement: &'a PlacementSnapshot, now: Time) -> Self {
        let mut numbers: HashMap<FleetId, BTreeSet<i64>> = HashMap::new();
        for row in &placement.instances {
            if let Some(fleet) = row.fleet_id {
                numbers.entry(fleet).or_default().insert(row.instance_num);
            }
        }
        Self {
            ctx,
            now,
            changes: Changes::new(EventMaker::system(now, ctx.deps.random.clone())),
            instances: placement.instances.iter().map(|row| (row.id, row)).collect(),
            occupied: HashMap::new(),
            fleets: placement.fleets.iter().map(|row| (row.id, row)).collect(),
            numbers,
            placed: Vec::new(),
        }
    }

    /// The job gets a share of an instance, and its network volumes. Returns the instance (`None`: it is not one of those that were
    /// read), or why it does not get the volumes.
    ///
    /// # Errors
    /// The status of the instance or of the job does not allow it.
    pub(super) fn assign(
        &mut self,
        before: &JobRow,
        choice: &Choice,
        volumes: &mut ProjectVolumes,
    ) -> Result<Result<Option<&InstanceRow>, String>> {
        let Some(read) = self.instances.get(&choice.instance_id) else {
            return Ok(Ok(None));
        };
        let was = self.occupied.get(&read.id).unwrap_or(read).clone();
        let multinode = before.job_spec.jobs_per_replica > 1;
        let runtime = choice.runtime_data(self.ctx.deps.settings.host_network, multinode);
        let (mut job, mut slot) = (before.clone(), was.clone());
        job.assign(&was, choice.fleet_id, runtime, self.now)?;
        slot.occupy(i64::from(choice.offer.blocks), self.now)?;
        // After all that may fail: no volume is taken for a job that does not get its place.
        match volumes.give(self.ctx, &mut self.changes, read, before) {
            Ok(names) => job.mount(names),
            Err(error) => return Ok(Err(not_attached(&error))),
        }
        let assigned = self.changes.maker().assigned(&job, &slot);
        self.changes.event(assigned);
        self.changes.update(before, job);
        self.changes.update(&was, slot.clone());
        self.placed.push(Placed {
            job: before.id,
            name: before.job_name.clone(),
            run: before.run_id,
            project: before.project_id,
            multinode,
            instance: slot.name.clone(),
            ours: self.ctx.leases.contains(EntityRef::Instance(slot.id)),
        });
        self.occupied.insert(read.id, slot);
        Ok(Ok(self.occupied.get(&read.id)))
    }

    /// An instance is to be made for the job, which has it and its network volumes from now on, and what is asked of the cloud is
    /// written down. Returns why the job does not get its volumes, if it does not.
    pub(super) fn make(
        &mut self,
        run: &RunRow,
        before: &JobRow,
        new: &NewInstance,
        volumes: &mut ProjectVolumes,
    ) -> Result<(), String> {
        let Some(fleet) = self.fleets.get(&new.fleet) else {
            return Ok(());
        };
        let (ctx, now) = (self.ctx, self.now);
        let number = take_free_number(self.numbers.entry(fleet.id).or_default());
        let id = ctx.deps.random.ordered_uuid(now).into();
        let mut instance = InstanceRow::pending(id, fleet, number, now);
        // Nobody else gets it.
        instance.busy_blocks = 1;
        instance.wait(Wait::briefly(now, WaitReason::CloudAsked));
        let claimed = volumes
            .claim(ctx, &mut self.changes, &[(&instance, before)], &new.offers)
            .map_err(|error| not_attached(&error))?;
        let mut job = before.clone();
        job.reserve(&instance);
        let attempts = attempts(claimed, new);
        let operation = OperationRow {
            notes: Some(Sealed::new(attempts.to_json())),
            ..intend(ctx, EntityRef::Instance(instance.id), OperationKind::Create, now)
        };
        tracing::info!(job.id = %job.id, job.name = %job.job_name, run.name = run.run_name, instance.name, "a new instance is made");
        self.changes.touch(counted(fleet, now));
        self.changes.insert_silently(instance);
        self.changes.update(before, job);
        self.changes.intend(operation);
        Ok(())
    }

    /// Instances are to be made for all nodes of a replica as one, which have them and their network volumes from now on, and what is
    /// asked of the cloud is written down. `nodes` are in order. Returns why they do not get their volumes, if they do not.
    pub(super) fn make_group(
        &mut self,
        run: &RunRow,
        nodes: &[&JobRow],
        new: &NewInstance,
        volumes: &mut ProjectVolumes,
    ) -> Result<(), String> {
        let Some(fleet) = self.fleets.get(&new.fleet).copied() else {
            return Ok(());
        };
        let (ctx, now) = (self.ctx, self.now);
        let id: ComputeGroupId = ctx.deps.random.ordered_uuid(now).into();
        let mut instances = Vec::with_capacity(nodes.len());
        for _ in nodes {
            let number = take_free_number(self.numbers.entry(fleet.id).or_default());
            let member = ctx.deps.random.ordered_uuid(now).into();
            let mut instance = InstanceRow::pending(member, fleet, number, now);
            // Nobody else gets it.
            instance.busy_blocks = 1;
            instance.compute_group_id = Some(id);
            instance.wait(Wait::briefly(now, WaitReason::CloudAsked));
            instances.push(instance);
        }
        let of_nodes: Vec<(&InstanceRow, &JobRow)> = instances.iter().zip(nodes.iter().copied()).collect();
        let claimed = volumes
            .claim(ctx, &mut self.changes, &of_nodes, &new.offers)
            .map_err(|error| not_attached(&error))?;
        let members: Vec<InstanceId> = instances.iter().map(|instance| instance.id).collect();
        for (instance, before) in instances.into_iter().zip(nodes) {
            let mut job = (*before).clone();
            job.reserve(&instance);
            self.changes.insert_silently(instance);
            self.changes.update(*before, job);
        }
        let attempts = attempts(claimed, new);
        let operation = OperationRow {
            notes: Some(Sealed::new(attempts.to_json())),
            ..intend(ctx, EntityRef::ComputeGroup(id), OperationKind::Create, now)
        };
        tracing::info!(
            run.name = run.run_name,
            nodes = members.len(),
            "new instances are made as one"
        );
        let group = ComputeGroupRow::submitted(id, fleet, run.run_name.clone(), members, now);
        self.changes.touch(counted(fleet, now));
        self.changes.insert_silently(group);
        self.changes.intend(operation);
        Ok(())
    }

    /// Writes everything, and `ends` after it.
    ///
    /// # Errors
    /// Nothing was written.
    pub(super) async fn commit(self, ends: Changes) -> Result<()> {
        let Self {
            ctx,
            mut changes,
            placed,
            ..
        } = self;
        changes.extend(ends.into_commit());
        let handed_over = || {
            placed
                .iter()
                .filter(|one| !one.ours)
                .map(|one| EntityRef::Job(one.job))
        };
        for job in handed_over() {
            ctx.leases.remove(job);
        }
        let name = ("schedule.commit.before", "schedule.commit.after");
        if let Err(error) = ctx.commit(name, changes.into_commit()).await {
            ctx.leases.extend(handed_over());
            return Err(error);
        }
        for one in placed {
            tracing::info!(job.id = %one.job, job.name = %one.name, instance.name = %one.instance, "job placed");
            ctx.wakes.wake(EntityRef::Run(one.run));
            if one.multinode {
                // The other nodes may have waited for this one.
                ctx.wakes.wake(Key::Schedule(one.project));
            }
        }
        Ok(())
    }
}

/// What is tried to make what is new.
fn attempts(claimed: Claimed, new: &NewInstance) -> OfferAttempts {
    OfferAttempts::of(&claimed.offers, new.idle_for)
        .then_elsewhere(claimed.elsewhere)
        .then_late(new.unanswered.clone())
        .reserved(new.reservation.clone())
}

/// The lowest number that no instance of the fleet has; it is taken from then on.
fn take_free_number(taken: &mut BTreeSet<i64>) -> i64 {
    let free = (0..).find(|number| !taken.contains(number)).unwrap_or(0);
    taken.insert(free);
    free
}
