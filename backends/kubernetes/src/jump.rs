//! The jump pod: an SSH server by which the pods of a project are reached from outside. It is shared by all containers of a
//! project in a cluster: made with the first, and removed with the last.

use dstack_compute::{ComputeError, INSTALLATION_TAG, KEY_TAG, Marks, Removal};
use dstack_model::instances::SshConnectionParams;
use dstack_units::AcceleratorVendor as Vendor;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::Known;
use crate::client::Kind;
use crate::labels::{COMPONENT, INSTANCE, JOB, JUMP, Labels, PROJECT_ID, SERVICE_SUFFIX};
use crate::manifests::gpu_tolerations;
use crate::objects::{Metadata, Node, Object, Pod, Service};
use crate::offers::is_guarded;
use crate::state;

const IMAGE: &str =
    "testcontainers/sshd:1.3.0@sha256:c50c0f59554dcdb2d9e5e705112144428ae9d04ac0af6322b365a18e24213a6a";
const USER: &str = "root";
const SSH_PORT: u16 = 22;

/// Keys are read from the secret at each login: those that are added later come in by themselves, within a minute or so.
const SCRIPT: &str = "ssh-keygen -A && exec /usr/sbin/sshd -D -e -p 22 -o PasswordAuthentication=no \
    -o KbdInteractiveAuthentication=no -o AllowTcpForwarding=local -o AuthorizedKeysFile=none \
    -o 'AuthorizedKeysCommand=/bin/sh -c \"cat /etc/dstack/keys/*\"' -o AuthorizedKeysCommandUser=root";

/// What a key may do here: lead on to pods.
const KEY_OPTIONS: &str = "restrict,port-forwarding,command=\"/bin/false\"";

const KEYS_SUFFIX: &str = "-keys";

/// Annotation of the keys of a jump pod that is being removed.
const ENDING: &str = "k8s.dstack.ai/ending";

/// Of a project in an installation: several installations may use one cluster.
pub(crate) fn name(marks: &Marks) -> String {
    let code = Marks {
        name: String::new(),
        key: marks.project.uuid(),
        ..marks.clone()
    };
    format!("{}-jump", code.name(40))
}

fn labels(marks: &Marks, name: &str) -> Labels {
    let project = marks.project.uuid().to_string();
    let all = [
        (COMPONENT, JUMP.to_owned()),
        (INSTANCE, name.to_owned()),
        ("app.kubernetes.io/managed-by", "dstack".to_owned()),
        (PROJECT_ID, marks.project.to_string()),
        (INSTALLATION_TAG, marks.installation.to_string()),
        (KEY_TAG, project),
    ];
    all.into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

/// Those who may come through, each under a name of its own, so that they can be added one by one.
fn keys(authorized_keys: &[String]) -> Map<String, Value> {
    let entry = |key: &String| {
        let id = hex::encode(Sha256::digest(key.as_bytes()));
        (id, json!(format!("{KEY_OPTIONS} {key}\n")))
    };
    authorized_keys.iter().map(entry).collect()
}

fn pod(name: &str, labels: &Labels, nodes: &[Node]) -> Value {
    let tolerations = match nodes.iter().all(is_guarded) {
        true => gpu_tolerations(&[Vendor::Nvidia, Vendor::Amd]),
        false => json!([]),
    };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "containers": [{
                "name": "sshd", "image": IMAGE,
                "command": ["/bin/sh"], "args": ["-c", SCRIPT],
                "ports": [{"containerPort": SSH_PORT}],
                "volumeMounts": [{"name": "keys", "mountPath": "/etc/dstack/keys", "readOnly": true}],
            }],
            "volumes": [{"name": "keys", "secret": {"secretName": format!("{name}{KEYS_SUFFIX}")}}],
            "tolerations": tolerations,
        },
    })
}

/// How far the jump pod is.
pub(crate) enum Jump {
    Ready(SshConnectionParams),
    Underway(String),
}

