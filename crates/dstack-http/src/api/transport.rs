use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt as _;

use crate::{LazyClient, ServerTls};

/// Largest answer that is read. Lists of whole clouds are below.
const MAX_ANSWER: usize = 64 * 1024 * 1024;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransportError {
    /// The request never left this machine.
    NotSent(String),
    /// It may have arrived.
    Lost(String),
}

/// What came after the body of an answer, as the status of gRPC does: one of its extensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trailers(pub HeaderMap);

/// Carries requests to an API: over the network, or in tests to an emulator in the same process, under the same clock.
#[async_trait]
pub trait Transport: Send + Sync + Debug {
    /// Sends a request, and reads the whole answer, with its [`Trailers`] if it has some.
    ///
    /// # Errors
    /// There is none.
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, TransportError>;

    /// One for servers that are trusted otherwise than those of vendors; `None`: this one does, as it has no TLS.
    fn with_tls(&self, _tls: &ServerTls) -> Option<Arc<dyn Transport>> {
        None
    }
}

#[async_trait]
impl Transport for LazyClient {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, TransportError> {
        let client = self
            .get()
            .map_err(|error| TransportError::NotSent(error.to_string()))?;
        let request =
            reqwest::Request::try_from(request).map_err(|error| TransportError::NotSent(texts(&error)))?;
        let answer = client.execute(request).await.map_err(|error| {
            match error.is_connect() || error.is_builder() {
                true => TransportError::NotSent(texts(&error)),
                false => TransportError::Lost(texts(&error)),
            }
        })?;
        let (parts, mut coming) = Response::<reqwest::Body>::from(answer).into_parts();
        let mut whole = Response::new(Bytes::new());
        *whole.status_mut() = parts.status;
        *whole.headers_mut() = parts.headers;
        let mut body = Vec::new();
        while let Some(frame) = coming.frame().await {
            let frame = frame.map_err(|error| TransportError::Lost(texts(&error)))?;
            let piece = match frame.into_data() {
                Ok(piece) => piece,
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        whole.extensions_mut().insert(Trailers(trailers));
                    }
                    continue;
                }
            };
            if body.len() + piece.len() > MAX_ANSWER {
                let megabytes = MAX_ANSWER / (1024 * 1024);
                return Err(TransportError::Lost(format!(
                    "the answer has more than {megabytes} MB"
                )));
            }
            body.extend_from_slice(&piece);
        }
        *whole.body_mut() = body.into();
        Ok(whole)
    }

    fn with_tls(&self, tls: &ServerTls) -> Option<Arc<dyn Transport>> {
        Some(Arc::new(Self::with_tls(self, tls.clone())))
    }
}

/// The error and its causes, without the address, which may hold keys.
fn texts(error: &reqwest::Error) -> String {
    dstack_system::causes(error)
        .map(|cause| match cause.downcast_ref::<reqwest::Error>() {
            Some(own) => match () {
                () if own.is_timeout() => "it took too long".to_owned(),
                () if own.is_connect() => "no connection".to_owned(),
                () => "the connection broke".to_owned(),
            },
            None => cause.to_string(),
        })
        .collect::<Vec<_>>()
        .join(": ")
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::Router;
    use axum::body::Body;
    use futures_util::stream;
    use http::{HeaderName, HeaderValue, Version};
    use http_body_util::StreamBody;
    use hyper::body::{Frame, Incoming};
    use hyper::server::conn::http2;
    use hyper::service::service_fn;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use rustls::ServerConfig;
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;

    #[tokio::test]
    async fn what_comes_after_the_body_is_read() {
        let trailers = HeaderMap::from_iter([(
            HeaderName::from_static("grpc-status"),
            HeaderValue::from_static("5"),
        )]);
        let sent = trailers.clone();
        let answer = async move || {
            let frames = [Frame::data(Bytes::from_static(b"body")), Frame::trailers(sent)];
            let body = StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>)));
            let answer = Response::builder().header("trailer", "grpc-status");
            answer.body(Body::new(body)).unwrap()
        };
        let router = Router::new().fallback(answer);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        dstack_system::task::spawn(
            "server",
            async move { axum::serve(listener, router).await.unwrap() },
        );
        let ask = async |te: &str| {
            let request = Request::get(&url).header("te", te).body(Bytes::new()).unwrap();
            Transport::send(&LazyClient::default(), request).await.unwrap()
        };
        let answer = ask("trailers").await;
        assert_eq!(answer.body(), "body");
        assert_eq!(answer.extensions().get(), Some(&Trailers(trailers)));
        let answer = ask("").await;
        assert_eq!(answer.body(), "body");
        assert_eq!(answer.extensions().get::<Trailers>(), None);
    }

    /// As gRPC needs it: HTTP/2 is agreed upon with TLS.
    #[tokio::test]
    async fn what_comes_after_the_body_is_read_over_http2() {
        crate::install_crypto();
        let (certificate, key) = (
            CertificateDer::from_pem_slice(include_bytes!("../server_tls/certificate.pem")).unwrap(),
            PrivateKeyDer::from_pem_slice(include_bytes!("../server_tls/key.pem")).unwrap(),
        );
        let config = ServerConfig::builder().with_no_client_auth();
        let mut config = config.with_single_cert(vec![certificate], key).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://localhost:{}/", listener.local_addr().unwrap().port());
        dstack_system::task::spawn("server", async move {
            let (socket, _) = listener.accept().await.unwrap();
            let stream = TlsAcceptor::from(Arc::new(config)).accept(socket).await.unwrap();
            let answer = async |request: Request<Incoming>| {
                assert_eq!(request.version(), Version::HTTP_2);
                let told = request.headers()["te"].clone();
                let trailers = HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), told)]);
                let frames = [
                    Frame::data(Bytes::from_static(b"body")),
                    Frame::trailers(trailers),
                ];
                let body = StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>)));
                Ok::<_, Infallible>(Response::new(body))
            };
            let server = http2::Builder::new(TokioExecutor::new());
            server
                .serve_connection(TokioIo::new(stream), service_fn(answer))
                .await
                .unwrap();
        });
        let roots = include_bytes!("../server_tls/authority.pem");
        let tls = ServerTls::default().with_roots(roots).unwrap();
        let transport = Transport::with_tls(&LazyClient::default(), &tls).unwrap();
        let request = Request::post(&url).header("te", "trailers");
        let answer = transport
            .send(request.body(Bytes::from_static(b"asked")).unwrap())
            .await
            .unwrap();
        assert_eq!(answer.body(), "body");
        let Trailers(trailers) = answer.extensions().get().unwrap();
        assert_eq!(trailers["grpc-status"], "trailers");
    }
}
