//! Probes, sent over the connections that requests take.

use std::sync::Arc;

use dstack_model::runs::ProbeSpec;
use dstack_store::JobSnapshot;
use http::header::{HOST, USER_AGENT};
use http::{HeaderName, HeaderValue, Method, Request};
use http_body_util::Full;
use hyper::body::Bytes;

use super::Inner;

pub(super) async fn ask(inner: &Arc<Inner>, snapshot: &JobSnapshot, probe: &ProbeSpec) -> Result<(), String> {
    let job = &snapshot.job;
    let Some(port) = job.job_spec.service_port else {
        return Err("the job has no port".to_owned());
    };
    let address = snapshot.instance.as_ref().and_then(|row| row.agent.as_deref());
    let connector = inner.ports.connector(address, job, port);
    dstack_proxy::probe::ask(connector.as_ref(), request(probe)?)
        .await
        .map_err(|error| error.to_string())
}

/// The probe as it is sent: without a name of the host, as dstack 0.22.5 sends it to `localhost`.
fn request(probe: &ProbeSpec) -> Result<Request<Full<Bytes>>, String> {
    let method = Method::from_bytes(probe.method.as_str().to_ascii_uppercase().as_bytes());
    let method = method.map_err(|error| error.to_string())?;
    let body = probe.body.clone().unwrap_or_default();
    let mut request = Request::builder()
        .method(method)
        .uri(&probe.url)
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| format!("the probe's url {:?} is not one: {error}", probe.url))?;
    let headers = request.headers_mut();
    headers.insert(HOST, HeaderValue::from_static("localhost"));
    headers.insert(USER_AGENT, HeaderValue::from_static("dstack-probe"));
    for header in &probe.headers {
        let name = HeaderName::try_from(&header.name);
        let value = HeaderValue::try_from(&header.value);
        let (Ok(name), Ok(value)) = (name, value) else {
            return Err(format!("the probe's header {:?} is not one", header.name));
        };
        match name == HOST || name == USER_AGENT {
            true => drop(headers.insert(name, value)),
            false => drop(headers.append(name, value)),
        }
    }
    Ok(request)
}