impl Known {
    /// Sees to it that the jump pod is there, and lets these keys through.
    pub(crate) async fn ensure_jump(
        &self,
        marks: &Marks,
        authorized_keys: &[String],
    ) -> Result<Jump, ComputeError> {
        let (cluster, name) = (&self.cluster, name(marks));
        let (service_name, keys_name) = (format!("{name}{SERVICE_SUFFIX}"), format!("{name}{KEYS_SUFFIX}"));
        let labels = labels(marks, &name);
        let keys = keys(authorized_keys);
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": keys_name, "labels": labels}, "stringData": keys});
        let replaced = || Ok(Jump::Underway("the jump pod is replaced".to_owned()));
        match cluster.get::<Keys>(Kind::Secret, &keys_name).await? {
            None => cluster.create(Kind::Secret, &secret).await?,
            // Whoever removes it has not seen the pod that needs it now.
            Some(there) if there.is_ending() => {
                self.end_jump(&name).await?;
                return replaced();
            }
            Some(there) if keys.keys().all(|id| there.data.contains_key(id)) => {}
            Some(_) => {
                let more = json!({"stringData": keys});
                if !cluster.patch(Kind::Secret, &keys_name, &more).await? {
                    return replaced();
                }
            }
        }
        let found: Option<Pod> = cluster.get(Kind::Pod, &name).await?;
        let Some(pod_found) = found else {
            let capacity = self.capacity().await?;
            cluster
                .create(Kind::Pod, &pod(&name, &labels, &capacity.nodes))
                .await?;
            return Ok(Jump::Underway("the jump pod starts".to_owned()));
        };
        if state::end_of(&pod_found).is_some() {
            cluster
                .delete(Kind::Pod, &name, Some(&pod_found.metadata.uid))
                .await?;
            return replaced();
        }
        let service: Option<Service> = cluster.get(Kind::Service, &service_name).await?;
        let Some(service) = service else {
            let fixed = cluster.access.proxy_jump.as_ref().and_then(|jump| jump.port);
            let mut port = json!({"port": SSH_PORT});
            if let (Some(fixed), Some(port)) = (fixed, port.as_object_mut()) {
                port.insert("nodePort".to_owned(), json!(fixed));
            }
            let body = json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"name": service_name, "labels": labels},
                "spec": {"type": "NodePort", "selector": {INSTANCE: name}, "ports": [port]},
            });
            cluster.create(Kind::Service, &body).await?;
            return Ok(Jump::Underway("a port for the jump pod".to_owned()));
        };
        let port = service.spec.ports.first().and_then(|port| port.node_port);
        let (Some(port), "Running") = (port, pod_found.status.phase.as_str()) else {
            return Ok(Jump::Underway("the jump pod starts".to_owned()));
        };
        let hostname = self.outside_address(pod_found.spec.node_name.as_deref()).await?;
        Ok(Jump::Ready(SshConnectionParams {
            hostname,
            username: USER.to_owned(),
            port,
        }))
    }

    /// The configured one, that of the node, or that of any node: node ports are open on all.
    async fn outside_address(&self, node_name: Option<&str>) -> Result<String, ComputeError> {
        let fixed = self
            .cluster
            .access
            .proxy_jump
            .as_ref()
            .and_then(|jump| jump.hostname.clone());
        if let Some(hostname) = fixed {
            return Ok(hostname);
        }
        if let Some(name) = node_name
            && let Some(node) = self.cluster.node::<Node>(name).await?
            && let Some(address) = external_address(&node)
        {
            return Ok(address);
        }
        let capacity = self.capacity().await?;
        capacity.nodes.iter().find_map(external_address).ok_or_else(|| {
            ComputeError::Configuration(
                "no node of the cluster has an external address: set proxy_jump.hostname to one by which the server reaches a node".to_owned(),
            )
        })
    }

    /// Removes the jump pod of a project that has no other pod in the cluster; `None`: it has some.
    ///
    /// A pod that comes meanwhile is there before it asks for the jump pod: it is either seen here, or sees the annotation.
    pub(crate) async fn remove_unused_jump(
        &self,
        project: &str,
        name: &str,
    ) -> Result<Option<Removal>, ComputeError> {
        if self.is_jump_used(project).await? {
            return Ok(None);
        }
        let keys = format!("{name}{KEYS_SUFFIX}");
        if self
            .cluster
            .patch(Kind::Secret, &keys, &ending(json!("true")))
            .await?
            && self.is_jump_used(project).await?
        {
            self.cluster
                .patch(Kind::Secret, &keys, &ending(Value::Null))
                .await?;
            return Ok(None);
        }
        self.end_jump(name).await.map(Some)
    }

    async fn is_jump_used(&self, project: &str) -> Result<bool, ComputeError> {
        let jobs = format!("{COMPONENT}={JOB},{PROJECT_ID}={project}");
        Ok(!self.cluster.list::<Object>(Kind::Pod, &jobs).await?.is_empty())
    }

    /// Removes what is there now, and not what takes its place. The keys go last: as long as they are there, they tell of it.
    async fn end_jump(&self, name: &str) -> Result<Removal, ComputeError> {
        let cluster = &self.cluster;
        let mut there = Vec::new();
        for (kind, name) in [
            (Kind::Service, format!("{name}{SERVICE_SUFFIX}")),
            (Kind::Pod, name.to_owned()),
            (Kind::Secret, format!("{name}{KEYS_SUFFIX}")),
        ] {
            if let Some(object) = cluster.get::<Object>(kind, &name).await? {
                there.push((kind, object.metadata));
            }
        }
        for (kind, object) in there {
            let removal = cluster.delete(kind, &object.name, Some(&object.uid)).await?;
            if let Removal::Underway { .. } = removal {
                return Ok(removal);
            }
        }
        Ok(Removal::Gone)
    }
}

fn ending(value: Value) -> Value {
    json!({"metadata": {"annotations": {ENDING: value}}})
}

/// The name of a jump pod, by that of any of its objects.
pub(crate) fn name_of(object: &str) -> &str {
    let bare = object.strip_suffix(SERVICE_SUFFIX);
    bare.or_else(|| object.strip_suffix(KEYS_SUFFIX))
        .unwrap_or(object)
}

/// The keys of a jump pod by their names; what they stand for is of no interest.
#[derive(serde::Deserialize)]
struct Keys {
    metadata: Metadata,
    #[serde(default)]
    data: std::collections::BTreeMap<String, serde::de::IgnoredAny>,
}

impl Keys {
    fn is_ending(&self) -> bool {
        self.metadata.annotations.contains_key(ENDING)
    }
}

fn external_address(node: &Node) -> Option<String> {
    let found = node.status.addresses.iter().find(|one| one.kind == "ExternalIP");
    found.map(|one| one.address.clone())
}
