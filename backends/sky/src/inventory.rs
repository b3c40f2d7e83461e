//! Runs that carry our names. Those of another user of the project may be of another installation.

use dstack_compute::{ComputeError, Owned, OwnedKind, OwnedMark, Removal};

use crate::Sky;
use crate::client::Run;
use crate::errors::told;
use crate::place::Place;

impl Sky {
    pub(crate) async fn list_owned(&self) -> Result<Vec<Owned>, ComputeError> {
        let runs = told(self.client.latest_runs().await)?;
        Ok(runs.into_iter().filter_map(owned).collect())
    }

    /// A run that is finished and not deleted has no instance any more, and still its name.
    pub(crate) async fn remove_listed(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        match owned.kind {
            OwnedKind::Container => self.remove_run(&owned.name).await,
            _ => Err(ComputeError::Unsupported("removing this")),
        }
    }
}

/// `None`: the name is not one of ours.
fn owned(run: Run) -> Option<Owned> {
    let name = run.run_spec.run_name?;
    let instance = run
        .latest_job_submission
        .and_then(|job| job.job_provisioning_data);
    let place = |instance: &crate::client::Instance| Place {
        backend: instance.backend.clone(),
        region: instance.region.clone(),
    };
    Some(Owned {
        kind: OwnedKind::Container,
        id: run.id,
        mark: OwnedMark::of_name(&name)?,
        name,
        region: instance
            .as_ref()
            .map(|instance| place(instance).to_string())
            .unwrap_or_default(),
        price: instance.and_then(|instance| instance.price),
        made_at: None,
    })
}
