//! Objects, and what scheduler and kubelet do to them as time goes on.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dstack_backend_kit::Ledger;
use dstack_units::Time;
use serde_json::{Value, json};
use tokio::time::Instant;

/// How long the scheduler thinks.
const SCHEDULED: Duration = Duration::from_secs(1);

/// How long things take.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Until a pod is placed and its image pulled.
    pub starts: Duration,
    /// Until a pod that is deleted is gone, and the load balancer of a service.
    pub ends: Duration,
    /// Until a service of type `LoadBalancer` has an address.
    pub balances: Duration,
}

/// What a cluster does for services of type `LoadBalancer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Balancers {
    /// Each gets an IP address.
    Addresses,
    /// Each gets a host name, as with AWS.
    Names,
    /// Nothing: there is no controller for them.
    None,
}

/// As long as a service has it, its load balancer is there, and so is the service: see
/// <https://kubernetes.io/docs/concepts/services-networking/service/#loadbalancer>.
const BALANCER_FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

pub(crate) const USUAL: Times = Times {
    starts: Duration::from_secs(8),
    ends: Duration::from_secs(12),
    balances: Duration::from_secs(40),
};

/// An error of the API.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u16,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: u16, reason: &'static str, message: &str) -> Self {
        Self {
            code,
            reason,
            message: message.to_owned(),
        }
    }

    pub(crate) fn no_path() -> Self {
        Self::new(
            404,
            "NotFound",
            "the server could not find the requested resource",
        )
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Namespace,
    Node,
    Pod,
    Service,
    Secret,
    Claim,
}

impl Kind {
    const ALL: [Self; 6] = [
        Self::Namespace,
        Self::Node,
        Self::Pod,
        Self::Service,
        Self::Secret,
        Self::Claim,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Namespace => "Namespace",
            Self::Node => "Node",
            Self::Pod => "Pod",
            Self::Service => "Service",
            Self::Secret => "Secret",
            Self::Claim => "PersistentVolumeClaim",
        }
    }

    pub(crate) fn path(self) -> String {
        format!("{}s", self.name().to_ascii_lowercase())
    }

    fn is_namespaced(self) -> bool {
        !matches!(self, Self::Namespace | Self::Node)
    }

    pub(crate) fn of_path(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.path() == path)
    }

    pub(crate) fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    pub(crate) fn namespaced(path: &str) -> Result<Self, Failure> {
        Self::of_path(path)
            .filter(|kind| kind.is_namespaced())
            .ok_or_else(Failure::no_path)
    }

    pub(crate) fn discovery() -> Value {
        let resource = |kind: Self| {
            json!({"name": kind.path(), "singularName": kind.name().to_ascii_lowercase(), "namespaced": kind.is_namespaced(),
                "kind": kind.name(), "verbs": ["create", "delete", "get", "list", "patch", "watch"]})
        };
        json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": Self::ALL.map(resource)})
    }
}

#[derive(Debug)]
struct Entry {
    object: Value,
    made_at: Instant,
    deleted_at: Option<Instant>,
    /// Its status was set from outside.
    is_fixed: bool,
}

type Key = (Kind, String, String);

#[derive(Debug)]
pub(crate) struct Store {
    entries: BTreeMap<Key, Entry>,
    started: Instant,
    started_at: Time,
    times: Times,
    version: u64,
    pub(crate) sold_out: bool,
    pub(crate) lag: Duration,
    pub(crate) balancers: Balancers,
    /// Tells the ids of clusters apart.
    number: u16,
    /// How many lists have no rest any more when it is asked for.
    pub(crate) expiring: u32,
    /// Under their tokens, how lists go on: what was asked for, and the name after which.
    pages: BTreeMap<String, (String, String)>,
}

