//! Models whose API is that of OpenAI: requests and answers are passed on as they are.

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, Method, Request, Response, Uri};
use serde_json::{Map, Value};

use super::Call;
use super::failure::Failure;
use super::headers;
use super::json::{json_response, read_text};
use super::usage::Meter;
use super::watched::watched;
use crate::body::{ProxyBody, full};
use crate::media_type::is_of_type;
use crate::routes::{ChatFormat, Service};

/// What the service is asked.
///
/// # Errors
/// The prefix of its model is no path.
pub(super) fn request(service: &Service, call: &Call<'_>) -> Result<Request<ProxyBody>, Failure> {
    let format = service.model.as_ref().map(|model| &model.format);
    let prefix = match format {
        Some(ChatFormat::OpenAi { prefix }) => prefix.trim_matches('/'),
        _ => "",
    };
    let path = match prefix {
        "" => call.endpoint.path().to_owned(),
        prefix => format!("/{prefix}{}", call.endpoint.path()),
    };
    let uri: Uri = path.parse().map_err(|_| {
        Failure::upstream(format!(
            "The prefix of the model in run {} is no path",
            service.run
        ))
    })?;
    Ok(post(uri, call.headers, call.body.clone()))
}

/// A request with a JSON body, and those of the client's headers that a model gets.
pub(super) fn post(uri: Uri, client: &HeaderMap, body: Bytes) -> Request<ProxyBody> {
    let headers = headers::for_model(client, body.len());
    let mut request = Request::new(full(body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    request
}

/// What the client gets: errors that are no JSON are put into it, everything else is the model's own.
pub(super) async fn answer(response: Response<ProxyBody>, meter: Meter) -> Response<ProxyBody> {
    let (mut head, body) = response.into_parts();
    if is_error(&head) && !is_of_type(&head.headers, "application/json") {
        return in_json(head, body).await;
    }
    headers::for_client(&mut head.headers);
    let is_events = is_of_type(&head.headers, "text/event-stream");
    Response::from_parts(head, watched(body, meter, is_events))
}

fn is_error(head: &Parts) -> bool {
    head.status.is_client_error() || head.status.is_server_error()
}

/// An error whose type does not say JSON. Some are JSON all the same.
async fn in_json(head: Parts, body: ProxyBody) -> Response<ProxyBody> {
    let text = read_text(body).await;
    let headers = headers::of_error(head.headers);
    if let Ok(error) = serde_json::from_str::<Map<String, Value>>(&text) {
        let mut response = json_response(head.status, &Value::Object(error));
        response.headers_mut().extend(headers);
        return response;
    }
    let message = match text.trim() {
        "" => format!("The model answered {}", head.status),
        text => text.to_owned(),
    };
    Failure::of_model(head.status, None, message)
        .with_headers(headers)
        .into_response()
}
