//! One call of gRPC to a replica, over a connection of its own without TLS ("gRPC over HTTP2", grpc/grpc): a message behind five bytes
//! each way, and a status after it or in its place.

use bytes::{BufMut as _, Bytes, BytesMut};
use dstack_agent_api::http::Connector;
use dstack_system::{chain, task};
use http::header::{CONTENT_TYPE, TE, USER_AGENT};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use percent_encoding::percent_decode_str;
use tokio_util::task::AbortOnDropHandle;

/// Bytes before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// Most bytes of the head of an answer.
const MAX_HEAD: u32 = 64 * 1024;
/// As much of the text of a status as is shown, in characters.
const MAX_SHOWN: usize = 200;

/// Why a call brought no message; the text is for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrpcError {
    /// It is not reached, what it says is no gRPC, or the answer breaks off.
    #[error("{0}")]
    NoAnswer(String),
    /// The answer has more bytes than were wanted.
    #[error("the answer has more than {0} bytes")]
    TooLarge(usize),
    /// The replica says that it did not do it.
    #[error("status {code}: {message}")]
    Status {
        /// Its number ("Status codes and their use in gRPC").
        code: i32,
        /// In its own words.
        message: String,
    },
}

impl GrpcError {
    fn no_answer(error: &(dyn std::error::Error + 'static)) -> Self {
        Self::NoAnswer(chain(error).to_string())
    }
}

/// Calls a method, by its path `/package.Service/Method`, with a message and for one of at most so many bytes. Whoever calls sets a time
/// limit, and drops it then.
///
/// # Errors
/// There is no message: the replica is not reached, says no, or says more.
pub async fn call(
    connector: &dyn Connector,
    path: &str,
    message: &[u8],
    max_bytes: usize,
) -> Result<Bytes, GrpcError> {
    let stream = connector.connect().await;
    let stream = stream.map_err(|error| GrpcError::no_answer(&error))?;
    let opened = http2::Builder::new(TokioExecutor::new())
        .max_header_list_size(MAX_HEAD)
        .handshake(TokioIo::new(stream))
        .await;
    let (mut sender, connection) = opened.map_err(|error| GrpcError::no_answer(&error))?;
    let _connection = AbortOnDropHandle::new(task::spawn("call to a replica", async move {
        connection.await.ok(); // the call fails as well, and says why
    }));
    let request = request(path, message).map_err(|error| GrpcError::no_answer(&error))?;
    let answer = sender.send_request(request).await;
    let (head, body) = answer.map_err(|error| GrpcError::no_answer(&error))?.into_parts();
    if head.status != StatusCode::OK {
        return Err(GrpcError::NoAnswer(format!("the answer is {}", head.status)));
    }
    check_status(&head.headers)?;
    let body = Limited::new(body, max_bytes.saturating_add(PREFIX))
        .collect()
        .await;
    let body = body.map_err(|error| match error.is::<LengthLimitError>() {
        true => GrpcError::TooLarge(max_bytes),
        false => GrpcError::no_answer(error.as_ref()),
    })?;
    if let Some(trailers) = body.trailers() {
        check_status(trailers)?;
    }
    unframed(body.to_bytes())
}

fn request(path: &str, message: &[u8]) -> Result<Request<Full<Bytes>>, http::Error> {
    let mut frame = BytesMut::with_capacity(PREFIX + message.len());
    frame.put_u8(0); // not compressed
    frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frame.put_slice(message);
    Request::post(format!("http://localhost{path}"))
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers")
        .header(USER_AGENT, "dstack-server")
        .body(Full::new(frame.freeze()))
}

/// The status, if it is there.
fn check_status(headers: &HeaderMap) -> Result<(), GrpcError> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    match text("grpc-status").map(str::parse) {
        None | Some(Ok(0)) => Ok(()),
        Some(Ok(code)) => {
            let message = percent_decode_str(text("grpc-message").unwrap_or_default()).decode_utf8_lossy();
            let line = message
                .chars()
                .map(|letter| if letter.is_control() { ' ' } else { letter });
            Err(GrpcError::Status {
                code,
                message: line.take(MAX_SHOWN).collect(),
            })
        }
        Some(Err(_)) => Err(GrpcError::NoAnswer("its status is no number".to_owned())),
    }
}

