//! What the nodes of a cluster do where containers run for real: kubelet and kube-proxy.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dstack_backend_kit::{ContainerStart, Containers};
use serde_json::{Value, json};

use crate::store::{Kind, Store};

/// What answers a probe does so at once.
const PROBE_LIMIT: Duration = Duration::from_millis(100);

/// Runs containers on a network of their own.
pub trait Network: Containers {
    /// Writes a file into a container.
    fn write(&self, id: &str, path: &str, content: &[u8]);

    /// From now on, the address of a service leads to a container, and so does a port of all nodes.
    fn lead(&self, id: &str, address: &str, port: Option<NodePort>);
}

/// A port that all nodes have for a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodePort {
    /// Of the nodes.
    pub node: u16,
    /// That of the container to which it leads.
    pub container: u16,
}

pub(crate) struct Kubelet {
    network: Box<dyn Network>,
    /// Pods whose containers were started, by the uid of the pod, until they are ended.
    running: BTreeMap<String, Running>,
}

/// What was done for a pod that runs.
#[derive(Debug)]
struct Running {
    /// `None`: it did not start.
    address: Option<String>,
    /// Paths in its container, and what was written there.
    files: Vec<(String, Vec<u8>)>,
    /// Uids of the services that lead there.
    services: BTreeSet<String>,
}

