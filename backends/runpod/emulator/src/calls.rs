//! The calls of REST v2, after they were held to the description.

use std::collections::BTreeSet;

use dstack_backend_kit::Emulator as _;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::state::{Cluster, Login, Pod, SSH_PORT, Volume};
use crate::{Answer, Problem, Request, Runpod, Size};

/// What the vendor says of all that is not free.
pub(crate) const NO_CAPACITY: &str = "There are no longer any instances available with the requested specifications. Please refresh and try again.";

/// Pods that a cluster may have.
const POD_COUNTS: std::ops::RangeInclusive<i64> = 2..=8;

/// A pod that is asked for, in either API.
pub(crate) struct PodAsk {
    pub(crate) name: String,
    pub(crate) config: Value,
    pub(crate) compute: (&'static str, Value),
    pub(crate) cloud: &'static str,
    pub(crate) data_center: Option<String>,
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn missing(what: &str) -> Problem {
    Problem::new(404, format!("{what} not found"))
}

impl Runpod {
    pub(crate) fn call(&self, request: &Request<'_>, body: &Value) -> Answer {
        self.settle();
        let path: Vec<&str> = request.path.trim_matches('/').split('/').collect();
        match (request.method, path.as_slice()) {
            ("POST", ["graphql"]) => self.deploy(body),
            ("GET", ["v2", "account", "ssh-keys"]) => Ok((200, json!({"keys": []}))),
            ("GET", ["v2", "catalog", "datacenters"]) => Ok((200, self.data_centers())),
            ("GET", ["v2", "pods"]) => Ok((200, self.pods(!request.query.is_empty()))),
            ("POST", ["v2", "pods"]) => self.create_pod(body),
            ("GET", ["v2", "pods", id]) => self.pod(id),
            ("DELETE", ["v2", "pods", id]) => self.delete_pod(id),
            ("GET", ["v2", "clusters"]) => Ok((200, self.clusters())),
            ("POST", ["v2", "clusters"]) => self.create_cluster(body),
            ("GET", ["v2", "clusters", id]) => self.cluster(id),
            ("DELETE", ["v2", "clusters", id]) => self.delete_cluster(id),
            ("GET", ["v2", "clusters", id, "pods"]) => self.cluster_pods(id),
            ("GET", ["v2", "network-volumes"]) => Ok((200, self.volumes())),
            ("POST", ["v2", "network-volumes"]) => self.create_volume(body),
            ("GET", ["v2", "network-volumes", id]) => self.volume(id),
            ("DELETE", ["v2", "network-volumes", id]) => self.delete_volume(id),
            ("GET", ["v2", "registries"]) => Ok((200, self.logins())),
            ("POST", ["v2", "registries"]) => self.create_login(body),
            ("DELETE", ["v2", "registries", id]) => self.delete_login(id),
            _ => Err(missing("route")),
        }
    }

    /// Time goes on, and containers with it.
    fn settle(&self) {
        let mut state = self.lock();
        state.settle(self.0.pace);
        let Some(containers) = &self.0.containers else {
            return;
        };
        let running = state.pods.iter_mut();
        for pod in running.filter(|pod| pod.status(self.0.pace) == "RUNNING") {
            pod.has_exited = match pod.address {
                Some(_) => containers.exit_status(&pod.id).is_some(),
                None => {
                    pod.address = containers.start(&pod.start()).map(|ip| (ip, SSH_PORT));
                    pod.address.is_none()
                }
            };
        }
    }

    fn end_container(&self, pod: &Pod) {
        if let (Some(containers), Some(_)) = (&self.0.containers, &pod.address) {
            containers.end(&pod.id);
        }
    }

    /// Where pods are until their containers run for real: where they never do, in documentation's network.
    fn first_address(&self) -> Option<(String, u16)> {
        match self.0.containers {
            Some(_) => None,
            None => Some(("192.0.2.41".to_owned(), 43210)),
        }
    }

    fn data_centers(&self) -> Value {
        let level = if self.lock().sold_out { "NONE" } else { "HIGH" };
        let places: BTreeSet<&str> = self.centers().collect();
        let stock = |place: &str, has_gpus: bool| -> Vec<Value> {
            let sizes = self.0.sizes.iter();
            let there = sizes.filter(|size| size.place == place && (size.gpus > 0) == has_gpus);
            let names: BTreeSet<&str> = there.map(Size::resource).collect();
            let stock = |name: &str| json!({"id": name, "name": name, "availability": level});
            names.into_iter().map(stock).collect()
        };
        let center = |place: &str| {
            json!({"id": place, "name": place, "region": "NORTH_AMERICA", "globalNetwork": false,
                "networkVolumeTypes": ["STANDARD"], "compliance": [], "gpuAvailability": stock(place, true),
                "cpuAvailability": stock(place, false)})
        };
        let centers: Vec<Value> = places.into_iter().map(center).collect();
        json!({"dataCenters": centers})
    }

    fn centers(&self) -> impl Iterator<Item = &str> {
        let places = self.0.sizes.iter().map(|size| size.place.as_str());
        places.filter(|place| place.contains('-'))
    }

    fn pods(&self, with_members: bool) -> Value {
        let state = self.lock();
        let listed = state.listed_pods();
        let listed = listed.filter(|pod| with_members || pod.cluster.is_none());
        let pods: Vec<Value> = listed.map(|pod| pod.to_json(self.0.pace)).collect();
        json!({"pods": pods})
    }

    fn pod(&self, id: &str) -> Answer {
        let state = self.lock();
        let mut listed = state.listed_pods();
        let pod = listed.find(|pod| pod.id == id).ok_or_else(|| missing("pod"))?;
        Ok((200, pod.to_json(self.0.pace)))
    }

    fn create_pod(&self, body: &Value) -> Answer {
        let compute = match (body.get("gpu"), body.get("cpu")) {
            (Some(gpu), None) => ("gpu", json!({"id": gpu["id"], "count": gpu["count"]})),
            (None, Some(cpu)) => {
                let memory = cpu["vcpuCount"].as_i64().unwrap_or_default() * 2;
                (
                    "cpu",
                    json!({"id": cpu["id"], "vcpuCount": cpu["vcpuCount"], "memory": memory}),
                )
            }
            _ => return Err(Problem::new(400, "supply exactly one of gpu or cpu")),
        };
        if body["cloud"] == "COMMUNITY" {
            return Err(Problem::new(400, NO_CAPACITY));
        }
        let wanted = |size: &&Size| size.fits(body);
        let size = self.find_size(body, wanted)?;
        let id = self.add_pod(PodAsk {
            name: text(&body["name"]).to_owned(),
            config: body.clone(),
            compute,
            cloud: "SECURE",
            data_center: Some(size.place.clone()),
        })?;
        let state = self.lock();
        let pod = state.pods.iter().find(|pod| pod.id == id).unwrap();
        Ok((201, pod.to_json(self.0.pace)))
    }

    /// A size in one of the data centers that a body names.
    fn find_size(&self, body: &Value, wanted: impl Fn(&&Size) -> bool) -> Result<&Size, Problem> {
        let places = body["dataCenterIds"].as_array().cloned().unwrap_or_default();
        let is_there = |size: &&Size| places.is_empty() || places.iter().any(|place| *place == size.place);
        let mut sizes = self.0.sizes.iter().filter(|size| size.place.contains('-'));
        let size = sizes.find(|size| is_there(size) && wanted(size));
        size.filter(|_| !self.lock().sold_out)
            .ok_or_else(|| Problem::new(400, NO_CAPACITY))
    }

    /// Refuses logins and volumes that there are not.
    fn check_parts(&self, config: &Value, data_center: Option<&str>) -> Result<(), Problem> {
        let state = self.lock();
        if let Some(login) = config.get("registry").and_then(Value::as_str) {
            let is_there = state.logins.iter().any(|known| known.id == login);
            is_there
                .then_some(())
                .ok_or_else(|| Problem::new(400, "Registry auth not found"))?;
        }
        if let Some(id) = config["mounts"]["network"][0]["volumeId"].as_str() {
            let is_there =
                |volume: &Volume| volume.id == id && Some(volume.data_center.as_str()) == data_center;
            let is_there = state.volumes.iter().any(is_there);
            is_there
                .then_some(())
                .ok_or_else(|| Problem::new(400, "network volume not found in the data center of the pod"))?;
        }
        Ok(())
    }

    pub(crate) fn add_pod(&self, ask: PodAsk) -> Result<String, Problem> {
        self.check_parts(&ask.config, ask.data_center.as_deref())?;
        let mut state = self.lock();
        let id = state.new_id("pod");
        self.ledger().made("pod", &id, &ask.name);
        let listed_at = state.listed_at();
        state.pods.push(Pod {
            id: id.clone(),
            name: ask.name,
            config: ask.config,
            compute: ask.compute,
            cloud: ask.cloud,
            data_center: ask.data_center,
            made_at: Instant::now(),
            listed_at,
            cluster: None,
            has_exited: false,
            address: self.first_address(),
            deleted_at: None,
        });
        Ok(id)
    }

    fn delete_pod(&self, id: &str) -> Answer {
        let mut state = self.lock();
        let mut pods = state.pods.iter_mut();
        let pod = pods.find(|pod| pod.id == id && pod.deleted_at.is_none());
        let pod = pod.ok_or_else(|| missing("pod"))?;
        if pod.cluster.is_some() {
            return Err(Problem::new(
                409,
                "pod belongs to a cluster; delete the cluster instead",
            ));
        }
        pod.deleted_at = Some(Instant::now());
        self.end_container(pod);
        self.ledger().removed(id);
        Ok((204, Value::Null))
    }

    fn clusters(&self) -> Value {
        let state = self.lock();
        let listed = state.clusters.iter();
        let listed = listed.filter(|cluster| cluster.listed_at <= Instant::now());
        let clusters: Vec<Value> = listed
            .map(|cluster| cluster.to_json(state.members(&cluster.id)))
            .collect();
        json!({"clusters": clusters})
    }

    fn create_cluster(&self, body: &Value) -> Answer {
        let compute = &body["compute"];
        let wanted = |size: &&Size| {
            size.is_for_clusters
                && compute["gpuTypeId"] == size.name
                && compute["gpuCountPerPod"] == size.gpus
                && compute["podCount"]
                    .as_i64()
                    .is_some_and(|pods| POD_COUNTS.contains(&pods))
        };
        let center = self.find_size(body, wanted)?.place.clone();
        self.check_parts(body, Some(&center))?;
        let mut state = self.lock();
        let (id, name) = (state.new_id("cl_"), text(&body["name"]).to_owned());
        self.ledger().made("cluster", &id, &name);
        let listed_at = state.listed_at();
        let pods = usize::try_from(compute["podCount"].as_u64().unwrap()).unwrap();
        for rank in 0..pods {
            let pod_id = state.new_id("pod");
            self.ledger()
                .made("pod of a cluster", &pod_id, format!("{name} {rank}"));
            let pod = Pod {
                id: pod_id,
                name: name.clone(),
                config: body.clone(),
                compute: (
                    "gpu",
                    json!({"id": compute["gpuTypeId"], "count": compute["gpuCountPerPod"]}),
                ),
                cloud: "SECURE",
                data_center: Some(center.clone()),
                made_at: Instant::now(),
                listed_at,
                cluster: Some((id.clone(), rank)),
                has_exited: false,
                address: self.first_address(),
                deleted_at: None,
            };
            // In no order.
            state.pods.insert(0, pod);
        }
        let cluster = Cluster {
            id,
            name,
            compute: compute.clone(),
            data_center: center,
            listed_at,
        };
        let answer = cluster.to_json(pods);
        state.clusters.push(cluster);
        Ok((201, answer))
    }

    fn cluster(&self, id: &str) -> Answer {
        let state = self.lock();
        let mut clusters = state.clusters.iter();
        let cluster = clusters.find(|cluster| cluster.id == id && cluster.listed_at <= Instant::now());
        let cluster = cluster.ok_or_else(|| missing("cluster"))?;
        Ok((200, cluster.to_json(state.members(id))))
    }

    fn cluster_pods(&self, id: &str) -> Answer {
        self.cluster(id)?;
        let state = self.lock();
        let of_cluster = |pod: &&Pod| pod.cluster.as_ref().is_some_and(|(cluster, _)| cluster == id);
        let pods = state.listed_pods().filter(of_cluster);
        let pods: Vec<Value> = pods.map(|pod| pod.to_json(self.0.pace)).collect();
        Ok((200, json!({"pods": pods})))
    }

    fn delete_cluster(&self, id: &str) -> Answer {
        let mut state = self.lock();
        let before = state.clusters.len();
        state.clusters.retain(|cluster| cluster.id != id);
        if state.clusters.len() == before {
            return Err(missing("cluster"));
        }
        self.ledger().removed(id);
        for pod in &mut state.pods {
            if pod.cluster.as_ref().is_some_and(|(cluster, _)| cluster == id) {
                pod.deleted_at = Some(Instant::now());
                self.end_container(pod);
                self.ledger().removed(&pod.id);
            }
        }
        Ok((204, Value::Null))
    }

    fn volumes(&self) -> Value {
        let state = self.lock();
        let listed = state.volumes.iter();
        let listed = listed.filter(|volume| volume.listed_at <= Instant::now());
        let volumes: Vec<Value> = listed.map(Volume::to_json).collect();
        json!({"networkVolumes": volumes})
    }

    fn create_volume(&self, body: &Value) -> Answer {
        let center = text(&body["dataCenter"]).to_owned();
        if !self.centers().any(|place| place == center) {
            return Err(Problem::new(400, format!("no data center {center}")));
        }
        let mut state = self.lock();
        if state.sold_out {
            return Err(Problem::new(400, format!("{center} is out of capacity")));
        }
        let (id, name) = (state.new_id("vol"), text(&body["name"]).to_owned());
        self.ledger().made("volume", &id, &name);
        let volume = Volume {
            id,
            name,
            size: body["size"].as_i64().unwrap(),
            data_center: center,
            listed_at: state.listed_at(),
        };
        let answer = volume.to_json();
        state.volumes.push(volume);
        Ok((201, answer))
    }

    fn volume(&self, id: &str) -> Answer {
        let state = self.lock();
        let mut volumes = state.volumes.iter();
        let volume = volumes.find(|volume| volume.id == id && volume.listed_at <= Instant::now());
        Ok((200, volume.ok_or_else(|| missing("network volume"))?.to_json()))
    }

    fn delete_volume(&self, id: &str) -> Answer {
        let mut state = self.lock();
        if !state.volumes.iter().any(|volume| volume.id == id) {
            return Err(missing("network volume"));
        }
        if state.uses(|config| config["mounts"]["network"][0]["volumeId"] == id) {
            return Err(Problem::new(400, "network volume is in use by a pod"));
        }
        state.volumes.retain(|volume| volume.id != id);
        self.ledger().removed(id);
        Ok((204, Value::Null))
    }

    /// Oldest first, as the vendor has them.
    fn logins(&self) -> Value {
        let state = self.lock();
        let listed = state.logins.iter();
        let listed = listed.filter(|login| login.listed_at <= Instant::now());
        let logins: Vec<Value> = listed
            .map(|login| json!({"id": login.id, "name": login.name}))
            .collect();
        json!({"registries": logins})
    }

    fn create_login(&self, body: &Value) -> Answer {
        let mut state = self.lock();
        let name = text(&body["name"]).to_owned();
        if state.logins.iter().any(|login| login.name == name) {
            return Err(Problem::new(400, "Registry auth with this name already exists"));
        }
        let id = state.new_id("clxreg");
        self.ledger().made("registry login", &id, &name);
        let answer = json!({"id": id, "name": name});
        let listed_at = state.listed_at();
        state.logins.push(Login { id, name, listed_at });
        Ok((201, answer))
    }

    /// What is missing is answered with 400, as the vendor does.
    fn delete_login(&self, id: &str) -> Answer {
        let mut state = self.lock();
        if !state.logins.iter().any(|login| login.id == id) {
            return Err(Problem::new(400, "Registry auth not found"));
        }
        if state.uses(|config| config["registry"] == id) {
            return Err(Problem::new(400, "registry is in use by a pod"));
        }
        state.logins.retain(|login| login.id != id);
        self.ledger().removed(id);
        Ok((204, Value::Null))
    }
}

impl Size {
    /// The type of GPUs, or the flavor of CPUs.
    fn resource(&self) -> &str {
        match self.gpus {
            0 => self.name.rsplitn(3, '-').last().unwrap(),
            _ => &self.name,
        }
    }

    /// Whether a host of this size takes a pod.
    #[allow(clippy::cast_precision_loss)] // sizes of machines
    fn fits(&self, body: &Value) -> bool {
        let number = |value: &Value| value.as_i64().unwrap_or_default();
        let has_disk = self
            .disk
            .is_none_or(|largest| number(&body["disk"]) as f64 <= largest);
        match (body.get("gpu"), body.get("cpu")) {
            (Some(gpu), None) => {
                !self.is_for_clusters
                    && gpu["id"] == self.name
                    && number(&gpu["count"]) == self.gpus
                    && number(&gpu["minVcpuCountPerGpu"]) * self.gpus <= self.cpus
                    && (number(&gpu["minRamPerGpu"]) * self.gpus) as f64 <= self.memory
            }
            (None, Some(cpu)) => {
                has_disk
                    && self.gpus == 0
                    && cpu["id"] == self.resource()
                    && number(&cpu["vcpuCount"]) == self.cpus
            }
            _ => false,
        }
    }
}
