//! The jump pod: an SSH server by which the pods of a project are reached from outside. It is shared by all containers of a
//! project in a cluster: made with the first, and removed with the last.
//!
//! Its keys come first and go last, and own the rest: the cluster itself removes a pod or a service that arrives after them
//! (<https://kubernetes.io/docs/concepts/architecture/garbage-collection/>).

use std::collections::BTreeMap;

use dstack_compute::{ComputeError, INSTALLATION_TAG, KEY_TAG, Marks, Removal};
use dstack_model::instances::SshConnectionParams;
use dstack_ssh::keys::{KeyPair, generate_ed25519};
use dstack_system::Random;
use dstack_units::{AcceleratorVendor as Vendor, Time};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::Known;
use crate::client::{Cluster, ENDS_INTERVAL, Kind};
use crate::labels::{COMPONENT, INSTANCE, JOB, JUMP, Labels, MANAGED_BY, PROJECT_ID, SERVICE_SUFFIX};
use crate::manifests::gpu_tolerations;
use crate::objects::{Metadata, Node, Object, Pod, Service};
use crate::offers::is_guarded;
use crate::pieces::{Piece, Pieces, VISIBLE_WITHIN};
use crate::state;

const IMAGE: &str =
    "testcontainers/sshd:1.3.0@sha256:c50c0f59554dcdb2d9e5e705112144428ae9d04ac0af6322b365a18e24213a6a";
const USER: &str = "root";
const SSH_PORT: u16 = 22;

/// Keys are read from the secret at each login: those that are added later come in by themselves, within a minute or so. Of the
/// image, neither the configuration nor the host keys are used: whoever has the image has those.
const SCRIPT: &str = "exec /usr/sbin/sshd -D -e -f /dev/null -h /etc/dstack/keys/host_key -p 22 -o PasswordAuthentication=no \
    -o KbdInteractiveAuthentication=no -o AllowTcpForwarding=local -o AuthorizedKeysFile=none \
    -o 'AuthorizedKeysCommand=/bin/sh -c \"cat /etc/dstack/keys/[0-9a-f]*\"' -o AuthorizedKeysCommandUser=root";

/// The private host key among the keys, whose other names are hexadecimal digits.
const HOST_KEY: &str = "host_key";

/// Annotation of the keys, and of a pod that was made with them: the public half of the host key.
const HOST_KEY_ANNOTATION: &str = "k8s.dstack.ai/host-key";

/// What a key may do here: lead on to pods.
const KEY_OPTIONS: &str = "restrict,port-forwarding,command=\"/bin/false\"";

const KEYS_SUFFIX: &str = "-keys";

/// Under which the keys are noted by whoever makes them.
const KEYS_PIECE: &str = "keys of the jump pod";

/// Annotation of the keys of a jump pod that is being removed.
const ENDING: &str = "k8s.dstack.ai/ending";

/// Files of the keys are for their owner alone: sshd wants that.
const KEYS_MODE: u32 = 0o400;

/// What its objects carry: they are those of a project in an installation, as several installations may use one cluster.
fn jump_marks(marks: &Marks) -> Marks {
    Marks {
        name: String::new(),
        key: marks.project.uuid(),
        ..marks.clone()
    }
}

/// Of the jump pod.
pub(crate) fn name(marks: &Marks) -> String {
    format!("{}-jump", jump_marks(marks).name(40))
}

fn service_name(name: &str) -> String {
    format!("{name}{SERVICE_SUFFIX}")
}

fn keys_name(name: &str) -> String {
    format!("{name}{KEYS_SUFFIX}")
}

fn labels(marks: &Marks, name: &str) -> Labels {
    let project = marks.project.uuid().to_string();
    let all = [
        (COMPONENT, JUMP.to_owned()),
        (INSTANCE, name.to_owned()),
        (MANAGED_BY, "dstack".to_owned()),
        (PROJECT_ID, marks.project.to_string()),
        (INSTALLATION_TAG, marks.installation.to_string()),
        (KEY_TAG, project),
    ];
    all.into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

/// Those who may come through, each under a name of its own, so that they can be added one by one.
fn entries(authorized_keys: &[String]) -> Map<String, Value> {
    let entry = |key: &String| {
        let id = hex::encode(Sha256::digest(key.as_bytes()));
        (id, json!(format!("{KEY_OPTIONS} {key}\n")))
    };
    authorized_keys.iter().map(entry).collect()
}

fn host_key(random: &Random) -> Result<KeyPair, ComputeError> {
    generate_ed25519(random, "").map_err(|error| ComputeError::Broken(error.to_string()))
}

/// The public half of a host key, as it is compared.
fn public_line(pair: &KeyPair) -> &str {
    pair.public.trim_end()
}

fn keys_object(
    marks: &Marks,
    name: &str,
    mut entries: Map<String, Value>,
    random: &Random,
) -> Result<Value, ComputeError> {
    let pair = host_key(random)?;
    entries.insert(HOST_KEY.to_owned(), json!(pair.private.expose()));
    let annotations = json!({HOST_KEY_ANNOTATION: public_line(&pair)});
    Ok(json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": keys_name(name), "labels": labels(marks, name), "annotations": annotations},
        "stringData": entries,
    }))
}

