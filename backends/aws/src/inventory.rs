//! What carries our marks in all regions of the account, and how it is removed.
//!
//! Security groups are not in it: they belong to a project and not to a request, cost nothing and stay.

use std::time::Duration;

use dstack_compute::{
    ComputeError, INSTALLATION_TAG, Inventory, MissingRegion, Owned, OwnedKind, OwnedMark, Removal,
};
use dstack_units::Time;
use futures_util::StreamExt as _;
use futures_util::stream;

use crate::Aws;
use crate::client::{Form, home_region};
use crate::ec2::{Instance, Items, Tag, VolumesPage, tag};
use crate::errors::AwsError;
use crate::offers::PARALLEL;

/// How long a region that is not configured may take: one that is out of reach holds up the others no longer, and `dstack doctor`,
/// which waits for 40 s, names it.
const ELSEWHERE_LIMIT: Duration = Duration::from_secs(15);

const TARGETS: OwnedKind = OwnedKind::Piece("target group");

const ADDRESS: OwnedKind = OwnedKind::Piece("Elastic IP");

impl Aws {
    /// What each region has, of those that tell.
    pub(crate) async fn list_owned(&self) -> Result<Inventory, ComputeError> {
        let regions = self.all_regions().await.map_err(|error| error.compute_error())?;
        let asked = regions.len();
        let listed: Vec<_> = stream::iter(regions)
            .map(|region| async move {
                let listed = match self.regions.contains(&region) {
                    true => {
                        let listed = self.list_owned_in(&region).await;
                        listed.map(Some).map_err(|error| error.compute_error())
                    }
                    false => self.list_owned_elsewhere(&region).await,
                };
                (region, listed)
            })
            .buffered(PARALLEL)
            .collect()
            .await;
        let mut inventory = Inventory::default();
        for (region, listed) in listed {
            let error = match listed {
                Ok(Some(owned)) => {
                    inventory.owned.extend(owned);
                    continue;
                }
                Ok(None) => None,
                Err(error) => Some(error),
            };
            inventory.missing.push(MissingRegion { region, error });
        }
        match inventory.missing.len() < asked {
            true => Ok(inventory),
            false => inventory.into_whole().map(Inventory::whole),
        }
    }

    /// A region that is not configured may be closed to the account, and refuses it altogether (`None`): by a policy of the organization,
    /// or as it is not enabled. As a rule nothing was made there. Any other failure hides what may be there.
    async fn list_owned_elsewhere(&self, region: &str) -> Result<Option<Vec<Owned>>, ComputeError> {
        let listed = tokio::time::timeout(ELSEWHERE_LIMIT, async {
            match self.marked_instances(region).await {
                Ok(instances) => self.list_with(region, instances).await.map(Some),
                Err(error) if error.is_closed_region() => {
                    tracing::debug!(region, %error, "a region that is not configured is closed to the account");
                    Ok(None)
                }
                Err(error) => Err(error),
            }
        });
        match listed.await {
            Ok(listed) => listed.map_err(|error| error.compute_error()),
            Err(_) => Err(ComputeError::Unclear(format!(
                "the region {region} does not tell what it has within {} s",
                ELSEWHERE_LIMIT.as_secs()
            ))),
        }
    }

