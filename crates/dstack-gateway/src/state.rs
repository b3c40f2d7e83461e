//! All that is registered at this gateway, as one value: whoever changes it makes the next value of it.
//!
//! * [`record`] — services and their replicas, as the server tells of them.
//! * [`store`] — the file that holds the value.
//! * [`import`] — the file of a gateway of dstack 0.22.5.

pub mod import;
pub mod record;
pub mod store;

use std::collections::BTreeMap;
use std::sync::Arc;

use dstack_system::Secret;
use serde::{Deserialize, Serialize};

pub use record::{
    BalancingRecord, ModelFormat, ModelRecord, RateKey, RateLimitRecord, ReplicaRecord, ServiceRecord, SshHop,
};

/// All that is registered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Where certificates are ordered.
    #[serde(default)]
    pub acme: AcmeSettings,
    /// By name.
    #[serde(default)]
    pub projects: BTreeMap<String, Project>,
}

/// What is registered of a project.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Project {
    /// Opens the SSH servers of its replicas.
    #[serde(default)]
    pub ssh_private_key: Secret,
    /// By run.
    #[serde(default)]
    pub services: BTreeMap<String, Arc<ServiceRecord>>,
    /// Where its models are asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<Entrypoint>,
}

impl Project {
    /// Nothing of it is registered.
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && self.entrypoint.is_none()
    }
}

/// A host name at which the models of a project are asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entrypoint {
    /// Host name.
    pub domain: String,
    /// Over TLS, with a certificate of this gateway.
    pub https: bool,
    /// As long as a model may be silent, in seconds.
    #[serde(default = "record::default_read_timeout")]
    pub read_timeout: u64,
}

/// Where certificates are ordered; nothing: where the gateway's options say.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcmeSettings {
    /// URL of the directory of the certificate authority.
    #[serde(default, alias = "acme_server")]
    pub server: Option<String>,
    /// Which account of the authority's users an account of ours belongs to.
    #[serde(default, alias = "acme_eab_kid")]
    pub eab_kid: Option<String>,
    /// What proves that, in URL-safe Base64.
    #[serde(default, alias = "acme_eab_hmac_key")]
    pub eab_hmac_key: Option<Secret>,
}

impl State {
    /// The service of a run.
    pub fn service(&self, project: &str, run: &str) -> Option<&Arc<ServiceRecord>> {
        self.projects.get(project)?.services.get(run)
    }

    /// All services with the names of their projects and runs.
    pub fn services(&self) -> impl Iterator<Item = (&str, &str, &Arc<ServiceRecord>)> {
        self.projects.iter().flat_map(|(project, of_project)| {
            let services = of_project.services.iter();
            services.map(move |(run, service)| (project.as_str(), run.as_str(), service))
        })
    }

    /// All entrypoints with the names of their projects.
    pub fn entrypoints(&self) -> impl Iterator<Item = (&str, &Entrypoint)> {
        let of = |(project, of_project)| -> Option<(&str, &Entrypoint)> {
            let (project, of_project): (&String, &Project) = (project, of_project);
            Some((project.as_str(), of_project.entrypoint.as_ref()?))
        };
        self.projects.iter().filter_map(of)
    }

    /// Whether a service or an entrypoint has this host name.
    pub fn has_domain(&self, domain: &str) -> bool {
        let mut entrypoints = self.entrypoints();
        self.has_service_at(domain) || entrypoints.any(|(_, entrypoint)| entrypoint.domain == domain)
    }

    /// Whether a service has this host name.
    pub fn has_service_at(&self, domain: &str) -> bool {
        self.services().any(|(_, _, service)| service.domain == domain)
    }

    /// No project has its models at this host name any more.
    pub fn remove_entrypoint(&mut self, domain: &str) {
        for project in self.projects.values_mut() {
            project
                .entrypoint
                .take_if(|entrypoint| entrypoint.domain == domain);
        }
        self.remove_empty_projects();
    }

    /// Of a project of which nothing is registered no key is kept.
    pub fn remove_empty_projects(&mut self) {
        self.projects.retain(|_, project| !project.is_empty());
    }

    /// The host names that need a certificate.
    pub fn https_domains(&self) -> impl Iterator<Item = &str> {
        let services = self.services().filter(|(_, _, service)| service.https);
        let entrypoints = self.entrypoints().filter(|(_, entrypoint)| entrypoint.https);
        let of_services = services.map(|(_, _, service)| service.domain.as_str());
        of_services.chain(entrypoints.map(|(_, entrypoint)| entrypoint.domain.as_str()))
    }
}
