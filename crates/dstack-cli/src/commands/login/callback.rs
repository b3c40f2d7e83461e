//! The port of this machine to which the browser comes back: `GET /auth/callback?code=…&state=…`.

use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use url::Url;

use crate::error::CliError;

/// A browser sends less than this before its blank line.
const MAX_HEAD: usize = 64 << 10;
/// A connection that says nothing is not waited for.
const READ_LIMIT: Duration = Duration::from_secs(10);

/// Listens on loopback only.
#[derive(Debug)]
pub(super) struct CallbackServer {
    listener: TcpListener,
    port: u16,
}

/// A request that waits for its answer.
#[derive(Debug)]
pub(super) struct Request {
    stream: TcpStream,
    target: String,
}

impl CallbackServer {
    /// On any free port.
    pub(super) async fn start() -> Result<Self, CliError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        Ok(Self { listener, port })
    }

    pub(super) const fn port(&self) -> u16 {
        self.port
    }

    /// The next request that can be understood.
    pub(super) async fn next(&self) -> Result<Request, CliError> {
        loop {
            let (mut stream, _) = self.listener.accept().await?;
            if let Ok(Some(target)) = timeout(READ_LIMIT, read_target(&mut stream)).await {
                return Ok(Request { stream, target });
            }
        }
    }
}

impl Request {
    /// What the provider sent along, if this is its redirect.
    pub(super) fn code_and_state(&self) -> Option<(String, String)> {
        code_and_state(&self.target)
    }

    /// Shows a page. It does not matter whether the browser still wants it.
    pub(super) async fn answer(mut self, success: bool) {
        let (status, title, text) = if success {
            ("200 OK", "dstack CLI authenticated", "You may close this page.")
        } else {
            (
                "400 Bad Request",
                "dstack CLI not authenticated",
                "See the terminal.",
            )
        };
        let page = format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\
             <body style=\"font-family: system-ui, sans-serif\"><h1>{title}</h1><p>{text}</p></body></html>"
        );
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            page.len()
        );
        let _ = self.stream.write_all((head + &page).as_bytes()).await;
        let _ = self.stream.shutdown().await;
    }
}

fn code_and_state(target: &str) -> Option<(String, String)> {
    let url = Url::parse("http://localhost").ok()?.join(target).ok()?;
    if url.path() != "/auth/callback" {
        return None;
    }
    let value = |name: &str| {
        let mut pairs = url.query_pairs();
        pairs
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.into_owned())
    };
    Some((value("code")?, value("state")?))
}

/// The target of a GET request.
async fn read_target(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        if head.len() > MAX_HEAD || stream.read_buf(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let line = head.split(|byte| *byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    (words.next()? == "GET").then_some(())?;
    words.next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_redirect_of_the_provider_counts() {
        let expected = Some(("a b".to_owned(), "s".to_owned()));
        assert_eq!(code_and_state("/auth/callback?code=a%20b&state=s"), expected);
        for target in [
            "/favicon.ico",
            "/auth/callback",
            "/auth/callback?code=a",
            "/other?code=a&state=s",
            "//",
        ] {
            assert_eq!(code_and_state(target), None, "{target}");
        }
    }
}
