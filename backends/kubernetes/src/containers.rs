use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use dstack_backend::look_by_place;
use dstack_compute::{
    CONTAINER_SSH_PORT, Call, ComputeError, Container, ContainerRequest, Known as KnownContainer, Lifecycle,
    Marks, Removal, Sign, Step,
};
use dstack_model::runs::JobProvisioningData;

use crate::client::{Cluster, Kind};
use crate::homes::Home;
use crate::jump::{self, Jump, Proxy};
use crate::labels::{COMPONENT, JOB, POD_NAME_LENGTH, SECRET_SUFFIX, SERVICE_SUFFIX, of_request};
use crate::objects::{Node, Pod, Service};
use crate::pieces::{Piece, Pieces};
use crate::places::{PlaceData, forget_home};
use crate::{Known, Kubernetes, manifests, offers, state};

const USER: &str = "root";

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
        // Pods are bound to no node: what fits nowhere fits on no other node of the same kind.
        let what = manifests::what_is_asked_for(want)?;
        if call.notes().is_null()
            && let Some(why) = known.failures.why(&what)
        {
            return Err(ComputeError::Skipped(format!(
                "the cluster had no node for this a moment ago: {why}"
            )));
        }
        let step = known.ensure_container(want, call).await;
        if let Err(error @ (ComputeError::NoCapacity(_) | ComputeError::NoQuota(_))) = &step {
            known.failures.note(&what, error.details());
        }
        step
    }

    async fn look(
        &self,
        known: &[KnownContainer<Container>],
    ) -> Result<Vec<Option<Sign<JobProvisioningData>>>, ComputeError> {
        look_by_place(known, site, |(region, home), known| async move {
            let seen = self.region(region)?.see(home.as_ref(), &known).await?;
            let sign = |known: &KnownContainer<Container>| match &known.place {
                Some(place) => seen.sign(&known.marks, place),
                None => Sign::Well,
            };
            Ok(known.into_iter().map(sign).collect())
        })
        .await
    }

    async fn remove(
        &self,
        known: &KnownContainer<Container>,
        call: &Call<'_>,
    ) -> Result<Removal, ComputeError> {
        let region = self.region(&known.site)?;
        let data = data_of(known.place.as_ref());
        let cluster = &region.home_of(call, &data).await?;
        let pieces = Pieces {
            cluster,
            marks: &known.marks,
            call,
        };
        let made = known.place.as_ref().map(|place| place.instance_id.clone());
        let name = made.clone().unwrap_or_else(|| known.marks.name(POD_NAME_LENGTH));
        let all = [
            ("service", Kind::Service, format!("{name}{SERVICE_SUFFIX}"), None),
            ("pod", Kind::Pod, name.clone(), data.uid),
            (
                "registry secret",
                Kind::Secret,
                format!("{name}{SECRET_SUFFIX}"),
                None,
            ),
        ];
        let mut whole = pieces.remove_all(all, made.is_some()).await?;
        if whole == Removal::Gone {
            whole = jump::remove_with_last(&pieces).await?;
        }
        if whole == Removal::Gone {
            whole = forget_home(call).await?;
        }
        Ok(whole)
    }
}

/// Where a container is to be looked for.
fn site(known: &KnownContainer<Container>) -> Option<(&str, Option<Home>)> {
    let place = known.place.as_ref()?;
    Some((known.site.as_str(), data_of(Some(place)).home))
}

fn data_of(place: Option<&JobProvisioningData>) -> PlaceData {
    PlaceData::read(place.and_then(|place| place.backend_data.as_deref()))
}

/// What is seen of containers of one namespace.
struct Seen {
    pods: Vec<Pod>,
    /// By the names of the jump pods.
    proxies: BTreeMap<String, Proxy>,
}

impl Seen {
    fn pod(&self, place: &JobProvisioningData) -> Option<&Pod> {
        let piece = Piece::long_ago(place.instance_id.clone(), data_of(Some(place)).uid);
        self.pods.iter().find(|pod| piece.is(&pod.metadata))
    }

    fn sign(&self, marks: &Marks, place: &JobProvisioningData) -> Sign<JobProvisioningData> {
        let Some(pod) = self.pod(place) else {
            return Sign::Lost("the cluster does not have the pod any more".to_owned());
        };
        match (state::end_of(pod), state::ending(pod)) {
            (Some(end), _) => Sign::Lost(end),
            (None, Some(why)) => Sign::Ending { at: None, why },
            (None, None) => match self.proxies.get(&jump::name(marks)) {
                Some(proxy) if goes_through_ours(place) => moved(place, proxy),
                _ => Sign::Well,
            },
        }
    }
}

/// Whether its keys are among those of a jump pod of this build: dstack 0.22.5 has jump pods of its own.
fn goes_through_ours(place: &JobProvisioningData) -> bool {
    data_of(Some(place)).ssh_proxy_host_key.is_some()
}

/// Whether a container is reached by another way than before.
fn moved(place: &JobProvisioningData, proxy: &Proxy) -> Sign<JobProvisioningData> {
    let mut moved = place.clone();
    let mut data = data_of(Some(place));
    data.ssh_proxy_host_key.clone_from(&proxy.host_key);
    moved.ssh_proxy = Some(proxy.params.clone());
    if data != data_of(Some(place)) {
        moved.backend_data = data.write();
    }
    match moved == *place {
        true => Sign::Well,
        false => Sign::Moved(moved),
    }
}

