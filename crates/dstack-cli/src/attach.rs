//! Attaching to a job: an SSH connection in this process, local ports that lead to the job's, its output as it comes,
//! and entries in the user's OpenSSH configuration so that `ssh RUN`, `scp` and editors find the job.

pub mod logs;
pub mod ports;
pub mod tunnel;
pub mod urls;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use dstack_model::runs::{Job, JobSpec, Run};
use dstack_units::{ParseError, PortMapping};

use crate::context::{Context, Project};
use crate::error::{CliError, ErrorKind};
use crate::ssh::config;
use crate::ssh::hosts::{Route, openssh_home};
use crate::ssh::keys;
use crate::ui::{Role, Text};
use crate::{format, fs};
use ports::{PortError, Reserved, Wishes};
use tunnel::{Attempts, Tunnel};
use urls::{Reach, Rewriter};

/// Limit for finding out whether something listens on a port of this machine.
const LISTENS: Duration = Duration::from_secs(2);

/// Which job, and how.
#[derive(Debug)]
pub struct Request<'a> {
    /// The run as last seen.
    pub run: &'a Run,
    /// The job whose ports are forwarded.
    pub job: &'a Job,
    /// The private key of `--ssh-identity`; by default the one with which the run was submitted.
    pub identity: Option<PathBuf>,
    /// Local ports, where they could be reserved beforehand.
    pub reserved: Option<Reserved>,
    /// The mappings of `-p`, which win over those of the configuration.
    pub overrides: &'a [PortMapping],
    /// Local address of the ports.
    pub address: IpAddr,
}

/// An open attachment. Dropping it closes the tunnel and removes the entries.
#[derive(Debug)]
pub struct Attachment {
    tunnel: Tunnel,
    entries: Option<Entries>,
    /// Remote and local ports.
    pub ports: BTreeMap<u16, u16>,
    /// Alias of the job in the SSH configuration.
    pub name: String,
}

impl Attachment {
    /// Opens the tunnel and writes the entries.
    ///
    /// # Errors
    /// There is no key, or the job cannot be reached.
    pub async fn open(context: &Context, project: &Project, request: Request<'_>) -> Result<Self, CliError> {
        let key = key(context, project, &request).await?;
        let name = alias(request.run, request.job);
        let user_config = fs::read_if_exists(&context.home.join(".ssh/config"))
            .ok()
            .flatten()
            .unwrap_or_default();
        let route = Route::to_job(request.job, &name, &key, &user_config, &context.home)
            .map_err(unusable)?
            .ok_or_else(|| {
                CliError::new(
                    ErrorKind::NotRunning,
                    "Failed to attach. The run is not provisioned yet.",
                )
            })?;
        let is_elsewhere = is_on_other_machine(project.client.base_url(), request.job);
        let attempts = match is_elsewhere && !is_listened_to(&route).await {
            true => Attempts::Few,
            false => Attempts::Patient,
        };
        let tunnel = Tunnel::open(&route, &context.home, attempts).await;
        let mut tunnel = tunnel.map_err(|error| match is_elsewhere {
            true => on_other_machine(&name, error),
            false => error,
        })?;
        let mut ports = BTreeMap::new();
        let reserved = match request.reserved {
            Some(reserved) => reserved,
            None => {
                let failed = |error: PortError| error.into_cli("attach", "dstack attach");
                let mut wishes =
                    ports::merge(wishes(&request.job.job_spec), request.overrides).map_err(failed)?;
                if may_share_network(request.job) && tunnel.shares_network().await {
                    // The job's ports are reached without forwarding, and a listener of ours would take them from it.
                    let is_direct =
                        |remote: &u16, local: &mut Option<u16>| local.is_none_or(|local| local == *remote);
                    ports.extend(
                        wishes
                            .extract_if(.., is_direct)
                            .map(|(remote, _)| (remote, remote)),
                    );
                }
                ports::reserve(&wishes, request.address).map_err(failed)?
            }
        };
        ports.extend(reserved.ports());
        tunnel.forward(reserved);
        let entries = Entries::write(context, &route);
        Ok(Self {
            tunnel,
            entries,
            ports,
            name,
        })
    }

