//! The life of a slice of TPUs on several hosts: one node of Cloud TPU, on each host of which a container runs.
//!
//! No agent is brought to the hosts. All start with one script, which runs the container that is for the number of its host.

use async_trait::async_trait;
use dstack_backend::{look_by_place, machine_place};
use dstack_compute::{
    CONTAINER_SSH_PORT, Call, ComputeError, Group, GroupRequest, Known, Lifecycle, MachineRequest, Removal,
    Sign, Step, Workload,
};
use dstack_model::compute_groups::ComputeGroupProvisioningData;
use dstack_model::instances::SshConnectionParams;
use dstack_model::runs::JobProvisioningData;
use dstack_units::quoting::{shell_line, shell_word};

use crate::Gcp;
use crate::client::Instance;
use crate::instance::USER;
use crate::machines::{Purpose, Running, SSH_PORT, STARTS_INTERVAL, Site, sign_of, waits_for};
use crate::tpu::hosts_of;

/// Who runs in containers.
const ROOT: &str = "root";

/// The name of a host's container.
const CONTAINER: &str = "dstack-job";

/// A host that starts again leaves its container as it is: it is not what the job was. The number of a host is in its metadata.
const HEAD: &str = r#"#! /bin/bash
number=$(curl --silent --fail --retry 60 --retry-delay 2 --retry-all-errors --header 'Metadata-Flavor: Google' \
  http://metadata.google.internal/computeMetadata/v1/instance/attributes/agent-worker-number) || exit 1
until docker info > /dev/null 2>&1; do sleep 2; done
docker container inspect dstack-job > /dev/null 2>&1 && exit 0
pull() {
  for pause in 5 15 30 60 0; do
    docker pull --quiet "$1" && return 0
    sleep "$pause"
  done
  return 1
}
"#;

#[async_trait]
impl Lifecycle<Group> for Gcp {
    async fn ensure(
        &self,
        want: &GroupRequest,
        call: &Call<'_>,
    ) -> Result<Step<ComputeGroupProvisioningData>, ComputeError> {
        let startup = startup(want)?;
        let purpose = Purpose::Pod { startup: &startup };
        let running = match self.ensure_running(&node_of(want), purpose, call).await? {
            Step::Ready(running) => running,
            Step::Underway { doing, again, .. } => return Ok(waits_for(&doing, again)),
        };
        let is_public = self.is_public(purpose);
        let Some(members) = members(want, &running, is_public)? else {
            return Ok(waits_for("addresses of all hosts", STARTS_INTERVAL));
        };
        Ok(Step::Ready(ComputeGroupProvisioningData {
            compute_group_id: running.instance.name.clone(),
            compute_group_name: running.instance.name,
            backend: want.offer.backend,
            base_backend: None,
            region: want.offer.region.to_string(),
            job_provisioning_datas: members,
            backend_data: Some(running.site.data()),
        }))
    }

    async fn look(
        &self,
        known: &[Known<Group>],
    ) -> Result<Vec<Option<Sign<ComputeGroupProvisioningData>>>, ComputeError> {
        let site = |known: &Known<Group>| known.place.as_ref().and_then(|place| site_of(place).ok());
        look_by_place(known, site, |site, known| self.signs_of_pods(site, known)).await
    }

    async fn remove(&self, known: &Known<Group>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let place = match &known.place {
            Some(place) => Some((site_of(place)?, place.compute_group_id.clone())),
            None => None,
        };
        self.remove_instance(&known.marks, place, call).await
    }
}

impl Gcp {
    /// How slices of a zone are: all hosts of one are as one.
    async fn signs_of_pods(
        &self,
        site: Site,
        known: Vec<&Known<Group>>,
    ) -> Result<Vec<Sign<ComputeGroupProvisioningData>>, ComputeError> {
        let places: Vec<&ComputeGroupProvisioningData> =
            known.iter().filter_map(|known| known.place.as_ref()).collect();
        let names = places.iter().map(|place| place.compute_group_id.clone());
        let found = self.instances_of(&site, names.collect()).await?;
        let signs = places.into_iter().zip(&found);
        Ok(signs
            .map(|(place, found)| sign_of_pod(place, found.as_ref()))
            .collect())
    }
}

fn site_of(place: &ComputeGroupProvisioningData) -> Result<Site, ComputeError> {
    let data = place.backend_data.as_deref().unwrap_or_default();
    serde_json::from_str(data).map_err(|error| {
        let text = format!(
            "what is stored of the TPU {} cannot be read: {error}",
            place.compute_group_id
        );
        ComputeError::Broken(text)
    })
}

/// Whoever may log in at a container may at its host, which is on the way there.
fn node_of(want: &GroupRequest) -> MachineRequest {
    let mut authorized_keys = Vec::new();
    for key in want
        .workloads
        .iter()
        .flat_map(|workload| &workload.authorized_keys)
    {
        if !authorized_keys.contains(key) {
            authorized_keys.push(key.clone());
        }
    }
    MachineRequest {
        marks: want.marks.clone(),
        owner: want.owner.clone(),
        reservation: None,
        offer: want.offer.clone(),
        authorized_keys,
        placement_group: None,
    }
}

/// Where the containers are reached, in the order of the hosts' numbers; `None`: not all have addresses.
///
/// # Errors
/// There are more hosts than nodes.
fn members(
    want: &GroupRequest,
    Running { site, instance }: &Running,
    is_public: bool,
) -> Result<Option<Vec<JobProvisioningData>>, ComputeError> {
    let (are, shall) = (instance.network_interfaces.len(), want.workloads.len());
    if are > shall {
        let text = format!("the TPU {} has {are} hosts instead of {shall}", instance.name);
        return Err(ComputeError::Broken(text));
    }
    let member = |(number, way): (usize, Way)| {
        let id = format!("{}-w-{number}", instance.name);
        JobProvisioningData {
            internal_ip: Some(way.internal.clone()),
            public_ip_enabled: is_public,
            availability_zone: Some(site.zone.clone()),
            dockerized: false,
            ssh_proxy: Some(SshConnectionParams {
                hostname: way.host,
                username: USER.to_owned(),
                port: SSH_PORT,
            }),
            backend_data: Some(site.data()),
            ..machine_place(&want.offer, id, way.internal, ROOT, CONTAINER_SSH_PORT.into())
        }
    };
    let ways: Option<Vec<Way>> = ways(instance, is_public).into_iter().collect();
    let members = ways.filter(|_| are == shall);
    Ok(members.map(|ways| ways.into_iter().enumerate().map(member).collect()))
}

/// How the container of a host is reached: its port is open in the network of the host only.
struct Way {
    host: String,
    internal: String,
}

/// Of each host; `None`: it has no addresses yet.
fn ways(instance: &Instance, is_public: bool) -> Vec<Option<Way>> {
    let way = |interface: &crate::client::Interface| {
        let internal = interface.network_ip.clone()?;
        let external = || interface.access_configs.first()?.nat_ip.clone();
        Some(Way {
            host: if is_public { external()? } else { internal.clone() },
            internal,
        })
    };
    instance.network_interfaces.iter().map(way).collect()
}

/// A slice is lost as a whole. What was stopped and started again may have other addresses.
fn sign_of_pod(
    place: &ComputeGroupProvisioningData,
    instance: Option<&Instance>,
) -> Sign<ComputeGroupProvisioningData> {
    let (Some(instance), Sign::Well) = (instance, sign_of::<()>(instance)) else {
        return sign_of(instance);
    };
    let mut moved = place.clone();
    let members = moved.job_provisioning_datas.iter_mut();
    let is_public = place
        .job_provisioning_datas
        .iter()
        .any(|member| member.public_ip_enabled);
    for (member, way) in members.zip(ways(instance, is_public)) {
        // Those of a slice that is being repaired are not told.
        let (Some(way), Some(proxy)) = (way, &mut member.ssh_proxy) else {
            continue;
        };
        proxy.hostname = way.host;
        member.hostname = Some(way.internal.clone());
        member.internal_ip = Some(way.internal);
    }
    match moved == *place {
        true => Sign::Well,
        false => Sign::Moved(moved),
    }
}

/// The script that all hosts start with.
///
/// # Errors
/// The slice has not as many hosts as there are nodes, or a node cannot run on one.
fn startup(want: &GroupRequest) -> Result<String, ComputeError> {
    let slice = &want.offer.instance.name;
    let hosts = hosts_of(slice).unwrap_or_default();
    let nodes = want.workloads.len();
    if usize::try_from(hosts) != Ok(nodes) {
        return Err(ComputeError::Refused(format!(
            "{slice} has {hosts} hosts, and the run {nodes} nodes"
        )));
    }
    let mut script = format!("{HEAD}case \"$number\" in\n");
    // What runs on several hosts alike stands there once: Google limits the length.
    let mut cases: Vec<(Vec<String>, String)> = Vec::new();
    for (number, workload) in want.workloads.iter().enumerate() {
        let commands = commands(workload)?;
        match cases.iter_mut().find(|(_, known)| *known == commands) {
            Some((numbers, _)) => numbers.push(number.to_string()),
            None => cases.push((vec![number.to_string()], commands)),
        }
    }
    for (numbers, commands) in cases {
        script += &format!("{})\n{commands};;\n", numbers.join("|"));
    }
    Ok(script + "esac\n")
}

/// The commands that run a container. It has the host's network and all rights on it, as libtpu needs both: it asks the metadata server which
/// host of which slice it is on, and reaches the others ("Run a JAX workload on a TPU slice", "Run TPU workloads in a Docker container").
fn commands(workload: &Workload) -> Result<String, ComputeError> {
    if let Some(volume) = workload.volumes.first() {
        return Err(ComputeError::Refused(format!(
            "TPUs on several hosts take no network volumes that can be written to: {}",
            volume.name
        )));
    }
    let image = workload.image.as_str();
    let mut commands = String::new();
    if let Some(login) = &workload.registry {
        // Jobs can read what their host has in its metadata.
        if login.is_servers {
            return Err(ComputeError::Refused(
                "the login to the server's default registry would be seen by jobs on TPUs with several hosts: name a registry with the image, \
                 or set `registry_auth`"
                    .to_owned(),
            ));
        }
        let words = [
            "docker",
            "login",
            "--username",
            &login.username,
            "--password-stdin",
        ];
        let words = words.into_iter().chain(registry_of(image));
        let password = shell_word(login.password.expose()).into_owned();
        // It is kept no longer than it is needed.
        commands += &format!(
            "export DOCKER_CONFIG=$(mktemp --directory)\nprintf %s {password} | {}\n",
            shell_line(words)
        );
    }
    commands += &format!("pull {} || exit 1\n", shell_word(image));
    if workload.registry.is_some() {
        commands += "rm --recursive \"$DOCKER_CONFIG\"\n";
    }
    let mut run: Vec<String> = [
        "docker",
        "run",
        "--detach",
        "--name",
        CONTAINER,
        "--privileged",
        "--network",
        "host",
        "--env",
        "PJRT_DEVICE=TPU",
        "--user",
        "0",
        "--entrypoint",
        "/bin/sh",
    ]
    .map(str::to_owned)
    .into();
    if let Some(mib) = workload.shm_mib {
        run.extend(["--shm-size".to_owned(), format!("{mib}m")]);
    }
    for folder in &workload.folders {
        run.extend([
            "--volume".to_owned(),
            format!("{}:{}", folder.node_path, folder.path),
        ]);
    }
    run.extend([image, "-c", workload.script.as_str()].map(str::to_owned));
    Ok(commands + &shell_line(run) + "\n")
}

/// The registry of an image, as Docker tells it from a user of Docker Hub; `None`: that.
fn registry_of(image: &str) -> Option<&str> {
    let (first, _) = image.split_once('/')?;
    (first.contains(['.', ':']) || first == "localhost").then_some(first)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use dstack_compute::{Marks, MountedFolder, Owner, RegistryLogin};
    use dstack_model::decode::decode_strict;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    fn workload(image: &str) -> Workload {
        Workload {
            image: image.to_owned(),
            registry: None,
            script: "echo 'it runs'".to_owned(),
            authorized_keys: vec!["ssh-ed25519 AAAA".to_owned()],
            privileged: false,
            shm_mib: None,
            volumes: Vec::new(),
            folders: Vec::new(),
        }
    }

    fn want(workloads: Vec<Workload>) -> GroupRequest {
        let resources = json!({"cpus": 208, "memory_mib": 1024, "gpus": [], "spot": false});
        let offer = json!({"backend": "gcp", "region": "us-east5", "price": 1.0, "availability": "available",
            "instance": {"name": "v5p-16", "resources": resources}});
        GroupRequest {
            marks: Marks {
                installation: Uuid::nil().into(),
                key: Uuid::nil(),
                name: "train".to_owned(),
                project: Uuid::nil().into(),
            },
            owner: Owner::default(),
            offer: decode_strict(&offer).unwrap(),
            requirements: decode_strict(&json!({"resources": {}})).unwrap(),
            workloads,
        }
    }

    /// What a host of this number does, whose Docker pulls what is named so.
    fn done(script: &str, number: &str, has: &str) -> (String, bool) {
        let host = format!(
            "curl() {{ echo {number}; }}\nsleep() {{ :; }}\ndocker() {{\n  \
             case \"$1\" in\n    info) return 0;;\n    container) return 1;;\n    login) echo \"given: $(cat)\";;\n    \
             pull) [ \"$3\" = {has} ] || {{ echo denied; return 1; }};;\n  esac\n  \
             printf '<%s>' \"$@\"; echo\n}}\n"
        );
        let output = Command::new("bash")
            .args(["-c", &format!("{host}{script}")])
            .output()
            .unwrap();
        (String::from_utf8(output.stdout).unwrap(), output.status.success())
    }

    #[test]
    fn each_host_runs_the_container_of_its_number() {
        let first = Workload {
            registry: Some(RegistryLogin {
                username: "it's me".to_owned(),
                password: "pass $word".into(),
                is_servers: false,
            }),
            shm_mib: Some(64),
            folders: vec![MountedFolder {
                node_path: "/mnt/a b".to_owned(),
                path: "/data".to_owned(),
                optional: false,
            }],
            ..workload("registry.example/team/image:1")
        };
        let script = startup(&want(vec![first, workload("plain")])).unwrap();
        let (said, is_done) = done(&script, "0", "registry.example/team/image:1");
        let expected = "given: pass $word\n<login><--username><it's me><--password-stdin><registry.example>\n\
            <pull><--quiet><registry.example/team/image:1>\n\
            <run><--detach><--name><dstack-job><--privileged><--network><host><--env><PJRT_DEVICE=TPU><--user><0>\
            <--entrypoint></bin/sh><--shm-size><64m><--volume></mnt/a b:/data><registry.example/team/image:1><-c><echo 'it runs'>\n";
        assert_eq!((said.as_str(), is_done), (expected, true));
        let (said, is_done) = done(&script, "1", "plain");
        let expected = "<pull><--quiet><plain>\n\
            <run><--detach><--name><dstack-job><--privileged><--network><host><--env><PJRT_DEVICE=TPU><--user><0>\
            <--entrypoint></bin/sh><plain><-c><echo 'it runs'>\n";
        assert_eq!((said.as_str(), is_done), (expected, true));
        let (said, is_done) = done(&script, "1", "another");
        assert_eq!(
            (said.as_str(), is_done),
            ("denied\ndenied\ndenied\ndenied\ndenied\n", false)
        );
    }

    #[test]
    fn the_servers_own_login_is_not_shown_to_jobs() {
        let login = |is_servers| RegistryLogin {
            username: "robot".to_owned(),
            password: "secret".into(),
            is_servers,
        };
        let of = |is_servers| {
            let one = || Workload {
                registry: Some(login(is_servers)),
                ..workload("plain")
            };
            startup(&want(vec![one(), one()]))
        };
        let error = of(true).unwrap_err().to_string();
        assert!(
            error.contains("`registry_auth`") && !error.contains("secret"),
            "{error}"
        );
        of(false).unwrap();
    }

    #[test]
    fn a_pod_has_as_many_nodes_as_hosts() {
        let error = startup(&want(vec![workload("plain")])).unwrap_err();
        assert_eq!(error.to_string(), "v5p-16 has 2 hosts, and the run 1 nodes");
    }

    #[test]
    fn what_all_hosts_run_stands_there_once() {
        let script = startup(&want(vec![workload("plain"), workload("plain")])).unwrap();
        assert_eq!(script.matches("docker run").count(), 1);
        assert!(script.contains("\n0|1)\n"), "{script}");
    }

    #[test]
    fn registries_are_told_from_users_of_docker_hub() {
        for (image, registry) in [
            ("ubuntu", None),
            ("dstackai/base:0.13", None),
            ("ghcr.io/a/b:1", Some("ghcr.io")),
            ("localhost:5000/a", Some("localhost:5000")),
            ("localhost/a", Some("localhost")),
        ] {
            assert_eq!(registry_of(image), registry, "{image}");
        }
    }
}
