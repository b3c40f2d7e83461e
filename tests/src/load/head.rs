//! Heads of requests and answers, as their bytes come.

use anyhow::{Context, Result};

/// The head of a request or an answer.
#[derive(Debug)]
pub(crate) struct Head {
    /// In lower case, without the empty line.
    text: String,
    /// How long it is, with the empty line.
    pub(crate) bytes: usize,
}

impl Head {
    /// The head at the beginning of what was read; `None`: it is not all there.
    pub(crate) fn of(read: &[u8]) -> Option<Head> {
        let end = read.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
        Some(Head {
            text: String::from_utf8_lossy(&read[..end]).to_ascii_lowercase(),
            bytes: end + 4,
        })
    }

    /// What a header says, in lower case; its name is given in lower case as well.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let value = |line| str::strip_prefix(line, name)?.strip_prefix(':');
        self.text.lines().find_map(value).map(str::trim)
    }

    /// Bytes of the body, if the head says so.
    pub(crate) fn body_bytes(&self) -> Option<usize> {
        self.header("content-length")?.parse().ok()
    }

    /// The status of an answer.
    ///
    /// # Errors
    /// It is not the head of an answer.
    pub(crate) fn status(&self) -> Result<u16> {
        let status = self.text.split(' ').nth(1);
        status
            .and_then(|status| status.parse().ok())
            .context("an answer without status")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_once_all_of_it_is_there() {
        let answer = b"HTTP/1.1 429 Too Many\r\nRetry-After: 1\r\nContent-Length: 5\r\n\r\nhello";
        let head = Head::of(answer).unwrap();
        assert_eq!((head.status().unwrap(), head.body_bytes()), (429, Some(5)));
        assert_eq!(&answer[head.bytes..], b"hello");
        assert_eq!(
            (head.header("retry-after"), head.header("retry")),
            (Some("1"), None)
        );
        assert!(Head::of(&answer[..head.bytes - 1]).is_none());
        let request = Head::of(b"GET /429 HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        assert!(request.status().is_err() && request.body_bytes().is_none());
    }
}