fn amount(text: &Value) -> f64 {
    let text = text.as_str().unwrap_or("0");
    let at = text.find(|c: char| c.is_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let factor = match unit {
        "m" => 0.001,
        "Ki" => 1024.0,
        "Mi" => 1_048_576.0,
        "Gi" => 1_073_741_824.0,
        _ => 1.0,
    };
    number.parse::<f64>().unwrap_or(0.0) * factor
}

fn requests(pod: &Value) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for container in pod["spec"]["containers"].as_array().into_iter().flatten() {
        for (resource, text) in container["resources"]["requests"]
            .as_object()
            .into_iter()
            .flatten()
        {
            *sums.entry(resource.clone()).or_default() += amount(text);
        }
    }
    sums
}

fn tolerates(pod: &Value, taint: &Value) -> bool {
    let all = pod["spec"]["tolerations"].as_array();
    all.into_iter().flatten().any(|one| {
        one["key"] == taint["key"] && (one["effect"].is_null() || one["effect"] == taint["effect"])
    })
}

fn is_wanted(pod: &Value, node: &Value) -> bool {
    let required = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let Some(terms) = required["nodeSelectorTerms"].as_array() else {
        return true;
    };
    let holds = |one: &Value| {
        let label = &node["metadata"]["labels"][one["key"].as_str().unwrap()];
        match one["operator"].as_str().unwrap() {
            "In" => one["values"].as_array().unwrap().contains(label),
            "Exists" => !label.is_null(),
            _ => false,
        }
    };
    terms
        .iter()
        .any(|term| term["matchExpressions"].as_array().unwrap().iter().all(holds))
}

impl Store {
    pub(crate) fn new(number: u16, nodes: Vec<Value>, now: Time, times: Times) -> Self {
        let mut store = Self {
            entries: BTreeMap::new(),
            started: Instant::now(),
            started_at: now,
            times,
            version: 1,
            sold_out: false,
            lag: Duration::ZERO,
            balancers: Balancers::Addresses,
            number,
            expiring: 0,
            pages: BTreeMap::new(),
        };
        store.set_nodes(nodes);
        for namespace in ["default", "kube-system"] {
            let object = json!({"metadata": {"name": namespace}, "status": {"phase": "Active"}});
            store.insert(Kind::Namespace, "", object);
        }
        store
    }

    pub(crate) fn set_nodes(&mut self, nodes: Vec<Value>) {
        self.entries.retain(|(kind, ..), _| *kind != Kind::Node);
        for node in nodes {
            self.insert(Kind::Node, "", node);
        }
    }

    /// As somebody else makes it, of whom no ledger knows.
    pub(crate) fn put(&mut self, kind: Kind, namespace: &str, object: Value) {
        let key = (Kind::Namespace, String::new(), namespace.to_owned());
        if !self.entries.contains_key(&key) {
            self.insert(Kind::Namespace, "", json!({"metadata": {"name": namespace}}));
        }
        self.insert(kind, namespace, object);
    }

    fn now(&self) -> String {
        (self.started_at + self.started.elapsed()).to_string()
    }

    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn insert(&mut self, kind: Kind, namespace: &str, mut object: Value) -> Value {
        let version = self.next_version();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        object["apiVersion"] = json!("v1");
        object["kind"] = json!(kind.name());
        let metadata = &mut object["metadata"];
        metadata["uid"] = json!(format!("6e2f9a50-{:04x}-4000-8000-{version:012x}", self.number));
        metadata["resourceVersion"] = json!(version.to_string());
        metadata["creationTimestamp"] = json!(self.now());
        if kind.is_namespaced() {
            metadata["namespace"] = json!(namespace);
        }
        let entry = Entry {
            object: object.clone(),
            made_at: Instant::now(),
            deleted_at: None,
            is_fixed: false,
        };
        self.entries.insert((kind, namespace.to_owned(), name), entry);
        object
    }

    fn not_found(kind: Kind, name: &str) -> Failure {
        Failure::new(404, "NotFound", &format!("{} \"{name}\" not found", kind.path()))
    }

    fn entry(&mut self, kind: Kind, namespace: Option<&str>, name: &str) -> Result<&mut Entry, Failure> {
        let key = (kind, namespace.unwrap_or_default().to_owned(), name.to_owned());
        self.entries
            .get_mut(&key)
            .ok_or_else(|| Self::not_found(kind, name))
    }

