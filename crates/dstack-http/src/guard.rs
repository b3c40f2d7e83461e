//! Requests to addresses that users name.
//!
//! An address is checked where the connection is made: an address in the URL before the request, one of a name as it is
//! resolved for the connection. Redirects are followed here, one by one, with the same checks; none leads closer to this
//! machine than the answer came from.

pub(crate) mod lookup;
mod redirect;

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use dstack_system::find_cause;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use hyper_util::client::proxy::matcher::Matcher;
use reqwest::{Client, Response, Url};

use crate::client::{ClientOptions, Redirects, SetupError, build, get_or_build};
use crate::network::Network;
use crate::policy::{OUTBOUND_ALLOW, OutboundPolicy};
use lookup::{AddressLookup, GuardedResolver, SystemLookup};

/// More in a row than any service needs.
const MAX_REDIRECTS: usize = 5;

/// An address that is not reached. Its text is for users: it names the host and the remedy, not what the name leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    pub(crate) host: String,
    pub(crate) address: IpAddr,
    pub(crate) network: Network,
    /// It may be allowed, but is closer to this machine than what led to it.
    pub(crate) is_allowed: bool,
}

impl Refused {
    /// The host that was named.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Where it is. Not for users.
    pub const fn address(&self) -> IpAddr {
        self.address
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { host, network, .. } = self;
        if self.is_allowed {
            return write!(
                f,
                "{host} is on {}, where a service that is farther away must not lead the server",
                network.name()
            );
        }
        // A name does not open these: its owner could lead it to any of them.
        let entry = match network {
            Network::LinkLocal => &self.address.to_string(),
            _ => host,
        };
        write!(
            f,
            "{host} is on {}, which the server does not contact for its users. An administrator can allow it by \
             {OUTBOUND_ALLOW}={entry}",
            network.name()
        )
    }
}

impl std::error::Error for Refused {}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum OutboundError {
    /// A client cannot be made.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// Not http or https, or without a host.
    #[error("the address is not one of HTTP")]
    NotHttp,
    /// It may not be reached.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// A redirect that is not followed.
    #[error("a redirect is not followed: {0}")]
    Redirect(&'static str),
    /// The request failed.
    #[error("the request failed")]
    Failed {
        /// Why; without the address.
        #[source]
        source: reqwest::Error,
        /// Where the host is: users are not told why something closer than [`Network::Public`] does not answer.
        network: Network,
    },
}

/// Which redirects are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GuardedRedirects {
    /// None: they are answered as they are.
    #[default]
    Never,
    /// To the same host.
    SameHost,
    /// To any host, without the credentials.
    AnyHost,
}

/// An answer, and where it came from.
#[derive(Debug)]
pub struct Answer {
    /// Status, headers and the body, which is not read yet.
    pub response: Response,
    /// The kind of network that it came from.
    pub network: Network,
}

/// A client for addresses that users name. See the module for what it checks.
#[derive(Debug)]
pub struct GuardedClient {
    policy: Arc<OutboundPolicy>,
    lookup: Arc<dyn AddressLookup>,
    options: ClientOptions,
    proxies: Matcher,
    /// One for each network that may be reached: connections are shared within each only.
    direct: [OnceLock<Client>; 4],
    proxied: OnceLock<Client>,
}

impl GuardedClient {
    /// Makes a client with these timeouts. Nothing is connected or read yet.
    pub fn new(policy: OutboundPolicy, options: ClientOptions) -> Self {
        Self {
            proxies: Matcher::from_system(),
            ..Self::with_lookup(policy, options, Arc::new(SystemLookup))
        }
    }

    /// Makes a client that asks `lookup` for addresses of names, and uses no proxy.
    pub fn with_lookup(
        policy: OutboundPolicy,
        options: ClientOptions,
        lookup: Arc<dyn AddressLookup>,
    ) -> Self {
        Self {
            policy: Arc::new(policy),
            lookup,
            options: ClientOptions {
                redirects: Redirects::Never,
                ..options
            },
            proxies: Matcher::builder().build(),
            direct: Default::default(),
            proxied: OnceLock::new(),
        }
    }

