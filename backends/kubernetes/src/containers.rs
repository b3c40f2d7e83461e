use std::time::Duration;

use async_trait::async_trait;
use dstack_compute::{
    CONTAINER_SSH_PORT, Call, ComputeError, Container, ContainerRequest, Known as KnownContainer, Lifecycle,
    Removal, Sign, Step,
};
use dstack_model::instances::SshConnectionParams;
use dstack_model::runs::JobProvisioningData;
use futures_util::future::try_join_all;
use serde_json::Value;

use crate::client::{Cluster, Kind};
use crate::jump::{self, Jump};
use crate::labels::{COMPONENT, JOB, POD_NAME_LENGTH, SECRET_SUFFIX, SERVICE_SUFFIX, of_request};
use crate::objects::{Object, Pod, Service};
use crate::{Kubernetes, manifests, state};

const USER: &str = "root";

/// A read without a version sees all that was written before it.
const VISIBLE_WITHIN: Duration = Duration::from_secs(5);

/// Pause while a pod starts: its image is pulled, which takes minutes.
const STARTS_INTERVAL: Duration = Duration::from_secs(5);

#[async_trait]
impl Lifecycle<Container> for Kubernetes {
    async fn ensure(
        &self,
        want: &ContainerRequest,
        call: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        let known = self.region(&want.offer.region)?;
        let cluster = &known.cluster;
        let name = want.marks.name(POD_NAME_LENGTH);
        let labels = of_request(JOB, &name, &want.marks, &want.owner);
        cluster.ensure_namespace().await?;
        if let Some(login) = &want.workload.registry {
            let secret = format!("{name}{SECRET_SUFFIX}");
            let object = manifests::registry_secret(&secret, &labels, &want.workload.image, login);
            make(call, "registry secret", cluster, Kind::Secret, &secret, object).await?;
        }
        let capacity = known.capacity().await?;
        let pod = manifests::pod(want, &name, &labels, &capacity.nodes)?;
        make(call, "pod", cluster, Kind::Pod, &name, pod).await?;
        let service = format!("{name}{SERVICE_SUFFIX}");
        let object = manifests::service(&service, &name, &labels);
        make(call, "service", cluster, Kind::Service, &service, object).await?;
        let underway = |doing: String| Step::Underway {
            seen: None,
            doing,
            again: STARTS_INTERVAL,
        };
        let Some(pod) = cluster.get::<Pod>(Kind::Pod, &name).await? else {
            return Err(ComputeError::Broken("somebody has deleted the pod".to_owned()));
        };
        if let Some(obstacle) = state::obstacle(&pod, call.now()) {
            return Err(obstacle);
        }
        // After the pod is there: whoever removes the last one sees it, and leaves the jump pod.
        let proxy = match known
            .ensure_jump(&want.marks, &want.workload.authorized_keys)
            .await?
        {
            Jump::Ready(proxy) => proxy,
            Jump::Underway(doing) => return Ok(underway(doing)),
        };
        let (Some(ip), "Running") = (&pod.status.pod_ip, pod.status.phase.as_str()) else {
            return Ok(underway(state::doing(&pod)));
        };
        let service: Option<Service> = cluster.get(Kind::Service, &service).await?;
        let Some(hostname) = service.and_then(|service| service.spec.cluster_ip) else {
            return Ok(underway("an address for the pod".to_owned()));
        };
        Ok(Step::Ready(place(want, name, hostname, ip.clone(), proxy)))
    }

    async fn look(
        &self,
        known: &[KnownContainer<Container>],
    ) -> Result<Vec<Sign<JobProvisioningData>>, ComputeError> {
        let regions = self
            .clusters
            .iter()
            .filter(|one| known.iter().any(|known| known.site == one.cluster.access.region));
        let lists = regions.map(async |one| {
            let pods: Vec<Pod> = one.cluster.list(Kind::Pod, &format!("{COMPONENT}={JOB}")).await?;
            Ok::<_, ComputeError>((one.cluster.access.region.as_str(), pods))
        });
        let lists = try_join_all(lists).await?;
        let sign = |known: &KnownContainer<Container>| {
            let pods = lists.iter().find(|(region, _)| *region == known.site);
            let (Some((_, pods)), Some(place)) = (pods, &known.place) else {
                return Sign::Well;
            };
            match pods.iter().find(|pod| pod.metadata.name == place.instance_id) {
                None => Sign::Lost("the cluster does not have the pod any more".to_owned()),
                Some(pod) => match (state::end_of(pod), state::ending(pod)) {
                    (Some(end), _) => Sign::Lost(end),
                    (None, Some(why)) => Sign::Ending { at: None, why },
                    (None, None) => Sign::Well,
                },
            }
        };
        Ok(known.iter().map(sign).collect())
    }

    async fn remove(
        &self,
        known: &KnownContainer<Container>,
        call: &Call<'_>,
    ) -> Result<Removal, ComputeError> {
        let region = self.region(&known.site)?;
        let cluster = &region.cluster;
        let made = known.place.as_ref().map(|place| place.instance_id.clone());
        let name = made.clone().unwrap_or_else(|| known.marks.name(POD_NAME_LENGTH));
        let mut whole = Removal::Gone;
        for (piece, kind, suffix) in [
            ("service", Kind::Service, SERVICE_SUFFIX),
            ("pod", Kind::Pod, ""),
            ("registry secret", Kind::Secret, SECRET_SUFFIX),
        ] {
            let full = format!("{name}{suffix}");
            let noted = made.as_ref().map(|_| full.clone());
            let delete = async |name: String| cluster.delete(kind, &name, None).await;
            let removal = call
                .unmake(
                    piece,
                    noted,
                    VISIBLE_WITHIN,
                    || find(cluster, kind, &full),
                    delete,
                )
                .await?;
            if let Removal::Underway { .. } = removal {
                whole = removal;
            }
        }
        match whole {
            Removal::Gone => {
                let project = known.marks.project.to_string();
                let removed = region
                    .remove_unused_jump(&project, &jump::name(&known.marks))
                    .await?;
                Ok(removed.unwrap_or(Removal::Gone))
            }
            underway => Ok(underway),
        }
    }
}

/// Makes a piece; it is known by its name.
pub(crate) async fn make(
    call: &Call<'_>,
    piece: &str,
    cluster: &Cluster,
    kind: Kind,
    name: &str,
    object: Value,
) -> Result<(), ComputeError> {
    let ask = async || cluster.create(kind, &object).await.map(|()| name.to_owned());
    call.make(piece, VISIBLE_WITHIN, ask, || find(cluster, kind, name))
        .await
        .map(drop)
}

pub(crate) async fn find(cluster: &Cluster, kind: Kind, name: &str) -> Result<Option<String>, ComputeError> {
    let found: Option<Object> = cluster.get(kind, name).await?;
    Ok(found.map(|found| found.metadata.name))
}

fn place(
    want: &ContainerRequest,
    name: String,
    hostname: String,
    ip: String,
    proxy: SshConnectionParams,
) -> JobProvisioningData {
    JobProvisioningData {
        backend: want.offer.backend,
        base_backend: None,
        instance_type: (*want.offer.instance).clone(),
        instance_id: name,
        hostname: Some(hostname),
        internal_ip: Some(ip),
        public_ip_enabled: true,
        instance_network: None,
        region: want.offer.region.to_string(),
        availability_zone: None,
        reservation: None,
        price: want.offer.price,
        username: USER.to_owned(),
        ssh_port: Some(i64::from(CONTAINER_SSH_PORT)),
        dockerized: false,
        ssh_proxy: Some(proxy),
        backend_data: None,
        gpu_driver: None,
    }
}