    /// Returns the connection to the job.
    pub const fn tunnel(&self) -> &Tunnel {
        &self.tunnel
    }

    /// Whether `ssh NAME` works.
    pub const fn has_entries(&self) -> bool {
        self.entries.is_some()
    }
}

/// Entries in `~/.dstack/ssh/config`, removed when dropped.
#[derive(Debug)]
struct Entries {
    path: PathBuf,
    names: Vec<String>,
}

impl Entries {
    /// Writes the entries. Without them everything but `ssh NAME` works: a failure only warns.
    fn write(context: &Context, route: &Route) -> Option<Self> {
        let path = context.ssh_folder().join("config");
        let user_config = context.home.join(".ssh/config");
        let openssh_home = openssh_home();
        let write = || {
            let hosts = route.entries(openssh_home.as_deref());
            let hosts = hosts.map_err(|error| CliError::from_error(ErrorKind::AttachFailed, error))?;
            config::add(&path, &hosts)?;
            let home = openssh_home
                .as_deref()
                .unwrap_or(std::path::Path::new("/nonexistent"));
            config::include(&user_config, &path, home)?;
            Ok(hosts.iter().map(|host| host.name().to_owned()).collect())
        };
        let written: Result<Vec<String>, CliError> = write();
        match written {
            Ok(names) => Some(Self { path, names }),
            Err(error) => {
                let name = route
                    .hops
                    .last()
                    .map(|hop| hop.alias.as_str())
                    .unwrap_or_default();
                context.ui.complain(Text::new().role(
                    Role::Warning,
                    format!(
                        "{}; `ssh {name}` and links of editors will not work",
                        error.message().unwrap_or_default()
                    ),
                ));
                None
            }
        }
    }
}

impl Drop for Entries {
    fn drop(&mut self) {
        // Left-over entries do no harm: the next attachment to the run replaces them.
        let _ = config::remove(&self.path, &self.names);
    }
}

/// The job is not where or as whom the server says.
fn unusable(error: ParseError) -> CliError {
    CliError::caused_by(
        ErrorKind::AttachFailed,
        "Failed to attach. The job cannot be reached",
        error,
    )
    .hint("the name comes from the job's container or its host: whoever runs the job may have set it")
}

/// Name of the job in the SSH configuration: the run's for its first job.
pub fn alias(run: &Run, job: &Job) -> String {
    let first = job.job_spec.replica_num == 0 && job.job_spec.job_num == 0;
    if first {
        run.run_spec.run_name.clone().unwrap_or_default()
    } else {
        job.job_spec.job_name.clone()
    }
}

/// The job's ports and the local ones wished for.
pub fn wishes(spec: &JobSpec) -> Wishes {
    let apps = spec.app_specs.iter().flatten();
    apps.map(|app| (app.port, app.map_to_port.filter(|port| *port != 0)))
        .collect()
}

/// Whether the job may share the network of this machine. Then its ports are not reserved beforehand: held by us, they
/// would be taken away from the job.
pub(crate) fn may_share_network(job: &Job) -> bool {
    is_on_servers_machine(job)
}

/// Whether the job runs on the machine of its server, which gives loopback as its address.
fn is_on_servers_machine(job: &Job) -> bool {
    let place = job
        .job_submissions
        .last()
        .and_then(|latest| latest.job_provisioning_data.as_ref());
    place.is_some_and(|place| place.hostname.as_deref().is_some_and(is_loopback) && place.ssh_proxy.is_none())
}

