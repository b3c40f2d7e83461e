//! Bodies with `transfer-encoding: chunked`.

use anyhow::{Context, Result};

/// Takes the framing off a body as its bytes come. There are no trailers.
#[derive(Debug, Default)]
pub(crate) struct Chunked {
    /// What was read of the present line between chunks.
    line: Vec<u8>,
    /// Bytes of the present chunk that are still to come.
    left: usize,
    /// The present chunk is the empty one at the end.
    last: bool,
    ended: bool,
}

impl Chunked {
    /// Appends what these bytes have of the body.
    ///
    /// # Errors
    /// They are not the next ones of a chunked body.
    pub(crate) fn push(&mut self, mut bytes: &[u8], body: &mut Vec<u8>) -> Result<()> {
        while !bytes.is_empty() && !self.ended {
            let (data, rest) = bytes.split_at(self.left.min(bytes.len()));
            body.extend_from_slice(data);
            self.left -= data.len();
            bytes = rest;
            let Some((byte, rest)) = bytes.split_first() else {
                break;
            };
            self.line.push(*byte);
            bytes = rest;
            if *byte == b'\n' {
                self.line_is_over()?;
            }
        }
        Ok(())
    }

    /// The whole body has come.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    fn line_is_over(&mut self) -> Result<()> {
        let line = std::mem::take(&mut self.line);
        let line = std::str::from_utf8(&line)?.trim_end();
        if line.is_empty() {
            // After a chunk.
            self.ended = self.last;
            return Ok(());
        }
        self.left = usize::from_str_radix(line, 16)
            .with_context(|| format!("{line:?} is not the size of a chunk"))?;
        self.last = self.left == 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: &[u8] = b"5\r\nhello\r\nB\r\n, \r\nworld\r\n\r\n0\r\n\r\nmore";

    #[test]
    fn a_body_is_the_same_wherever_its_bytes_are_cut() {
        for cut in 0..BYTES.len() {
            let (mut chunked, mut body) = (Chunked::default(), Vec::new());
            for part in [&BYTES[..cut], &BYTES[cut..]] {
                chunked.push(part, &mut body).unwrap();
            }
            assert_eq!(String::from_utf8_lossy(&body), "hello, \r\nworld\r\n", "{cut}");
            assert!(chunked.has_ended());
        }
    }

    #[test]
    fn it_has_ended_only_after_the_last_empty_line() {
        let (mut chunked, mut body) = (Chunked::default(), Vec::new());
        chunked.push(b"1\r\n0\r\n0\r\n\r", &mut body).unwrap();
        assert_eq!((body.as_slice(), chunked.has_ended()), (&b"0"[..], false));
        chunked.push(b"\n", &mut body).unwrap();
        assert!(chunked.has_ended());
        let mut other = Chunked::default();
        assert!(other.push(b"HTTP\r\n", &mut body).is_err());
    }
}
