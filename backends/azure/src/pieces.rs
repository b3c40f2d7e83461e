//! What Azure makes with a machine: its network interface, its address and its disk. They end with it; what is left of a machine that
//! could not be made is looked for.

use dstack_compute::{ComputeError, Marks, Owned, OwnedKind, OwnedMark, Removal};
use futures_util::future::try_join_all;
use serde::de::DeserializeOwned;

use crate::client::{COMPUTE, DISKS, IpProperties, Machine, NETWORK, PieceProperties, Reference, Thing};
use crate::machines::ENDS_INTERVAL;
use crate::names;
use crate::{Azure, Everywhere};

const MACHINES: &str = "Compute/virtualMachines";

/// A kind of pieces.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PieceKind {
    /// As it stands in ids.
    collection: &'static str,
    provider: &'static str,
    version: &'static str,
    /// As the inventory, and the log of what it removes, name the kind.
    called: &'static str,
}

/// In the order in which they can be removed.
const KINDS: [PieceKind; 3] = [
    PieceKind {
        collection: "networkInterfaces",
        provider: "Network",
        version: NETWORK,
        called: "network interface",
    },
    PieceKind {
        collection: "publicIPAddresses",
        provider: "Network",
        version: NETWORK,
        called: "address",
    },
    PieceKind {
        collection: "disks",
        provider: "Compute",
        version: DISKS,
        called: "disk",
    },
];

/// A piece, of ours or of others.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    kind: &'static PieceKind,
    group: String,
    name: String,
    region: String,
    mark: Option<OwnedMark>,
    pub(crate) properties: PieceProperties,
}

impl Piece {
    /// Whether it is the one of this id, in which Azure writes the names of groups in any case.
    pub(crate) fn is(&self, one: &Reference) -> bool {
        let parts = one.id.rsplit_once('/');
        parts.is_some_and(|(path, name)| {
            let collection = path.rsplit('/').next().unwrap_or_default();
            collection.eq_ignore_ascii_case(self.kind.collection) && name.eq_ignore_ascii_case(&self.name)
        })
    }

    pub(crate) fn is_for(&self, marks: &Marks) -> bool {
        self.mark.is_some_and(|mark| mark.is_for(marks))
    }

    /// Of a network interface: its first addresses.
    pub(crate) fn ip(&self) -> Option<&IpProperties> {
        let first = self.properties.ip_configurations.first();
        first.map(|configuration| &configuration.properties)
    }
}

/// By its tags, or by its name, to which Azure may add something: it makes disks without tags.
pub(crate) fn mark<P>(thing: &Thing<P>) -> Option<OwnedMark> {
    let tags = thing.tags.as_ref();
    let by_tags = OwnedMark::of_tags(|name| tags?.get(name).map(String::as_str));
    let by_name = || OwnedMark::of_name(&thing.name);
    let by_start = || OwnedMark::of_name(thing.name.rsplit_once('-')?.0);
    by_tags.or_else(by_name).or_else(by_start)
}

impl Azure {
    /// Of a resource group; `None`: of all that the credentials may see.
    async fn list<P: DeserializeOwned>(
        &self,
        group: Option<&str>,
        kind: &str,
        version: &str,
    ) -> Result<Vec<Thing<P>>, ComputeError> {
        match group {
            Some(group) => self.list_in(group, kind, version).await,
            None => Ok(self.list_all(kind, version).await?.0),
        }
    }

    async fn list_in<P: DeserializeOwned>(
        &self,
        group: &str,
        kind: &str,
        version: &str,
    ) -> Result<Vec<Thing<P>>, ComputeError> {
        let path = self.client.in_group(group, kind);
        let listed = self.client.list_in_group(&path, version).await;
        listed.map_err(|error| error.compute_error())
    }

    /// All that the credentials may see, and whether that is all of the subscription.
    async fn list_all<P: DeserializeOwned>(
        &self,
        kind: &str,
        version: &str,
    ) -> Result<(Vec<Thing<P>>, bool), ComputeError> {
        let path = self.client.path(format_args!("providers/Microsoft.{kind}"));
        match self.client.list(&path, version, None).await {
            // A role in the resource group alone shows what is there.
            Err(error) if error.is_forbidden() => {
                Ok((self.list_in(&self.group, kind, version).await?, false))
            }
            listed => Ok((listed.map_err(|error| error.compute_error())?, true)),
        }
    }

    pub(crate) async fn list_machines(
        &self,
        group: Option<&str>,
    ) -> Result<Vec<Thing<Machine>>, ComputeError> {
        self.list(group, MACHINES, COMPUTE).await
    }

    pub(crate) async fn list_everywhere(&self) -> Result<Everywhere, ComputeError> {
        let (machines, is_whole) = self.list_all(MACHINES, COMPUTE).await?;
        Ok(Everywhere { machines, is_whole })
    }

    pub(crate) async fn list_pieces(&self, group: Option<&str>) -> Result<Vec<Piece>, ComputeError> {
        let lists = KINDS.iter().map(|kind| async move {
            let path = format!("{}/{}", kind.provider, kind.collection);
            let listed = self.list::<PieceProperties>(group, &path, kind.version).await?;
            let pieces = listed.into_iter().map(|thing| Piece {
                kind,
                group: thing.group().unwrap_or(&self.group).to_lowercase(),
                mark: mark(&thing),
                name: thing.name,
                region: thing.location,
                properties: thing.properties.unwrap_or_default(),
            });
            Ok::<_, ComputeError>(pieces.collect::<Vec<_>>())
        });
        Ok(try_join_all(lists).await?.concat())
    }