/// Whether the job's address, which is loopback, most likely means another machine than this one. A server that has another
/// address may be this machine all the same: trying does no harm.
fn is_on_other_machine(server: &str, job: &Job) -> bool {
    let url = url::Url::parse(server).ok();
    let host = url.as_ref().and_then(url::Url::host_str).unwrap_or_default();
    is_on_servers_machine(job) && !is_loopback(host) && host != "0.0.0.0" && host != "[::]"
}

/// Whether something answers where the route begins: a job of another machine has no port here.
async fn is_listened_to(route: &Route) -> bool {
    let Some(first) = route.hops.first() else {
        return false;
    };
    let host = first.host.to_string();
    let connected = tokio::net::TcpStream::connect((host.trim_matches(['[', ']']), first.port));
    matches!(tokio::time::timeout(LISTENS, connected).await, Ok(Ok(_)))
}

fn on_other_machine(run: &str, error: CliError) -> CliError {
    // What is wrong here is not a matter of where the job is.
    if error.kind() != ErrorKind::AttachFailed {
        return error;
    }
    let text = "the job runs on the server's own machine, and most likely can be attached to only from there";
    let cause = error.message().unwrap_or_default();
    CliError::caused_by(ErrorKind::AttachFailed, text, cause).hint(format!(
        "attach on that machine, or read the output with `dstack logs {run}`"
    ))
}

