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

/// What a provider says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Somebody logged in.
    Code {
        /// To be exchanged for a token.
        code: String,
        /// As it was sent there.
        state: String,
    },
    /// Nobody did, for this reason.
    Refused(String),
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
    /// What the provider says, if this is its redirect.
    pub(super) fn came_back(&self) -> Option<Answer> {
        came_back(&self.target)
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

fn came_back(target: &str) -> Option<Answer> {
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
    if let Some(error) = value("error") {
        return Some(Answer::Refused(value("error_description").unwrap_or(error)));
    }
    Some(Answer::Code {
        code: value("code")?,
        state: value("state")?,
    })
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
        let expected = Answer::Code {
            code: "a b".to_owned(),
            state: "s".to_owned(),
        };
        assert_eq!(came_back("/auth/callback?code=a%20b&state=s"), Some(expected));
        let refused = Answer::Refused("access_denied".to_owned());
        assert_eq!(
            came_back("/auth/callback?error=access_denied&state=s"),
            Some(refused)
        );
        let refused = Answer::Refused("No, thanks".to_owned());
        let target = "/auth/callback?error=access_denied&error_description=No,+thanks&state=s";
        assert_eq!(came_back(target), Some(refused));
        for target in [
            "/favicon.ico",
            "/auth/callback",
            "/auth/callback?code=a",
            "/other?code=a&state=s",
            "//",
        ] {
            assert_eq!(came_back(target), None, "{target}");
        }
    }
}
