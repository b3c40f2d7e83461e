//! What carries our marks in all zones of the project, and how it is removed. Ids are the paths of things in the project.
//!
//! Rules of firewalls are not in it: they belong to a network and not to a request, cost nothing and stay.

use dstack_compute::{ComputeError, INSTALLATION_TAG, Owned, OwnedKind, OwnedMark, Removal};

use crate::Gcp;
use crate::client::{Disk, Instance, Policy, last};
use crate::errors::GcpError;
use crate::machines::mark;
use crate::offers::region_of;
use crate::pieces::Piece;
use crate::tpu::place_of;

impl Gcp {
    pub(crate) async fn list_owned(&self) -> Result<Vec<Owned>, ComputeError> {
        let filter = format!("labels.{INSTALLATION_TAG}:*");
        let instances = self
            .client
            .aggregated::<Instance>(None, "instances", Some(&filter))
            .await;
        let instances = instances.map_err(GcpError::compute_error)?;
        let owned_instance = |(scope, instance): (String, Instance)| {
            let mark = mark(&instance.labels)?;
            Some(owned(
                OwnedKind::Machine,
                &scope,
                "instances",
                &instance.name,
                mark,
            ))
        };
        let mut all: Vec<Owned> = instances.into_iter().filter_map(owned_instance).collect();
        let disks = self.client.aggregated::<Disk>(None, "disks", Some(&filter)).await;
        let disks = disks.map_err(GcpError::compute_error)?;
        all.extend(disks.into_iter().filter_map(|(scope, disk)| {
            let mark = mark(&disk.labels)?;
            Some(owned(OwnedKind::Volume, &scope, "disks", &disk.name, mark))
        }));
        // These have no labels.
        let policies = self
            .client
            .aggregated::<Policy>(None, "resourcePolicies", None)
            .await;
        let policies = policies.map_err(GcpError::compute_error)?;
        all.extend(policies.into_iter().filter_map(|(scope, policy)| {
            let mark =
                OwnedMark::of_name(&policy.name).filter(|_| policy.group_placement_policy.is_some())?;
            Some(owned(
                OwnedKind::Placement,
                &scope,
                "resourcePolicies",
                &policy.name,
                mark,
            ))
        }));
        all.extend(self.owned_nodes().await?);
        all.extend(self.owned_pieces().await?);
        Ok(all)
    }

    /// Where TPUs are not configured, the account may have nothing to do with them.
    async fn owned_nodes(&self) -> Result<Vec<Owned>, ComputeError> {
        let nodes = match self.client.nodes("-").await {
            Ok(nodes) => nodes,
            Err(error) if error.is_not_enabled() => return Ok(Vec::new()),
            Err(error) if !self.config.tpu.unwrap_or(false) && error.is_forbidden() => return Ok(Vec::new()),
            Err(error) => return Err(error.compute_error()),
        };
        let mut all = Vec::new();
        for node in nodes {
            let Some(mark) = mark(&node.labels) else {
                continue;
            };
            let (zone, name) = place_of(&node.name)?;
            let scope = format!("locations/{zone}");
            let kind = match node.is_pod() {
                true => OwnedKind::Group,
                false => OwnedKind::Machine,
            };
            all.push(owned(kind, &scope, "nodes", name, mark));
        }
        Ok(all)
    }

    /// What load balancers consist of. It has no labels.
    async fn owned_pieces(&self) -> Result<Vec<Owned>, ComputeError> {
        let mut all = Vec::new();
        for piece in Piece::ALL {
            let found = self.pieces_of(piece).await?;
            all.extend(found.iter().filter_map(|(scope, name)| {
                let mark = OwnedMark::of_name(name)?;
                Some(owned(kind_of(piece), scope, piece.collection(), name, mark))
            }));
        }
        Ok(all)
    }

    pub(crate) async fn remove_by_id(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        let parts: Vec<&str> = owned.id.split('/').collect();
        match parts.as_slice() {
            ["zones", _, "instances", _] | ["locations", _, "nodes", _] => {
                self.client.remove(&owned.id).await
            }
            ["regions", region, "resourcePolicies", name] => self.delete_policy(region, name).await,
            ["zones", zone, "disks", name] => self.delete_disk(zone, name).await,
            ["zones" | "regions", _, collection, _]
                if Piece::ALL.iter().any(|piece| piece.collection() == *collection) =>
            {
                self.remove_owned_piece(&owned.id).await
            }
            _ => Err(ComputeError::Unsupported("removing this")),
        }
    }
}

/// The one that has the address stands for the load balancer.
const fn kind_of(piece: Piece) -> OwnedKind {
    match piece {
        Piece::ForwardingRule => OwnedKind::LoadBalancer,
        other => OwnedKind::Piece(other.what()),
    }
}

/// `scope`: `zones/us-central1-a`.
fn owned(kind: OwnedKind, scope: &str, collection: &str, name: &str, mark: OwnedMark) -> Owned {
    let place = last(scope);
    Owned {
        kind,
        id: format!("{scope}/{collection}/{name}"),
        name: name.to_owned(),
        mark,
        region: match !scope.starts_with("regions/") {
            true => region_of(place).to_owned(),
            false => place.to_owned(),
        },
        price: None,
        made_at: None,
    }
}
