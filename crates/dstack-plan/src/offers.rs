//! What backends offer: which offers count, and in which order (dstack 0.22.5: scheduling §6).
//!
//! Backends already answer only what satisfies the requirements, each in its own order.

mod available;
mod blocks;
mod merge;
mod unanswered;

use dstack_model::Decode;
use dstack_model::backends::BackendType;
use dstack_model::fleets::Blocks;
use dstack_model::offers::InstanceOfferWithAvailability as Offer;
use dstack_model::profiles::Profile;
use dstack_model::runs::{JobProvisioningData, Requirements};
use serde::Serialize;

use crate::volumes::{self, Location};

pub use available::AvailableOffers;
pub use blocks::total_blocks;
pub use merge::merge;
pub use unanswered::Unanswered;

/// What a backend must be able to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Decode)]
pub struct Needs {
    /// Several nodes that reach each other.
    #[decode(default)]
    pub multinode: bool,
    /// The backend must be able to run privileged containers.
    #[decode(default)]
    pub privileged: bool,
    /// Folders of the instance as volumes.
    #[decode(default)]
    pub instance_volumes: bool,
    /// The backend must be able to use reserved capacity.
    #[decode(default)]
    pub reservations: bool,
    /// Machines, not only containers.
    #[decode(default)]
    pub create_instance: bool,
}

/// Which offers count.
#[derive(Debug, Clone, PartialEq, Serialize, Decode)]
pub struct Query {
    /// What the backends are asked.
    pub requirements: Requirements,
    /// What the backends must be able to do.
    pub needs: Needs,
    /// Into how many blocks the instances will be divided.
    pub blocks: Blocks,
    backends: Option<Vec<BackendType>>,
    regions: Option<Vec<String>>,
    zones: Option<Vec<String>>,
    instance_types: Option<Vec<String>>,
    volumes: Vec<Location>,
    /// How many instances are asked for as one; unset: each by itself.
    // Not kept: servers before this one could not read it. Whoever reads a query says it again.
    #[serde(skip_serializing)]
    nodes: Option<u32>,
}

/// Why an offer does not count. Prints as the end of a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unwanted {
    /// `backends` does not name its backend.
    #[error("is of another backend ({0})")]
    Backend(BackendType),
    /// `regions` does not name its region.
    #[error("is in another region ({0})")]
    Region(String),
    /// `instance_types` does not name its type.
    #[error("is of another instance type ({0})")]
    InstanceType(String),
    /// `availability_zones` names none of its zones.
    #[error("is not in one of `availability_zones`")]
    Zone,
    /// The volumes are elsewhere.
    #[error("is not where the volume is")]
    Volume,
    /// Its CPUs or GPUs cannot be divided so.
    #[error("cannot be divided into `blocks`")]
    Blocks,
    /// So many of it are made as one, and the run has another number of nodes.
    #[error("is for runs of {0} nodes")]
    Nodes(u32),
}

impl Query {
    /// With a profile and requirements (of a run, or of a run in a fleet).
    pub fn new(profile: &Profile, requirements: Requirements) -> Self {
        let params = &profile.params;
        let needs = Needs {
            multinode: requirements.multinode.unwrap_or(false),
            reservations: requirements.reservation.is_some(),
            ..Needs::default()
        };
        Self {
            needs,
            requirements,
            blocks: Blocks::default(),
            backends: params.backends.clone(),
            regions: params.regions.clone(),
            zones: params.availability_zones.clone(),
            instance_types: params.instance_types.clone(),
            volumes: Vec::new(),
            nodes: None,
        }
    }

    /// For so many nodes of a run, which may be made as one.
    #[must_use]
    pub fn for_nodes(mut self, nodes: u32) -> Self {
        self.set_nodes(nodes);
        self
    }

    /// See [`Query::for_nodes`].
    pub fn set_nodes(&mut self, nodes: u32) {
        self.nodes = Some(nodes).filter(|nodes| *nodes > 1);
    }

    /// Only in the backend and region of the first node, if there is one already.
    #[must_use]
    pub fn beside(mut self, master: Option<&JobProvisioningData>) -> Self {
        if let Some(master) = master {
            let backend = master.base_backend();
            let mut backends = self.backends.unwrap_or_else(|| vec![backend]);
            backends.retain(|other| *other == backend);
            self.backends = Some(backends);
            let mut regions = self.regions.unwrap_or_else(|| vec![master.region.clone()]);
            regions.retain(|region| *region == master.region);
            self.regions = Some(regions);
        }
        self
    }

    /// Only where these volumes are.
    #[must_use]
    pub fn at(mut self, volumes: &[Location]) -> Self {
        self.volumes = volumes.to_vec();
        self
    }

    /// Where the volumes are; empty: there are none.
    pub fn volumes(&self) -> &[Location] {
        &self.volumes
    }

    /// `backends`.
    pub(crate) fn backends(&self) -> &[BackendType] {
        self.backends.as_deref().unwrap_or_default()
    }

    /// `regions`.
    pub(crate) fn regions(&self) -> &[String] {
        self.regions.as_deref().unwrap_or_default()
    }

    /// `instance_types`.
    pub(crate) fn instance_types(&self) -> &[String] {
        self.instance_types.as_deref().unwrap_or_default()
    }