/// Whether a host name or address means this machine.
pub fn is_loopback(host: &str) -> bool {
    host == "localhost"
        || host
            .trim_matches(['[', ']'])
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// The private key: `--ssh-identity`, the user's own if the run knows it, or the legacy one.
async fn key(context: &Context, project: &Project, request: &Request<'_>) -> Result<PathBuf, CliError> {
    if let Some(path) = &request.identity {
        return Ok(keys::read(path)?.path);
    }
    let same = |public: &str| {
        let run_key = request.run.run_spec.ssh_key_pub.as_deref().unwrap_or_default();
        public
            .split_whitespace()
            .take(2)
            .eq(run_key.split_whitespace().take(2))
    };
    if let Some(key) = context
        .user_key(&project.client)
        .await?
        .filter(|key| same(&key.public))
    {
        return Ok(key.path);
    }
    let legacy = context.ssh_folder().join("id_rsa");
    if legacy.exists() {
        return Ok(legacy);
    }
    Err(CliError::new(
        ErrorKind::OtherKey,
        "the run was submitted with another SSH key than yours",
    )
    .hint("pass the private key it was submitted with: `--ssh-identity KEY`"))
}

/// Rewrites URLs in the job's output to where the user reaches them.
///
/// # Errors
/// Never in practice: the pattern is fixed.
pub fn rewriter(
    project: &Project,
    run: &Run,
    job: &Job,
    ports: &BTreeMap<u16, u16>,
) -> Result<Rewriter, CliError> {
    let mut reach = Reach {
        ports: ports.clone(),
        query: query(&job.job_spec),
        hostname: "127.0.0.1".to_owned(),
        secure: false,
        path_prefix: String::new(),
    };
    let service_port = job.job_spec.service_port.or_else(|| {
        run.run_spec
            .configuration
            .service()
            .map(|service| service.port.container_port)
    });
    // A service that is not reached at its URL is reached at the forwarded port, as any other.
    let published = run.service.as_ref().filter(|service| service.notice.is_none());
    if let (Some(service), Some(service_port)) = (published, service_port)
        && let Ok(url) = url::Url::parse(&format::service_url(project.client.base_url(), &service.url))
    {
        reach.hostname = url.host_str().unwrap_or_default().to_owned();
        reach.secure = url.scheme() == "https";
        url.path().clone_into(&mut reach.path_prefix);
        reach
            .ports
            .insert(service_port, url.port_or_known_default().unwrap_or(80));
    }
    let latest = job
        .job_submissions
        .last()
        .and_then(|latest| latest.job_provisioning_data.as_ref());
    let address = latest.and_then(|data| data.hostname.as_deref());
    Rewriter::new(reach, address).map_err(|error| CliError::from_error(ErrorKind::Internal, error))
}

fn query(spec: &JobSpec) -> BTreeMap<u16, Vec<(String, String)>> {
    let with_query = spec
        .app_specs
        .iter()
        .flatten()
        .filter_map(|app| Some((app.port, app.url_query_params.as_ref()?)));
    with_query
        .map(|(port, pairs)| {
            (
                port,
                pairs
                    .iter()
                    .map(|(name, value)| (name.clone(), value.clone()))
                    .collect(),
            )
        })
        .collect()
}

/// Reserves local ports before the job has a place.
///
/// # Errors
/// A port is taken.
pub fn reserve(spec: &JobSpec, address: IpAddr) -> Result<Reserved, PortError> {
    ports::reserve(&wishes(spec), address)
}

/// Reserves local ports for a job that runs, unless it may run on this very machine.
///
/// # Errors
/// A port is taken, or the job has no such port.
pub fn reserve_for(
    job: &Job,
    overrides: &[PortMapping],
    address: IpAddr,
) -> Result<Option<Reserved>, PortError> {
    let wishes = ports::merge(wishes(&job.job_spec), overrides)?;
    if may_share_network(job) {
        Ok(None)
    } else {
        ports::reserve(&wishes, address).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(hostname: &str) -> Job {
        let place = json!({
            "backend": "remote", "instance_type": {"name": "x", "resources": {"cpus": 1, "memory_mib": 1, "gpus": [], "spot": false}},
            "instance_id": "i", "hostname": hostname, "region": "r", "price": 0.0, "username": "root", "ssh_port": 22,
            "dockerized": false,
        });
        serde_json::from_value(json!({
            "job_spec": {"job_num": 0, "job_name": "run-0-0", "commands": [], "env": {}, "image_name": "i",
                         "requirements": {"resources": {}}},
            "job_submissions": [{
                "id": "ce7ec14d-2e3d-48b1-a07d-3f3258d5c7f2", "submission_num": 0, "submitted_at": "2026-01-01T00:00:00Z",
                "last_processed_at": "2026-01-01T00:00:00Z", "status": "running", "job_provisioning_data": place,
            }],
        }))
        .unwrap()
    }

    #[test]
    fn a_job_of_the_servers_machine_is_on_another_unless_the_server_is_here() {
        let local = job("127.0.0.1");
        for (server, is_other) in [
            ("http://127.0.0.1:3000", false),
            ("http://localhost:3000", false),
            ("http://0.0.0.0:3000", false),
            ("https://dstack.example.org", true),
            ("http://10.0.0.7:3000", true),
        ] {
            assert_eq!(is_on_other_machine(server, &local), is_other, "{server}");
        }
        assert!(!is_on_other_machine(
            "https://dstack.example.org",
            &job("1.2.3.4")
        ));
    }

    #[tokio::test]
    async fn a_job_of_this_machine_is_known_by_its_port() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut local = job("127.0.0.1");
        let place = local.job_submissions[0].job_provisioning_data.as_mut().unwrap();
        place.ssh_port = Some(i64::from(listener.local_addr().unwrap().port()));
        let here = std::path::Path::new("/nonexistent");
        let route = Route::to_job(&local, "run", here, "", here).unwrap().unwrap();
        assert!(is_listened_to(&route).await);
        drop(listener);
        assert!(!is_listened_to(&route).await);
    }

    #[test]
    fn the_cause_is_told_where_the_job_is_most_likely_elsewhere() {
        let failed = |kind| on_other_machine("run", CliError::new(kind, "connection refused"));
        let message = failed(ErrorKind::AttachFailed).message().unwrap();
        assert!(
            message.contains("most likely") && message.ends_with("connection refused"),
            "{message}"
        );
        assert_eq!(failed(ErrorKind::SshKey).message().unwrap(), "connection refused");
    }
}
