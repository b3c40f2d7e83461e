//! What an application load balancer of a region consists of, in the order in which it is made: each piece names the one before it.
//! None has labels, so their names say whose they are.

use dstack_compute::ComputeError;
use dstack_model::gateways::GatewayLoadBalancerData;
use dstack_units::path::GATEWAY_HEALTH_PATH;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::client::{full, plain};

/// Port of the machines of gateways that requests are passed on to.
const PORT: u16 = 80;

/// The name of [`PORT`], for the backend service.
const PORT_NAME: &str = "http";

/// How long requests have to end that a machine was at when it was taken out of the group, in seconds.
const DRAINING_SECONDS: u32 = 60;

/// How long one request may take, in seconds. Google's 30 would cut off long answers of models, and WebSockets.
const REQUEST_SECONDS: u32 = 24 * 60 * 60;

/// How links to certificates of Certificate Manager begin.
const CERTIFICATE_MANAGER: &str = "//certificatemanager.googleapis.com/";

/// A kind of pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece {
    /// The machines that requests go to: of one zone.
    Group,
    HealthCheck,
    BackendService,
    UrlMap,
    HttpProxy,
    HttpsProxy,
    /// It has the address.
    ForwardingRule,
}

impl Piece {
    /// All, in the order in which they are made. A load balancer has one of the proxies.
    pub(crate) const ALL: [Self; 7] = [
        Self::Group,
        Self::HealthCheck,
        Self::BackendService,
        Self::UrlMap,
        Self::HttpProxy,
        Self::HttpsProxy,
        Self::ForwardingRule,
    ];

    /// What it is, for people and in notes.
    pub(crate) const fn what(self) -> &'static str {
        match self {
            Self::Group => "instance group",
            Self::HealthCheck => "health check",
            Self::BackendService => "backend service",
            Self::UrlMap => "URL map",
            Self::HttpProxy => "HTTP proxy",
            Self::HttpsProxy => "HTTPS proxy",
            Self::ForwardingRule => "forwarding rule",
        }
    }

    /// What paths call all of its kind.
    pub(crate) const fn collection(self) -> &'static str {
        match self {
            Self::Group => "instanceGroups",
            Self::HealthCheck => "healthChecks",
            Self::BackendService => "backendServices",
            Self::UrlMap => "urlMaps",
            Self::HttpProxy => "targetHttpProxies",
            Self::HttpsProxy => "targetHttpsProxies",
            Self::ForwardingRule => "forwardingRules",
        }
    }
}

/// Where the pieces of a load balancer are.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BalancerSite {
    pub(crate) region: String,
    /// Of the group.
    pub(crate) zone: String,
}

impl BalancerSite {
    /// The path of the place of a piece, where its operations are too.
    pub(crate) fn scope(&self, piece: Piece) -> Result<String, ComputeError> {
        Ok(match piece {
            Piece::Group => format!("zones/{}", plain(&self.zone)?),
            _ => format!("regions/{}", plain(&self.region)?),
        })
    }

    /// The path of all pieces of a kind.
    pub(crate) fn collection(&self, piece: Piece) -> Result<String, ComputeError> {
        Ok(format!("{}/{}", self.scope(piece)?, piece.collection()))
    }

    pub(crate) fn path(&self, piece: Piece, name: &str) -> Result<String, ComputeError> {
        Ok(format!("{}/{}", self.collection(piece)?, plain(name)?))
    }
}

/// What a load balancer is made of.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) project: String,
    pub(crate) site: BalancerSite,
    /// Of all its pieces.
    pub(crate) name: String,
    pub(crate) is_public: bool,
    /// The full name of a certificate of Certificate Manager, or its link.
    pub(crate) certificate: Option<String>,
    /// `projects/...`.
    pub(crate) network: String,
    /// Of the address of a private one: `projects/...`.
    pub(crate) subnet: Option<String>,
}

