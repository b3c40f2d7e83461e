//! The private networks: one for each region, by which the machines of a cluster reach each other. They cost nothing and stay.

use dstack_backend::{compute_error, not_asked};
use dstack_compute::{Call, ComputeError, LISTED_WITHIN};

use crate::Vultr;
use crate::client::Vpc;
use crate::machines::not_made;

impl Vultr {
    /// The network of a region. dstack 0.22.5 calls it the same, so that there is one for both.
    pub(crate) async fn network(&self, region: &str, call: &Call<'_>) -> Result<Vpc, ComputeError> {
        let name = format!("dstack-vpc-{region}");
        // Another attempt may be in another region.
        let piece = format!("network in {region}");
        if let Some(noted) = call.made(&piece)? {
            return Ok(noted);
        }
        // Of many machines that are made at the same time, one looks for it or makes it: they shall have the same.
        let _one_at_a_time = match self.known_network(region, call) {
            Some(_) => None,
            None => Some(self.making_network.lock().await),
        };
        let find = || self.find_network(region, &name, call);
        let keep = |network: &Vpc| {
            self.lock_networks()
                .insert(region.to_owned(), (call.now(), network.clone()));
        };
        let make = async || {
            if let Some(known) = self.known_network(region, call) {
                return Ok(known);
            }
            if let Some(found) = find().await.map_err(not_asked)? {
                keep(&found);
                return Ok(found);
            }
            let made = self.client.create_vpc(region, &name).await;
            let made = made.map_err(|error| not_made(&error))?;
            keep(&made);
            // Another server may have been faster.
            let oldest = find().await.ok().flatten().unwrap_or(made);
            keep(&oldest);
            Ok(oldest)
        };
        call.make(&piece, LISTED_WITHIN, make, find).await
    }

    /// That of which was known of late.
    fn known_network(&self, region: &str, call: &Call<'_>) -> Option<Vpc> {
        let known = self.lock_networks().get(region).cloned();
        known
            .filter(|(at, _)| call.now() < *at + LISTED_WITHIN)
            .map(|(_, network)| network)
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
        let made = self.known_network(region, call);
        let is_own = |vpc: &Vpc| vpc.region == region && vpc.description == name;
        let own = all.into_iter().chain(made).filter(is_own);
        Ok(own.min_by(|one, other| (&one.date_created, &one.id).cmp(&(&other.date_created, &other.id))))
    }
}
