//! How a job is reached: the SSH connections on the way, and the same as entries of an OpenSSH configuration.

use std::path::{Path, PathBuf};

use dstack_model::runs::{Job, JobRuntimeData};
use dstack_units::quoting::Unquotable;
use dstack_units::{HostName, LoginName, ParseError};

use super::config::{Host, collapse, lookup};

/// Port of the SSH server inside a container.
const CONTAINER_PORT: u16 = 10022;

/// One SSH server on the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// Alias of its entry.
    pub alias: String,
    /// Host name or address, as seen from the hop before.
    pub host: HostName,
    /// The TCP port of the SSH server.
    pub port: u16,
    /// User for the tunnel.
    pub user: LoginName,
    /// User of the entry: whom `ssh ALIAS` logs in as.
    pub shown_user: LoginName,
    /// Private key; `None` leaves the choice to the user's own configuration.
    pub identity: Option<PathBuf>,
    /// Whether the host's key is checked as the user's configuration says.
    pub known: bool,
}

/// All servers on the way to a job, nearest first; the job itself is the last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The SSH servers to go through, the job's own last.
    pub hops: Vec<Hop>,
}

impl Route {
    /// The route to a job under the alias `name`. `None` when the job has no address yet.
    ///
    /// # Errors
    /// A host or user on the way has a name that cannot be one: what the server tells comes from containers, too.
    pub fn to_job(
        job: &Job,
        name: &str,
        key: &Path,
        user_config: &str,
        home: &Path,
    ) -> Result<Option<Self>, ParseError> {
        let Some(latest) = job.job_submissions.last() else {
            return Ok(None);
        };
        let Some(provisioning) = &latest.job_provisioning_data else {
            return Ok(None);
        };
        let hop = |alias: String, host: &str, port: u16, user: &str| Hop::new(alias, host, port, user, key);
        if let Some(info) = &job.job_connection_info
            && let (Some(host), Some(upstream)) = (&info.sshproxy_hostname, &info.sshproxy_upstream_id)
        {
            let port = info.sshproxy_port.and_then(port).unwrap_or(22);
            let proxy = hop(name.to_owned(), host, port, upstream)?;
            let hops = vec![Hop {
                user: format!("{upstream}_root").parse()?,
                known: true,
                ..proxy
            }];
            return Ok(Some(Self { hops }));
        }
        let (Some(host), Some(host_port)) = (&provisioning.hostname, provisioning.ssh_port.and_then(port))
        else {
            return Ok(None);
        };
        let mut hops = Vec::new();
        if let Some(proxy) = &provisioning.ssh_proxy
            && let Some(proxy_port) = port(proxy.port)
        {
            let mut jump = hop(
                format!("{name}-jump-host"),
                &proxy.hostname,
                proxy_port,
                &proxy.username,
            )?;
            if provisioning.dockerized {
                // An SSH fleet's head node is the user's own machine: dstack has no key for it.
                jump.identity = lookup(user_config, &proxy.hostname, home).identity_file;
            }
            hops.push(jump);
        }
        let (target, target_port) = if provisioning.dockerized {
            let alias = format!("{name}-host");
            hops.push(hop(alias, host, host_port, &provisioning.username)?);
            ("localhost", inner_port(latest.job_runtime_data.as_ref()))
        } else {
            (host.as_str(), host_port)
        };
        let job_hop = hop(name.to_owned(), target, target_port, "root")?;
        let user = latest
            .job_runtime_data
            .as_ref()
            .and_then(|runtime| runtime.username.as_deref());
        hops.push(Hop {
            shown_user: user.or(own_user(job)).unwrap_or("root").parse()?,
            ..job_hop
        });
        Ok(Some(Self { hops }))
    }

    /// Entries of an OpenSSH configuration; `home` is where OpenSSH expands `~` to.
    ///
    /// # Errors
    /// A name or path cannot be written so that OpenSSH reads the same.
    pub fn entries(&self, home: Option<&Path>) -> Result<Vec<Host>, Unquotable> {
        let mut via: Option<&Hop> = None;
        let mut entries = Vec::new();
        for hop in &self.hops {
            entries.push(entry(hop, via, home)?);
            via = Some(hop);
        }
        Ok(entries)
    }
}

fn port(number: i64) -> Option<u16> {
    u16::try_from(number).ok()
}

