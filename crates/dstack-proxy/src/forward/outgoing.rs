//! A client's request as it is sent to replicas.

use http::header::{self, HeaderName};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, Version};
use http_body_util::BodyExt;
use hyper::body::Body;
use hyper::upgrade::OnUpgrade;

use super::framing::{Framing, Unclear, framing, one_host};
use super::headers::{has_word, to_replica, trailers_to_replica};
use crate::body::{ProxyBody, RequestBody, Sendable};
use crate::client::Client;

/// A request that can be sent several times.
#[derive(Debug)]
pub(crate) struct Outgoing {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    pub(crate) body: Sendable,
    /// The client's side of the connection, if it asks for a WebSocket.
    pub(crate) upgrade: Option<OnUpgrade>,
}

impl Outgoing {
    /// # Errors
    /// It is not to be passed on: where it ends or whom it is for is unclear.
    pub(crate) fn new(request: Request<ProxyBody>) -> Result<Self, Unclear> {
        let (mut parts, body) = request.into_parts();
        if parts.method == Method::CONNECT {
            return Err(Unclear(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed"));
        }
        one_host(&parts.headers)?;
        take_host(&mut parts.headers, &parts.uri);
        let framing = body_framing(framing(parts.version, &parts.headers)?, &body);
        let key = handshake(&parts.method, parts.version, &parts.headers);
        let upgrade = parts.extensions.remove().filter(|_| key);
        if upgrade.is_some() && !body.is_end_stream() {
            return Err(Unclear(
                StatusCode::BAD_REQUEST,
                "A WebSocket handshake has no body",
            ));
        }
        let client = parts.extensions.get::<Client>();
        // Without an announcement they are not sent on.
        let body = match parts.headers.contains_key(header::TRAILER) {
            true => with_clean_trailers(body, client.is_some_and(|client| client.trusted)),
            false => body,
        };
        to_replica(&mut parts.headers, framing, client);
        if upgrade.is_some() {
            ask_for_websocket(&mut parts.headers);
        }
        Ok(Self {
            method: parts.method,
            uri: origin(parts.uri),
            headers: parts.headers,
            body: Sendable::new(body),
            upgrade,
        })
    }

    /// Its headers, until it is sent.
    pub(crate) const fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// A replica that gets it twice does what it does once.
    pub(crate) fn is_idempotent(&self) -> bool {
        self.method.is_idempotent()
    }

    /// The request for the next attempt. Whoever does not `keep` it has to give it back before the one after.
    pub(crate) fn attempt(&mut self, keep: bool) -> Request<RequestBody> {
        let mut request = Request::new(self.body.attempt());
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = match keep {
            true => self.headers.clone(),
            false => std::mem::take(&mut self.headers),
        };
        request
    }

    /// Takes a request back that was not sent.
    pub(crate) fn take_back(&mut self, request: Request<RequestBody>) {
        self.headers = request.into_parts().0.headers;
    }
}

fn with_clean_trailers(body: ProxyBody, trusted: bool) -> ProxyBody {
    body.map_frame(move |mut frame| {
        if let Some(trailers) = frame.trailers_mut() {
            trailers_to_replica(trailers, trusted);
        }
        frame
    })
    .boxed_unsync()
}

/// How long the body is: what it says itself counts more than the headers, since it may be another one by now.
fn body_framing(of_headers: Framing, body: &ProxyBody) -> Framing {
    match (of_headers, body.size_hint().exact()) {
        (Framing::Chunked | Framing::Unsaid, Some(0)) => Framing::Unsaid,
        (Framing::Chunked, _) | (Framing::Unsaid, None) => Framing::Chunked,
        (_, Some(length)) => Framing::Length(length),
        (length, None) => length,
    }
}

/// The host that stands in the URI counts, and not the header.
fn take_host(headers: &mut HeaderMap, uri: &Uri) {
    let authority = uri
        .authority()
        .map(|authority| HeaderValue::from_str(authority.as_str()));
    if let Some(Ok(host)) = authority {
        headers.insert(header::HOST, host);
    }
}

/// Path and query as they came, without scheme and host.
fn origin(uri: Uri) -> Uri {
    if uri.authority().is_none() && uri.path_and_query().is_some() {
        return uri;
    }
    let path = uri.into_parts().path_and_query;
    Uri::from(path.unwrap_or(PathAndQuery::from_static("/")))
}

/// Whether a request asks for a WebSocket as it should.
fn handshake(method: &Method, version: Version, headers: &HeaderMap) -> bool {
    *method == Method::GET
        && version == Version::HTTP_11
        && headers.contains_key(header::SEC_WEBSOCKET_KEY)
        && is_upgrade_to(headers, "websocket")
}

/// Whether the connection is to speak another protocol, which is this one.
pub(crate) fn is_upgrade_to(headers: &HeaderMap, protocol: &str) -> bool {
    const UPGRADE: &str = "upgrade";
    has_word(headers, &header::CONNECTION, UPGRADE) && has_word(headers, &header::UPGRADE, protocol)
}

/// Says anew that the connection is to become a WebSocket: what was said of the connection to the client is gone.
pub(crate) fn ask_for_websocket(headers: &mut HeaderMap) {
    let line = |name: HeaderName, value| (name, HeaderValue::from_static(value));
    headers.extend([
        line(header::CONNECTION, "upgrade"),
        line(header::UPGRADE, "websocket"),
    ]);
}