impl Known {
    /// What there is of these containers. Where the context leads to another cluster now, nothing is to be concluded: an error.
    async fn see(
        &self,
        home: Option<&Home>,
        known: &[&KnownContainer<Container>],
    ) -> Result<Seen, ComputeError> {
        let cluster = self.cluster_of(home).await?;
        let mut seen = Seen {
            pods: cluster.list(Kind::Pod, &format!("{COMPONENT}={JOB}")).await?,
            proxies: BTreeMap::new(),
        };
        let mut used = BTreeMap::new();
        for known in known {
            let Some(place) = &known.place else { continue };
            let is_alive = seen.pod(place).is_some_and(|pod| state::end_of(pod).is_none());
            if let (true, Some(proxy)) = (is_alive && goes_through_ours(place), &place.ssh_proxy) {
                used.insert(jump::name(&known.marks), (&known.marks, proxy.hostname.as_str()));
            }
        }
        if !used.is_empty() {
            match self.watch_jumps(&cluster, &used).await {
                Ok(proxies) => seen.proxies = proxies,
                Err(error) => {
                    tracing::warn!(context = self.cluster.access.region, %error, "jump pods are not looked after");
                }
            }
        }
        Ok(seen)
    }

    async fn ensure_container(
        &self,
        want: &ContainerRequest,
        call: &Call<'_>,
    ) -> Result<Step<JobProvisioningData>, ComputeError> {
        let name = want.marks.name(POD_NAME_LENGTH);
        let service_name = format!("{name}{SERVICE_SUFFIX}");
        let (home, cluster) = self.make_home(call).await?;
        let pieces = Pieces {
            cluster: &cluster,
            marks: &want.marks,
            call,
        };
        let made = self.make_pieces(want, &pieces, &name, &service_name).await?;
        let underway = |doing: String| Step::Underway {
            seen: None,
            doing,
            again: STARTS_INTERVAL,
        };
        let pod: Option<Pod> = cluster.get(Kind::Pod, &name).await?;
        let Some(pod) = pod.filter(|pod| made.is(&pod.metadata)) else {
            return Err(ComputeError::Broken("somebody has deleted the pod".to_owned()));
        };
        if let Some(obstacle) = state::obstacle(&pod, made.at, call.now()) {
            return Err(obstacle);
        }
        // After the pod is there: whoever removes the last one sees it, and leaves the jump pod.
        let keys = &want.workload.authorized_keys;
        let proxy = match self.ensure_jump(&pieces, keys, made.at).await? {
            Jump::Ready(proxy) => proxy,
            Jump::Underway(doing) => return Ok(underway(doing)),
        };
        let (Some(ip), "Running") = (&pod.status.pod_ip, pod.status.phase.as_str()) else {
            return Ok(underway(state::doing(&pod)));
        };
        let service: Option<Service> = cluster.get(Kind::Service, &service_name).await?;
        let Some(hostname) = service.and_then(|service| service.spec.cluster_ip) else {
            return Ok(underway("an address for the pod".to_owned()));
        };
        let mut place = place(want, name, hostname, ip.clone(), &proxy);
        place.backend_data = PlaceData {
            home: Some(home),
            uid: Some(pod.metadata.uid.clone()),
            ssh_proxy_host_key: proxy.host_key,
            read_only: false,
        }
        .write();
        self.name_node(&cluster, want, &pod, &mut place).await?;
        Ok(Step::Ready(place))
    }

    /// Makes what a container consists of; the pod.
    async fn make_pieces(
        &self,
        want: &ContainerRequest,
        pieces: &Pieces<'_, '_>,
        name: &str,
        service_name: &str,
    ) -> Result<Piece, ComputeError> {
        let labels = &of_request(JOB, name, &want.marks, &want.owner);
        if let Some(login) = &want.workload.registry {
            let secret = &format!("{name}{SECRET_SUFFIX}");
            let object = || async move {
                Ok(manifests::registry_secret(
                    secret,
                    labels,
                    &want.workload.image,
                    login,
                ))
            };
            pieces
                .make("registry secret", Kind::Secret, secret, object)
                .await?;
        }
        let object = || async move {
            let capacity = self.capacity().await?;
            manifests::pod(want, name, labels, &capacity.nodes)
        };
        let pod = pieces.make("pod", Kind::Pod, name, object).await?;
        let object = || async move { Ok(manifests::service(service_name, name, labels)) };
        pieces
            .make("service", Kind::Service, service_name, object)
            .await?;
        Ok(pod)
    }

    /// The node on which a pod is, which need not be that of the offer, with the pod's share of it.
    async fn name_node(
        &self,
        cluster: &Cluster,
        want: &ContainerRequest,
        pod: &Pod,
        place: &mut JobProvisioningData,
    ) -> Result<(), ComputeError> {
        let Some(name) = &pod.spec.node_name else {
            return Ok(());
        };
        let node: Option<Node> = cluster.node(name).await?;
        if let Some(resources) = node.and_then(|node| offers::share(&node, &want.requirements)) {
            place.instance_type.resources = resources;
        }
        place.instance_type.name.clone_from(name);
        Ok(())
    }
}

fn place(
    want: &ContainerRequest,
    name: String,
    hostname: String,
    ip: String,
    proxy: &Proxy,
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
        ssh_proxy: Some(proxy.params.clone()),
        backend_data: None,
        gpu_driver: None,
    }
}