    /// Begins a GET request.
    pub fn get(&self, url: Url) -> GuardedRequest<'_> {
        GuardedRequest {
            client: self,
            url,
            headers: HeaderMap::new(),
            nearest: Network::LinkLocal,
            redirects: GuardedRedirects::Never,
        }
    }

    /// Returns the kind of network a host is on, the closest of all that its name leads to; public where it leads nowhere.
    pub async fn network_of(&self, host: &str) -> Network {
        let found = match literal(host) {
            Some(address) => vec![address],
            None => self.lookup.addresses(host).await.unwrap_or_default(),
        };
        let networks = found.into_iter().map(|address| self.policy.network_of(address));
        networks.max().unwrap_or(Network::Public)
    }

    /// One request, without following redirects.
    async fn send(&self, url: &Url, headers: &HeaderMap, nearest: Network) -> Result<Answer, OutboundError> {
        let host = host_of(url)?;
        if let Some(address) = literal(host) {
            self.policy.check(host, address, nearest)?;
        }
        let uri: Uri = url.as_str().parse().map_err(|_| OutboundError::NotHttp)?;
        let is_proxied = self.proxies.intercept(&uri).is_some();
        let client = if is_proxied {
            self.check_before_proxy(host, nearest).await?;
            get_or_build(&self.proxied, || self.options.build())?
        } else {
            self.direct_client(nearest)?
        };
        let sent = client.get(url.clone()).headers(headers.clone()).send().await;
        let response = match sent {
            Ok(response) => response,
            Err(error) => return Err(self.failed(host, error).await),
        };
        let network = match response.remote_addr() {
            Some(remote) if !is_proxied => self.policy.check(host, remote.ip(), nearest)?,
            _ => self.network_of(host).await,
        };
        Ok(Answer { response, network })
    }

    /// A proxy connects by itself, to an address that it finds by itself: what is known of the name here is checked.
    async fn check_before_proxy(&self, host: &str, nearest: Network) -> Result<(), OutboundError> {
        if literal(host).is_some() {
            return Ok(());
        }
        // Where a proxy is the only way out, names of the internet may be unknown here.
        let found = self.lookup.addresses(host).await.unwrap_or_default();
        lookup::allowed(&self.policy, host, &found, nearest)?;
        Ok(())
    }

    fn direct_client(&self, nearest: Network) -> Result<&Client, SetupError> {
        let [public, private, loopback, link_local] = &self.direct;
        let slot = match nearest {
            Network::Public => public,
            Network::Private => private,
            Network::Loopback => loopback,
            Network::LinkLocal => link_local,
        };
        get_or_build(slot, || {
            let resolver = GuardedResolver {
                policy: Arc::clone(&self.policy),
                lookup: Arc::clone(&self.lookup),
                nearest,
            };
            build(self.options.builder().no_proxy().dns_resolver(resolver))
        })
    }

    async fn failed(&self, host: &str, error: reqwest::Error) -> OutboundError {
        if let Some(refused) = find_cause::<Refused>(&error) {
            return OutboundError::Refused(refused.clone());
        }
        OutboundError::Failed {
            source: error.without_url(),
            network: self.network_of(host).await,
        }
    }
}

/// A request that is not sent yet.
#[derive(Debug)]
pub struct GuardedRequest<'a> {
    client: &'a GuardedClient,
    url: Url,
    headers: HeaderMap,
    nearest: Network,
    redirects: GuardedRedirects,
}

impl GuardedRequest<'_> {
    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Reaches nothing that is closer to this machine: where the answer came from that led to this address.
    #[must_use]
    pub const fn no_closer_than(mut self, network: Network) -> Self {
        self.nearest = network;
        self
    }

    /// Follows redirects, five at most, never from https to http. By default none are.
    #[must_use]
    pub const fn redirects(mut self, redirects: GuardedRedirects) -> Self {
        self.redirects = redirects;
        self
    }

    /// Sends the request, and follows redirects as far as they are allowed.
    ///
    /// # Errors
    /// It may not be sent there, or nobody answers.
    pub async fn send(self) -> Result<Answer, OutboundError> {
        let Self {
            client,
            mut url,
            mut headers,
            mut nearest,
            redirects,
        } = self;
        for _ in 0..=MAX_REDIRECTS {
            redirect::forget_user(&mut url);
            let answer = client.send(&url, &headers, nearest).await?;
            let Some(target) = redirect::target(&url, &answer.response, redirects)? else {
                return Ok(answer);
            };
            if !redirect::is_same_origin(&url, &target) {
                redirect::forget_credentials(&mut headers);
            }
            nearest = nearest.min(answer.network);
            url = target;
        }
        Err(OutboundError::Redirect("there are too many in a row"))
    }
}

/// The host of an address of HTTP.
fn host_of(url: &Url) -> Result<&str, OutboundError> {
    match (url.scheme(), url.host_str()) {
        ("http" | "https", Some(host)) => Ok(host),
        _ => Err(OutboundError::NotHttp),
    }
}

/// The address that a host is, if it is no name. The parser of URLs has turned `0x7f.1` and the like into `127.0.0.1`.
fn literal(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io;

    use lookup::Lookup;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Knows one name.
    #[derive(Debug)]
    struct InsideOnly;

    impl AddressLookup for InsideOnly {
        fn addresses(&self, host: &str) -> Lookup {
            let found = match host {
                "inside.corp" => Ok(vec!["10.0.0.1".parse().unwrap()]),
                _ => Err(io::Error::other("no such name")),
            };
            Box::pin(std::future::ready(found))
        }
    }

    /// A client behind a proxy at this address, which is on this machine.
    fn behind(proxy: &str) -> GuardedClient {
        let mut client = GuardedClient::with_lookup(
            OutboundPolicy::new(),
            ClientOptions::default(),
            Arc::new(InsideOnly),
        );
        client.proxies = Matcher::builder().http(proxy).build();
        let proxied = client.options.builder();
        let proxied = proxied.proxy(reqwest::Proxy::http(proxy).unwrap());
        client.proxied = OnceLock::from(build(proxied).unwrap());
        client
    }

    #[tokio::test]
    async fn a_proxy_is_reached_and_leads_to_what_is_not_known_to_be_inside() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = behind(&format!("http://{}", listener.local_addr().unwrap()));
        for inside in [
            "http://inside.corp/",
            "http://10.0.0.1/",
            "http://169.254.169.254/",
        ] {
            let refused = client.get(inside.parse().unwrap()).send().await;
            assert!(
                matches!(refused, Err(OutboundError::Refused(_))),
                "{inside}: {refused:?}"
            );
        }
        let proxy = async {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            let length = connection.read(&mut request).await.unwrap();
            let answer = b"HTTP/1.1 204 No Content\r\n\r\n";
            connection.write_all(answer).await.unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        };
        let sent = client.get("http://registry.example/v2/".parse().unwrap()).send();
        let (answer, request) = tokio::join!(sent, proxy);
        let answer = answer.unwrap();
        assert_eq!(
            (answer.response.status().as_u16(), answer.network),
            (204, Network::Public)
        );
        assert!(
            request.starts_with("GET http://registry.example/v2/ "),
            "{request}"
        );
    }
}
