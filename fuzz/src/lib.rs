//! What the targets of the proxy share: services with replicas in memory, and models that answer what they are told to.

pub mod models;
pub mod requests;

use std::sync::Arc;
use std::time::Duration;

use dstack_agent_api::http::Connector;
use dstack_proxy::{Balancing, Paths, Replica, Service};
use dstack_units::{JobId, RunId};
use uuid::Uuid;

/// A service of project `main` with one replica.
fn service(number: u128, connector: Arc<dyn Connector>) -> Service {
    Service {
        run_id: RunId::new(Uuid::from_u128(number)),
        project: "main".to_owned(),
        run: format!("service-{number}"),
        created: 0,
        auth: false,
        strip_prefix: true,
        shares_origin: false,
        starts_on_request: false,
        split: None,
        paths: Paths::All,
        read_timeout: Duration::from_secs(60),
        model: None,
        balancing: Balancing::default(),
        replicas: vec![Arc::new(Replica::new(JobId::new(Uuid::from_u128(number)), connector))],
    }
}