    pub(crate) fn get(&mut self, kind: Kind, namespace: Option<&str>, name: &str) -> Result<Value, Failure> {
        Ok(self.entry(kind, namespace, name)?.object.clone())
    }

    pub(crate) fn all(&self, kind: Kind, namespace: Option<&str>) -> Vec<Value> {
        let is_wanted = |key: &Key| key.0 == kind && namespace.is_none_or(|of| of == key.1);
        let found = self.entries.iter().filter(|(key, _)| is_wanted(key));
        found.map(|(_, entry)| entry.object.clone()).collect()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let own = self.entries.keys().filter(|(kind, ..)| kind.is_namespaced());
        own.map(|(kind, _, name)| format!("{}/{name}", kind.path()))
            .collect()
    }

    /// Lists are of what was there before the lag. With `limit`, they come in pages, see
    /// <https://kubernetes.io/docs/reference/using-api/api-concepts/#retrieving-large-results-sets-in-chunks>.
    pub(crate) fn list(
        &mut self,
        kind: Kind,
        namespace: Option<&str>,
        query: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Value, Failure> {
        let (labels, fields) = (query("labelSelector"), query("fieldSelector"));
        let (labels, fields) = (labels.as_deref(), fields.as_deref());
        let what = format!("{kind:?} {namespace:?} {labels:?} {fields:?}");
        let after = match query("continue").filter(|token| !token.is_empty()) {
            None => None,
            Some(token) => Some(self.page_after(&token, &what)?),
        };
        let limit = query("limit")
            .and_then(|limit| limit.parse().ok())
            .filter(|limit| *limit > 0);
        let mut items = self.listed(kind, namespace, labels, fields);
        let name_of =
            |item: &Value| format!("{} {}", item["metadata"]["namespace"], item["metadata"]["name"]);
        items.sort_by_key(name_of);
        items.retain(|item| after.as_ref().is_none_or(|after| name_of(item) > *after));
        let mut metadata = json!({"resourceVersion": self.version.to_string()});
        if let Some(limit) = limit.filter(|limit| *limit < items.len()) {
            metadata["remainingItemCount"] = json!(items.len() - limit);
            items.truncate(limit);
            let token = STANDARD.encode(format!("{{\"v\":\"meta.k8s.io/v1\",\"n\":{}}}", self.pages.len()));
            metadata["continue"] = json!(token);
            self.pages.insert(token, (what, name_of(items.last().unwrap())));
        }
        Ok(
            json!({"kind": format!("{}List", kind.name()), "apiVersion": "v1", "metadata": metadata, "items": items}),
        )
    }

    /// After which name the list goes on.
    fn page_after(&mut self, token: &str, what: &str) -> Result<String, Failure> {
        if self.expiring > 0 {
            self.expiring -= 1;
            let message = "The provided continue parameter is too old to display a consistent list result. You can start a new list without \
                 the continue parameter";
            return Err(Failure::new(410, "Expired", message));
        }
        let known = self.pages.get(token).filter(|(of, _)| of == what);
        let (_, after) = known.ok_or_else(|| Failure::new(400, "BadRequest", "continue key is not valid"))?;
        Ok(after.clone())
    }

    fn listed(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        labels: Option<&str>,
        fields: Option<&str>,
    ) -> Vec<Value> {
        let holds = |object: &Value, term: &str, value: fn(&Value, &str) -> Value| {
            let (name, wanted, is_equal) = match (term.split_once("!="), term.split_once('=')) {
                (Some((name, wanted)), _) => (name, wanted, false),
                (_, Some((name, wanted))) => (name, wanted.trim_start_matches('='), true),
                _ => return !value(object, term).is_null(),
            };
            (value(object, name) == wanted) == is_equal
        };
        let terms = |text: Option<&str>| -> Vec<String> {
            text.unwrap_or_default()
                .split(',')
                .filter(|term| !term.is_empty())
                .map(str::to_owned)
                .collect()
        };
        let (labels, fields) = (terms(labels), terms(fields));
        let entries = self.entries.iter().filter(|(key, entry)| {
            let is_listed =
                matches!(kind, Kind::Node | Kind::Namespace) || entry.made_at.elapsed() >= self.lag;
            key.0 == kind && namespace.is_none_or(|of| of == key.1) && is_listed
        });
        entries
            .map(|(_, entry)| &entry.object)
            .filter(|object| {
                labels.iter().all(|term| {
                    holds(object, term, |object, name| {
                        object["metadata"]["labels"][name].clone()
                    })
                })
            })
            .filter(|object| {
                fields.iter().all(|term| {
                    holds(object, term, |object, path| {
                        object
                            .pointer(&format!("/{}", path.replace('.', "/")))
                            .cloned()
                            .unwrap_or_default()
                    })
                })
            })
            .cloned()
            .collect()
    }

    /// A port of all nodes belongs to one service.
    fn check_node_ports(&self, service: &Value) -> Result<(), Failure> {
        let ports = |service: &Value| -> Vec<Value> {
            let ports = service["spec"]["ports"].as_array().into_iter().flatten();
            ports
                .map(|port| port["nodePort"].clone())
                .filter(|port| !port.is_null())
                .collect()
        };
        let taken: Vec<Value> = self.all(Kind::Service, None).iter().flat_map(ports).collect();
        match ports(service).iter().find(|port| taken.contains(port)) {
            None => Ok(()),
            Some(port) => Err(Failure::new(
                422,
                "Invalid",
                &format!(
                    "Service \"{}\" is invalid: spec.ports[0].nodePort: Invalid value: {port}: provided port is already allocated",
                    service["metadata"]["name"].as_str().unwrap()
                ),
            )),
        }
    }

    /// What goes with an owner that is gone, as the garbage collector of a cluster finds it.
    fn orphaned(&self) -> Vec<Key> {
        let uids: Vec<&Value> = self
            .entries
            .values()
            .map(|entry| &entry.object["metadata"]["uid"])
            .collect();
        let is_orphaned = |entry: &Entry| {
            let owners = entry.object["metadata"]["ownerReferences"].as_array();
            owners.is_some_and(|owners| !owners.iter().any(|owner| uids.contains(&&owner["uid"])))
        };
        let orphaned = self.entries.iter().filter(|(_, entry)| is_orphaned(entry));
        orphaned.map(|(key, _)| key.clone()).collect()
    }

    pub(crate) fn create(
        &mut self,
        kind: Kind,
        namespace: Option<&str>,
        mut object: Value,
        ledger: &Ledger,
    ) -> Result<Value, Failure> {
        let namespace = namespace.unwrap_or_default();
        if kind.is_namespaced()
            && !self
                .entries
                .contains_key(&(Kind::Namespace, String::new(), namespace.to_owned()))
        {
            return Err(Self::not_found(Kind::Namespace, namespace));
        }
        let invalid = |message: &str| Failure::new(422, "Invalid", message);
        let name = object["metadata"]["name"]
            .as_str()
            .ok_or_else(|| invalid("name or generateName is required"))?
            .to_owned();
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.len() > 63 || !name.chars().all(is_name) || name.starts_with('-') || name.ends_with('-') {
            return Err(invalid(&format!(
                "metadata.name: {name:?} is no DNS label of at most 63 characters"
            )));
        }
        let labels = object["metadata"]["labels"].as_object().into_iter().flatten();
        if let Some((label, _)) = labels
            .into_iter()
            .find(|(_, value)| value.as_str().is_none_or(|text| text.len() > 63))
        {
            return Err(invalid(&format!(
                "metadata.labels: {label}: must be no more than 63 characters"
            )));
        }
        if self
            .entries
            .contains_key(&(kind, namespace.to_owned(), name.clone()))
        {
            return Err(Failure::new(
                409,
                "AlreadyExists",
                &format!("{} \"{name}\" already exists", kind.path()),
            ));
        }
        let number = self.version;
        match kind {
            Kind::Pod => {
                let mounts = object["spec"]["containers"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .flat_map(|one| one["volumeMounts"].as_array().into_iter().flatten());
                let volumes: Vec<&Value> = object["spec"]["volumes"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|one| &one["name"])
                    .collect();
                if let Some(lost) = mounts
                    .into_iter()
                    .find(|mount| !volumes.contains(&&mount["name"]))
                {
                    return Err(invalid(&format!(
                        "spec.containers[0].volumeMounts: Not found: {}",
                        lost["name"]
                    )));
                }
                object["status"] = json!({"phase": "Pending"});
            }
            Kind::Service => {
                self.check_node_ports(&object)?;
                object["spec"]["clusterIP"] =
                    json!(format!("10.96.{}.{}", number / 250 % 250, number % 250 + 1));
                object["status"] = json!({"loadBalancer": {}});
                if object["spec"]["type"] != "ClusterIP" {
                    let ports = object["spec"]["ports"].as_array_mut().unwrap();
                    for (at, port) in (0..).zip(ports) {
                        if port["nodePort"].is_null() {
                            port["nodePort"] = json!(30_000 + (number + at * 500) % 2768);
                        }
                    }
                }
                if object["spec"]["type"] == "LoadBalancer" && self.balancers != Balancers::None {
                    object["metadata"]["finalizers"] = json!([BALANCER_FINALIZER]);
                }
            }
            Kind::Secret => take_texts(&mut object),
            Kind::Claim => object["status"] = json!({"phase": "Pending"}),
            Kind::Namespace | Kind::Node => {}
        }
        let made = self.insert(kind, namespace, object);
        let labels = &made["metadata"]["labels"];
        // The jump pod of a project is no thing of one request.
        if labels["dstack_key"].is_string() && labels["app.kubernetes.io/name"] != "dstack-ssh-proxy" {
            ledger.made(kind.name(), made["metadata"]["uid"].as_str().unwrap(), &name);
        }
        Ok(made)
    }

    pub(crate) fn patch(
        &mut self,
        kind: Kind,
        namespace: Option<&str>,
        name: &str,
        patch: &Value,
        check: impl FnOnce(&Value) -> Result<(), Failure>,
    ) -> Result<Value, Failure> {
        let version = self.next_version();
        let entry = self.entry(kind, namespace, name)?;
        let mut object = entry.object.clone();
        let wanted = &patch["metadata"]["resourceVersion"];
        if wanted.is_string() && *wanted != object["metadata"]["resourceVersion"] {
            let message = format!(
                "Operation cannot be fulfilled on {} \"{name}\": the object has been modified; please apply your changes to the latest version and try again",
                kind.path()
            );
            return Err(Failure::new(409, "Conflict", &message));
        }
        merge(&mut object, patch);
        check(&object)?;
        if kind == Kind::Secret {
            take_texts(&mut object);
        }
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        entry.object = object.clone();
        Ok(object)
    }

    pub(crate) fn delete(
        &mut self,
        kind: Kind,
        namespace: Option<&str>,
        name: &str,
        options: &Value,
        ledger: &Ledger,
    ) -> Result<Value, Failure> {
        let now = self.now();
        let entry = self.entry(kind, namespace, name)?;
        let wanted = &options["preconditions"]["uid"];
        if wanted.is_string() && *wanted != entry.object["metadata"]["uid"] {
            return Err(Failure::new(
                409,
                "Conflict",
                "the UID in the precondition does not match the UID in record",
            ));
        }
        let is_held = !entry.object["metadata"]["finalizers"].is_null();
        if matches!(kind, Kind::Pod | Kind::Claim) || is_held {
            entry.deleted_at.get_or_insert_with(Instant::now);
            entry.object["metadata"]["deletionTimestamp"] = json!(now);
            return Ok(entry.object.clone());
        }
        let object = entry.object.clone();
        self.remove(
            &(kind, namespace.unwrap_or_default().to_owned(), name.to_owned()),
            ledger,
        );
        Ok(
            json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "details": {"name": name, "uid": object["metadata"]["uid"]}}),
        )
    }