    fn piece_path(&self, kind: &PieceKind, group: &str, name: &str) -> String {
        let PieceKind {
            collection, provider, ..
        } = kind;
        self.client
            .in_group(group, format_args!("{provider}/{collection}/{name}"))
    }

    /// Whether something is left of a machine, which may be gone, or was never made.
    pub(crate) async fn has_pieces(&self, group: &str, marks: &Marks) -> Result<bool, ComputeError> {
        let lists = self.lists(group);
        lists.pieces.forget();
        let pieces = lists.pieces.get(|| self.list_pieces(Some(group))).await?;
        Ok(pieces.iter().any(|piece| piece.is_for(marks)))
    }

    /// Begins to remove what is left; whether there was something.
    ///
    /// # Errors
    /// [`ComputeError::InUse`]: nothing is left but what something else has.
    pub(crate) async fn end_pieces(
        &self,
        group: &str,
        is_own: impl Fn(&Piece) -> bool,
    ) -> Result<bool, ComputeError> {
        let lists = self.lists(group);
        let pieces = lists.pieces.get(|| self.list_pieces(Some(group))).await?;
        let (mut is_left, mut ends, mut in_use, mut failed) = (false, false, None, None);
        for piece in pieces.iter().filter(|piece| is_own(piece)) {
            is_left = true;
            match self.end_piece(piece.kind, group, &piece.name).await {
                Ok(()) => ends = true,
                Err(error @ ComputeError::InUse(_)) => in_use = Some(error),
                Err(error) => failed = Some(error),
            }
        }
        // An address is in use until its network interface is gone.
        let in_use = in_use.filter(|_| !ends);
        failed.or(in_use).map_or(Ok(is_left), Err)
    }

    /// What ends already, or is being changed, is asked for again later.
    async fn end_piece(&self, kind: &PieceKind, group: &str, name: &str) -> Result<(), ComputeError> {
        let removed = self
            .client
            .delete(&self.piece_path(kind, group, name), kind.version)
            .await;
        let Err(error) = removed else {
            return Ok(());
        };
        match error.compute_error() {
            ComputeError::NotReady(_) => {
                tracing::debug!(name, %error, "a piece of a machine is not removed yet");
                Ok(())
            }
            // Of a disk that a machine has.
            ComputeError::Refused(text) if error.is(&["OperationNotAllowed"]) => {
                Err(ComputeError::InUse(text))
            }
            error => Err(error),
        }
    }

    /// In all resource groups, as the one of the configuration may have been another one.
    pub(crate) async fn list_owned(&self) -> Result<Vec<Owned>, ComputeError> {
        let (machines, pieces) = futures_util::try_join!(self.list_machines(None), self.list_pieces(None))?;
        let owned = |kind: OwnedKind, id: String, name: String, region: String, mark: OwnedMark| Owned {
            kind,
            id,
            name,
            mark,
            region,
            price: None,
            made_at: None,
        };
        let machines = machines.into_iter().filter_map(|machine| {
            let mark = mark(&machine)?;
            let group = machine.group().unwrap_or(&self.group).to_lowercase();
            let id = self.machine_path(&group, &machine.name);
            Some(owned(
                OwnedKind::Machine,
                id,
                machine.name,
                machine.location,
                mark,
            ))
        });
        let pieces = pieces.into_iter().filter_map(|piece| {
            let id = self.piece_path(piece.kind, &piece.group, &piece.name);
            let kind = OwnedKind::Piece(piece.kind.called);
            Some(owned(kind, id, piece.name, piece.region, piece.mark?))
        });
        Ok(machines.chain(pieces).collect())
    }

    /// Something of the inventory.
    pub(crate) async fn end_owned(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        let underway = Removal::Underway { again: ENDS_INTERVAL };
        let unknown = || ComputeError::Unsupported("the removal of such a thing");
        let [group, collection, name] = names::of_id(&owned.id).ok_or_else(unknown)?;
        if collection == "virtualMachines" {
            return self.end_machine(group, name).await;
        }
        let kind = KINDS.iter().find(|kind| kind.collection == collection);
        let kind = kind.ok_or_else(unknown)?;
        let path = self.piece_path(kind, group, name);
        let found = self
            .client
            .find::<Thing<PieceProperties>>(&path, kind.version)
            .await;
        match found.map_err(|error| error.compute_error())? {
            None => Ok(Removal::Gone),
            Some(_) => {
                self.end_piece(kind, group, name).await?;
                Ok(underway)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_azure_names_itself_is_known_by_the_start() {
        let is_marked = |name: &str| {
            let thing: Thing<PieceProperties> = serde_json::from_value(json!({"name": name})).unwrap();
            mark(&thing).is_some()
        };
        assert!(is_marked("dstack-train-0-7728950e-0123456789ab"));
        assert!(is_marked("dstack-train-0-7728950e-0123456789ab-4f5e6d7c"));
        assert!(!is_marked("dstack-main-train-0-x7k2m9qa"));
        assert!(!is_marked("nic"));
    }
}
