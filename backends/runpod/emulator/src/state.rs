//! What there is in the cloud, and how it changes with time.

use std::time::Duration;

use dstack_backend_kit::ContainerStart;
use serde_json::{Value, json};
use tokio::time::Instant;

/// The port that pods are asked to open.
pub(crate) const SSH_PORT: u16 = 10022;

const MADE_AT: &str = "2026-10-01T12:00:00Z";

#[derive(Debug, Default)]
pub(crate) struct Cloud {
    pub(crate) pods: Vec<Pod>,
    pub(crate) clusters: Vec<Cluster>,
    pub(crate) volumes: Vec<Volume>,
    pub(crate) logins: Vec<Login>,
    pub(crate) sold_out: bool,
    pub(crate) lag: Duration,
    ids: u32,
}

#[derive(Debug)]
pub(crate) struct Pod {
    pub(crate) id: String,
    pub(crate) name: String,
    /// `BaseContainerConfig`, `registry` and `mounts`, as asked for.
    pub(crate) config: Value,
    /// `gpu` or `cpu`, and its description.
    pub(crate) compute: (&'static str, Value),
    pub(crate) cloud: &'static str,
    pub(crate) data_center: Option<String>,
    pub(crate) made_at: Instant,
    pub(crate) listed_at: Instant,
    /// Its cluster, and its number there.
    pub(crate) cluster: Option<(String, usize)>,
    /// Its container has ended.
    pub(crate) has_exited: bool,
    /// Where [`SSH_PORT`] is reached; `None`: nowhere yet.
    pub(crate) address: Option<(String, u16)>,
    pub(crate) deleted_at: Option<Instant>,
}

#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) compute: Value,
    pub(crate) data_center: String,
    pub(crate) listed_at: Instant,
}

#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) size: i64,
    pub(crate) data_center: String,
    pub(crate) listed_at: Instant,
}

#[derive(Debug)]
pub(crate) struct Login {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) listed_at: Instant,
}

impl Cloud {
    pub(crate) fn new_id(&mut self, prefix: &str) -> String {
        self.ids += 1;
        format!("{prefix}{:06}", self.ids)
    }

    /// When the API knows what is made now.
    pub(crate) fn listed_at(&self) -> Instant {
        Instant::now() + self.lag
    }

    /// Deleted pods are shown for a while.
    pub(crate) fn settle(&mut self, pace: Duration) {
        self.pods
            .retain(|pod| pod.deleted_at.is_none_or(|at| at.elapsed() < pace));
    }

    /// The pods that the API knows by now.
    pub(crate) fn listed_pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.iter().filter(|pod| pod.listed_at <= Instant::now())
    }

    /// How many pods a cluster has.
    pub(crate) fn members(&self, cluster: &str) -> usize {
        let is_member = |pod: &&Pod| pod.cluster.as_ref().is_some_and(|(id, _)| id == cluster);
        self.pods.iter().filter(is_member).count()
    }

    /// Whether a pod, deleted ones that are still shown included, was made with this.
    pub(crate) fn uses(&self, has: impl Fn(&Value) -> bool) -> bool {
        self.pods.iter().any(|pod| has(&pod.config))
    }
}

impl Pod {
    /// Of how many stages it has been through: placed, started, running, reached, in the network of its cluster.
    fn stage(&self, pace: Duration) -> u32 {
        let stages = self.made_at.elapsed().as_millis() / pace.as_millis().max(1);
        u32::try_from(stages).unwrap_or(u32::MAX)
    }

    pub(crate) fn status(&self, pace: Duration) -> &'static str {
        match self.stage(pace) {
            _ if self.deleted_at.is_some() => "TERMINATED",
            _ if self.has_exited => "EXITED",
            0 => "PROVISIONING",
            1 => "STARTING",
            _ => "RUNNING",
        }
    }

    /// Its container, as asked for.
    pub(crate) fn start(&self) -> ContainerStart {
        let words = |field: &str| -> Vec<String> {
            let words = self.config[field].as_array().into_iter().flatten();
            words.map(|word| word.as_str().unwrap().to_owned()).collect()
        };
        let env = self.config["env"].as_object().into_iter().flatten();
        ContainerStart {
            id: self.id.clone(),
            command: [words("entrypoint"), words("cmd")].concat(),
            env: env
                .map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()))
                .collect(),
            files: Vec::new(),
        }
    }

    pub(crate) fn to_json(&self, pace: Duration) -> Value {
        let status = self.status(pace);
        let is_running = status == "RUNNING";
        let costs = self.deleted_at.is_none();
        let mut pod = json!({
            "id": self.id,
            "name": self.name,
            "status": status,
            "actions": if costs { json!(["terminate"]) } else { json!([]) },
            "args": "",
            "mounts": {},
            "registry": null,
            "cloud": self.cloud,
            "dataCenterId": self.data_center,
            "cudaVersion": is_running.then_some("12.8"),
            "ssh": {"proxy": null, "direct": null},
            "template": null,
            "cost": if costs { 0.69 } else { 0.0 },
            "locked": false,
            "globalNetworking": {"enabled": false},
            "runtime": if is_running { self.runtime(pace) } else { Value::Null },
            "createdAt": MADE_AT,
            "startedAt": is_running.then_some("2026-10-01T12:03:11Z"),
        });
        for field in ["image", "disk", "ports", "env", "registry", "mounts"] {
            if let Some(value) = self.config.get(field) {
                pod[field] = value.clone();
            }
        }
        let (kind, compute) = &self.compute;
        pod[*kind] = compute.clone();
        if let Some((id, rank)) = &self.cluster {
            pod["cluster"] = match self.stage(pace) {
                0 => json!({"id": id, "rank": null}),
                1..=3 => json!({"id": id, "rank": rank}),
                _ => json!({"id": id, "rank": rank, "ip": format!("10.65.0.{}", rank + 2)}),
            };
        }
        pod
    }

    /// Ports are known as such before they are mapped.
    fn runtime(&self, pace: Duration) -> Value {
        let port = match &self.address {
            Some((ip, public)) if self.stage(pace) > 2 => {
                json!({"private": SSH_PORT, "public": public, "type": "tcp", "ip": ip})
            }
            _ => json!({"private": SSH_PORT, "public": null, "type": "tcp", "ip": null}),
        };
        json!({"uptime": 12, "gpus": [{"util": 0, "memoryUtil": 0}], "cpu": {"util": 3}, "memory": {"util": 1},
            "ports": [port]})
    }
}

impl Cluster {
    pub(crate) fn to_json(&self, pods: usize) -> Value {
        json!({"id": self.id, "name": self.name, "type": "TRAINING", "compute": self.compute,
            "dataCenterId": self.data_center, "pods": {"total": pods, "byStatus": {"PROVISIONING": pods}},
            "network": {"cidr": "10.65.0.0/16"}, "createdAt": MADE_AT})
    }
}

impl Volume {
    pub(crate) fn to_json(&self) -> Value {
        json!({"id": self.id, "name": self.name, "size": self.size, "dataCenter": self.data_center, "type": "STANDARD"})
    }
}