    fn remove(&mut self, key: &Key, ledger: &Ledger) {
        if let Some(entry) = self.entries.remove(key) {
            ledger.removed(entry.object["metadata"]["uid"].as_str().unwrap());
        }
    }

    pub(crate) fn set_pod_status(&mut self, prefix: &str, status: &Value) {
        for ((kind, _, name), entry) in &mut self.entries {
            if *kind == Kind::Pod && name.starts_with(prefix) {
                entry.object["status"] = status.clone();
                entry.is_fixed = true;
            }
        }
    }

    pub(crate) fn set_address(&mut self, service: &str, ip: &str) {
        for ((kind, _, name), entry) in &mut self.entries {
            if *kind == Kind::Service && name == service {
                entry.object["status"]["loadBalancer"]["ingress"] = json!([{"ip": ip}]);
            }
        }
    }

    /// Changes an object that is there.
    pub(crate) fn change(&mut self, object: &Value, change: impl FnOnce(&mut Value)) {
        let metadata = &object["metadata"];
        let mut entries = self.entries.values_mut();
        if let Some(entry) = entries.find(|entry| entry.object["metadata"]["uid"] == metadata["uid"]) {
            change(&mut entry.object);
        }
    }

    pub(crate) fn lose_all(&mut self) {
        let evicted = json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."});
        self.set_pod_status("", &evicted);
        for ((kind, ..), entry) in &mut self.entries {
            if *kind == Kind::Claim {
                entry.object["status"]["phase"] = json!("Lost");
                entry.is_fixed = true;
            }
        }
    }