/// The one message of a body, not compressed.
fn unframed(mut body: Bytes) -> Result<Bytes, GrpcError> {
    let broken = || GrpcError::NoAnswer("the answer is no message of gRPC".to_owned());
    let [compressed, length @ ..] = *body.first_chunk::<PREFIX>().ok_or_else(broken)?;
    let length = usize::try_from(u32::from_be_bytes(length)).map_err(|_| broken())?;
    let message = body.split_off(PREFIX);
    match compressed == 0 && message.len() == length {
        true => Ok(message),
        false => Err(broken()),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::io;

    use async_trait::async_trait;
    use dstack_agent_api::http::Wire;
    use http::{HeaderValue, Response};
    use http_body_util::StreamBody;
    use hyper::body::{Frame, Incoming};
    use hyper::server::conn::http2 as server;
    use hyper::service::service_fn;

    use super::*;

    /// A replica that answers each call with this body and this status after it.
    #[derive(Debug, Clone, Copy)]
    struct Answers {
        body: &'static [u8],
        status: Option<&'static str>,
    }

    type Frames = futures_util::stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>;

    impl Answers {
        fn answer(self, request: &Request<Incoming>) -> Response<StreamBody<Frames>> {
            assert_eq!(request.uri().path(), "/p.S/M");
            assert_eq!(request.headers()["content-type"], "application/grpc");
            let mut frames = vec![Ok(Frame::data(Bytes::from_static(self.body)))];
            if let Some(status) = self.status {
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", HeaderValue::from_static(status));
                trailers.insert("grpc-message", HeaderValue::from_static("not%20here"));
                frames.push(Ok(Frame::trailers(trailers)));
            }
            Response::new(StreamBody::new(futures_util::stream::iter(frames)))
        }
    }

    #[async_trait]
    impl Connector for Answers {
        async fn connect(&self) -> io::Result<Box<dyn Wire>> {
            let (ours, theirs) = tokio::io::duplex(4096);
            let answers = *self;
            task::spawn("replica", async move {
                let service =
                    service_fn(|request| async move { Ok::<_, Infallible>(answers.answer(&request)) });
                let serving = server::Builder::new(TokioExecutor::new());
                serving.serve_connection(TokioIo::new(theirs), service).await.ok();
            });
            Ok(Box::new(ours))
        }
    }

    async fn called(body: &'static [u8], status: Option<&'static str>) -> Result<Bytes, GrpcError> {
        call(&Answers { body, status }, "/p.S/M", b"", 10).await
    }

    #[tokio::test]
    async fn a_message_comes_before_its_status() {
        assert_eq!(
            called(b"\0\0\0\0\x03abc", Some("0")).await,
            Ok(Bytes::from("abc"))
        );
        assert_eq!(called(b"\0\0\0\0\0", Some("0")).await, Ok(Bytes::new()));
        let refused = GrpcError::Status {
            code: 12,
            message: "not here".to_owned(),
        };
        assert_eq!(called(b"", Some("12")).await, Err(refused));
        let long = called(b"\0\0\0\0\x0babcdefghijk", Some("0")).await;
        assert_eq!(long, Err(GrpcError::TooLarge(10)));
        for broken in [
            &b""[..],
            b"\0\0\0\0",
            b"\x01\0\0\0\x01a",
            b"\0\0\0\0\x09a",
            b"\0\0\0\0\x01ab",
        ] {
            let answer = called(broken, Some("0")).await;
            assert!(
                matches!(answer, Err(GrpcError::NoAnswer(_))),
                "{broken:?}: {answer:?}"
            );
        }
    }

    /// Answers in HTTP/1.1, as most that is no gRPC.
    #[derive(Debug)]
    struct Http1;

    #[async_trait]
    impl Connector for Http1 {
        async fn connect(&self) -> io::Result<Box<dyn Wire>> {
            use tokio::io::AsyncWriteExt as _;
            let (ours, mut theirs) = tokio::io::duplex(4096);
            task::spawn("replica", async move {
                theirs.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.ok();
            });
            Ok(Box::new(ours))
        }
    }

    #[tokio::test]
    async fn what_speaks_no_grpc_does_not_answer() {
        let answer = call(&Http1, "/p.S/M", b"", 10).await;
        assert!(matches!(answer, Err(GrpcError::NoAnswer(_))), "{answer:?}");
    }
}
