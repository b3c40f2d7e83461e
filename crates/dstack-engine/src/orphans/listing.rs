//! What a cloud lists with our marks, and for which rows it was made.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dstack_compute::{Backend, ComputeError, Inventory, MissingRegion, Owned, OwnedKind, OwnedMark};
use dstack_model::runs::JobProvisioningData;
use dstack_plan::orphans::Holder;
use dstack_store::queries::orphans::{MadeFor, MadeKey};
use dstack_store::rows::VolumeRow;
use dstack_store::{EngineStore, StoreError};
use dstack_units::InstallationId;

/// What a cloud lists with marks of this installation.
#[derive(Debug, Clone, PartialEq)]
pub struct Listing {
    /// All things of the regions that tell.
    pub things: Vec<Listed>,
    /// The regions that do not tell: what is there may be there still.
    pub missing: Vec<MissingRegion>,
}

impl Listing {
    /// Whether a thing with this key ([`Listed::key`]) could not be listed, as its region does not tell.
    pub fn hides(&self, key: &str) -> bool {
        let region = region_of_key(key);
        self.missing
            .iter()
            .any(|missing| Some(missing.region.as_str()) == region)
    }
}

/// One thing that a cloud lists with marks of this installation.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    /// What the cloud says of it.
    pub owned: Owned,
    /// The row for which it was made, if that is known.
    pub made_for: Option<MadeFor>,
    /// A volume that is not deleted names it, whoever made it.
    pub is_named: bool,
    /// It is not the one that the row has, which is not over; whether that one is listed as well.
    pub beside_own: Option<bool>,
}

/// Why nobody knows what a cloud lists.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The cloud does not tell.
    #[error(transparent)]
    Cloud(#[from] ComputeError),
    /// The rows cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Listed {
    /// In whose name it was made.
    pub fn holder(&self) -> Holder {
        match (&self.made_for, self.beside_own) {
            _ if self.is_named => Holder::Live,
            (Some(row), Some(own_is_listed)) if row.is_live => Holder::Duplicate { own_is_listed },
            (Some(row), _) if row.is_live => Holder::Live,
            (Some(_), _) => Holder::Ended,
            (None, _) => Holder::Nobody,
        }
    }

    /// Whether the sweep may ever end it: data that is gone cannot be had again, and costs little meanwhile.
    pub fn may_be_ended(&self) -> bool {
        self.owned.kind != OwnedKind::Volume
    }

    /// What tells it from all other things in clouds of this type.
    pub fn key(&self, backend: &str) -> String {
        let Owned { kind, id, region, .. } = &self.owned;
        let mark = made_key(self.owned.mark).to_string();
        [backend, &kind.to_string(), region, id, &mark].join("|")
    }

    /// What it is, where and at what price, for people, such as `machine i-1 (dstack-train-0) in us-east-1 for $1.20 an hour`.
    pub fn description(&self) -> String {
        let Owned {
            kind,
            id,
            name,
            region,
            price,
            ..
        } = &self.owned;
        let mut text = format!("{kind} {id}");
        if !name.is_empty() && name != id {
            text.push_str(&format!(" ({name})"));
        }
        if !region.is_empty() {
            text.push_str(&format!(" in {region}"));
        }
        if let Some(price) = price {
            text.push_str(&format!(" for ${price:.2} an hour"));
        }
        text
    }

    /// Why nobody should have it, for people; of what is an orphan.
    pub fn reason(&self) -> String {
        match &self.made_for {
            Some(row) if row.is_live => format!(
                "it was made for {} {}, which has another one",
                row.entity.kind(),
                row.name
            ),
            Some(row) => format!(
                "it was made for {} {}, which is over",
                row.entity.kind(),
                row.name
            ),
            None => "nothing is known of it here".to_owned(),
        }
    }
}

/// The region, of what [`Listed::key`] gives.
fn region_of_key(key: &str) -> Option<&str> {
    key.split('|').nth(2)
}

/// The key for which something was made, of what [`Listed::key`] gives.
pub(super) fn made_key_of(key: &str) -> Option<MadeKey> {
    key.rsplit_once('|').map(|(_, mark)| MadeKey::read(mark))
}