    /// What scheduler, kubelet and controllers have done by now.
    pub(crate) fn settle(&mut self, ledger: &Ledger) {
        let ended = |(key, entry): (&Key, &Entry)| {
            let is_over = matches!(key.0, Kind::Pod | Kind::Service)
                && entry.deleted_at.is_some_and(|at| at.elapsed() >= self.times.ends);
            is_over.then(|| key.clone())
        };
        let gone: Vec<Key> = self.entries.iter().filter_map(ended).collect();
        for key in &gone {
            self.remove(key, ledger);
        }
        for key in self.orphaned() {
            self.remove(&key, ledger);
        }
        let used: Vec<Value> = self.all(Kind::Pod, None).iter().flat_map(claims).collect();
        let unused = |(key, entry): (&Key, &Entry)| {
            let is_free = key.0 == Kind::Claim && entry.deleted_at.is_some() && !used.contains(&json!(key.2));
            is_free.then(|| key.clone())
        };
        let gone: Vec<Key> = self.entries.iter().filter_map(unused).collect();
        for key in &gone {
            self.remove(key, ledger);
        }
        let keys: Vec<Key> = self.entries.keys().cloned().collect();
        for key in keys {
            match key.0 {
                Kind::Pod => self.run_pod(&key),
                Kind::Claim => self.bind_claim(&key),
                Kind::Service => self.balance(&key),
                _ => {}
            }
        }
    }

