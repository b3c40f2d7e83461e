//! The life of a placement group. It has no costs, and machines name it.

use async_trait::async_trait;
use dstack_compute::{
    Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, Placement, PlacementRequest, Removal, Step,
    placement_name,
};
use dstack_model::backends::BackendType;
use dstack_model::placement::PlacementGroupProvisioningData;

use crate::Aws;
use crate::client::{Form, Service};
use crate::ec2::Done;
use crate::machines::ENDS_INTERVAL;
use crate::tags::tags;

const GROUP: &str = "placement group";

/// Types that cannot be in cluster placement groups ("Placement strategies", EC2 User Guide).
const WITHOUT_GROUPS: &[&str] = &["t2.", "t3."];

#[async_trait]
impl Lifecycle<Placement> for Aws {
    async fn ensure(
        &self,
        want: &PlacementRequest,
        call: &Call<'_>,
    ) -> Result<Step<PlacementGroupProvisioningData>, ComputeError> {
        let instance_type = &want.instance_type;
        if WITHOUT_GROUPS
            .iter()
            .any(|start| instance_type.starts_with(start))
        {
            return Err(ComputeError::Refused(format!(
                "AWS has no placement groups for {instance_type}: take other instances for a cluster"
            )));
        }
        let name = placement_name(&want.marks);
        let create = async || {
            let tags = tags(&want.marks, &want.owner, self.config.tags.as_ref());
            let form = Form::new("CreatePlacementGroup")
                .with("GroupName", &name)
                .with("Strategy", "cluster")
                .tagged("placement-group", &tags);
            match self.client.change::<Done>(&want.region, form).await {
                // The name is ours only.
                Err(error) if error.is(&["InvalidPlacementGroup.Duplicate"]) => Ok(name.clone()),
                done => done.map(|_| name.clone()).map_err(|error| error.compute_error()),
            }
        };
        call.make(GROUP, LISTED_WITHIN, create, || {
            self.find_group(&want.region, &name)
        })
        .await?;
        Ok(Step::Ready(PlacementGroupProvisioningData {
            backend: BackendType::Aws,
            backend_data: None,
        }))
    }

    async fn remove(&self, known: &Known<Placement>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let name = placement_name(&known.marks);
        let (region, made) = (known.site.as_str(), known.place.as_ref().map(|_| name.clone()));
        let delete = async |name: String| self.delete_group(region, &name).await;
        call.unmake(
            GROUP,
            made,
            LISTED_WITHIN,
            || self.find_group(region, &name),
            delete,
        )
        .await
    }
}

impl Aws {
    async fn find_group(&self, region: &str, name: &str) -> Result<Option<String>, ComputeError> {
        let form = Form::new("DescribePlacementGroups").filter("group-name", [name]);
        let found = self.client.placement_groups(region, form).await;
        let found = found.map_err(|error| error.compute_error())?;
        let mut alive = found.into_iter().filter(|group| group.state != "deleted");
        Ok(alive.next().map(|group| group.group_name))
    }

    /// A group is in use as long as AWS has a machine in it, and that is until the machine is gone.
    pub(crate) async fn delete_group(&self, region: &str, name: &str) -> Result<Removal, ComputeError> {
        let form = Form::new("DeletePlacementGroup").with("GroupName", name);
        match self.client.read::<Done>(Service::Ec2, region, form).await {
            Ok(_) => {}
            Err(error) if error.is(&["InvalidPlacementGroup.Unknown"]) => return Ok(Removal::Gone),
            Err(error) if error.is(&["InvalidPlacementGroup.InUse"]) => {
                return Ok(Removal::Underway { again: ENDS_INTERVAL });
            }
            Err(error) => return Err(error.compute_error()),
        }
        Ok(match self.find_group(region, name).await? {
            Some(_) => Removal::Underway { again: ENDS_INTERVAL },
            None => Removal::Gone,
        })
    }
}
