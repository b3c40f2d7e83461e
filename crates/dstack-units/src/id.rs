//! One id type per kind of entity, so that a run id can never be passed for a job id.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

/// A UUID that knows what it identifies. Prints as 36 lower-case characters with dashes.
pub struct Id<Kind> {
    uuid: Uuid,
    kind: PhantomData<fn() -> Kind>,
}

impl<Kind> Id<Kind> {
    /// The id with this value.
    pub const fn new(uuid: Uuid) -> Self {
        Self {
            uuid,
            kind: PhantomData,
        }
    }

    /// The plain UUID.
    pub const fn uuid(self) -> Uuid {
        self.uuid
    }
}

impl<Kind> Clone for Id<Kind> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<Kind> Copy for Id<Kind> {}
impl<Kind> PartialEq for Id<Kind> {
    fn eq(&self, other: &Self) -> bool {
        self.uuid == other.uuid
    }
}
impl<Kind> Eq for Id<Kind> {}
impl<Kind> PartialOrd for Id<Kind> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<Kind> Ord for Id<Kind> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.uuid.cmp(&other.uuid)
    }
}
impl<Kind> std::hash::Hash for Id<Kind> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.uuid.hash(state);
    }
}
impl<Kind> fmt::Debug for Id<Kind> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.uuid, f)
    }
}
impl<Kind> fmt::Display for Id<Kind> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.uuid, f)
    }
}
impl<Kind> FromStr for Id<Kind> {
    type Err = uuid::Error;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::parse_str(text).map(Self::new)
    }
}
impl<Kind> From<Uuid> for Id<Kind> {
    fn from(uuid: Uuid) -> Self {
        Self::new(uuid)
    }
}
impl<Kind> Serialize for Id<Kind> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.uuid.serialize(serializer)
    }
}
impl<'de, Kind> Deserialize<'de> for Id<Kind> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Uuid::deserialize(deserializer).map(Self::new)
    }
}

macro_rules! kinds {
    ($($kind:ident => $alias:ident, $doc:literal;)*) => {
        /// Markers of what an id identifies.
        pub mod kind {
            $(#[doc = $doc] #[derive(Debug)] pub enum $kind {})*
        }
        $(#[doc = concat!("Id of ", $doc)] pub type $alias = Id<kind::$kind>;)*
    };
}

kinds! {
    User => UserId, "a user.";
    Project => ProjectId, "a project.";
    Run => RunId, "a run.";
    Job => JobId, "a job submission: one row, one attempt.";
    Instance => InstanceId, "an instance.";
    Fleet => FleetId, "a fleet.";
    Volume => VolumeId, "a volume.";
    Attachment => AttachmentId, "an attachment of a volume to an instance.";
    Gateway => GatewayId, "a gateway.";
    GatewayReplica => GatewayReplicaId, "a replica of a gateway.";
    PlacementGroup => PlacementGroupId, "a placement group.";
    ComputeGroup => ComputeGroupId, "a compute group.";
    Export => ExportId, "an export.";
    Import => ImportId, "an import.";
    PublicKey => PublicKeyId, "a user's public key.";
    Token => TokenId, "an API token of a user.";
    Event => EventId, "an event.";
    Secret => SecretId, "a secret.";
    Archive => ArchiveId, "a file archive.";
    Repo => RepoRowId, "a repo's row (clients name repos by text).";
    Operation => OperationId, "an operation of the engine.";
    Installation => InstallationId, "an installation: all servers on one database.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_and_parses_back() {
        let id: RunId = "0f8fad5b-d9cb-469f-a165-70867728950e".parse().unwrap();
        assert_eq!(id.to_string().parse::<RunId>().unwrap(), id);
        assert_eq!(
            serde_json::to_string(&id).unwrap(),
            "\"0f8fad5b-d9cb-469f-a165-70867728950e\""
        );
    }
}