fn metadata(name: &str, marks: &Marks, jump: &str, keys: &Metadata) -> Value {
    let owner = json!([{"apiVersion": "v1", "kind": "Secret", "name": keys.name, "uid": keys.uid}]);
    json!({"name": name, "labels": labels(marks, jump), "ownerReferences": owner})
}

fn pod(name: &str, marks: &Marks, keys: &Keys, nodes: &[Node]) -> Value {
    let tolerations = match nodes.iter().all(is_guarded) {
        true => gpu_tolerations(&[Vendor::Nvidia, Vendor::Amd]),
        false => json!([]),
    };
    let mut metadata = metadata(name, marks, name, &keys.metadata);
    if let (Some(key), Some(metadata)) = (keys.host_key(), metadata.as_object_mut()) {
        metadata.insert("annotations".to_owned(), json!({HOST_KEY_ANNOTATION: key}));
    }
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "containers": [{
                "name": "sshd", "image": IMAGE,
                "command": ["/bin/sh"], "args": ["-c", SCRIPT],
                "ports": [{"containerPort": SSH_PORT}],
                "volumeMounts": [{"name": "keys", "mountPath": "/etc/dstack/keys", "readOnly": true}],
            }],
            "volumes": [{"name": "keys", "secret": {"secretName": keys_name(name), "defaultMode": KEYS_MODE}}],
            "tolerations": tolerations,
        },
    })
}

fn service(name: &str, marks: &Marks, keys: &Keys, fixed_port: Option<i64>) -> Value {
    let mut port = json!({"port": SSH_PORT});
    if let (Some(fixed), Some(port)) = (fixed_port, port.as_object_mut()) {
        port.insert("nodePort".to_owned(), json!(fixed));
    }
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": metadata(&service_name(name), marks, name, &keys.metadata),
        "spec": {"type": "NodePort", "selector": {INSTANCE: name}, "ports": [port]},
    })
}

/// The way through a jump pod.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Proxy {
    pub(crate) params: SshConnectionParams,
    /// Public key that it shows; unset: the pod is of an earlier build, and shows that of its image.
    pub(crate) host_key: Option<String>,
}

/// How far the jump pod is.
pub(crate) enum Jump {
    Ready(Proxy),
    Underway(String),
}

impl Known {
    /// Sees to it that the jump pod is there, and lets these keys through. `since`: when the pod that needs it was made.
    pub(crate) async fn ensure_jump(
        &self,
        pieces: &Pieces<'_, '_>,
        authorized_keys: &[String],
        since: Time,
    ) -> Result<Jump, ComputeError> {
        let (cluster, name) = (pieces.cluster, name(pieces.marks));
        let replaced = || Ok(Jump::Underway("the jump pod is replaced".to_owned()));
        let Some(keys) = self.ensure_keys(pieces, &name, authorized_keys).await? else {
            return replaced();
        };
        let Some(pod) = cluster.get::<Pod>(Kind::Pod, &name).await? else {
            self.make_jump_pod(cluster, pieces.marks, &keys).await?;
            return Ok(Jump::Underway("the jump pod starts".to_owned()));
        };
        if state::end_of(&pod).is_some() {
            let uid = &pod.metadata.uid;
            cluster.delete(Kind::Pod, &name, uid).await?;
            return replaced();
        }
        let service: Option<Service> = cluster.get(Kind::Service, &service_name(&name)).await?;
        let Some(service) = service else {
            self.make_jump_service(cluster, pieces.marks, &keys).await?;
            return Ok(Jump::Underway("a port for the jump pod".to_owned()));
        };
        if let Some(obstacle) = state::obstacle(&pod, since, pieces.call.now()) {
            return Err(of_jump(obstacle));
        }
        match self.proxy(&pod, &service, None).await? {
            Some(proxy) => Ok(Jump::Ready(proxy)),
            None => Ok(Jump::Underway(format!("the jump pod: {}", state::doing(&pod)))),
        }
    }

