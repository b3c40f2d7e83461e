//! What carries our names, and how it is removed. Logins to image registries have no names: they are not found.

use dstack_compute::{ComputeError, Owned, OwnedKind, OwnedMark, Removal};

use crate::Lium;
use crate::client::Named;
use crate::pods::is_deleted;
use crate::requests::told;

const TEMPLATE: OwnedKind = OwnedKind::Piece("template");

impl Lium {
    pub(crate) async fn list_owned(&self) -> Result<Vec<Owned>, ComputeError> {
        let pods = told(self.client.pods().await)?;
        let templates = told(self.client.templates().await)?;
        let volumes = told(self.client.volumes().await)?;
        let pods = pods.into_iter().filter(|pod| !is_deleted(pod));
        let pods = pods.filter_map(|pod| {
            let named = Named {
                id: pod.id,
                name: pod.pod_name,
            };
            owned(OwnedKind::Container, named, pod.price)
        });
        let templates = templates.into_iter();
        let templates = templates.filter_map(|template| owned(TEMPLATE, template, None));
        let volumes = volumes.into_iter();
        let volumes = volumes.filter_map(|volume| owned(OwnedKind::Volume, volume, None));
        Ok(pods.chain(templates).chain(volumes).collect())
    }

    pub(crate) async fn remove_by_kind(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        match &owned.kind {
            OwnedKind::Container => self.delete_pod(&owned.id).await,
            OwnedKind::Volume => self.delete_volume(&owned.id).await,
            kind if *kind == TEMPLATE => self.delete_template(&owned.id).await,
            _ => Err(ComputeError::Unsupported("removing this")),
        }
    }
}

/// `None`: the name is not one of ours.
fn owned(kind: OwnedKind, named: Named, price: Option<f64>) -> Option<Owned> {
    Some(Owned {
        kind,
        id: named.id,
        mark: OwnedMark::of_name(&named.name)?,
        name: named.name,
        region: String::new(),
        price,
        made_at: None,
    })
}