/// Where the SSH server of a container is, as seen from its host.
fn inner_port(runtime: Option<&JobRuntimeData>) -> u16 {
    let ports = runtime.and_then(|runtime| runtime.ports.as_ref());
    let mapped = ports.and_then(|ports| ports.get(&CONTAINER_PORT));
    mapped.copied().unwrap_or(CONTAINER_PORT)
}

/// The user that the job's configuration names.
fn own_user(job: &Job) -> Option<&str> {
    job.job_spec.user.as_ref()?.username.as_deref()
}

impl Hop {
    fn new(alias: String, host: &str, port: u16, user: &str, key: &Path) -> Result<Self, ParseError> {
        let user: LoginName = user.parse()?;
        Ok(Self {
            alias,
            host: host.parse()?,
            port,
            shown_user: user.clone(),
            user,
            identity: Some(key.to_owned()),
            known: false,
        })
    }
}

fn entry(hop: &Hop, via: Option<&Hop>, home: Option<&Path>) -> Result<Host, Unquotable> {
    let mut entry = Host::new(&hop.alias)?
        .host_name(&hop.host)?
        .port(hop.port)
        .user(&hop.shown_user)?;
    if let Some(path) = &hop.identity {
        let path = match home {
            Some(home) => collapse(path, home),
            None => path.display().to_string(),
        };
        entry = entry.identity(&path)?;
    }
    if !hop.known {
        entry = entry
            .fixed("StrictHostKeyChecking", "no")
            .fixed("UserKnownHostsFile", "/dev/null");
    }
    match via {
        Some(via) => entry.jump(&via.alias),
        None => Ok(entry),
    }
}

