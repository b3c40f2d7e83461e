//! Containers of emulated clouds: hosts of a lab with nothing but the container's program.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dstack_backend_kit::{ContainerStart, Containers};
use dstack_emulator_kubernetes::{Network, NodePort};

use crate::hosts::{Host, Lab};
use crate::proxy::Proxy;

/// Where a container notes how its program has ended.
const EXIT_STATUS: &str = "/run/exit-status";

/// What containers find as `PATH`.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The host's own SSH server, which would be in the way of the container's.
pub const END_SSHD: &str =
    "own=$(cat /run/sshd.pid); kill $own; while kill -0 $own 2>/dev/null; do sleep 0.05; done";

/// Addresses of services, of which every container knows that they are near.
const SERVICES: &str = "10.96.0.0/16";

/// Each container is a host without services of its own: whatever image is asked for, its files are those of this machine.
pub struct LabContainers {
    lab: &'static Lab,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: HashMap<String, Host<'static>>,
    made: u8,
    proxies: Vec<Proxy>,
}

impl LabContainers {
    /// Containers on the network of a lab that has no other hosts.
    pub fn new(lab: &'static Lab) -> LabContainers {
        LabContainers {
            lab,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: there is no such container.
    fn run(&self, id: &str, command: &str) -> Option<String> {
        Some(self.lock().running.get(id)?.run(command).unwrap())
    }
}

impl Containers for LabContainers {
    fn start(&self, container: &ContainerStart) -> Option<String> {
        let mut state = self.lock();
        state.made += 1;
        let number = state.made + 1;
        let host = self.lab.host(&format!("container{number}"), number, &[]).ok()?;
        host.run(&format!("{END_SSHD}; ip route add {SERVICES} dev eth0"))
            .unwrap();
        for (path, content) in &container.files {
            write(&host, path, content).unwrap();
        }
        host.run(&in_background(container)).unwrap();
        let address = host.address.clone();
        state.running.insert(container.id.clone(), host);
        Some(address)
    }

    fn exit_status(&self, id: &str) -> Option<i32> {
        let noted = self.run(id, &format!("cat {EXIT_STATUS} 2>/dev/null || true"))?;
        noted.trim().parse().ok()
    }

    fn end(&self, id: &str) {
        if let Some(host) = self.lock().running.remove(id) {
            host.stop().unwrap();
        }
    }
}

impl Network for LabContainers {
    fn write(&self, id: &str, path: &str, content: &[u8]) {
        if let Some(host) = self.lock().running.get(id) {
            write(host, path, content).unwrap();
        }
    }

    fn lead(&self, id: &str, address: &str, port: Option<NodePort>) {
        self.run(id, &format!("ip addr add {address}/32 dev eth0"));
        let mut state = self.lock();
        let (Some(host), Some(port)) = (state.running.get(id), port) else {
            return;
        };
        let here = socket(&self.lab.gateway(), port.node).unwrap();
        let there = socket(&host.address, port.container).unwrap();
        state.proxies.push(Proxy::listening(here, there).unwrap());
    }
}

fn socket(ip: &str, port: u16) -> Result<SocketAddr> {
    let ip: IpAddr = ip.parse().context("no IP address")?;
    Ok(SocketAddr::from((ip, port)))
}

/// Files are for their owner alone.
fn write(host: &Host<'_>, path: &str, content: &[u8]) -> Result<()> {
    let (folder, _) = path.rsplit_once('/').context("no path")?;
    let content = STANDARD.encode(content);
    let new = format!("{path}.new");
    host.run(&format!(
        "umask 077 && mkdir -p {folder} && echo {content} | base64 -d >{new} && mv {new} {path}"
    ))?;
    Ok(())
}

/// A command that starts the container's program in a session of its own.
fn in_background(container: &ContainerStart) -> String {
    let env = container
        .env
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    let head = ["env", "-i", "HOME=/root"].map(str::to_owned);
    let words = head
        .into_iter()
        .chain([format!("PATH={PATH}")])
        .chain(env)
        .chain(container.command.iter().cloned());
    let command: Vec<String> = words.map(|word| quoted(&word)).collect();
    let noted = format!(
        "cd /; {}; echo $? >{EXIT_STATUS}.new; mv {EXIT_STATUS}.new {EXIT_STATUS}",
        command.join(" ")
    );
    format!(
        "setsid sh -c {} >/var/log/container.log 2>&1 </dev/null &",
        quoted(&noted)
    )
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
