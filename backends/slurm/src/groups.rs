//! A group is a job of several nodes.

use async_trait::async_trait;
use dstack_compute::{Call, ComputeError, Group, GroupRequest, Known, Lifecycle, Removal, Sign, Step};
use dstack_model::backends::BackendType;
use dstack_model::compute_groups::ComputeGroupProvisioningData;

use crate::Slurm;
use crate::submission::{Named, Running, Wanted};

#[async_trait]
impl Lifecycle<Group> for Slurm {
    async fn ensure(
        &self,
        want: &GroupRequest,
        call: &Call<'_>,
    ) -> Result<Step<ComputeGroupProvisioningData>, ComputeError> {
        let wanted = Wanted {
            marks: &want.marks,
            offer: &want.offer,
            requirements: &want.requirements,
            workloads: &want.workloads,
        };
        let step = self.cluster(&want.offer.region)?.ensure(&wanted, call).await?;
        Ok(match step {
            Step::Ready(Running { job, members }) => Step::Ready(ComputeGroupProvisioningData {
                compute_group_id: job.id,
                compute_group_name: job.name,
                backend: BackendType::Slurm,
                base_backend: None,
                region: want.offer.region.to_string(),
                job_provisioning_datas: members,
                backend_data: None,
            }),
            Step::Underway { doing, again, .. } => Step::Underway {
                seen: None,
                doing,
                again,
            },
        })
    }

    async fn look(
        &self,
        known: &[Known<Group>],
    ) -> Result<Vec<Option<Sign<ComputeGroupProvisioningData>>>, ComputeError> {
        self.look_at(known, |known| (known.site.clone(), job_of(known)))
            .await
    }

    async fn remove(&self, known: &Known<Group>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        self.cluster(&known.site)?
            .remove(&known.marks, job_of(known), call)
            .await
    }
}

fn job_of(known: &Known<Group>) -> Option<Named> {
    let place = known.place.as_ref()?;
    Named::new(&place.compute_group_name, &place.compute_group_id)
}
