//! One question to a replica: whether it answers as it should.

use bytes::Bytes;
use dstack_agent_api::http::Connector;
use http::{Request, StatusCode};
use http_body_util::Full;

use crate::exchange;

/// Why a replica counts as not well; the text is for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// It is not reached, or what it says is no answer.
    #[error("{0}")]
    NoAnswer(String),
    /// It answered with another status than 2xx; redirects are not followed.
    #[error("it answered {0}")]
    Status(StatusCode),
}

/// Asks over a connection of its own. The body of the answer is not read. Whoever asks sets a time limit, and drops it then.
///
/// # Errors
/// There is no answer, or another one than 2xx.
pub async fn ask(connector: &dyn Connector, request: Request<Full<Bytes>>) -> Result<(), ProbeError> {
    let answer = exchange::send(connector, request).await;
    let (answer, _connection) = answer.map_err(ProbeError::NoAnswer)?;
    match answer.status() {
        status if status.is_success() => Ok(()),
        status => Err(ProbeError::Status(status)),
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use async_trait::async_trait;
    use dstack_agent_api::http::Wire;
    use dstack_system::task;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// A replica that answers everything with this, and then is silent.
    #[derive(Debug)]
    struct Always(&'static str);

    #[async_trait]
    impl Connector for Always {
        async fn connect(&self) -> io::Result<Box<dyn Wire>> {
            let (ours, mut theirs) = tokio::io::duplex(4096);
            let answer = self.0;
            task::spawn("replica", async move {
                theirs.read_buf(&mut Vec::with_capacity(4096)).await.ok();
                theirs.write_all(answer.as_bytes()).await.ok();
                std::future::pending::<()>().await;
            });
            Ok(Box::new(ours))
        }
    }

    #[derive(Debug)]
    struct Refuses;

    #[async_trait]
    impl Connector for Refuses {
        async fn connect(&self) -> io::Result<Box<dyn Wire>> {
            Err(io::Error::new(
                io::ErrorKind::ConnectionRefused,
                "nothing listens",
            ))
        }
    }

    async fn asked(connector: Arc<dyn Connector>) -> Result<(), ProbeError> {
        let request = Request::get("/health").body(Full::default()).unwrap();
        ask(connector.as_ref(), request).await
    }

    #[tokio::test]
    async fn only_2xx_is_well() {
        let answers = |text| asked(Arc::new(Always(text)));
        // The rest of the answer is never waited for.
        assert_eq!(answers("HTTP/1.1 204 No Content\r\n\r\n").await, Ok(()));
        assert_eq!(
            answers("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n").await,
            Ok(())
        );
        let moved = answers("HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n").await;
        assert_eq!(moved, Err(ProbeError::Status(StatusCode::FOUND)));
        let garbage = answers("hello\r\n\r\n").await;
        assert!(matches!(garbage, Err(ProbeError::NoAnswer(_))), "{garbage:?}");
        let refused = asked(Arc::new(Refuses)).await.unwrap_err();
        assert!(refused.to_string().contains("nothing listens"), "{refused}");
    }
}
