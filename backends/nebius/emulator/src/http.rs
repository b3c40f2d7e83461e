//! gRPC over HTTP ("gRPC over HTTP2", grpc/grpc): a refusal has its status in the headers, an answer in the trailers.

use std::convert::Infallible;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use bytes::Bytes;
use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::Frame;
use serde_json::Value;

use crate::codec::{decode, encode};
use crate::{Nebius, Refusal};

pub(crate) fn router(cloud: Nebius) -> Router {
    Router::new().fallback(serve).with_state(cloud)
}

async fn serve(
    State(cloud): State<Nebius>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let is_grpc = header("content-type").is_some_and(|kind| kind.starts_with("application/grpc"));
    if method != Method::POST || !is_grpc || header("te") != Some("trailers") {
        return StatusCode::UNSUPPORTED_MEDIA_TYPE.into_response();
    }
    cloud.settle();
    let answered = answer(&cloud, uri.path(), &body, &header);
    cloud.settle();
    match answered {
        Ok((message, odd)) => {
            let mut frame = vec![0];
            frame.extend_from_slice(&((odd.len() + message.len()) as u32).to_be_bytes());
            frame.extend_from_slice(&odd);
            frame.extend_from_slice(&message);
            let status = (
                HeaderName::from_static("grpc-status"),
                HeaderValue::from_static("0"),
            );
            let frames = [
                Frame::data(Bytes::from(frame)),
                Frame::trailers(HeaderMap::from_iter([status])),
            ];
            let body = StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>)));
            let answer = Response::builder()
                .header("content-type", "application/grpc")
                .header("trailer", "grpc-status");
            answer.body(Body::new(body)).unwrap()
        }
        Err(refusal) => {
            let text = |text: &str| HeaderValue::from_str(text).unwrap();
            let mut status = HeaderMap::new();
            status.insert("grpc-status", refusal.code.into());
            status.insert("grpc-message", text(&percent_encoded(&refusal.message)));
            if refusal.service != Value::Null {
                let details = encode("Status", &refusal.to_status());
                let details = BASE64_STANDARD_NO_PAD.encode(details);
                status.insert("grpc-status-details-bin", text(&details));
            }
            let mut answer = Response::builder().header("content-type", "application/grpc");
            if refusal.is_trailing {
                let frames = stream::iter([Ok::<_, Infallible>(Frame::trailers(status))]);
                return answer.body(Body::new(StreamBody::new(frames))).unwrap();
            }
            if let Some(headers) = answer.headers_mut() {
                headers.extend(status);
            }
            answer.body(Body::empty()).unwrap()
        }
    }
}

/// The answer, and what is put before it.
fn answer<'h>(
    cloud: &Nebius,
    path: &str,
    body: &[u8],
    header: &impl Fn(&str) -> Option<&'h str>,
) -> Result<(Vec<u8>, Vec<u8>), Refusal> {
    let unknown = || Refusal::new(12, &format!("there is no method {path}"), Value::Null);
    let (service, method) = path.trim_start_matches('/').split_once('/').ok_or_else(unknown)?;
    let (takes, gives) = Nebius::method(service, method).ok_or_else(unknown)?;
    if !service.ends_with(".TokenExchangeService") && !cloud.is_authorized(header("authorization")) {
        return Err(Refusal::new(16, "the token is not valid", Value::Null));
    }
    let bad = |why: &str| Refusal::new(3, why, Value::Null);
    let (frame, message) = body
        .split_first_chunk::<5>()
        .ok_or_else(|| bad("there is no message"))?;
    let [is_compressed, length @ ..] = *frame;
    if is_compressed != 0 || u32::from_be_bytes(length) as usize != message.len() {
        return Err(bad("the message is not framed"));
    }
    let asked = decode(&takes, message).map_err(|why| bad(&why))?;
    let key = matches!(method, "Create" | "Delete").then(|| header("x-idempotency-key"));
    let told = cloud.answer(service, method, &asked, key.flatten())?;
    // An entry whose metadata is cut off.
    let is_odd = method == "List" && cloud.lock().is_odd;
    let odd = if is_odd {
        b"\x0a\x02\x0a\x05".to_vec()
    } else {
        Vec::new()
    };
    Ok((encode(&gives, &told), odd))
}

fn percent_encoded(text: &str) -> String {
    let encoded = text.bytes().map(|byte| match byte {
        b'%' | 0..=0x1f | 0x7f.. => format!("%{byte:02X}"),
        _ => char::from(byte).to_string(),
    });
    encoded.collect()
}
