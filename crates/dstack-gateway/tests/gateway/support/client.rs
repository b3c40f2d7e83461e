//! A client that says exactly what it is told to.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) async fn of(response: http::Response<Incoming>) -> Self {
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Self {
            status: head.status.as_u16(),
            headers: head.headers,
            body: String::from_utf8(body.to_vec()).unwrap(),
        }
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// Asks over a connection of its own.
pub(crate) async fn ask(address: SocketAddr, request: Request<String>) -> Answer {
    let stream = TcpStream::connect(address).await.unwrap();
    Answer::of(send(stream, request).await).await
}

/// Same, from this address of the machine.
pub(crate) async fn ask_from(from: [u8; 4], address: SocketAddr, request: Request<String>) -> Answer {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    let stream = socket.connect(address).await.unwrap();
    Answer::of(send(stream, request).await).await
}

/// The head of the answer, and its body as it comes.
pub(crate) async fn send<S>(stream: S, request: Request<String>) -> http::Response<Incoming>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    let request = request.map(|body| Full::new(Bytes::from(body)));
    sender.send_request(request).await.unwrap()
}

/// The next piece of a body.
pub(crate) async fn next_piece(body: &mut Incoming) -> Option<String> {
    let frame = super::soon(body.frame()).await?;
    Some(String::from_utf8(frame.unwrap().into_data().unwrap().to_vec()).unwrap())
}

/// A connection of HTTP/2.
pub(crate) struct Http2(hyper::client::conn::http2::SendRequest<Full<Bytes>>);

impl Http2 {
    pub(crate) async fn new<S>(stream: S) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let io = TokioIo::new(stream);
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await;
        let (sender, connection) = handshake.unwrap();
        tokio::spawn(connection);
        Self(sender)
    }

    /// The head of an answer, and its body as it comes.
    pub(crate) async fn send(&self, request: Request<String>) -> http::Response<Incoming> {
        let request = request.map(|body| Full::new(Bytes::from(body)));
        self.0.clone().send_request(request).await.unwrap()
    }
}

/// Agrees on keys with whoever shows a certificate of this host name, signed by `root`.
pub(crate) async fn tls(
    address: SocketAddr,
    host: &str,
    root: &str,
    protocols: &[&[u8]],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(root.as_bytes()).unwrap())
        .unwrap();
    let mut config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from(host.to_owned()).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}
