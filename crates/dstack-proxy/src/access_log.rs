//! A line of the log for each request to a service, for those who ask for it.

use std::net::IpAddr;
use std::time::Duration;

use dstack_units::JobId;
use http::{Extensions, Method, Uri};

use crate::client::Client;
use crate::routes::Service;

/// Where these lines belong to, by which they are let through or left out.
pub const TARGET: &str = "dstack::access";

/// Bytes of a path that are shown.
const MAX_PATH: usize = 1024;

/// A request of which a line is written when it is over.
#[derive(Debug)]
pub(crate) struct Access {
    project: String,
    run: String,
    method: Method,
    path: String,
    client: Option<IpAddr>,
    /// The job that answers; `None`: no replica has.
    pub(crate) replica: Option<JobId>,
}

impl Access {
    /// `uri`: as the replica gets it. What follows the path may be secret, and is not shown.
    pub(crate) fn new(service: &Service, method: &Method, uri: &Uri, extensions: &Extensions) -> Self {
        let path = uri.path();
        let end = path.floor_char_boundary(MAX_PATH.min(path.len()));
        Self {
            project: service.project.clone(),
            run: service.run.clone(),
            method: method.clone(),
            path: path.get(..end).unwrap_or_default().to_owned(),
            client: extensions.get::<Client>().map(|client| client.address),
            replica: None,
        }
    }

    /// `head`: until the answer began, `total`: until it was over.
    pub(crate) fn write(&self, status: u16, head: Duration, total: Duration) {
        tracing::info!(
            target: TARGET,
            {
                project.name = self.project,
                run.name = self.run,
                job.id = self.replica.map(tracing::field::display),
                http.method = %self.method,
                http.path = self.path,
                http.status = status,
                client.address = self.client.map(tracing::field::display),
                head_ms = millis(head),
                duration_ms = millis(total),
            },
            "request to a service"
        );
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
