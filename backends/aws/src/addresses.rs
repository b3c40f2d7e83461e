//! Elastic IPs of machines with several network cards, to which AWS gives no other public address.

use dstack_backend::Made;
use dstack_compute::{Call, ComputeError, LISTED_WITHIN, MachineRequest, Marks, Removal};

use crate::Aws;
use crate::client::{Form, Service};
use crate::ec2::{Address, Done, Instance};
use crate::machines::{ENDS_INTERVAL, with_marks};
use crate::tags::tags;

/// Of what was made just now, such as the interface of a machine.
const NOT_KNOWN_YET: &[&str] = &[
    "InvalidAllocationID.NotFound",
    "InvalidNetworkInterfaceID.NotFound",
];

/// The piece of a machine.
const ADDRESS: &str = "address";

impl Aws {
    /// The address of a machine, once it leads there; `None`: not yet.
    pub(crate) async fn ensure_address(
        &self,
        want: &MachineRequest,
        instance: &Instance,
        call: &Call<'_>,
    ) -> Result<Option<Address>, ComputeError> {
        let region = &*want.offer.region;
        let mut with_tags = tags(&want.marks, &want.owner, self.config.tags.as_ref());
        with_tags.push(("dstack_instance".to_owned(), instance.instance_id.clone()));
        let allocate = async || {
            let form = Form::new("AllocateAddress")
                .with("Domain", "vpc")
                .tagged("elastic-ip", &with_tags);
            let made = self.client.change::<Address>(region, form).await;
            let made = made.map_err(|error| error.compute_error())?;
            Ok(Made::now(made.allocation_id, call))
        };
        let find = async || {
            let found = self.find_address(region, &want.marks).await?;
            Ok(found.map(|id| Made::now(id, call)))
        };
        let made = call.make(ADDRESS, LISTED_WITHIN, allocate, find).await?;
        let Some(address) = self.address(region, &made.id).await? else {
            return match made.is_new(call) {
                true => Ok(None),
                false => Err(ComputeError::Broken(format!(
                    "AWS does not have the address {} of the instance any more",
                    made.id
                ))),
            };
        };
        if address.association_id.is_some() {
            return Ok(Some(address));
        }
        let first = instance.network_interface_set.item.iter().find(|interface| {
            let attachment = interface.attachment.as_ref();
            attachment.is_some_and(|at| at.device_index == 0 && at.network_card_index.unwrap_or(0) == 0)
        });
        let Some(interface) = first else {
            return Ok(None);
        };
        let form = Form::new("AssociateAddress")
            .with("AllocationId", &address.allocation_id)
            .with("NetworkInterfaceId", &interface.network_interface_id)
            .with("AllowReassociation", "false");
        match self.client.read::<Done>(Service::Ec2, region, form).await {
            Ok(_) => Ok(Some(address)),
            Err(error) if made.is_new(call) && error.is(NOT_KNOWN_YET) => Ok(None),
            Err(error) => Err(error.compute_error()),
        }
    }

    /// Gives the address of a machine back, if it has one. The machine is gone by then.
    pub(crate) async fn remove_address(
        &self,
        region: &str,
        marks: &Marks,
        known: Option<String>,
        call: &Call<'_>,
    ) -> Result<Removal, ComputeError> {
        let find = async || {
            let found = self.find_address(region, marks).await?;
            Ok(found.map(|id| Made::now(id, call)))
        };
        let known = known.map(Made::long_ago);
        let delete = async |made: Made| {
            let told = self.release(region, &made.id).await?;
            Ok(told.unwrap_or_else(|| made.removal(call, Removal::Gone, ENDS_INTERVAL)))
        };
        call.unmake(ADDRESS, known, LISTED_WITHIN, find, delete).await
    }

    async fn find_address(&self, region: &str, marks: &Marks) -> Result<Option<String>, ComputeError> {
        let form = with_marks(Form::new("DescribeAddresses"), marks);
        let found = self.client.addresses(region, form).await;
        let found = found.map_err(|error| error.compute_error())?;
        Ok(found.into_iter().next().map(|address| address.allocation_id))
    }

    async fn address(&self, region: &str, id: &str) -> Result<Option<Address>, ComputeError> {
        let form = Form::new("DescribeAddresses").filter("allocation-id", [id]);
        let found = self.client.addresses(region, form).await;
        let found = found.map_err(|error| error.compute_error())?;
        Ok(found.into_iter().next())
    }

    /// Gives an address back; one that leads somewhere is taken from there first. `None`: AWS does not know it.
    pub(crate) async fn release(&self, region: &str, id: &str) -> Result<Option<Removal>, ComputeError> {
        let address = self.address(region, id).await?;
        if let Some(association) = address.and_then(|address| address.association_id) {
            let form = Form::new("DisassociateAddress").with("AssociationId", association);
            match self.client.read::<Done>(Service::Ec2, region, form).await {
                Err(error) if !error.is(&["InvalidAssociationID.NotFound"]) => {
                    return Err(error.compute_error());
                }
                _ => {}
            }
        }
        let form = Form::new("ReleaseAddress").with("AllocationId", id);
        match self.client.read::<Done>(Service::Ec2, region, form).await {
            Ok(_) => Ok(Some(Removal::Gone)),
            Err(error) if error.is(&["InvalidAllocationID.NotFound", "InvalidAddress.NotFound"]) => Ok(None),
            Err(error) => Err(error.compute_error()),
        }
    }
}
