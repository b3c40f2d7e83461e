//! The private networks: one for each region, by which the machines of a cluster reach each other. They cost nothing and stay.

use dstack_backend::compute_error;
use dstack_compute::{Call, ComputeError, LISTED_WITHIN};

use crate::Vultr;
use crate::client::Vpc;
use crate::machines::not_made;

impl Vultr {
    /// The network of a region. dstack 0.22.5 calls it the same, so that there is one for both.
    pub(crate) async fn network(&self, region: &str, call: &Call<'_>) -> Result<Vpc, ComputeError> {
        let name = format!("dstack-vpc-{region}");
        let find = || self.find_network(region, &name, call);
        call.make(
            // Another attempt may be in another region.
            &format!("network in {region}"),
            LISTED_WITHIN,
            async || {
                // Two machines that are made at the same time shall have the same.
                let _one_at_a_time = self.making_network.lock().await;
                if let Some(known) = find().await? {
                    return Ok(known);
                }
                let made = self.client.create_vpc(region, &name).await;
                let made = made.map_err(|error| not_made(&error))?;
                self.lock_networks()
                    .insert(region.to_owned(), (call.now(), made.clone()));
                // Another server may have been faster.
                Ok(find().await.ok().flatten().unwrap_or(made))
            },
            find,
        )
        .await
    }

    /// The oldest, also of those that were made just now and are not listed yet.
    async fn find_network(
        &self,
        region: &str,
        name: &str,
        call: &Call<'_>,
    ) -> Result<Option<Vpc>, ComputeError> {
        let all = self.client.vpcs().await;
        let all = all.map_err(|error| compute_error(&error))?;
        let made = self.lock_networks().get(region).cloned();
        let made = made
            .filter(|(at, _)| call.now() < *at + LISTED_WITHIN)
            .map(|(_, vpc)| vpc);
        let is_own = |vpc: &Vpc| vpc.region == region && vpc.description == name;
        let own = all.into_iter().chain(made).filter(is_own);
        Ok(own.min_by(|one, other| (&one.date_created, &one.id).cmp(&(&other.date_created, &other.id))))
    }
}