    /// The keys of the jump pod, with these among them; `None`: they are being removed, or were changed at the same moment.
    async fn ensure_keys(
        &self,
        pieces: &Pieces<'_, '_>,
        name: &str,
        authorized_keys: &[String],
    ) -> Result<Option<Keys>, ComputeError> {
        let (cluster, keys_name, entries) = (pieces.cluster, keys_name(name), entries(authorized_keys));
        let marks = jump_marks(pieces.marks);
        let Some(keys) = cluster.get::<Keys>(Kind::Secret, &keys_name).await? else {
            let of_jump = Pieces {
                marks: &marks,
                ..*pieces
            };
            forget_keys(&of_jump).await?;
            let object = || async { keys_object(pieces.marks, name, entries, &self.random) };
            of_jump.make(KEYS_PIECE, Kind::Secret, &keys_name, object).await?;
            return cluster.get(Kind::Secret, &keys_name).await;
        };
        // Whoever removes it has not seen the pod that needs it now.
        if keys.is_ending() {
            end_jump(cluster, name, Some(&keys.metadata)).await?;
            return Ok(None);
        }
        if keys.host_key().is_none() {
            let pair = host_key(&self.random)?;
            let patch = json!({
                "metadata": {"resourceVersion": keys.metadata.resource_version,
                    "annotations": {HOST_KEY_ANNOTATION: public_line(&pair)}},
                "stringData": {HOST_KEY: pair.private.expose()},
            });
            cluster.patch_unchanged(Kind::Secret, &keys_name, &patch).await?;
            return Ok(None);
        }
        if entries.keys().all(|id| keys.data.contains_key(id)) {
            return Ok(Some(keys));
        }
        let more = json!({"stringData": entries});
        let is_there = cluster.patch(Kind::Secret, &keys_name, &more).await?;
        Ok(Some(keys).filter(|_| is_there))
    }

    async fn make_jump_pod(&self, cluster: &Cluster, marks: &Marks, keys: &Keys) -> Result<(), ComputeError> {
        let capacity = self.capacity().await?;
        let pod = pod(&name(marks), marks, keys, &capacity.nodes);
        cluster
            .create(Kind::Pod, &pod, &jump_marks(marks))
            .await
            .map(drop)
    }

    async fn make_jump_service(
        &self,
        cluster: &Cluster,
        marks: &Marks,
        keys: &Keys,
    ) -> Result<(), ComputeError> {
        let fixed = cluster.access.proxy_jump.as_ref().and_then(|jump| jump.port);
        let service = service(&name(marks), marks, keys, fixed);
        let made = cluster.create(Kind::Service, &service, &jump_marks(marks)).await;
        match (made, fixed) {
            (Err(ComputeError::Refused(text)), Some(port)) if text.contains("already allocated") => {
                Err(ComputeError::Configuration(format!(
                    "port {port} of proxy_jump is taken in the cluster, mostly by the jump pod of another project: each project has one, and a \
                     fixed port serves one of them. Leave proxy_jump.port unset, or give each project a backend with a port of its own"
                )))
            }
            (made, _) => made.map(drop),
        }
    }

    /// The way through a jump pod; `None`: it does not run yet. `known`: the address that is in use, which stays as long as it is
    /// that of a node.
    async fn proxy(
        &self,
        pod: &Pod,
        service: &Service,
        known: Option<&str>,
    ) -> Result<Option<Proxy>, ComputeError> {
        let port = service.spec.ports.first().and_then(|port| port.node_port);
        let Some(port) = port.filter(|_| state::is_running(pod)) else {
            return Ok(None);
        };
        let hostname = self.outside_address(pod.spec.node_name.as_deref(), known).await?;
        Ok(Some(Proxy {
            params: SshConnectionParams {
                hostname,
                username: USER.to_owned(),
                port,
            },
            host_key: pod.metadata.annotations.get(HOST_KEY_ANNOTATION).cloned(),
        }))
    }

    /// The configured one, the one in use, that of the node, or that of any node: node ports are open on all.
    async fn outside_address(
        &self,
        node_name: Option<&str>,
        known: Option<&str>,
    ) -> Result<String, ComputeError> {
        let fixed = self.cluster.access.proxy_jump.as_ref();
        if let Some(hostname) = fixed.and_then(|jump| jump.hostname.clone()) {
            return Ok(hostname);
        }
        let capacity = self.capacity().await?;
        let is_in_use = |address: &String| Some(address.as_str()) == known;
        if let Some(address) = capacity.nodes.iter().filter_map(external_address).find(is_in_use) {
            return Ok(address);
        }
        if let Some(name) = node_name
            && let Some(node) = self.cluster.node::<Node>(name).await?
            && let Some(address) = external_address(&node)
        {
            return Ok(address);
        }
        capacity.nodes.iter().find_map(external_address).ok_or_else(|| {
            ComputeError::Configuration(
                "no node of the cluster has an external address: set proxy_jump.hostname to one by which the server reaches a node".to_owned(),
            )
        })
    }

