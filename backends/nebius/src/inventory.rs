//! What carries marks, in all projects that may be seen, also those not used (any more): machines, boot disks, pricing policies, GPU clusters.

use dstack_backend::Made;
use dstack_compute::{Call, ComputeError, Marks, Owned, OwnedKind, Removal};
use dstack_units::Time;
use futures_util::future::try_join_all;

use crate::Nebius;
use crate::client::{Begun, Kind};
use crate::errors::told;
use crate::grpc::Error;
use crate::labels::mark;
use crate::machines::ENDS_INTERVAL;
use crate::messages::Thing;

const DISK: OwnedKind = OwnedKind::Piece("disk");
const POLICY: OwnedKind = OwnedKind::Piece("pricing policy");

impl Nebius {
    pub(crate) async fn list_owned(&self) -> Result<Vec<Owned>, ComputeError> {
        let projects = self.projects().await?;
        let asked = projects.all.iter().map(|project| {
            let (id, region) = (&project.id, &project.region);
            let chosen = projects.by_region.get(region).and_then(Option::as_ref);
            let is_used = chosen == Some(id) && self.is_used(region);
            async move {
                let owned = self.list_owned_in(region, id).await;
                let is_gone = owned.as_ref().is_err_and(Error::is_missing);
                if is_gone {
                    // Which projects there are was looked up some minutes ago.
                    self.projects.forget();
                }
                match told(owned) {
                    // Nothing of ours is where the account may not look, or in what is gone, unless it is to be used.
                    Err(ComputeError::Credentials(_)) if !is_used => Ok(Vec::new()),
                    Err(_) if is_gone && !is_used => Ok(Vec::new()),
                    owned => owned,
                }
            }
        });
        Ok(try_join_all(asked).await?.concat())
    }

    async fn list_owned_in(&self, region: &str, project: &str) -> Result<Vec<Owned>, Error> {
        let mut all = Vec::new();
        for (kind, owned) in [
            (Kind::Instance, OwnedKind::Machine),
            (Kind::Disk, DISK),
            (Kind::PricingPolicy, POLICY),
            (Kind::Cluster, OwnedKind::Placement),
        ] {
            let things: Vec<Thing> = self.client.list(kind, project).await?;
            all.extend(things.into_iter().filter_map(|thing| {
                let metadata = thing.metadata?;
                Some(Owned {
                    kind: owned.clone(),
                    mark: mark(&metadata)?,
                    made_at: metadata
                        .created_at
                        .map(|at| Time::from_millis(at.seconds.saturating_mul(1000))),
                    id: metadata.id,
                    name: metadata.name,
                    region: region.to_owned(),
                    price: None,
                })
            }));
        }
        Ok(all)
    }

    pub(crate) async fn remove_by_kind(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        let kind = match &owned.kind {
            OwnedKind::Machine => Kind::Instance,
            OwnedKind::Placement => Kind::Cluster,
            piece if *piece == POLICY => Kind::PricingPolicy,
            _ => Kind::Disk,
        };
        self.delete(kind, &owned.id).await
    }

    /// What an earlier call may have made under this name; what is being removed is not it.
    pub(crate) async fn find_named(
        &self,
        kind: Kind,
        region: &str,
        name: &str,
        marks: &Marks,
        call: &Call<'_>,
    ) -> Result<Option<Begun>, ComputeError> {
        let project = self.noted_project(region, call).await?;
        let found: Option<Thing> = self.client.named(kind, &project, name).await?;
        let found = found.filter(|thing| !kind.is_ending(thing.state(kind)));
        let metadata = found.and_then(|thing| thing.metadata);
        let own = metadata.filter(|metadata| mark(metadata).is_some_and(|mark| mark.is_for(marks)));
        Ok(own.map(|own| Begun {
            made: Made::now(own.id, call),
            operation: String::new(),
        }))
    }

    /// Only what the API itself says is gone.
    pub(crate) async fn delete(&self, kind: Kind, id: &str) -> Result<Removal, ComputeError> {
        let Some(thing) = self.client.get::<Thing>(kind, id).await? else {
            return Ok(Removal::Gone);
        };
        let underway = Ok(Removal::Underway { again: ENDS_INTERVAL });
        if kind.is_ending(thing.state(kind)) {
            return underway;
        }
        match (kind, told(self.client.delete(kind, id).await)) {
            (_, Ok(())) => underway,
            // It is made first, or something else is done to it.
            (Kind::Instance, Err(ComputeError::NotReady(_))) => underway,
            // Nebius removes nothing that something else has.
            (Kind::Disk | Kind::PricingPolicy | Kind::Cluster, Err(ComputeError::Refused(text))) => {
                Err(ComputeError::InUse(text))
            }
            (_, Err(error)) => Err(error),
        }
    }
}
