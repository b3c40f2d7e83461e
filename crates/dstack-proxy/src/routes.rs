//! Which services there are, and where their replicas are. A value: whoever passes requests on takes the present one, and
//! whoever knows of a change swaps it for the next.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dstack_units::{JobId, RunId};

use crate::replica::Replica;
use crate::split::Split;

/// A service that requests are passed on to.
#[derive(Debug, Clone)]
pub struct Service {
    /// Id of the run that it is.
    pub run_id: RunId,
    /// Name of its project.
    pub project: String,
    /// Name of its run.
    pub run: String,
    /// When its run was submitted, in seconds since 1970.
    pub created: i64,
    /// Requests need a token of a member of the project.
    pub auth: bool,
    /// Paths are passed on without what names the service.
    pub strip_prefix: bool,
    /// It is reached below a path of an address that is not its own: what it says of the whole address is not passed on.
    pub shares_origin: bool,
    /// Which paths are passed on.
    pub paths: Paths,
    /// As long as a replica may be silent: before its answer, and between two pieces of it, while it is not given pieces of the
    /// request. Of a WebSocket, as long as both sides may be.
    pub read_timeout: Duration,
    /// The model that it serves.
    pub model: Option<Model>,
    /// Which of its replicas gets a request.
    pub balancing: Balancing,
    /// It may have no replicas until requests come: those wait for one, and the service stays known without any.
    pub starts_on_request: bool,
    /// How its requests are split while a new deployment stands beside the old one.
    pub split: Option<Arc<Split>>,
    /// Where it answers.
    pub replicas: Vec<Arc<Replica>>,
}

impl Service {
    /// Whether there is a replica that gets requests, or that starts when some come.
    pub(crate) fn can_answer(&self) -> bool {
        self.starts_on_request || self.has_replicas()
    }

    /// Whether there is a replica that gets requests.
    pub fn has_replicas(&self) -> bool {
        self.replicas.iter().any(|replica| !replica.is_retired())
    }
}

/// Which replica of a service gets a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Balancing {
    /// The less busy one of two chosen at random.
    #[default]
    LeastRequests,
    /// The one that has seen most of the beginning of the prompt, unless it is too busy.
    Prefix,
}

/// Which paths of a service are passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paths {
    /// Any path.
    All,
    /// Those of a model behind a router: `/generate`, `/chat/completions` and all below `/v1/`.
    OfRouter,
}

/// A model of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// As clients name it.
    pub name: String,
    /// What its API looks like.
    pub format: ChatFormat,
}

/// How a model is asked for the next message of a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChatFormat {
    /// The API of OpenAI.
    OpenAi {
        /// Path before `/chat/completions`.
        prefix: String,
    },
    /// The API of Text Generation Inference.
    Tgi {
        /// Jinja template that makes a prompt of messages.
        chat_template: String,
        /// The token that ends a text.
        eos_token: String,
    },
}

/// All services, by project and run.
#[derive(Debug, Default, Clone)]
pub struct Routes {
    services: HashMap<String, HashMap<String, Arc<Service>>>,
}

impl Routes {
    /// The service of a run.
    pub fn service(&self, project: &str, run: &str) -> Option<&Arc<Service>> {
        self.services.get(project)?.get(run)
    }

    /// The services of a project, in no order.
    pub fn of_project(&self, project: &str) -> impl Iterator<Item = &Arc<Service>> {
        self.services.get(project).into_iter().flat_map(HashMap::values)
    }

    /// All services, in no order.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.services.values().flat_map(HashMap::values)
    }

    /// With this service in the place of that of the same run, whatever its names were.
    #[must_use]
    pub fn with(mut self, service: Service) -> Self {
        self = self.without(service.run_id);
        let of_project = self.services.entry(service.project.clone()).or_default();
        of_project.insert(service.run.clone(), Arc::new(service));
        self
    }

    /// Without this replica, and without its service if it was the last and does not start on requests.
    #[must_use]
    pub fn without_replica(&self, id: JobId) -> Self {
        let is_of = |service: &&Arc<Service>| service.replicas.iter().any(|replica| replica.id == id);
        let Some(service) = self.all().find(is_of) else {
            return self.clone();
        };
        let mut service = Service::clone(service);
        service.replicas.retain(|replica| replica.id != id);
        match service.replicas.is_empty() && !service.starts_on_request {
            true => self.clone().without(service.run_id),
            false => self.clone().with(service),
        }
    }

    /// Without the service of this run.
    #[must_use]
    pub fn without(mut self, run: RunId) -> Self {
        for services in self.services.values_mut() {
            services.retain(|_, service| service.run_id != run);
        }
        self.services.retain(|_, services| !services.is_empty());
        self
    }
}
