//! What carries marks: machines, data disks, partitions.

use dstack_compute::{ComputeError, Owned, OwnedKind, OwnedMark, Removal};

use crate::{Crusoe, told};

const DISK: OwnedKind = OwnedKind::Piece("disk");

fn owned(kind: OwnedKind, id: String, name: String, region: String) -> Option<Owned> {
    Some(Owned {
        kind,
        id,
        mark: OwnedMark::of_name(&name)?,
        name,
        region,
        price: None,
        made_at: None,
    })
}

impl Crusoe {
    pub(crate) async fn list_owned(&self) -> Result<Vec<Owned>, ComputeError> {
        let machines = told(self.client.machines().await)?;
        let disks = told(self.client.disks().await)?;
        let partitions = told(self.client.partitions().await)?;
        let machines = machines
            .into_iter()
            .filter_map(|one| owned(OwnedKind::Machine, one.id, one.name, one.location));
        let disks = disks
            .into_iter()
            .filter_map(|one| owned(DISK, one.id, one.name, one.location));
        let partitions = partitions
            .into_iter()
            .filter_map(|one| owned(OwnedKind::Placement, one.id, one.name, String::new()));
        Ok(machines.chain(disks).chain(partitions).collect())
    }

    pub(crate) async fn remove_by_kind(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        match owned.kind {
            OwnedKind::Machine => self.delete_machine(&owned.id).await,
            OwnedKind::Placement => self.delete_partition(&owned.id).await,
            _ => self.delete_disk(&owned.id).await,
        }
    }
}
