//! What carries our marks in the compartment, in all regions that the tenancy is subscribed to: some may have been configured before.

use std::collections::BTreeSet;
use std::time::Duration;

use dstack_compute::{ComputeError, Inventory, MissingRegion, Owned, OwnedKind};
use futures_util::future::join_all;
use http::StatusCode;

use crate::Oci;
use crate::client::{Subscription, told};
use crate::machines::mark;

/// How long a region that is not configured may take: one that is out of reach holds up the others no longer.
const ELSEWHERE_LIMIT: Duration = Duration::from_secs(15);

impl Oci {
    /// What each region has, of those that tell.
    pub(crate) async fn list_owned(&self) -> Result<Inventory, ComputeError> {
        let (regions, hidden) = self.all_regions().await?;
        let asked = regions
            .iter()
            .map(async |region| match self.regions.contains(region) {
                true => self.list_owned_in(region).await.map(Some),
                false => self.list_owned_elsewhere(region).await,
            });
        let listed = join_all(asked).await;
        let mut inventory = Inventory::default();
        if let Some(error) = hidden {
            let region = "those that are not configured".to_owned();
            inventory.missing.push(MissingRegion {
                region,
                error: Some(error),
            });
        }
        let mut has_told = false;
        for (region, listed) in regions.iter().zip(listed) {
            let error = match listed {
                Ok(Some(owned)) => {
                    inventory.owned.extend(owned);
                    has_told = true;
                    continue;
                }
                Ok(None) => None,
                Err(error) => Some(error),
            };
            let region = region.clone();
            inventory.missing.push(MissingRegion { region, error });
        }
        match has_told {
            true => Ok(inventory),
            false => inventory.into_whole().map(Inventory::whole),
        }
    }

    /// Those of the configuration, and all others that the tenancy is subscribed to; or why the others are not known. `read tenancies` is
    /// not among the rights that the documentation asks for: who has not got it knows of no others.
    async fn all_regions(&self) -> Result<(BTreeSet<String>, Option<ComputeError>), ComputeError> {
        let mut all: BTreeSet<String> = self.regions.iter().cloned().collect();
        match self.client.subscriptions().await {
            Ok(subscribed) => {
                let ready = subscribed.into_iter().filter(Subscription::is_ready);
                all.extend(ready.map(|one| one.region_name));
            }
            Err(error) if is_refused(error.status()) => {
                tracing::debug!(%error, "only the regions of the configuration are looked at");
            }
            Err(error) => {
                let hidden = told::<()>(Err(error)).err();
                return Ok((all, hidden));
            }
        }
        Ok((all, None))
    }

    async fn list_owned_in(&self, region: &str) -> Result<Vec<Owned>, ComputeError> {
        let all = told(self.client.instances(region, &self.compartment).await)?;
        let alive = all
            .into_iter()
            .filter(|instance| instance.lifecycle_state != "TERMINATED");
        let owned = alive.filter_map(|instance| {
            Some(Owned {
                kind: OwnedKind::Machine,
                mark: mark(&instance)?,
                id: instance.id,
                name: instance.display_name,
                region: region.to_owned(),
                price: None,
                made_at: None,
            })
        });
        Ok(owned.collect())
    }

    /// A region that is not configured may refuse the account (`None`): as a rule nothing was made there. Any other failure hides what may
    /// be there.
    async fn list_owned_elsewhere(&self, region: &str) -> Result<Option<Vec<Owned>>, ComputeError> {
        match tokio::time::timeout(ELSEWHERE_LIMIT, self.list_owned_in(region)).await {
            Ok(Err(ComputeError::Credentials(_) | ComputeError::Refused(_))) => Ok(None),
            Ok(listed) => listed.map(Some),
            Err(_) => Err(ComputeError::Unclear(format!(
                "the region {region} does not tell what it has within {} s",
                ELSEWHERE_LIMIT.as_secs()
            ))),
        }
    }
}

fn is_refused(status: Option<StatusCode>) -> bool {
    matches!(status, Some(StatusCode::FORBIDDEN | StatusCode::NOT_FOUND))
}
