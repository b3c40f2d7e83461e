//! One question to a replica over a connection of its own, and its answer, which fits into memory.

use bytes::Bytes;
use dstack_agent_api::http::Connector;
use dstack_system::{chain, task};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio_util::task::AbortOnDropHandle;

/// Why a question has no answer of use; the text is for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// It is not reached, what it says is no answer, or the answer breaks off.
    #[error("{0}")]
    NoAnswer(String),
    /// The answer has more bytes than were wanted.
    #[error("the answer has more than {0} bytes")]
    TooLarge(usize),
}

/// Asks over a connection of its own, and reads an answer of at most so many bytes, whatever its status. Redirects are not followed.
/// Whoever asks sets a time limit, and drops it then.
///
/// # Errors
/// There is no answer, or a longer one.
pub async fn ask(
    connector: &dyn Connector,
    request: Request<Full<Bytes>>,
    max_bytes: usize,
) -> Result<Response<Bytes>, ExchangeError> {
    let answer = send(connector, request).await;
    let (answer, _connection) = answer.map_err(ExchangeError::NoAnswer)?;
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, max_bytes).collect().await;
    let body = body.map_err(|error| match error.is::<LengthLimitError>() {
        true => ExchangeError::TooLarge(max_bytes),
        false => ExchangeError::NoAnswer(chain(error.as_ref()).to_string()),
    })?;
    Ok(Response::from_parts(head, body.to_bytes()))
}

/// The head of an answer; its body comes as long as the connection is kept.
pub(crate) async fn send(
    connector: &dyn Connector,
    request: Request<Full<Bytes>>,
) -> Result<(Response<Incoming>, AbortOnDropHandle<Option<()>>), String> {
    let told = |error: &(dyn std::error::Error + 'static)| chain(error).to_string();
    let stream = connector.connect().await.map_err(|error| told(&error))?;
    let opened = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = opened.map_err(|error| told(&error))?;
    // Ends with the answer: whatever else the replica says is not read.
    let connection = AbortOnDropHandle::new(task::spawn("question to a replica", async move {
        connection.await.ok(); // the request fails as well, and says why
    }));
    let answer = sender.send_request(request).await.map_err(|error| told(&error))?;
    Ok((answer, connection))
}

#[cfg(test)]
mod tests {
    use std::io;

    use async_trait::async_trait;
    use dstack_agent_api::http::Wire;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// A replica that answers everything with this, and then closes the connection.
    #[derive(Debug)]
    struct Always(String);

    #[async_trait]
    impl Connector for Always {
        async fn connect(&self) -> io::Result<Box<dyn Wire>> {
            let (ours, mut theirs) = tokio::io::duplex(4096);
            let answer = self.0.clone();
            task::spawn("replica", async move {
                theirs.read_buf(&mut Vec::with_capacity(4096)).await.ok();
                theirs.write_all(answer.as_bytes()).await.ok();
            });
            Ok(Box::new(ours))
        }
    }

    async fn asked(answer: &str) -> Result<(u16, Bytes), ExchangeError> {
        let request = Request::get("/workers").body(Full::default()).unwrap();
        let answer = ask(&Always(answer.to_owned()), request, 10).await?;
        Ok((answer.status().as_u16(), answer.into_body()))
    }

    #[tokio::test]
    async fn an_answer_is_read_as_long_as_it_is_short() {
        let ten = "0123456789";
        let said = format!("HTTP/1.1 404 Not Found\r\ncontent-length: 10\r\n\r\n{ten}");
        assert_eq!(asked(&said).await, Ok((404, Bytes::from(ten))));
        let endless = "x".repeat(1 << 20);
        for head in ["content-length: 1048576\r\n", "content-length: 11\r\n", ""] {
            let said = format!("HTTP/1.1 200 OK\r\n{head}\r\n{endless}");
            assert_eq!(asked(&said).await, Err(ExchangeError::TooLarge(10)), "{head}");
        }
    }

    #[tokio::test]
    async fn what_breaks_off_is_no_answer() {
        for said in [
            "",
            "hello\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n0123",
        ] {
            let answer = asked(said).await;
            assert!(
                matches!(answer, Err(ExchangeError::NoAnswer(_))),
                "{said}: {answer:?}"
            );
        }
    }
}