    fn bind_claim(&mut self, key: &Key) {
        let entry = self.entries.get_mut(key).unwrap();
        if !entry.is_fixed && entry.object["status"]["phase"] == "Pending" {
            let asked = entry.object["spec"]["resources"]["requests"].clone();
            entry.object["status"] = json!({"phase": "Bound", "capacity": asked});
        }
    }

    /// Gives a service an address, as the controller of a cloud does.
    fn balance(&mut self, key: &Key) {
        let (balancers, balances) = (self.balancers, self.times.balances);
        let entry = self.entries.get_mut(key).unwrap();
        let metadata = &entry.object["metadata"];
        let number: u64 = metadata["resourceVersion"].as_str().unwrap().parse().unwrap();
        let ingress = match balancers {
            Balancers::Addresses => json!({"ip": format!("203.0.113.{}", number % 250 + 1), "ipMode": "VIP"}),
            Balancers::Names => json!({"hostname": format!("a{number}.elb.example.com")}),
            Balancers::None => return,
        };
        let is_due = entry.object["spec"]["type"] == "LoadBalancer" && entry.made_at.elapsed() >= balances;
        if is_due && !entry.is_fixed && entry.object["status"]["loadBalancer"]["ingress"].is_null() {
            entry.object["status"]["loadBalancer"]["ingress"] = json!([ingress]);
        }
    }

