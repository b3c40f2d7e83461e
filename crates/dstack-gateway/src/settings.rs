//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use ipnet::IpNet;
use tracing::level_filters::LevelFilter;

/// Gateway of dstack: passes requests to services on by host name, with certificates of its own.
#[derive(Debug, Clone, Parser)]
#[command(name = "dstack-agent gateway", version)]
pub struct Settings {
    /// Where what is registered is kept, and certificates with their keys
    #[arg(long, value_name = "DIR", default_value = "/var/lib/dstack-gateway")]
    pub dir: PathBuf,
    /// Where HTTP is answered; certificate authorities ask at port 80
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:80")]
    pub http: SocketAddr,
    /// Where HTTPS is answered
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:443")]
    pub https: SocketAddr,
    /// Port of HTTPS as clients know it, where something before the gateway changes it [default: that of --https]
    #[arg(long, value_name = "PORT")]
    pub public_https_port: Option<u16>,
    /// Where servers call; it asks nobody who he is
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8000")]
    pub api: SocketAddr,
    /// File of the token that calls must be signed with [default: whoever reaches the API may call]
    #[arg(long, value_name = "FILE")]
    pub api_token: Option<PathBuf>,
    /// Where servers open sockets at which they are asked who may use a project
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/home/ubuntu/dstack/server-connections"
    )]
    pub server_connections: PathBuf,
    /// State of a gateway of dstack 0.22.5, taken over when there is none here
    /// [default: /home/ubuntu/dstack/state-v2.json if it is there]
    #[arg(long, value_name = "FILE")]
    pub import: Option<PathBuf>,
    /// Where certbot keeps certificates, which are taken over
    #[arg(long, value_name = "DIR", default_value = "/etc/letsencrypt/live")]
    pub certbot: PathBuf,
    /// URL of the directory of the certificate authority, where the server names none
    #[arg(
        long,
        value_name = "URL",
        default_value = "https://acme-v02.api.letsencrypt.org/directory"
    )]
    pub acme_server: String,
    /// Certificates (PEM) by which the server of the authority is trusted [default: those of the system]
    #[arg(long, value_name = "FILE")]
    pub acme_root: Option<PathBuf>,
    /// Proxies (addresses or networks) whose X-Forwarded-* headers are believed: a load balancer before the gateway
    #[arg(long, value_name = "NETWORK", value_delimiter = ',', value_parser = network)]
    pub trusted_proxies: Vec<IpNet>,
    /// A load balancer of a cloud stands before the gateway, in a private network, and adds so many addresses to X-Forwarded-For, that of
    /// its client first: 1 with AWS, 2 with Google Cloud
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub load_balancer_hops: Option<u8>,
    /// Connections at a time; others wait
    #[arg(long, value_name = "COUNT", default_value_t = 16_384)]
    pub max_connections: usize,
    /// Seconds that requests under way have when the gateway is told to end
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub grace: u64,
    /// Take over from the gateway that runs with this directory: it ends, and no connection is refused meanwhile
    #[arg(long)]
    pub take_over: bool,
    /// Write a line of the log for each request to a service, without its query
    #[arg(long)]
    pub access_log: bool,
    /// error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: LevelFilter,
}

/// A network, or an address that is one by itself.
fn network(text: &str) -> Result<IpNet, String> {
    let address = || text.parse::<std::net::IpAddr>().map(IpNet::from);
    text.parse::<IpNet>()
        .or_else(|_| address())
        .map_err(|_| "an address or a network like 10.0.0.0/8 is needed".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_are_addresses_or_networks() {
        let settings =
            Settings::try_parse_from(["gateway", "--trusted-proxies", "10.0.0.0/8,192.0.2.1"]).unwrap();
        let trusted: Vec<String> = settings.trusted_proxies.iter().map(ToString::to_string).collect();
        assert_eq!(trusted, ["10.0.0.0/8", "192.0.2.1/32"]);
        assert!(Settings::try_parse_from(["gateway", "--trusted-proxies", "lb"]).is_err());
    }
}
