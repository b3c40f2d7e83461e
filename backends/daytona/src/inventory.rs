//! What carries our names, and how it is removed.

use dstack_compute::{ComputeError, Owned, OwnedKind, OwnedMark, Removal};
use dstack_http::ApiError;
use http::StatusCode;

use crate::Daytona;
use crate::requests::told;
use crate::volumes::is_deleted;

const LOGIN: OwnedKind = OwnedKind::Piece("registry login");

impl Daytona {
    pub(crate) async fn list_owned(&self) -> Result<Vec<Owned>, ComputeError> {
        let sandboxes = told(self.client.sandboxes().await)?;
        let volumes = allowed(self.client.volumes().await)?;
        let registries = allowed(self.client.registries().await)?;
        let sandboxes = sandboxes
            .into_iter()
            .filter(|found| found.state != "destroyed")
            .filter_map(|found| owned(OwnedKind::Container, found.id, found.name, found.target));
        let volumes = volumes
            .into_iter()
            .filter(|volume| !is_deleted(volume))
            .filter_map(|volume| owned(OwnedKind::Volume, volume.id, volume.name, String::new()));
        let registries = registries
            .into_iter()
            .filter_map(|registry| owned(LOGIN, registry.id, registry.name, String::new()));
        Ok(sandboxes.chain(volumes).chain(registries).collect())
    }

    pub(crate) async fn remove_by_kind(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        match &owned.kind {
            OwnedKind::Container => self.delete_sandbox(&owned.id).await,
            OwnedKind::Volume => self.delete_volume(&owned.id).await,
            kind if *kind == LOGIN => self.delete_registry(&owned.id).await,
            _ => Err(ComputeError::Unsupported("removing this")),
        }
    }
}

/// A key that may not list things of a kind has made none.
fn allowed<T>(answer: Result<Vec<T>, ApiError>) -> Result<Vec<T>, ComputeError> {
    match answer {
        Err(error) if error.status() == Some(StatusCode::FORBIDDEN) => Ok(Vec::new()),
        answer => told(answer),
    }
}

/// `None`: the name is not one of ours.
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
