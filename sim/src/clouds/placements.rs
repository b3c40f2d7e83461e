//! Placement groups of the simulated cloud, if it has such.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use async_trait::async_trait;
use dstack_compute::{
    Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, Placement, PlacementRequest, Removal, Step,
    placement_name,
};
use dstack_model::backends::BackendType;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::placement::PlacementGroupProvisioningData;
use dstack_units::PlacementGroupId;
use tokio::time::Instant;

use super::{Clouds, State};

/// A placement group that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacementGroup {
    /// Whose it is.
    pub id: PlacementGroupId,
    /// By what machines name it.
    pub name: String,
    /// Region in which machines may be made in the group.
    pub region: String,
    /// When it is listed.
    listed_at: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Placements {
    pub(super) are_there: bool,
    pub(super) groups: Vec<PlacementGroup>,
    /// Groups ever made, by their row.
    made: HashMap<PlacementGroupId, usize>,
    /// Types that cannot be in groups.
    unsuited: BTreeSet<String>,
    /// How long a machine that has ended counts as in its group.
    lingers: Duration,
    /// Until when the last machine that has ended counts, by the name of its group.
    left_at: HashMap<String, Instant>,
    /// How often a group was not deleted because machines were in it.
    in_use: usize,
}

impl Placements {
    /// A machine of this group has ended.
    pub(super) fn left(&mut self, group: Option<&String>) {
        if let Some(group) = group {
            self.left_at.insert(group.clone(), Instant::now() + self.lingers);
        }
    }

    /// Why no machine is made in that group.
    pub(super) fn check(&self, group: Option<&String>, offer: &Offer) -> Result<(), ComputeError> {
        let Some(name) = group else { return Ok(()) };
        let (kind, region) = (&offer.instance.name, &*offer.region);
        if self.unsuited.contains(kind) {
            return Err(ComputeError::Refused(format!("no placement groups for {kind}")));
        }
        let is_there = |group: &PlacementGroup| group.name == *name && group.region == region;
        match self.groups.iter().any(is_there) {
            true => Ok(()),
            false => Err(ComputeError::Refused(format!(
                "no placement group {name} in {region}"
            ))),
        }
    }
}

fn made() -> PlacementGroupProvisioningData {
    PlacementGroupProvisioningData {
        backend: BackendType::Aws,
        backend_data: None,
    }
}

impl Clouds {
    /// It has placement groups, and keeps a machine that has ended in its group for so long.
    pub fn has_placement_groups(&self, lingers: Duration) {
        self.change(|state| {
            state.placements.are_there = true;
            state.placements.lingers = lingers;
        });
    }

    /// Machines of these offers cannot be in placement groups.
    pub fn unsuited_for_groups(&self, names: &[&str]) {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        self.change(|state| state.placements.unsuited = names);
    }

    /// Placement groups that exist.
    pub fn placement_groups(&self) -> Vec<PlacementGroup> {
        self.lock().placements.groups.clone()
    }

    /// The most placement groups that were ever made for one row.
    pub fn most_placement_groups_made(&self) -> usize {
        self.lock().placements.made.values().copied().max().unwrap_or(0)
    }

    /// How often it refused to delete a placement group because machines were in it.
    pub fn groups_in_use(&self) -> usize {
        self.lock().placements.in_use
    }

    /// Makes another group at each call: nothing but its notes keeps the engine from having two.
    async fn make_placement(&self, want: &PlacementRequest) -> Result<(), ComputeError> {
        let want = want.clone();
        self.order(move |state: &mut State| {
            let kind = &want.instance_type;
            if state.placements.unsuited.contains(kind) {
                return Err(ComputeError::Refused(format!("no placement groups for {kind}")));
            }
            let id = PlacementGroupId::from(want.marks.key);
            state.placements.groups.push(PlacementGroup {
                id,
                name: placement_name(&want.marks),
                region: want.region,
                listed_at: Instant::now() + state.delays.unlisted,
            });
            *state.placements.made.entry(id).or_default() += 1;
            Ok(())
        })
        .await
    }

    async fn find_placement(&self, id: PlacementGroupId) -> Result<Option<()>, ComputeError> {
        self.ask(move |state: &mut State| {
            let is_it = |group: &PlacementGroup| group.id == id && group.listed_at <= Instant::now();
            Ok(state.placements.groups.iter().any(is_it).then_some(()))
        })
        .await
    }

    pub(super) async fn delete_placement(&self, id: PlacementGroupId) -> Result<Removal, ComputeError> {
        self.order(move |state: &mut State| {
            let of_id = state.placements.groups.iter().find(|group| group.id == id);
            if let Some(group) = of_id {
                let has_machine = |machine: &super::Machine| machine.group.as_ref() == Some(&group.name);
                let left_at = state.placements.left_at.get(&group.name);
                let lingers = left_at.is_some_and(|until| *until > Instant::now());
                if state.machines.iter().any(has_machine) || lingers {
                    state.placements.in_use += 1;
                    return Err(ComputeError::InUse("DependencyViolation".to_owned()));
                }
            }
            state.placements.groups.retain(|group| group.id != id);
            Ok(Removal::Gone)
        })
        .await
    }
}

#[async_trait]
impl Lifecycle<Placement> for Clouds {
    async fn ensure(
        &self,
        want: &PlacementRequest,
        call: &Call<'_>,
    ) -> Result<Step<PlacementGroupProvisioningData>, ComputeError> {
        let id = PlacementGroupId::from(want.marks.key);
        let (make, find) = (|| self.make_placement(want), || self.find_placement(id));
        call.make("placement group", LISTED_WITHIN, make, find).await?;
        Ok(Step::Ready(made()))
    }

    async fn remove(&self, known: &Known<Placement>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let id = PlacementGroupId::from(known.marks.key);
        let find = || self.find_placement(id);
        let is_made = known.place.as_ref().map(|_| ());
        call.unmake("placement group", is_made, LISTED_WITHIN, find, |()| {
            self.delete_placement(id)
        })
        .await
    }
}
