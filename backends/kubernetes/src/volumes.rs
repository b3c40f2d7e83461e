//! Volumes are persistent volume claims. See <https://kubernetes.io/docs/concepts/storage/persistent-volumes/>.

use std::time::Duration;

use async_trait::async_trait;
use dstack_compute::{
    Call, ComputeError, Known, Lifecycle, Removal, Sign, Step, Volume, VolumeRequest, Volumes,
};
use dstack_model::backends::BackendType;
use dstack_model::volumes::{AnyVolumeConfiguration, KubernetesVolumeConfiguration, VolumeProvisioningData};
use futures_util::future::try_join_all;
use serde_json::{Value, json};

use crate::Kubernetes;
use crate::client::{Cluster, Kind};
use crate::containers::{find, make};
use crate::labels::{POD_NAME_LENGTH, VOLUME, of_request};
use crate::objects::Claim;
use crate::quantity::{parse, whole};

const VISIBLE_WITHIN: Duration = Duration::from_secs(5);

const GIB: f64 = 1_073_741_824.0;

#[async_trait]
impl Lifecycle<Volume> for Kubernetes {
    async fn ensure(
        &self,
        want: &VolumeRequest,
        call: &Call<'_>,
    ) -> Result<Step<VolumeProvisioningData>, ComputeError> {
        let configuration = own(want)?;
        let cluster = &self.region(&configuration.region)?.cluster;
        let name = want.marks.name(POD_NAME_LENGTH);
        cluster.ensure_namespace().await?;
        let claim = claim(want, configuration, &name)?;
        make(call, "claim", cluster, Kind::Claim, &name, claim).await?;
        // Many are bound to a disk with their first pod only: it is not waited for.
        let size = configuration.size.map(|size| whole(size.gb()));
        Ok(Step::Ready(place(configuration, name, size)))
    }

    async fn look(&self, known: &[Known<Volume>]) -> Result<Vec<Sign<VolumeProvisioningData>>, ComputeError> {
        let signs = known.iter().map(async |known| {
            let (Some(place), Ok(region)) = (&known.place, self.region(&known.site)) else {
                return Ok(Sign::Well);
            };
            let claim: Option<Claim> = region.cluster.get(Kind::Claim, &place.volume_id).await?;
            Ok(match claim {
                None => Sign::Lost("the cluster does not have the claim any more".to_owned()),
                Some(claim) if claim.status.phase == "Lost" => {
                    Sign::Lost("the disk of the claim is lost".to_owned())
                }
                Some(_) => Sign::Well,
            })
        });
        try_join_all(signs).await
    }

    async fn remove(&self, known: &Known<Volume>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let cluster = &self.region(&known.site)?.cluster;
        let made = known.place.as_ref().map(|place| place.volume_id.clone());
        let name = known.marks.name(POD_NAME_LENGTH);
        let delete = async |name: String| delete_claim(cluster, &name).await;
        call.unmake(
            "claim",
            made,
            VISIBLE_WITHIN,
            || find(cluster, Kind::Claim, &name),
            delete,
        )
        .await
    }
}

#[async_trait]
impl Volumes for Kubernetes {
    async fn register(&self, volume: &VolumeRequest) -> Result<VolumeProvisioningData, ComputeError> {
        let configuration = own(volume)?;
        let name = configuration.claim_name.as_deref().unwrap_or_default();
        let cluster = &self.region(&configuration.region)?.cluster;
        let claim: Option<Claim> = cluster.get(Kind::Claim, name).await?;
        let claim = claim.ok_or_else(|| {
            let namespace = &cluster.access.namespace;
            ComputeError::Refused(format!(
                "there is no persistent volume claim {name} in the namespace {namespace}"
            ))
        })?;
        let size = claim.status.capacity.get("storage");
        let size = size.or_else(|| claim.spec.resources.requests.get("storage"));
        let size = size.and_then(|text| parse(text)).ok_or_else(|| {
            ComputeError::Refused(format!(
                "the persistent volume claim {name} does not say how large it is"
            ))
        })?;
        Ok(place(configuration, name.to_owned(), Some(whole(size / GIB))))
    }
}

fn own(want: &VolumeRequest) -> Result<&KubernetesVolumeConfiguration, ComputeError> {
    match &want.configuration {
        AnyVolumeConfiguration::Kubernetes(configuration) => Ok(configuration),
        _ => Err(ComputeError::Configuration(
            "the volume is not of Kubernetes".to_owned(),
        )),
    }
}

fn claim(
    want: &VolumeRequest,
    configuration: &KubernetesVolumeConfiguration,
    name: &str,
) -> Result<Value, ComputeError> {
    let size = configuration
        .size
        .ok_or_else(|| ComputeError::Configuration("size: a new volume needs one".to_owned()))?;
    let mut spec = json!({
        "accessModes": configuration.access_modes,
        "resources": {"requests": {"storage": format!("{}Mi", whole(size.mib()))}},
    });
    if let (Some(class), Some(spec)) = (&configuration.storage_class_name, spec.as_object_mut()) {
        spec.insert("storageClassName".to_owned(), json!(class));
    }
    let labels = of_request(VOLUME, name, &want.marks, &want.owner);
    Ok(json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
    }))
}

/// Only claims that dstack made: those of others are registered, and stay.
async fn delete_claim(cluster: &Cluster, name: &str) -> Result<Removal, ComputeError> {
    let claim: Option<Claim> = cluster.get(Kind::Claim, name).await?;
    let is_ours = |claim: &Claim| {
        claim
            .metadata
            .labels
            .get("app.kubernetes.io/managed-by")
            .is_some_and(|by| by == "dstack")
    };
    match claim.as_ref() {
        Some(claim) if is_ours(claim) => cluster.delete(Kind::Claim, name, Some(&claim.metadata.uid)).await,
        _ => Ok(Removal::Gone),
    }
}

fn place(
    configuration: &KubernetesVolumeConfiguration,
    name: String,
    size_gb: Option<i64>,
) -> VolumeProvisioningData {
    VolumeProvisioningData {
        backend: Some(BackendType::Kubernetes),
        volume_id: name,
        size_gb,
        availability_zone: None,
        price: None,
        attachable: false,
        detachable: false,
        backend_data: Some(json!({"read_only": configuration.read_only}).to_string()),
    }
}
