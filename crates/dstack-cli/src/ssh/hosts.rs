//! How a job is reached: the SSH connections on the way, and the same as entries of an OpenSSH configuration.

use std::path::{Path, PathBuf};

use dstack_model::runs::Job;

use super::config::{Host, collapse, lookup};

/// Port of the SSH server inside a container.
const CONTAINER_PORT: u16 = 10022;

/// One SSH server on the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// Alias of its entry.
    pub alias: String,
    /// Host name or address, as seen from the hop before.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// User for the tunnel.
    pub user: String,
    /// User of the entry: whom `ssh ALIAS` logs in as.
    pub shown_user: String,
    /// Private key; `None` leaves the choice to the user's own configuration.
    pub identity: Option<PathBuf>,
    /// Whether the host's key is checked as the user's configuration says.
    pub known: bool,
}

/// All servers on the way to a job, nearest first; the job itself is the last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The servers.
    pub hops: Vec<Hop>,
}

impl Route {
    /// The route to a job under the alias `name`. `None` when the job has no address yet.
    pub fn to_job(job: &Job, name: &str, key: &Path, user_config: &str, home: &Path) -> Option<Self> {
        let latest = job.job_submissions.last()?;
        let provisioning = latest.job_provisioning_data.as_ref()?;
        let hop = |alias: String, host: &str, port: u16, user: &str| Hop {
            alias,
            host: host.to_owned(),
            port,
            user: user.to_owned(),
            shown_user: user.to_owned(),
            identity: Some(key.to_owned()),
            known: false,
        };
        if let Some(info) = &job.job_connection_info
            && let (Some(host), Some(upstream)) = (&info.sshproxy_hostname, &info.sshproxy_upstream_id)
        {
            let port = info.sshproxy_port.and_then(port).unwrap_or(22);
            let proxy = hop(name.to_owned(), host, port, upstream);
            return Some(Self {
                hops: vec![Hop {
                    user: format!("{upstream}_root"),
                    known: true,
                    ..proxy
                }],
            });
        }
        let host = provisioning.hostname.as_deref()?;
        let host_port = port(provisioning.ssh_port?)?;
        let runtime = latest.job_runtime_data.as_ref();
        let ports = runtime.and_then(|runtime| runtime.ports.as_ref());
        let inner_port = ports
            .and_then(|ports| ports.get(&CONTAINER_PORT))
            .copied()
            .unwrap_or(CONTAINER_PORT);
        let own_user = job
            .job_spec
            .user
            .as_ref()
            .and_then(|user| user.username.as_deref());
        let shown_user = runtime
            .and_then(|runtime| runtime.username.as_deref())
            .or(own_user)
            .unwrap_or("root");
        let jump = provisioning.ssh_proxy.as_ref().and_then(|proxy| {
            let jump = hop(
                format!("{name}-jump-host"),
                &proxy.hostname,
                port(proxy.port)?,
                &proxy.username,
            );
            // An SSH fleet's head node is the user's own machine: dstack has no key for it.
            let identity = lookup(user_config, &proxy.hostname, home).identity_file;
            Some(if provisioning.dockerized {
                Hop { identity, ..jump }
            } else {
                jump
            })
        });
        let mut hops: Vec<Hop> = jump.into_iter().collect();
        let (target, target_port) = if provisioning.dockerized {
            hops.push(hop(
                format!("{name}-host"),
                host,
                host_port,
                &provisioning.username,
            ));
            ("localhost", inner_port)
        } else {
            (host, host_port)
        };
        let job_hop = hop(name.to_owned(), target, target_port, "root");
        hops.push(Hop {
            shown_user: shown_user.to_owned(),
            ..job_hop
        });
        Some(Self { hops })
    }

    /// Entries of an OpenSSH configuration; `home` is where OpenSSH expands `~` to.
    pub fn entries(&self, home: Option<&Path>) -> Vec<Host> {
        let mut via: Option<&Hop> = None;
        let mut entries = Vec::new();
        for hop in &self.hops {
            entries.push(entry(hop, via, home));
            via = Some(hop);
        }
        entries
    }
}

fn port(number: i64) -> Option<u16> {
    u16::try_from(number).ok()
}

fn entry(hop: &Hop, via: Option<&Hop>, home: Option<&Path>) -> Host {
    let mut options = vec![
        ("HostName", hop.host.clone()),
        ("Port", hop.port.to_string()),
        ("User", hop.shown_user.clone()),
    ];
    let identity = hop.identity.as_ref().map(|path| match home {
        Some(home) => collapse(path, home),
        None => path.display().to_string(),
    });
    let relaxed = [
        ("StrictHostKeyChecking", "no".to_owned()),
        ("UserKnownHostsFile", "/dev/null".to_owned()),
    ];
    if let Some(identity) = identity {
        options.extend([("IdentityFile", identity), ("IdentitiesOnly", "yes".to_owned())]);
    }
    if !hop.known {
        options.extend(relaxed);
    }
    if let Some(via) = via {
        options.push(("ProxyJump", via.alias.clone()));
    }
    Host {
        name: hop.alias.clone(),
        options,
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
        .unwrap();
        let entries = route.entries(Some(Path::new("/home/me")));
        let lines: Vec<String> = entries
            .iter()
            .map(|entry| {
                let options: Vec<String> = entry
                    .options
                    .iter()
                    .map(|(name, value)| format!("{name}={value}"))
                    .collect();
                format!("{}: {}", entry.name, options.join(" "))
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
        let route = Route::to_job(&job, "run", Path::new("/k"), "", Path::new("/home/me")).unwrap();
        assert_eq!(route.hops[0].user, "abc_root");
    }
}