    fn run_pod(&mut self, key: &Key) {
        let now = self.now();
        let entry = &self.entries[key];
        let (age, pod) = (entry.made_at.elapsed(), entry.object.clone());
        if entry.is_fixed || pod["status"]["phase"] != "Pending" || age < SCHEDULED {
            return;
        }
        let mut object = pod.clone();
        if pod["spec"]["nodeName"].is_null() {
            match self.node_for(&pod) {
                Some(node) => {
                    object["spec"]["nodeName"] = json!(node);
                    object["status"]["startTime"] = json!(now);
                    object["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "True"}]);
                }
                None if pod["status"]["conditions"].is_null() => {
                    object["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                        "message": "0/2 nodes are available: 2 Insufficient cpu.", "lastTransitionTime": now}]);
                }
                None => {}
            }
        }
        if !object["spec"]["nodeName"].is_null() {
            let has_begun = age >= self.times.starts;
            let name = object["spec"]["containers"][0]["name"].clone();
            let state = match has_begun {
                true => json!({"running": {"startedAt": now}}),
                false => json!({"waiting": {"reason": "ContainerCreating"}}),
            };
            object["status"]["containerStatuses"] = json!([{"name": name, "state": state, "ready": has_begun, "restartCount": 0,
                "image": object["spec"]["containers"][0]["image"], "imageID": ""}]);
            if has_begun {
                object["status"]["phase"] = json!("Running");
                let ready = json!({"type": "Ready", "status": "True"});
                object["status"]["conditions"].as_array_mut().unwrap().push(ready);
                let number: u64 = object["metadata"]["resourceVersion"]
                    .as_str()
                    .unwrap()
                    .parse()
                    .unwrap();
                object["status"]["podIP"] = json!(format!("10.244.0.{}", number % 250 + 1));
            }
        }
        self.entries.get_mut(key).unwrap().object = object;
    }

    fn node_for(&self, pod: &Value) -> Option<String> {
        let is_jump = pod["metadata"]["labels"]["app.kubernetes.io/name"] == "dstack-ssh-proxy";
        if self.sold_out && !is_jump {
            return None;
        }
        let (asked, pods) = (requests(pod), self.all(Kind::Pod, None));
        let fits = |node: &&Value| {
            let name = &node["metadata"]["name"];
            let on_it = pods
                .iter()
                .filter(|one| one["spec"]["nodeName"] == *name && one["status"]["phase"] != "Failed");
            let taken: Vec<BTreeMap<String, f64>> = on_it.map(requests).collect();
            let has_room = asked.iter().all(|(resource, wanted)| {
                let taken: f64 = taken.iter().filter_map(|one| one.get(resource)).sum();
                *wanted == 0.0 || amount(&node["status"]["allocatable"][resource]) >= taken + wanted
            });
            let taints = node["spec"]["taints"].as_array();
            has_room
                && is_wanted(pod, node)
                && taints.into_iter().flatten().all(|taint| tolerates(pod, taint))
        };
        let nodes = self.all(Kind::Node, None);
        nodes
            .iter()
            .find(fits)
            .map(|node| node["metadata"]["name"].as_str().unwrap().to_owned())
    }
}

/// Claims that a pod uses.
fn claims(pod: &Value) -> Vec<Value> {
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    volumes
        .map(|one| one["persistentVolumeClaim"]["claimName"].clone())
        .filter(|name| !name.is_null())
        .collect()
}

/// Texts of a secret are written as data.
fn take_texts(secret: &mut Value) {
    let texts = secret.as_object_mut().unwrap().remove("stringData");
    for (name, text) in texts.as_ref().and_then(Value::as_object).into_iter().flatten() {
        secret["data"][name] = json!(STANDARD.encode(text.as_str().unwrap()));
    }
}

/// A merge patch, RFC 7386.
fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (name, field) in fields {
        match field.is_null() {
            true => drop(into.as_object_mut().unwrap().remove(name)),
            false => merge(&mut into[name], field),
        }
    }
}