impl fmt::Debug for Kubelet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kubelet")
            .field("running", &self.running)
            .finish_non_exhaustive()
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn uid(object: &Value) -> String {
    text(&object["metadata"]["uid"])
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

impl Kubelet {
    pub(crate) fn new(network: Box<dyn Network>) -> Self {
        let running = BTreeMap::new();
        Self { network, running }
    }

    /// Brings containers to the state of their pods, and tells how they are.
    pub(crate) fn settle(&mut self, store: &mut Store) {
        let pods = store.all(Kind::Pod, None);
        self.end_those_not_among(&pods);
        for pod in pods.iter().filter(|pod| pod["status"]["phase"] == "Running") {
            let files = files(store, pod);
            if self.running.contains_key(&uid(pod)) {
                self.see_exit(store, pod);
            } else {
                self.start(store, pod, &files);
            }
            self.write(&uid(pod), files);
            self.probe(store, pod);
            self.lead(store, pod);
        }
    }

    fn end_those_not_among(&mut self, pods: &[Value]) {
        let alive: BTreeSet<String> = pods.iter().map(uid).collect();
        let gone: Vec<String> = self
            .running
            .keys()
            .filter(|id| !alive.contains(*id))
            .cloned()
            .collect();
        for id in gone {
            self.network.end(&id);
            self.running.remove(&id);
        }
    }

    fn start(&mut self, store: &mut Store, pod: &Value, files: &[(String, Vec<u8>)]) {
        let container = &pod["spec"]["containers"][0];
        let words = |field: &str| items(&container[field]).map(text).collect::<Vec<String>>();
        let started = self.network.start(&ContainerStart {
            id: uid(pod),
            command: [words("command"), words("args")].concat(),
            env: items(&container["env"])
                .map(|variable| (text(&variable["name"]), text(&variable["value"])))
                .collect(),
            files: files.to_vec(),
        });
        match &started {
            Some(address) => store.change(pod, |pod| pod["status"]["podIP"] = json!(address)),
            None => tell_state(store, pod, &json!({"waiting": {"reason": "RunContainerError"}})),
        }
        let running = Running {
            address: started,
            files: files.to_vec(),
            services: BTreeSet::new(),
        };
        self.running.insert(uid(pod), running);
    }

    /// Secrets that were changed reach their pods.
    fn write(&mut self, id: &str, files: Vec<(String, Vec<u8>)>) {
        let running = self.running.get_mut(id).unwrap();
        for (path, content) in files.iter().filter(|file| !running.files.contains(file)) {
            self.network.write(id, path, content);
        }
        running.files = files;
    }

    fn see_exit(&self, store: &mut Store, pod: &Value) {
        let Some(code) = self.network.exit_status(&uid(pod)) else {
            return;
        };
        if pod["spec"]["restartPolicy"] != "Never" {
            tell_state(store, pod, &json!({"waiting": {"reason": "CrashLoopBackOff"}}));
            return;
        }
        let (phase, reason) = match code {
            0 => ("Succeeded", "Completed"),
            _ => ("Failed", "Error"),
        };
        tell_state(
            store,
            pod,
            &json!({"terminated": {"exitCode": code, "reason": reason}}),
        );
        store.change(pod, |pod| pod["status"]["phase"] = json!(phase));
    }

    /// A pod with a probe is ready while its port is listened to.
    fn probe(&self, store: &mut Store, pod: &Value) {
        let probe = &pod["spec"]["containers"][0]["readinessProbe"]["tcpSocket"]["port"];
        let address = self.running[&uid(pod)].address.as_ref();
        let (Some(port), Some(address)) = (probe.as_u64(), address) else {
            return;
        };
        let socket: Option<SocketAddr> = format!("{address}:{port}").parse().ok();
        let answers = |socket| TcpStream::connect_timeout(&socket, PROBE_LIMIT).is_ok();
        let ready = if socket.is_some_and(answers) {
            "True"
        } else {
            "False"
        };
        store.change(pod, |pod| {
            let conditions = pod["status"]["conditions"].as_array_mut().into_iter().flatten();
            for condition in conditions.filter(|condition| condition["type"] == "Ready") {
                condition["status"] = json!(ready);
            }
        });
    }

    fn lead(&mut self, store: &mut Store, pod: &Value) {
        for service in store.all(Kind::Service, None) {
            let running = self.running.get_mut(&uid(pod)).unwrap();
            if !selects(&service, pod) || !running.services.insert(uid(&service)) {
                continue;
            }
            let is_balanced = service["spec"]["type"] == "LoadBalancer";
            if is_balanced {
                let ingress = json!([{"ip": self.running[&uid(pod)].address}]);
                store.change(&service, |service| {
                    service["status"]["loadBalancer"]["ingress"] = ingress;
                });
            }
            let port = &service["spec"]["ports"][0];
            let number = |field: &str| port[field].as_u64().and_then(|port| u16::try_from(port).ok());
            let port = match (number("nodePort"), number("port")) {
                (Some(node), Some(container)) if !is_balanced => Some(NodePort { node, container }),
                _ => None,
            };
            let address = text(&service["spec"]["clusterIP"]);
            self.network.lead(&uid(pod), &address, port);
        }
    }
}

fn tell_state(store: &mut Store, pod: &Value, state: &Value) {
    store.change(pod, |pod| {
        pod["status"]["containerStatuses"][0]["state"] = state.clone();
        pod["status"]["containerStatuses"][0]["ready"] = json!(false);
    });
}

fn selects(service: &Value, pod: &Value) -> bool {
    let labels = &pod["metadata"]["labels"];
    let selector = service["spec"]["selector"].as_object();
    selector.is_some_and(|selector| selector.iter().all(|(name, value)| labels[name] == *value))
        && service["metadata"]["namespace"] == pod["metadata"]["namespace"]
}

/// What the secrets of a pod are in its container.
fn files(store: &mut Store, pod: &Value) -> Vec<(String, Vec<u8>)> {
    let namespace = text(&pod["metadata"]["namespace"]);
    let mut files = Vec::new();
    for mount in items(&pod["spec"]["containers"][0]["volumeMounts"]) {
        let volume = items(&pod["spec"]["volumes"]).find(|volume| volume["name"] == mount["name"]);
        let secret = volume.and_then(|volume| volume["secret"]["secretName"].as_str());
        let Some(Ok(secret)) = secret.map(|name| store.get(Kind::Secret, Some(&namespace), name)) else {
            continue;
        };
        let folder = text(&mount["mountPath"]);
        for (name, data) in secret["data"].as_object().into_iter().flatten() {
            files.push((
                format!("{folder}/{name}"),
                STANDARD.decode(text(data)).unwrap_or_default(),
            ));
        }
    }
    files
}