    /// How the pods of these requests are reached now, by the names of their jump pods. One that was evicted is made anew: its keys
    /// are still there. `known`: the addresses that are in use.
    pub(crate) async fn watch_jumps(
        &self,
        cluster: &Cluster,
        used: &BTreeMap<String, (&Marks, &str)>,
    ) -> Result<BTreeMap<String, Proxy>, ComputeError> {
        let selector = format!("{COMPONENT}={JUMP}");
        let pods: Vec<Pod> = cluster.list(Kind::Pod, &selector).await?;
        let services: Vec<Service> = cluster.list(Kind::Service, &selector).await?;
        let mut proxies = BTreeMap::new();
        for (name, (marks, known)) in used {
            let pod = pods.iter().find(|pod| pod.metadata.name == *name);
            let service = services
                .iter()
                .find(|service| service.metadata.name == service_name(name));
            let is_over = pod.is_none_or(|pod| state::end_of(pod).is_some());
            let proxy = match (pod, service) {
                (Some(pod), Some(service)) if !is_over => self.proxy(pod, service, Some(known)).await,
                _ => self.revive_jump(cluster, marks, pod).await.map(|()| None),
            };
            match proxy {
                Ok(Some(proxy)) => drop(proxies.insert(name.clone(), proxy)),
                Ok(None) => {}
                // Those of other projects are looked after all the same.
                Err(error) => tracing::warn!(jump_pod = name, %error, "a jump pod cannot be looked after"),
            }
        }
        Ok(proxies)
    }

    /// Makes what is missing of a jump pod whose keys are there.
    async fn revive_jump(
        &self,
        cluster: &Cluster,
        marks: &Marks,
        over: Option<&Pod>,
    ) -> Result<(), ComputeError> {
        let name = name(marks);
        let keys: Option<Keys> = cluster.get(Kind::Secret, &keys_name(&name)).await?;
        let Some(keys) = keys.filter(|keys| !keys.is_ending() && keys.host_key().is_some()) else {
            return Ok(());
        };
        tracing::warn!(jump_pod = name, "a jump pod is gone, and is made anew");
        let over = over.filter(|pod| state::end_of(pod).is_some());
        if let Some(pod) = over
            && let Removal::Underway { .. } = cluster.delete(Kind::Pod, &name, &pod.metadata.uid).await?
        {
            return Ok(());
        }
        if cluster.get::<Object>(Kind::Pod, &name).await?.is_none() {
            self.make_jump_pod(cluster, marks, &keys).await?;
        }
        if cluster
            .get::<Object>(Kind::Service, &service_name(&name))
            .await?
            .is_none()
        {
            self.make_jump_service(cluster, marks, &keys).await?;
        }
        Ok(())
    }
}

/// What stands in the way of a jump pod.
fn of_jump(obstacle: ComputeError) -> ComputeError {
    let of_jump = |text: String| format!("the jump pod, by which pods are reached: {text}");
    match obstacle {
        ComputeError::NoCapacity(text) => ComputeError::NoCapacity(of_jump(text)),
        ComputeError::Broken(text) => ComputeError::Broken(of_jump(text)),
        other => other,
    }
}

/// What this call has made before is not there any more: it may be made again.
async fn forget_keys(of_jump: &Pieces<'_, '_>) -> Result<(), ComputeError> {
    if of_jump.call.made::<Piece>(KEYS_PIECE)?.is_none() {
        return Ok(());
    }
    let find = || async { Ok(None::<Piece>) };
    let delete = |_| async { Ok(Removal::Gone) };
    let gone = of_jump
        .call
        .unmake(KEYS_PIECE, None, VISIBLE_WITHIN, find, delete);
    gone.await.map(drop)
}

/// Removes the jump pod of a project that has no other pod in the cluster, and waits for what this call has asked for and may
/// still come.
pub(crate) async fn remove_with_last(pieces: &Pieces<'_, '_>) -> Result<Removal, ComputeError> {
    let (cluster, name) = (pieces.cluster, name(pieces.marks));
    let project = pieces.marks.project.to_string();
    match remove_unused_jump(cluster, &project, &name).await? {
        // Others remove it.
        None => return Ok(Removal::Gone),
        Some(Removal::Gone) => {}
        Some(underway) => return Ok(underway),
    }
    let marks = jump_marks(pieces.marks);
    let of_jump = Pieces {
        marks: &marks,
        ..*pieces
    };
    let keys_name = keys_name(&name);
    let find = || of_jump.find(Kind::Secret, &keys_name);
    let delete = |made: Piece| async move {
        let found: Option<Object> = cluster.get(Kind::Secret, &made.name).await?;
        Ok(match found.is_some_and(|found| made.is(&found.metadata)) {
            true => Removal::Underway { again: ENDS_INTERVAL },
            false => Removal::Gone,
        })
    };
    let gone = pieces.call.unmake(KEYS_PIECE, None, VISIBLE_WITHIN, find, delete);
    gone.await
}

