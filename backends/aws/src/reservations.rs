//! Capacity that was reserved: On-Demand Capacity Reservations and Capacity Blocks.

use dstack_compute::ComputeError;

use crate::Aws;
use crate::client::{Form, Page as _, Service};
use crate::ec2::{CapacityReservation, CapacityReservations};

impl CapacityReservation {
    /// Whether it is of capacity that is paid for in advance, for some days.
    pub(crate) fn is_capacity_block(&self) -> bool {
        self.reservation_type.as_deref() == Some("capacity-block")
    }
}

impl Aws {
    /// An active reservation; `None`: the region does not have it.
    pub(crate) async fn reservation(
        &self,
        region: &str,
        id: &str,
    ) -> Result<Option<CapacityReservation>, ComputeError> {
        // With ids, lists have no pages.
        let form = Form::new("DescribeCapacityReservations")
            .list("CapacityReservationId", [id])
            .filter("state", ["active"]);
        let found: Result<CapacityReservations, _> = self.client.read(Service::Ec2, region, form).await;
        match found {
            Ok(page) => Ok(page.into_items().0.into_iter().next()),
            // `InvalidCapacityReservationId.NotFound` and `.Malformed`.
            Err(error) if error.code().starts_with("InvalidCapacityReservationId") => Ok(None),
            Err(error) => Err(error.compute_error()),
        }
    }
}
