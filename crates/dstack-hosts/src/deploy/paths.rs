//! Where the agent's things are on a host.

use std::time::Duration;

use dstack_agent_api::gateway::HOST_API_PORT;
use dstack_agent_api::shim::DEFAULT_HTTP_PORT;

/// Name of the service, as dstack 0.22.5 calls it: a host that has its agent is taken over.
pub(super) const SERVICE: &str = "dstack-shim.service";

/// On systems whose own folders cannot be changed, such as Flatcar and Container-Optimized OS. What is in `/etc` may be gone after a
/// restart of the host.
const OTHER_PROGRAMS: [&str; 3] = ["/opt/dstack", "/var/lib/dstack/programs", "/etc/dstack"];

const HEALTH_LIMIT: Duration = Duration::from_secs(60);
/// Far shorter than a preparation may take: each step that gets on gives the next one time.
const SEND_LIMIT: Duration = Duration::from_secs(60);

/// Absolute paths on a host, without quotes or control characters.
#[derive(Debug, Clone)]
pub struct HostPaths {
    /// Directory of the agent's executables.
    pub programs: String,
    /// Those that are tried in its stead, in this order, where it is read-only, or nothing in it is executed.
    pub other_programs: Vec<String>,
    /// Directory of the agent's state.
    pub home: String,
    /// Those that are tried in its stead, in this order, where it is read-only.
    pub other_homes: Vec<String>,
    /// The service's unit.
    pub unit: String,
    /// A directory that is there while systemd runs the host.
    pub systemd: String,
    /// Directory of the login user's `authorized_keys`; `None`: `~/.ssh`.
    pub ssh: Option<String>,
    /// TCP port of the agent on the loopback interface.
    pub port: u16,
    /// Where a gateway is.
    pub gateway: GatewayPaths,
    /// So long after its start the agent may take to answer.
    pub patience: Duration,
    /// So long a step sends the agent's file; the next one goes on with the rest.
    pub send_limit: Duration,
}

/// Where the things of a gateway are on a host, and where it listens.
#[derive(Debug, Clone)]
pub struct GatewayPaths {
    /// Directory of its executables, its state and the sockets of servers.
    pub home: String,
    /// TCP port of its API on the loopback interface.
    pub api_port: u16,
    /// Address and port of HTTP.
    pub http: String,
    /// Address and port of HTTPS.
    pub https: String,
}

impl Default for GatewayPaths {
    fn default() -> Self {
        Self {
            home: "/var/lib/dstack-gateway".to_owned(),
            api_port: HOST_API_PORT,
            http: "0.0.0.0:80".to_owned(),
            https: "0.0.0.0:443".to_owned(),
        }
    }
}

impl Default for HostPaths {
    fn default() -> Self {
        Self {
            programs: "/usr/local/lib/dstack".to_owned(),
            other_programs: OTHER_PROGRAMS.map(str::to_owned).to_vec(),
            home: "/root/.dstack".to_owned(),
            other_homes: vec!["/var/lib/dstack".to_owned()],
            unit: format!("/etc/systemd/system/{SERVICE}"),
            systemd: "/run/systemd/system".to_owned(),
            ssh: None,
            port: DEFAULT_HTTP_PORT,
            gateway: GatewayPaths::default(),
            patience: HEALTH_LIMIT,
            send_limit: SEND_LIMIT,
        }
    }
}
