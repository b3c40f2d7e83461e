//! Volumes are persistent volume claims. See <https://kubernetes.io/docs/concepts/storage/persistent-volumes/>.

use async_trait::async_trait;
use dstack_backend::look_by_place;
use dstack_compute::{
    Call, ComputeError, Known, Lifecycle, Removal, Sign, Step, Volume, VolumeRequest, Volumes,
};
use dstack_model::backends::BackendType;
use dstack_model::volumes::{AnyVolumeConfiguration, KubernetesVolumeConfiguration, VolumeProvisioningData};
use futures_util::future::try_join_all;
use serde_json::{Value, json};

use crate::Kubernetes;
use crate::client::{Cluster, Kind};
use crate::homes::Home;
use crate::labels::{POD_NAME_LENGTH, VOLUME, of_request};
use crate::objects::Claim;
use crate::pieces::{Piece, Pieces};
use crate::places::{PlaceData, forget_home};
use crate::quantity::{parse, whole};

/// Under which the claim is noted.
const CLAIM: &str = "claim";

const GIB: f64 = 1_073_741_824.0;

#[async_trait]
impl Lifecycle<Volume> for Kubernetes {
    async fn ensure(
        &self,
        want: &VolumeRequest,
        call: &Call<'_>,
    ) -> Result<Step<VolumeProvisioningData>, ComputeError> {
        let configuration = own(want)?;
        let name = &want.marks.name(POD_NAME_LENGTH);
        let (home, cluster) = self.region(&configuration.region)?.make_home(call).await?;
        let pieces = Pieces {
            cluster: &cluster,
            marks: &want.marks,
            call,
        };
        let object = || async move { claim(want, configuration, name) };
        let made = pieces.make(CLAIM, Kind::Claim, name, object).await?;
        // Many are bound to a disk with their first pod only: it is not waited for.
        let size = configuration.size.map(|size| whole(size.gb()));
        Ok(Step::Ready(place(configuration, made, home, size)))
    }

    async fn look(
        &self,
        known: &[Known<Volume>],
    ) -> Result<Vec<Option<Sign<VolumeProvisioningData>>>, ComputeError> {
        look_by_place(known, site, |(region, home), known| async move {
            let cluster = &self.region(region)?.cluster_of(home.as_ref()).await?;
            try_join_all(known.into_iter().map(|known| sign_of(cluster, known))).await
        })
        .await
    }

    async fn remove(&self, known: &Known<Volume>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let region = self.region(&known.site)?;
        let data = known
            .place
            .as_ref()
            .and_then(|place| place.backend_data.as_deref());
        let data = PlaceData::read(data);
        let cluster = &region.home_of(call, &data).await?;
        let pieces = Pieces {
            cluster,
            marks: &known.marks,
            call,
        };
        // One that was registered is of somebody else, and stays, see `Pieces`: it is not looked for by its uid.
        let placed = known.place.as_ref();
        let placed = placed.map(|place| Piece::long_ago(place.volume_id.clone(), None));
        let name = known.marks.name(POD_NAME_LENGTH);
        match pieces.remove(CLAIM, Kind::Claim, &name, placed).await? {
            Removal::Gone => forget_home(call).await,
            underway => Ok(underway),
        }
    }
}

/// Where a volume is to be looked for.
fn site(known: &Known<Volume>) -> Option<(&str, Option<Home>)> {
    let place = known.place.as_ref()?;
    let data = PlaceData::read(place.backend_data.as_deref());
    Some((known.site.as_str(), data.home))
}

async fn sign_of(
    cluster: &Cluster,
    known: &Known<Volume>,
) -> Result<Sign<VolumeProvisioningData>, ComputeError> {
    let Some(place) = &known.place else {
        return Ok(Sign::Well);
    };
    let uid = PlaceData::read(place.backend_data.as_deref()).uid;
    let piece = Piece::long_ago(place.volume_id.clone(), uid);
    let claim: Option<Claim> = cluster.get(Kind::Claim, &place.volume_id).await?;
    Ok(match claim.filter(|claim| piece.is(&claim.metadata)) {
        None => Sign::Lost("the cluster does not have the claim any more".to_owned()),
        Some(claim) if claim.status.phase == "Lost" => Sign::Lost("the disk of the claim is lost".to_owned()),
        Some(_) => Sign::Well,
    })
}

#[async_trait]
impl Volumes for Kubernetes {
    async fn register(&self, volume: &VolumeRequest) -> Result<VolumeProvisioningData, ComputeError> {
        let configuration = own(volume)?;
        let name = configuration.claim_name.as_deref().unwrap_or_default();
        let cluster = &self.region(&configuration.region)?.cluster;
        let claim: Option<Claim> = cluster.get(Kind::Claim, name).await?;
        let claim = claim.ok_or_else(|| {
            let namespace = &cluster.namespace;
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
        let home = cluster.home().await?;
        let claim = Piece::long_ago(name.to_owned(), Some(claim.metadata.uid));
        Ok(place(configuration, claim, home, Some(whole(size / GIB))))
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

fn place(
    configuration: &KubernetesVolumeConfiguration,
    claim: Piece,
    home: Home,
    size_gb: Option<i64>,
) -> VolumeProvisioningData {
    let data = PlaceData {
        home: Some(home),
        uid: claim.uid,
        ssh_proxy_host_key: None,
        read_only: configuration.read_only,
    };
    VolumeProvisioningData {
        backend: Some(BackendType::Kubernetes),
        volume_id: claim.name,
        size_gb,
        availability_zone: None,
        price: None,
        attachable: false,
        detachable: false,
        backend_data: data.write(),
    }
}
