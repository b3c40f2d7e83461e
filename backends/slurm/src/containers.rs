//! A container is a job of one node.

use async_trait::async_trait;
use dstack_compute::{
    Call, ComputeError, Container, ContainerRequest, Known, Lifecycle, Removal, Sign, Step,
};
use dstack_model::runs::JobProvisioningData;

use crate::Slurm;
use crate::submission::{Named, Running, Wanted};

#[async_trait]
impl Lifecycle<Container> for Slurm {
    async fn ensure(
        &self,
        want: &ContainerRequest,
        call: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        let wanted = Wanted {
            marks: &want.marks,
            offer: &want.offer,
            requirements: &want.requirements,
            workloads: std::slice::from_ref(&want.workload),
        };
        let step = self.cluster(&want.offer.region)?.ensure(&wanted, call).await?;
        Ok(match step {
            Step::Ready(Running { mut members, .. }) => match members.pop() {
                Some(member) => Step::Ready(member),
                None => return Err(ComputeError::Broken("the Slurm job has no node".to_owned())),
            },
            Step::Underway { doing, again, .. } => Step::Underway {
                seen: None,
                doing,
                again,
            },
        })
    }

    async fn look(
        &self,
        known: &[Known<Container>],
    ) -> Result<Vec<Option<Sign<JobProvisioningData>>>, ComputeError> {
        let job = |known: &Known<Container>| Named::of_instance(&known.place.as_ref()?.instance_id);
        self.look_at(known, |known| (known.site.clone(), job(known)))
            .await
    }

    async fn remove(&self, known: &Known<Container>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let job = known
            .place
            .as_ref()
            .and_then(|place| Named::of_instance(&place.instance_id));
        self.cluster(&known.site)?.remove(&known.marks, job, call).await
    }
}