/// Where OpenSSH expands `~` to: the home directory of the account, whatever HOME says.
pub fn openssh_home() -> Option<PathBuf> {
    let uid = rustix::process::getuid().as_raw().to_string();
    let accounts = fs_err::read_to_string("/etc/passwd").ok()?;
    let mut fields = accounts.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let account = fields.find(|fields| fields.get(2) == Some(&uid.as_str()))?;
    account.get(5).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn job(provisioning: &Value, connection: &Value) -> Job {
        let mut data = json!({
            "backend": "aws", "instance_type": {"name": "x", "resources": {"cpus": 1, "memory_mib": 1, "gpus": [], "spot": false}},
            "instance_id": "i", "hostname": "1.2.3.4", "region": "r", "price": 1.0, "username": "ubuntu", "ssh_port": 22,
            "dockerized": true,
        });
        data.as_object_mut()
            .unwrap()
            .extend(provisioning.as_object().unwrap().clone());
        serde_json::from_value(json!({
            "job_spec": {"job_num": 0, "job_name": "run-0-0", "commands": [], "env": {}, "image_name": "i",
                         "requirements": {"resources": {}}},
            "job_submissions": [{
                "id": "ce7ec14d-2e3d-48b1-a07d-3f3258d5c7f2", "submission_num": 0, "submitted_at": "2026-01-01T00:00:00Z",
                "last_processed_at": "2026-01-01T00:00:00Z", "status": "running", "job_provisioning_data": data,
                "job_runtime_data": {"network_mode": "bridge", "ports": {"10022": 32_000}, "username": "me"},
            }],
            "job_connection_info": connection,
        }))
        .unwrap()
    }

    fn rendered(job: &Job, config: &str) -> String {
        let route = Route::to_job(
            job,
            "run",
            Path::new("/home/me/.dstack/ssh/ab"),
            config,
            Path::new("/home/me"),
        )
        .unwrap()
        .unwrap();
        let entries = route.entries(Some(Path::new("/home/me"))).unwrap();
        let lines: Vec<String> = entries
            .iter()
            .map(|entry| {
                let options: Vec<String> = entry
                    .options()
                    .map(|(name, value)| format!("{name}={value}"))
                    .collect();
                format!("{}: {}", entry.name(), options.join(" "))
            })
            .collect();
        lines.join("\n")
    }

    #[test]
    fn a_machine_with_containers() {
        insta::assert_snapshot!(rendered(&job(&json!({}), &Value::Null), ""), @r"
        run-host: HostName=1.2.3.4 Port=22 User=ubuntu IdentityFile=~/.dstack/ssh/ab IdentitiesOnly=yes StrictHostKeyChecking=no UserKnownHostsFile=/dev/null
        run: HostName=localhost Port=32000 User=me IdentityFile=~/.dstack/ssh/ab IdentitiesOnly=yes StrictHostKeyChecking=no UserKnownHostsFile=/dev/null ProxyJump=run-host
        ");
    }

    #[test]
    fn behind_a_head_node() {
        let proxy = json!({"ssh_proxy": {"hostname": "head", "username": "u", "port": 2222}});
        insta::assert_snapshot!(rendered(&job(&proxy, &Value::Null), "Host head\n IdentityFile ~/.ssh/head\n"), @r"
        run-jump-host: HostName=head Port=2222 User=u IdentityFile=~/.ssh/head IdentitiesOnly=yes StrictHostKeyChecking=no UserKnownHostsFile=/dev/null
        run-host: HostName=1.2.3.4 Port=22 User=ubuntu IdentityFile=~/.dstack/ssh/ab IdentitiesOnly=yes StrictHostKeyChecking=no UserKnownHostsFile=/dev/null ProxyJump=run-jump-host
        run: HostName=localhost Port=32000 User=me IdentityFile=~/.dstack/ssh/ab IdentitiesOnly=yes StrictHostKeyChecking=no UserKnownHostsFile=/dev/null ProxyJump=run-host
        ");
    }

    #[test]
    fn containers_without_a_host() {
        insta::assert_snapshot!(rendered(&job(&json!({"dockerized": false, "ssh_port": 10022}), &Value::Null), ""), @r"
        run: HostName=1.2.3.4 Port=10022 User=me IdentityFile=~/.dstack/ssh/ab IdentitiesOnly=yes StrictHostKeyChecking=no UserKnownHostsFile=/dev/null
        ");
        let proxy = json!({"dockerized": false, "ssh_proxy": {"hostname": "jump", "username": "root", "port": 30022}});
        insta::assert_snapshot!(rendered(&job(&proxy, &Value::Null), ""), @r"
        run-jump-host: HostName=jump Port=30022 User=root IdentityFile=~/.dstack/ssh/ab IdentitiesOnly=yes StrictHostKeyChecking=no UserKnownHostsFile=/dev/null
        run: HostName=1.2.3.4 Port=22 User=me IdentityFile=~/.dstack/ssh/ab IdentitiesOnly=yes StrictHostKeyChecking=no UserKnownHostsFile=/dev/null ProxyJump=run-jump-host
        ");
    }

    #[test]
    fn through_the_ssh_proxy() {
        let info = json!({"sshproxy_hostname": "ssh.example.com", "sshproxy_port": 30022, "sshproxy_upstream_id": "abc"});
        let job = job(&json!({}), &info);
        insta::assert_snapshot!(rendered(&job, ""), @"run: HostName=ssh.example.com Port=30022 User=abc IdentityFile=~/.dstack/ssh/ab IdentitiesOnly=yes");
        let route = Route::to_job(&job, "run", Path::new("/k"), "", Path::new("/home/me"));
        assert_eq!(route.unwrap().unwrap().hops[0].user.as_str(), "abc_root");
    }

    /// What a container says of itself, and what a server of someone else's may say.
    #[test]
    fn names_that_would_be_more_than_names_are_refused() {
        let route = |job: &Job| Route::to_job(job, "run", Path::new("/k"), "", Path::new("/home/me"));
        let injection = "x\n  ProxyCommand sh -c 'touch /tmp/owned'";
        let mut from_container = job(&json!({}), &Value::Null);
        let runtime = from_container.job_submissions[0].job_runtime_data.as_mut();
        runtime.unwrap().username = Some(injection.to_owned());
        let of_host = job(&json!({"hostname": injection}), &Value::Null);
        let of_user = job(&json!({"username": injection}), &Value::Null);
        let proxy = json!({"ssh_proxy": {"hostname": "-oProxyCommand=id", "username": "u", "port": 22}});
        let of_jump = job(&proxy, &Value::Null);
        let info = json!({"sshproxy_hostname": "h", "sshproxy_port": 22, "sshproxy_upstream_id": injection});
        let of_proxy = job(&json!({}), &info);
        for job in [from_container, of_host, of_user, of_jump, of_proxy] {
            let refused = route(&job).unwrap_err();
            assert!(refused.message().starts_with("invalid "), "{refused}");
        }
        let good = job(&json!({}), &Value::Null);
        let odd_name = Route::to_job(&good, "run\nHost *", Path::new("/k"), "", Path::new("/home/me"));
        assert!(odd_name.unwrap().unwrap().entries(None).is_err());
    }
}
