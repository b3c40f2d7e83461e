//! Groups of containers that the simulated cloud makes and removes as one, if it does.

use std::collections::HashMap;

use async_trait::async_trait;
use dstack_compute::{
    Call, ComputeError, Group, GroupRequest, Known, LISTED_WITHIN, Lifecycle, Removal, Sign, Step, Workload,
};
use dstack_model::compute_groups::ComputeGroupProvisioningData;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_units::{ComputeGroupId, InstanceId};
use tokio::time::Instant;
use uuid::Uuid;

use super::{CONTAINER_LOST, Clouds, State, address, place};

/// Containers that exist, and cost money, as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerGroup {
    /// Whose they are.
    pub id: ComputeGroupId,
    /// Of which offer.
    pub offer: String,
    /// Number of its containers.
    pub size: usize,
    /// When it is listed.
    listed_at: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Groups {
    pub(super) are_made: bool,
    pub(super) groups: Vec<ContainerGroup>,
    /// Groups ever made, by their row.
    made: HashMap<ComputeGroupId, usize>,
    /// What the members of the last one were asked to run.
    workloads: Vec<Workload>,
}

/// The numbers of the members, which their addresses are made of.
fn numbers(state: &mut State, id: ComputeGroupId, size: usize) -> Vec<usize> {
    let members = (1..).take(size);
    let members = members.map(|node: u128| InstanceId::from(Uuid::from_u128(id.uuid().as_u128() ^ node)));
    members.map(|member| state.number_of(member)).collect()
}

impl Clouds {
    /// It makes containers of several nodes as one, from now on.
    pub fn makes_groups(&self) {
        self.change(|state| state.groups.are_made = true);
    }

    /// Groups of containers that exist.
    pub fn groups_of_containers(&self) -> Vec<ContainerGroup> {
        self.lock().groups.groups.clone()
    }

    /// What the members of the last group were asked to run, in their order.
    pub fn workloads_of_group(&self) -> Vec<Workload> {
        self.lock().groups.workloads.clone()
    }

    /// The most groups that were ever made for one row.
    pub fn most_groups_made(&self) -> usize {
        self.lock().groups.made.values().copied().max().unwrap_or(0)
    }

    /// The group breaks, and is gone.
    pub fn lose_group(&self, id: ComputeGroupId) {
        self.change(|state| self.drop_group(state, id));
    }

    fn drop_group(&self, state: &mut State, id: ComputeGroupId) {
        let Some(at) = state.groups.groups.iter().position(|group| group.id == id) else {
            return;
        };
        let group = state.groups.groups.remove(at);
        for number in numbers(state, id, group.size) {
            self.hosts.end_container(&address(number));
        }
    }

    fn place_of(
        state: &mut State,
        id: ComputeGroupId,
        offer: &Offer,
        size: usize,
    ) -> Result<ComputeGroupProvisioningData, ComputeError> {
        let members: Option<Vec<_>> = numbers(state, id, size)
            .into_iter()
            .map(|number| place(offer, number, Uuid::from_u128(number as u128).into()))
            .collect();
        Ok(ComputeGroupProvisioningData {
            compute_group_id: id.to_string(),
            compute_group_name: "group".to_owned(),
            backend: offer.backend,
            base_backend: None,
            region: offer.region.to_string(),
            job_provisioning_datas: members.ok_or(ComputeError::Unsupported("this"))?,
            backend_data: None,
        })
    }

    /// Makes another group at each call: nothing but its notes keeps the engine from having two.
    async fn make_group(&self, want: &GroupRequest) -> Result<(), ComputeError> {
        let (want, hosts) = (want.clone(), self.hosts.clone());
        self.order(move |state: &mut State| {
            let name = want.offer.instance.name.clone();
            state.ask_for(&want.offer)?;
            let (id, size) = (ComputeGroupId::from(want.marks.key), want.workloads.len());
            for number in numbers(state, id, size) {
                hosts.begin_container(&address(number));
            }
            state.groups.groups.push(ContainerGroup {
                id,
                offer: name,
                size,
                listed_at: Instant::now() + state.delays.unlisted,
            });
            *state.groups.made.entry(id).or_default() += 1;
            state.groups.workloads = want.workloads;
            Ok(())
        })
        .await
    }

    async fn find_group(&self, id: ComputeGroupId) -> Result<Option<()>, ComputeError> {
        self.ask(move |state: &mut State| {
            let is_it = |group: &ContainerGroup| group.id == id && group.listed_at <= Instant::now();
            Ok(state.groups.groups.iter().any(is_it).then_some(()))
        })
        .await
    }

    pub(super) async fn delete_group(&self, id: ComputeGroupId) -> Result<Removal, ComputeError> {
        let cloud = self.clone();
        self.order(move |state: &mut State| {
            cloud.drop_group(state, id);
            Ok(Removal::Gone)
        })
        .await
    }
}

#[async_trait]
impl Lifecycle<Group> for Clouds {
    async fn ensure(
        &self,
        want: &GroupRequest,
        call: &Call<'_>,
    ) -> Result<Step<ComputeGroupProvisioningData>, ComputeError> {
        let id = ComputeGroupId::from(want.marks.key);
        let (make, find) = (|| self.make_group(want), || self.find_group(id));
        call.make("group", LISTED_WITHIN, make, find).await?;
        let place = Self::place_of(&mut self.lock(), id, &want.offer, want.workloads.len());
        place.map(Step::Ready)
    }

    async fn look(
        &self,
        known: &[Known<Group>],
    ) -> Result<Vec<Option<Sign<ComputeGroupProvisioningData>>>, ComputeError> {
        let ids: Vec<ComputeGroupId> = known
            .iter()
            .map(|known| ComputeGroupId::from(known.marks.key))
            .collect();
        self.ask(move |state: &mut State| {
            let is_there = |id: &ComputeGroupId| state.groups.groups.iter().any(|group| group.id == *id);
            let sign = |id: &ComputeGroupId| match (is_there(id), state.notices.get(&id.uuid())) {
                (true, None) => Sign::Well,
                (true, Some((at, why))) => Sign::Ending {
                    at: *at,
                    why: why.clone(),
                },
                (false, _) => Sign::Lost(CONTAINER_LOST.to_owned()),
            };
            Ok(ids.iter().map(sign).map(Some).collect())
        })
        .await
    }

    async fn remove(&self, known: &Known<Group>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let id = ComputeGroupId::from(known.marks.key);
        let find = || self.find_group(id);
        let is_made = known.place.as_ref().map(|_| ());
        call.unmake("group", is_made, LISTED_WITHIN, find, |()| self.delete_group(id))
            .await
    }
}