    /// Those of the configuration, and all others that the account has: some may have been configured before.
    async fn all_regions(&self) -> Result<Vec<String>, AwsError> {
        let home = home_region(&self.regions);
        let mut all = self.regions.clone();
        match self.client.regions(home).await {
            Ok(regions) => all.extend(regions),
            // dstack 0.22.5 does not ask for that permission.
            Err(error) if error.is_forbidden() => {
                tracing::debug!(%error, "only the regions of the configuration are looked at");
            }
            Err(error) => return Err(error),
        }
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    async fn list_owned_in(&self, region: &str) -> Result<Vec<Owned>, AwsError> {
        let instances = self.marked_instances(region).await?;
        self.list_with(region, instances).await
    }

    async fn marked_instances(&self, region: &str) -> Result<Vec<Instance>, AwsError> {
        // Those that are over stay in lists for an hour.
        let form = marked("DescribeInstances").filter(
            "instance-state-name",
            ["pending", "running", "shutting-down", "stopping", "stopped"],
        );
        self.client.instances(region, form).await
    }

    /// These instances, and all else of the region that carries our marks.
    async fn list_with(&self, region: &str, instances: Vec<Instance>) -> Result<Vec<Owned>, AwsError> {
        let volumes = self
            .client
            .list::<VolumesPage>(region, marked("DescribeVolumes"))
            .await?;
        let addresses = self.client.addresses(region, marked("DescribeAddresses")).await?;
        let groups = self
            .client
            .placement_groups(region, marked("DescribePlacementGroups"))
            .await?;
        let instances = instances.iter().filter_map(|one| {
            owned(
                OwnedKind::Machine,
                &one.instance_id,
                &one.tag_set,
                one.launch_time,
            )
        });
        let volumes = volumes
            .iter()
            .filter_map(|one| owned(OwnedKind::Volume, &one.volume_id, &one.tag_set, one.create_time));
        let addresses = addresses
            .iter()
            .filter_map(|one| owned(ADDRESS, &one.allocation_id, &one.tag_set, None));
        let groups = groups
            .iter()
            .filter(|group| group.state != "deleted")
            .filter_map(|one| owned(OwnedKind::Placement, &one.group_name, &one.tag_set, None));
        let balancers = self.owned_balancers(region).await?;
        let all = instances
            .chain(volumes)
            .chain(addresses)
            .chain(groups)
            .chain(balancers);
        Ok(all
            .map(|owned| Owned {
                region: region.to_owned(),
                ..owned
            })
            .collect())
    }

    /// Load balancers and their target groups, by the marks in their names. Who may not see them has not made any with these credentials.
    async fn owned_balancers(&self, region: &str) -> Result<Vec<Owned>, AwsError> {
        let listed = async {
            let balancers = self
                .client
                .balancers(region, Form::new("DescribeLoadBalancers"))
                .await?;
            let groups = self
                .client
                .target_groups(region, Form::new("DescribeTargetGroups"))
                .await?;
            let balancers = balancers.into_iter().filter_map(|one| {
                named(
                    OwnedKind::LoadBalancer,
                    one.load_balancer_arn,
                    one.load_balancer_name,
                    one.created_time,
                )
            });
            let groups = groups
                .into_iter()
                .filter_map(|one| named(TARGETS, one.target_group_arn, one.target_group_name, None));
            Ok(balancers.chain(groups).collect())
        };
        match listed.await {
            Err(error) if AwsError::is_forbidden(&error) => Ok(Vec::new()),
            listed => listed,
        }
    }

    pub(crate) async fn remove_by_kind(&self, owned: &Owned) -> Result<Removal, ComputeError> {
        let (region, id) = (&owned.region, &owned.id);
        match &owned.kind {
            OwnedKind::Machine => Ok(self.terminate(region, id).await?.unwrap_or(Removal::Gone)),
            OwnedKind::Volume => Ok(self.delete_volume(region, id).await?.unwrap_or(Removal::Gone)),
            OwnedKind::Placement => self.delete_group(region, id).await,
            OwnedKind::LoadBalancer => self.delete_balancer(region, id).await,
            kind if *kind == TARGETS => self.delete_target_group(region, id).await,
            kind if *kind == ADDRESS => Ok(self.release(region, id).await?.unwrap_or(Removal::Gone)),
            _ => Err(ComputeError::Unsupported("removing this")),
        }
    }
}

/// A request for all that carries our marks.
fn marked(action: &'static str) -> Form {
    Form::new(action).filter("tag-key", [INSTALLATION_TAG])
}

/// `None`: the tags are not ours.
fn owned(kind: OwnedKind, id: &str, tags: &Items<Tag>, made_at: Option<Time>) -> Option<Owned> {
    Some(Owned {
        kind,
        id: id.to_owned(),
        name: tag(tags, "Name").unwrap_or_default().to_owned(),
        mark: OwnedMark::of_tags(|key| tag(tags, key))?,
        region: String::new(),
        price: None,
        made_at,
    })
}

/// `None`: the name is not one of ours.
fn named(kind: OwnedKind, id: String, name: String, made_at: Option<Time>) -> Option<Owned> {
    Some(Owned {
        mark: OwnedMark::of_name(&name)?,
        kind,
        id,
        name,
        region: String::new(),
        price: None,
        made_at,
    })
}