    /// `availability_zones`.
    pub(crate) fn zones(&self) -> &[String] {
        self.zones.as_deref().unwrap_or_default()
    }

    /// Whether a backend is worth asking. dstack 0.22.5 always asks the `dstack` backend of dstack Sky, whose offers are of other types; that
    /// of ours offers what other servers have, and one that is not named must not be asked: two servers would ask each other for ever.
    pub fn asks(&self, backend: BackendType) -> bool {
        let named = self.backends.as_ref();
        named.is_none_or(|backends| backends.contains(&backend))
    }

    /// Whether the offer counts.
    ///
    /// # Errors
    /// It does not.
    pub fn counts(&self, offer: &Offer) -> Result<(), Unwanted> {
        self.admits(offer)?;
        total_blocks(offer, self.blocks)
            .map(|_| ())
            .ok_or(Unwanted::Blocks)
    }

    /// The offer as it counts: zones narrowed, blocks set.
    ///
    /// # Errors
    /// It does not count.
    pub fn accept(&self, offer: &Offer) -> Result<Offer, Unwanted> {
        self.admits(offer)?;
        let total_blocks = total_blocks(offer, self.blocks).ok_or(Unwanted::Blocks)?;
        let mut offer = Offer {
            total_blocks,
            ..offer.clone()
        };
        if self.zones.is_some()
            && let Some(zones) = &mut offer.availability_zones
        {
            zones.retain(|zone| named(self.zones.as_deref(), zone));
        }
        volumes::narrow_zones(&self.volumes, &mut offer);
        Ok(offer)
    }

    /// Whether the offer counts, blocks aside.
    ///
    /// # Errors
    /// It does not.
    pub fn admits(&self, offer: &Offer) -> Result<(), Unwanted> {
        self.reasons_against(offer).next().map_or(Ok(()), Err)
    }

    /// Everything by which the offer does not count.
    pub(crate) fn all_unwanted(&self, offer: &Offer) -> Vec<Unwanted> {
        let blocks = total_blocks(offer, self.blocks).is_none();
        self.reasons_against(offer)
            .chain(blocks.then_some(Unwanted::Blocks))
            .collect()
    }

    fn reasons_against(&self, offer: &Offer) -> impl Iterator<Item = Unwanted> {
        const CHECKS: [fn(&Query, &Offer) -> Option<Unwanted>; 6] = [
            |query, offer| {
                let backends = query.backends.as_ref()?;
                (!backends.contains(&offer.backend)).then_some(Unwanted::Backend(offer.backend))
            },
            |query, offer| {
                let is_named = named(query.regions.as_deref(), &offer.region);
                (!is_named).then(|| Unwanted::Region(offer.region.to_string()))
            },
            |query, offer| {
                let is_named = named(query.instance_types.as_deref(), &offer.instance.name);
                (!is_named).then(|| Unwanted::InstanceType(offer.instance.name.clone()))
            },
            |query, offer| {
                let wanted = query.zones.as_deref()?;
                let zones = offer.availability_zones.as_deref().unwrap_or_default();
                let is_there = zones.iter().any(|zone| named(Some(wanted), zone));
                (!is_there).then_some(Unwanted::Zone)
            },
            |query, offer| {
                // What is made of several as one has a place for none.
                let has_place = offer.group_size.is_none() || query.volumes.is_empty();
                let is_reached = has_place && volumes::reach_offer(&query.volumes, offer);
                (!is_reached).then_some(Unwanted::Volume)
            },
            |query, offer| {
                let size = offer.group_size?;
                (query.nodes != Some(size)).then_some(Unwanted::Nodes(size))
            },
        ];
        CHECKS.into_iter().filter_map(|check| check(self, offer))
    }

    /// All offers that count, at most `limit` of them: cheapest first with each backend's own order kept, then the
    /// available ones first.
    pub fn select<'a>(
        &self,
        by_backend: impl IntoIterator<Item = &'a [Offer]>,
        limit: Option<usize>,
    ) -> Vec<Offer> {
        let limit = limit.unwrap_or(usize::MAX);
        let counted = merge(by_backend).filter_map(|offer| self.accept(offer).ok());
        let mut offers: Vec<Offer> = counted.take(limit).collect();
        // After the cut, so that not every offer has to be looked at when all are refused.
        available_first(&mut offers);
        offers
    }
}

/// Names match in any case; unset names everything.
fn named(names: Option<&[String]>, name: &str) -> bool {
    names.is_none_or(|names| names.iter().any(|other| other.eq_ignore_ascii_case(name)))
}

/// Moves what cannot be had behind what can, in order otherwise.
pub fn available_first(offers: &mut [Offer]) {
    offers.sort_by_key(|offer| !offer.availability.is_available());
}

/// An offer in the zone of the cluster's first node, if that has one.
#[must_use]
pub fn in_zone_of(mut offer: Offer, master: Option<&JobProvisioningData>) -> Offer {
    if let Some(zone) = master.and_then(|master| master.availability_zone.as_ref()) {
        let mut zones = offer.availability_zones.unwrap_or_else(|| vec![zone.clone()]);
        zones.retain(|other| other == zone);
        offer.availability_zones = Some(zones);
    }
    offer
}

#[cfg(test)]
pub(crate) mod tests;