fn made_key(mark: OwnedMark) -> MadeKey {
    match mark {
        OwnedMark::Tags { key, .. } => MadeKey::Id(key),
        OwnedMark::Name(code) => MadeKey::End(code.key_digits()),
    }
}

/// All that a backend lists of this installation within `limit`, with the rows for which it was made.
///
/// # Errors
/// The cloud does not tell anything, or the rows cannot be read: nothing is concluded from what is missing.
pub async fn list(
    store: &dyn EngineStore,
    installation: InstallationId,
    backend: &dyn Backend,
    limit: Duration,
) -> Result<Listing, ListError> {
    let late = || ComputeError::Unclear(format!("no answer within {} s", limit.as_secs()));
    let inventory = tokio::time::timeout(limit, backend.inventory_by_region()).await;
    let Inventory { mut owned, missing } = inventory.unwrap_or_else(|_| Err(late()))?;
    owned.retain(|owned| owned.mark.is_of(installation));
    let things = with_rows(store, backend, owned.clone(), &owned).await?;
    Ok(Listing { things, missing })
}

/// The things with their rows as they are now; `all` is what was listed with them. A row is written before anything is made for it:
/// what was listed before the rows are read has one, or nobody knows of it.
pub(super) async fn with_rows(
    store: &dyn EngineStore,
    backend: &dyn Backend,
    things: Vec<Owned>,
    all: &[Owned],
) -> Result<Vec<Listed>, StoreError> {
    if things.is_empty() {
        return Ok(Vec::new());
    }
    let keys: BTreeSet<MadeKey> = things.iter().map(|owned| made_key(owned.mark)).collect();
    let mut rows: BTreeMap<MadeKey, MadeFor> = BTreeMap::new();
    for row in store.made_for(&keys).await? {
        for key in [MadeKey::Id(row.id), MadeKey::end_of(row.id)] {
            // Of two rows, the one that is live counts; of two live ones nobody knows which has it.
            rows.entry(key)
                .and_modify(|known| match (known.is_live, row.is_live) {
                    (true, true) => known.place = None,
                    (false, true) => *known = row.clone(),
                    (_, false) => {}
                })
                .or_insert_with(|| row.clone());
        }
    }
    let has_volumes = things.iter().any(|owned| owned.kind == OwnedKind::Volume);
    let volumes = match has_volumes {
        true => store.all_volumes().await?,
        false => Vec::new(),
    };
    let named: BTreeSet<&str> = volumes.iter().flat_map(cloud_ids).collect();
    let listed = things.into_iter().map(|owned| {
        let made_for = rows.get(&made_key(owned.mark)).cloned();
        let place = made_for.as_ref().and_then(|row| row.place.as_deref());
        Listed {
            // Volumes of some clouds are known to users by their names, such as claims of Kubernetes.
            is_named: owned.kind == OwnedKind::Volume
                && (named.contains(owned.id.as_str()) || named.contains(owned.name.as_str())),
            beside_own: place.and_then(|place| beside(backend, &owned, place, all)),
            made_for,
            owned,
        }
    });
    Ok(listed.collect())
}

/// Whether `all` has the instance at this place; `None`: it is this one, or none that could be.
fn beside(backend: &dyn Backend, owned: &Owned, place: &JobProvisioningData, all: &[Owned]) -> Option<bool> {
    let is_instance = |owned: &Owned| matches!(owned.kind, OwnedKind::Machine | OwnedKind::Container);
    let is_own = |one: &Owned| is_instance(one) && backend.is_at(one, place);
    let is_other = place.backend == backend.kind() && is_instance(owned) && !is_own(owned);
    is_other.then(|| all.iter().any(is_own))
}

/// By what its cloud knows a volume: one that was registered may have been made for another row.
fn cloud_ids(row: &VolumeRow) -> impl Iterator<Item = &str> {
    let made = row.provisioning_data.as_ref().map(|data| data.volume_id.as_str());
    made.into_iter().chain(row.configuration.external_volume_id())
}