impl Plan {
    /// Its pieces, in the order in which they are made.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Piece> {
        let other = match self.certificate {
            Some(_) => Piece::HttpProxy,
            None => Piece::HttpsProxy,
        };
        Piece::ALL.into_iter().filter(move |piece| *piece != other)
    }

    /// The proxy that it has, and the port at which clients reach it.
    const fn entry(&self) -> (Piece, &'static str) {
        match self.certificate {
            Some(_) => (Piece::HttpsProxy, "443"),
            None => (Piece::HttpProxy, "80"),
        }
    }

    fn link(&self, piece: Piece) -> Result<String, ComputeError> {
        Ok(full(&self.project, &self.site.path(piece, &self.name)?))
    }

    const fn scheme(&self) -> &'static str {
        match self.is_public {
            true => "EXTERNAL_MANAGED",
            false => "INTERNAL_MANAGED",
        }
    }

    /// The request for a piece.
    ///
    /// # Errors
    /// A name is none of Google's.
    pub(crate) fn body(&self, piece: Piece) -> Result<Value, ComputeError> {
        let name = &self.name;
        Ok(match piece {
            Piece::Group => json!({"name": name, "namedPorts": [{"name": PORT_NAME, "port": PORT}]}),
            Piece::HealthCheck => json!({
                "name": name,
                "type": "HTTP",
                "httpHealthCheck": {"port": PORT, "requestPath": GATEWAY_HEALTH_PATH},
            }),
            Piece::BackendService => json!({
                "name": name,
                "loadBalancingScheme": self.scheme(),
                "protocol": "HTTP",
                "portName": PORT_NAME,
                "timeoutSec": REQUEST_SECONDS,
                "healthChecks": [self.link(Piece::HealthCheck)?],
                "backends": [{
                    "group": self.link(Piece::Group)?,
                    "balancingMode": "UTILIZATION",
                    "capacityScaler": 1.0,
                }],
                "connectionDraining": {"drainingTimeoutSec": DRAINING_SECONDS},
            }),
            Piece::UrlMap => json!({"name": name, "defaultService": self.link(Piece::BackendService)?}),
            Piece::HttpProxy => json!({"name": name, "urlMap": self.link(Piece::UrlMap)?}),
            Piece::HttpsProxy => json!({
                "name": name,
                "urlMap": self.link(Piece::UrlMap)?,
                "sslCertificates": self.certificate.as_deref().map(certificate_link),
            }),
            Piece::ForwardingRule => self.rule()?,
        })
    }

    fn rule(&self) -> Result<Value, ComputeError> {
        let (proxy, port) = self.entry();
        let mut rule = json!({
            "name": self.name,
            "loadBalancingScheme": self.scheme(),
            "IPProtocol": "TCP",
            "portRange": port,
            "target": self.link(proxy)?,
            "network": self.network,
        });
        if let Some((fields, subnet)) = rule.as_object_mut().zip(self.subnet.as_deref()) {
            fields.insert("subnetwork".to_owned(), subnet.into());
        }
        Ok(rule)
    }

    /// What is stored of it.
    pub(crate) fn stored(&self) -> Stored {
        let name = || self.name.clone();
        let is_secure = self.certificate.is_some();
        Stored {
            zone: self.site.zone.clone(),
            instance_group_name: name(),
            health_check_name: name(),
            backend_service_name: name(),
            url_map_name: name(),
            target_http_proxy_name: (!is_secure).then(name),
            target_https_proxy_name: is_secure.then(name),
            forwarding_rule_name: name(),
        }
    }
}

/// The link of a certificate, of which users may also have the name only.
fn certificate_link(certificate: &str) -> [String; 1] {
    [match certificate.contains("//") {
        true => certificate.to_owned(),
        false => format!("{CERTIFICATE_MANAGER}{}", certificate.trim_start_matches('/')),
    }]
}

/// `backend_data` of a load balancer, as dstack 0.22.5 has it too.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stored {
    pub(crate) zone: String,
    instance_group_name: String,
    health_check_name: String,
    backend_service_name: String,
    url_map_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target_http_proxy_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target_https_proxy_name: Option<String>,
    forwarding_rule_name: String,
}

impl Stored {
    /// # Errors
    /// It is not of this form: nothing can be done with the load balancer.
    pub(crate) fn read(place: &GatewayLoadBalancerData) -> Result<Self, ComputeError> {
        serde_json::from_str(&place.backend_data).map_err(|error| {
            let text = format!("what is stored of the load balancer cannot be read: {error}");
            ComputeError::Broken(text)
        })
    }

    pub(crate) fn name_of(&self, piece: Piece) -> Option<&str> {
        match piece {
            Piece::Group => Some(&self.instance_group_name),
            Piece::HealthCheck => Some(&self.health_check_name),
            Piece::BackendService => Some(&self.backend_service_name),
            Piece::UrlMap => Some(&self.url_map_name),
            Piece::HttpProxy => self.target_http_proxy_name.as_deref(),
            Piece::HttpsProxy => self.target_https_proxy_name.as_deref(),
            Piece::ForwardingRule => Some(&self.forwarding_rule_name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_dstack_0_22_5_has_stored_is_read() {
        let stored = |proxies: Value| {
            let mut data = json!({"zone": "z-a", "instance_group_name": "dstack-1-ig", "health_check_name": "dstack-1-hc",
                "backend_service_name": "dstack-1-bs", "url_map_name": "dstack-1-um", "forwarding_rule_name": "dstack-1-fr"});
            data.as_object_mut()
                .unwrap()
                .extend(proxies.as_object().unwrap().clone());
            Stored::read(&GatewayLoadBalancerData {
                hostname: "203.0.113.1".to_owned(),
                backend_data: data.to_string(),
            })
        };
        let http = json!({"target_http_proxy_name": "dstack-1-proxy", "target_https_proxy_name": null});
        let http = stored(http).unwrap();
        let names: Vec<Option<&str>> = Piece::ALL.iter().map(|piece| http.name_of(*piece)).collect();
        let expected = ["ig", "hc", "bs", "um", "proxy", "", "fr"].map(|end| match end {
            "" => None,
            end => Some(format!("dstack-1-{end}")),
        });
        assert_eq!(names, expected.iter().map(Option::as_deref).collect::<Vec<_>>());
        let https = stored(json!({"target_https_proxy_name": "dstack-1-proxy"})).unwrap();
        assert_eq!(https.name_of(Piece::HttpsProxy), Some("dstack-1-proxy"));
        assert_eq!(https.name_of(Piece::HttpProxy), None);
        let error = stored(json!({"zone": 1})).unwrap_err();
        assert!(matches!(error, ComputeError::Broken(_)), "{error:?}");
    }

    #[test]
    fn certificates_have_links() {
        let name = "projects/p/locations/r/certificates/c";
        let link = format!("//certificatemanager.googleapis.com/{name}");
        let other = format!("https://certificatemanager.googleapis.com/v1/{name}");
        for (certificate, expected) in [(name, &link), (&link, &link), (&other, &other)] {
            assert_eq!(&certificate_link(certificate)[0], expected);
        }
    }
}
