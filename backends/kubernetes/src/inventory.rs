use dstack_compute::{ComputeError, Owned, OwnedKind, OwnedMark, Removal};
use dstack_units::ProjectId;
use futures_util::future::try_join_all;

use crate::client::{Cluster, Kind};
use crate::labels::{COMPONENT, GATEWAY, JOB, JUMP, PROJECT_ID, VOLUME};
use crate::objects::{Metadata, Object};
use crate::{Kubernetes, jump};

const SERVICE: &str = "service";
const SECRET: &str = "registry secret";
const KEYS: &str = "keys of a jump pod";
const JUMP_POD: &str = "jump pod";
const JUMP_SERVICE: &str = "service of a jump pod";

impl Kubernetes {
    pub(crate) async fn list_owned(&self) -> Result<Vec<Owned>, ComputeError> {
        let of_clusters = try_join_all(self.clusters.iter().map(|known| of_cluster(&known.cluster))).await?;
        Ok(of_clusters.into_iter().flatten().collect())
    }

    pub(crate) async fn delete_owned(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        let known = self.region(&owned.region)?;
        if let (OwnedKind::Piece(JUMP_POD | JUMP_SERVICE | KEYS), OwnedMark::Tags { key, .. }) =
            (&owned.kind, owned.mark)
        {
            // Of a jump pod, the key is that of its project.
            let project = ProjectId::from(key).to_string();
            let name = jump::name_of(&owned.name);
            let removed = jump::remove_unused_jump(&known.cluster, &project, name).await?;
            return removed.ok_or_else(|| ComputeError::InUse("pods of its project use it".to_owned()));
        }
        let kind = match &owned.kind {
            OwnedKind::Container | OwnedKind::Gateway => Kind::Pod,
            OwnedKind::Piece(SERVICE) => Kind::Service,
            OwnedKind::Piece(SECRET) => Kind::Secret,
            OwnedKind::Volume => Kind::Claim,
            _ => return Err(ComputeError::Unsupported("such a thing")),
        };
        known.cluster.delete(kind, &owned.name, &owned.id).await
    }
}

/// What was made for requests. The jump pod of a project is of no request: it is listed once no pod uses it.
async fn of_cluster(cluster: &Cluster) -> Result<Vec<Owned>, ComputeError> {
    let lists = [Kind::Pod, Kind::Service, Kind::Secret, Kind::Claim].map(async |kind| {
        let objects: Vec<Object> = cluster.list(kind, "").await?;
        Ok::<_, ComputeError>((kind, objects))
    });
    let lists = try_join_all(lists).await?;
    let all = || {
        lists
            .iter()
            .flat_map(|(kind, objects)| objects.iter().map(|one| (*kind, &one.metadata)))
    };
    let label = |metadata: &Metadata, name: &str| metadata.labels.get(name).cloned().unwrap_or_default();
    let is_used = |jump: &Metadata| {
        let project = label(jump, PROJECT_ID);
        all().any(|(kind, one)| {
            kind == Kind::Pod && label(one, COMPONENT) == JOB && label(one, PROJECT_ID) == project
        })
    };
    let owned = |(kind, metadata): (Kind, &Metadata)| {
        let component = label(metadata, COMPONENT);
        let what = match (component.as_str(), kind) {
            (JOB, Kind::Pod) => OwnedKind::Container,
            (GATEWAY, Kind::Pod) => OwnedKind::Gateway,
            (JOB | GATEWAY, Kind::Service) => OwnedKind::Piece(SERVICE),
            (JOB, Kind::Secret) => OwnedKind::Piece(SECRET),
            (VOLUME, Kind::Claim) => OwnedKind::Volume,
            (JUMP, _) if is_used(metadata) => return None,
            (JUMP, Kind::Pod) => OwnedKind::Piece(JUMP_POD),
            (JUMP, Kind::Service) => OwnedKind::Piece(JUMP_SERVICE),
            (JUMP, Kind::Secret) => OwnedKind::Piece(KEYS),
            _ => return None,
        };
        Some(Owned {
            kind: what,
            id: metadata.uid.clone(),
            name: metadata.name.clone(),
            mark: OwnedMark::of_tags(|name| metadata.labels.get(name).map(String::as_str))?,
            region: cluster.access.region.clone(),
            price: None,
            made_at: metadata
                .creation_timestamp
                .as_ref()
                .and_then(|text| text.parse().ok()),
        })
    };
    Ok(all().filter_map(owned).collect())
}