/// Removes the jump pod of a project that has no other pod in the cluster; `None`: it has some.
///
/// A pod that comes meanwhile is there before it asks for the jump pod: it is either seen here, or sees the annotation.
pub(crate) async fn remove_unused_jump(
    cluster: &Cluster,
    project: &str,
    name: &str,
) -> Result<Option<Removal>, ComputeError> {
    let keys_name = keys_name(name);
    let keys: Option<Keys> = cluster.get(Kind::Secret, &keys_name).await?;
    if is_jump_used(cluster, project).await? {
        return Ok(None);
    }
    let Some(keys) = keys else {
        return end_jump(cluster, name, None).await.map(Some);
    };
    if !keys.is_ending() {
        let mut mark = ending(Some("true"));
        if let Some(mark) = mark.pointer_mut("/metadata").and_then(Value::as_object_mut) {
            mark.insert(
                "resourceVersion".to_owned(),
                json!(keys.metadata.resource_version),
            );
        }
        if !cluster.patch_unchanged(Kind::Secret, &keys_name, &mark).await? {
            return Ok(Some(Removal::Underway { again: ENDS_INTERVAL }));
        }
    }
    if is_jump_used(cluster, project).await? {
        let unmark = ending(None);
        cluster.patch(Kind::Secret, &keys_name, &unmark).await?;
        return Ok(None);
    }
    end_jump(cluster, name, Some(&keys.metadata)).await.map(Some)
}

async fn is_jump_used(cluster: &Cluster, project: &str) -> Result<bool, ComputeError> {
    let jobs = format!("{COMPONENT}={JOB},{PROJECT_ID}={project}");
    Ok(!cluster.list::<Object>(Kind::Pod, &jobs).await?.is_empty())
}

/// Removes what belongs to these keys, and not what takes its place: that belongs to others. The keys go last: as long as they are
/// there, they tell of it. Objects of earlier builds belong to no keys.
async fn end_jump(cluster: &Cluster, name: &str, keys: Option<&Metadata>) -> Result<Removal, ComputeError> {
    for (kind, name) in [(Kind::Service, service_name(name)), (Kind::Pod, name.to_owned())] {
        let found: Option<Object> = cluster.get(kind, &name).await?;
        let mut owners = found.iter().flat_map(|found| &found.metadata.owner_references);
        let is_of_others = owners.any(|owner| keys.is_none_or(|keys| owner.uid != keys.uid));
        if let Some(found) = found.filter(|_| !is_of_others) {
            let removal = cluster.delete(kind, &name, &found.metadata.uid).await?;
            if let Removal::Underway { .. } = removal {
                return Ok(removal);
            }
        }
    }
    match keys {
        Some(keys) => cluster.delete(Kind::Secret, &keys.name, &keys.uid).await,
        None => Ok(Removal::Gone),
    }
}

/// The annotation with this value; `None`: without it.
fn ending(value: Option<&str>) -> Value {
    json!({"metadata": {"annotations": {ENDING: value}}})
}

/// The name of a jump pod, by that of any of its objects.
pub(crate) fn name_of(object: &str) -> &str {
    let bare = object.strip_suffix(SERVICE_SUFFIX);
    bare.or_else(|| object.strip_suffix(KEYS_SUFFIX))
        .unwrap_or(object)
}

/// The keys of a jump pod by their names; what they stand for is of no interest.
#[derive(Debug, serde::Deserialize)]
struct Keys {
    metadata: Metadata,
    #[serde(default)]
    data: BTreeMap<String, serde::de::IgnoredAny>,
}

impl Keys {
    fn is_ending(&self) -> bool {
        self.metadata.annotations.contains_key(ENDING)
    }

    /// The public half of the host key; `None`: they are of an earlier build.
    fn host_key(&self) -> Option<&String> {
        self.metadata.annotations.get(HOST_KEY_ANNOTATION)
    }
}

fn external_address(node: &Node) -> Option<String> {
    let found = node.status.addresses.iter().find(|one| one.kind == "ExternalIP");
    found.map(|one| one.address.clone())
}
