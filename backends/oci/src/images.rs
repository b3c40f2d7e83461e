//! The image that a machine starts from: one of dstack's in the marketplace, with Docker and drivers, for x86-64. Its agreements are
//! accepted in the compartment.

use dstack_compute::ComputeError;
use dstack_model::instances::Resources;
use dstack_units::CpuArchitecture;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Oci;
use crate::client::{Service, told};

/// GPUs before Turing, which NVIDIA's open kernel modules do not know; the names are those of the catalogue.
const OLD_GPUS: &[&str] = &["V100", "P100", "P40", "P4", "P6", "M60", "M40", "M4", "K80"];

#[derive(Deserialize)]
struct Summary {
    id: String,
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Listing {
    default_package_version: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Package {
    image_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Accepted {
    agreement_id: String,
}

#[derive(Deserialize)]
struct Agreement {
    id: String,
    #[serde(default)]
    signature: String,
}

/// Name of the listing.
///
/// # Errors
/// There is none for such machines.
pub(crate) fn listing_for(resources: &Resources) -> Result<&'static str, ComputeError> {
    if resources.cpu_arch == Some(CpuArchitecture::Arm) {
        return Err(ComputeError::Refused(
            "there is no image for machines with ARM processors".to_owned(),
        ));
    }
    Ok(match resources.gpus.first() {
        None => "dstack-0.14",
        Some(gpu) if OLD_GPUS.contains(&gpu.name.as_str()) => "dstack-cuda-0.10",
        Some(_) => "dstack-cuda-0.14",
    })
}

impl Oci {
    /// The id of the image, which the compartment may use then.
    pub(crate) async fn image(&self, region: &str, name: &str) -> Result<String, ComputeError> {
        let key = format!("{region} {name}");
        let mut images = self.images.lock().await;
        if let Some(image) = images.get(&key) {
            return Ok(image.clone());
        }
        let (client, market, compartment) = (&self.client, Service::Marketplace, self.compartment.as_str());
        let query = [("name", name), ("listingTypes", "COMMUNITY")];
        let mut found: Vec<Summary> = told(client.list(market, region, "listings", &query).await)?;
        // Names that are alike are found too.
        found.retain(|listing| listing.name == name);
        let [listing] = found.as_slice() else {
            let count = found.len();
            return Err(ComputeError::Refused(format!(
                "the marketplace has {count} images {name} in {region}, and not one"
            )));
        };
        let id = &listing.id;
        let listing: Listing = told(client.get(market, region, &format!("listings/{id}"), &[]).await)?;
        let version = &listing.default_package_version;
        let path = format!("listings/{id}/packages/{version}");
        let package: Package = told(client.get(market, region, &path, &[]).await)?;
        let query = [
            ("compartmentId", compartment),
            ("listingId", id),
            ("packageVersion", version),
        ];
        let accepted: Vec<Accepted> = told(client.list(market, region, "acceptedAgreements", &query).await)?;
        let agreements = format!("{path}/agreements");
        let all: Vec<Agreement> = told(client.list(market, region, &agreements, &[]).await)?;
        for one in all
            .iter()
            .filter(|one| !accepted.iter().any(|other| other.agreement_id == one.id))
        {
            let query = [("compartmentId", compartment)];
            let path = format!("{agreements}/{}", one.id);
            let whole: Agreement = told(client.get(market, region, &path, &query).await)?;
            let ask = json!({"compartmentId": compartment, "listingId": id, "packageVersion": version,
                "agreementId": whole.id, "signature": whole.signature});
            told(
                client
                    .post::<Value>(market, region, "acceptedAgreements", &ask)
                    .await,
            )?;
        }
        images.insert(key, package.image_id.clone());
        Ok(package.image_id)
    }
}
