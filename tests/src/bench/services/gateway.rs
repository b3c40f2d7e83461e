//! A gateway with a hundred services of ten replicas, each on a host of its own to which it is connected: its memory. Doubles stand
//! for the hosts, and the services come from the file of a gateway of dstack 0.22.5.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::LOAD;
use crate::bench::machines::{Machines, SERVICE_PORT};
use crate::bench::measures::{Figure, figure};
use crate::bench::report::Unit;
use crate::bench::subject::Subject;
use crate::load::{Destination, Load};
use crate::runs::TEST_TIMEOUT;
use crate::server::{eventually, free_port, resident_bytes, signal};

const SERVICES: usize = 100;
const REPLICAS: usize = 10;
/// One request at a time, so that there is one connection to each replica; of two that chance chooses the one with less to do gets it.
const ASK: Load = Load {
    clients: 1,
    requests: 50,
    ..LOAD
};
/// Until all connections are made.
const PATIENCE: Duration = Duration::from_secs(60);

pub(in crate::bench) fn gateway(subject: &Subject, _: usize) -> Result<Vec<Figure>> {
    let machines = Machines::start(SERVICES * REPLICAS)?;
    let replicas = SERVICES * REPLICAS;
    let gateway = Gateway::start(subject, &machines)?;
    eventually("the gateway is connected to all replicas", PATIENCE, || {
        Ok((machines.sessions() == replicas).then_some(()))
    })?;
    let before = resident_bytes(gateway.child.id())?;
    for number in 0..SERVICES {
        ASK.get_at(&gateway.service(&domain(number)))?;
    }
    let connections = machines.sessions();
    ensure!(
        connections == replicas,
        "the gateway has made {connections} connections to {replicas} replicas"
    );
    let of = format!("{SERVICES} services with {REPLICAS} replicas each");
    Ok(vec![
        figure(
            format!("gateway resident, {of}, connected to all of them over SSH"),
            Unit::Bytes,
            "≤ 60 MB",
            before,
        ),
        figure(
            format!("gateway resident, {of}, with a connection of HTTP to each"),
            Unit::Bytes,
            "–",
            resident_bytes(gateway.child.id())?,
        ),
    ])
}

fn domain(number: usize) -> String {
    format!("web-{number}.example.com")
}

/// A gateway of this machine. Ends when it is dropped.
struct Gateway {
    child: Child,
    http: SocketAddr,
    _folder: TempDir,
}

impl Gateway {
    fn start(subject: &Subject, machines: &Machines) -> Result<Gateway> {
        let agent = subject
            .agent
            .as_ref()
            .context("only ours has a gateway to start here")?;
        let folder = TempDir::with_prefix("dstack-bench-gateway-")?;
        let import = folder.path().join("state-v2.json");
        fs_err::write(&import, state(machines)?.to_string())?;
        let http = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let child = Command::new(agent)
            .arg("gateway")
            .args([
                "--http",
                &http.to_string(),
                "--https",
                "127.0.0.1:0",
                "--api",
                "127.0.0.1:0",
            ])
            .arg("--import")
            .arg(&import)
            .arg("--dir")
            .arg(folder.path().join("state"))
            .arg("--server-connections")
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("the gateway does not start")?;
        let gateway = Gateway {
            child,
            http,
            _folder: folder,
        };
        let nowhere = Load {
            clients: 1,
            requests: 1,
            ..LOAD
        };
        eventually("the gateway answers", TEST_TIMEOUT, || {
            let answer = nowhere.get_at(&gateway.service("nowhere.example.com"));
            // It refuses what it does not know, and whoever is refused is told so.
            let refused = answer.is_err_and(|error| error.to_string().starts_with("HTTP/1.1 404"));
            Ok(refused.then_some(()))
        })?;
        Ok(gateway)
    }

    fn service<'a>(&self, host: &'a str) -> Destination<'a> {
        Destination {
            address: self.http,
            host,
            path: "/",
            token: None,
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        signal(self.child.id(), "TERM");
        self.child.wait().ok();
    }
}

/// What a gateway of dstack 0.22.5 keeps.
fn state(machines: &Machines) -> Result<Value> {
    let hosts: Vec<SocketAddr> = machines.addresses().collect();
    let services: Map<String, Value> = hosts
        .chunks(REPLICAS)
        .enumerate()
        .map(|(number, hosts)| (format!("web-{number}"), service(number, hosts)))
        .collect();
    let key = machines.private_key()?;
    Ok(json!({
        "services": {"main": services}, "models": {}, "entrypoints": {},
        "projects": {"main": {"name": "main", "ssh_private_key": key}},
        "config": {"acme_settings": {"server": null, "eab_kid": null, "eab_hmac_key": null}},
    }))
}

fn service(number: usize, hosts: &[SocketAddr]) -> Value {
    let replica = |(place, host): (usize, &SocketAddr)| {
        let id = format!("00000000-0000-4000-8000-{:012x}", number * REPLICAS + place);
        json!({
            "id": id, "app_port": SERVICE_PORT, "ssh_destination": format!("root@{}", host.ip()), "ssh_port": host.port(),
            "ssh_proxy": null, "ssh_proxy_private_key": null, "ssh_head_proxy": null,
            "ssh_head_proxy_private_key": null, "internal_ip": null,
        })
    };
    let replicas: Vec<Value> = hosts.iter().enumerate().map(replica).collect();
    json!({
        "id": format!("{number:08x}"), "project_name": "main", "run_name": format!("web-{number}"), "domain": domain(number),
        "https": false, "rate_limits": [], "auth": false, "client_max_body_size": 1024, "strip_prefix": true, "replicas": replicas,
        "has_router_replica": false, "cors_enabled": false, "proxy_buffering": true, "read_timeout": 300,
    })
}
