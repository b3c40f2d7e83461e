//! Requests and answers of which it is not certain where they end. Whoever reads them otherwise than we do could be made to take a
//! part of one for another one.
//!
//! Of requests most of this is refused by the HTTP server already (hyper): unreadable and differing lengths, codings that do not
//! end in `chunked`, and codings in HTTP/1.0. Of both a length and a coding it forgets the length, and closes the connection
//! after the answer, so that only one of the two gets here.

use http::{HeaderMap, HeaderValue, StatusCode, Version, header};

/// Why a message is not passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unclear(pub(crate) StatusCode, pub(crate) &'static str);

const fn bad(reason: &'static str) -> Unclear {
    Unclear(StatusCode::BAD_REQUEST, reason)
}

/// How long the body of a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// So many bytes.
    Length(u64),
    /// In chunks: its end is seen when it comes.
    Chunked,
    /// Nothing is said.
    Unsaid,
}

/// How long the body of a message is, of its headers.
///
/// # Errors
/// They contradict one another, or cannot be read.
pub(crate) fn framing(version: Version, headers: &HeaderMap) -> Result<Framing, Unclear> {
    let length = length(headers)?;
    let chunked = is_chunked(headers)?;
    match (length, chunked) {
        (Some(_), true) => Err(bad("Both Content-Length and Transfer-Encoding")),
        (_, true) if version < Version::HTTP_11 => Err(bad("Transfer-Encoding in HTTP/1.0")),
        (None, true) => Ok(Framing::Chunked),
        (Some(length), false) => Ok(Framing::Length(length)),
        (None, false) => Ok(Framing::Unsaid),
    }
}

/// The length; several that are equal are one.
fn length(headers: &HeaderMap) -> Result<Option<u64>, Unclear> {
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter().map(read_length);
    let Some(first) = lengths.next() else {
        return Ok(None);
    };
    let first = first.ok_or(bad("Invalid Content-Length"))?;
    match lengths.all(|other| other == Some(first)) {
        true => Ok(Some(first)),
        false => Err(bad("Invalid Content-Length")),
    }
}

/// Digits, and nothing else: no signs, spaces and lists.
fn read_length(value: &HeaderValue) -> Option<u64> {
    let text = value.to_str().ok()?;
    match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse().ok(),
        false => None,
    }
}

fn is_chunked(headers: &HeaderMap) -> Result<bool, Unclear> {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => Ok(false),
        (Some(one), None) if one.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(true),
        (Some(_), _) => Err(Unclear(StatusCode::NOT_IMPLEMENTED, "Unknown Transfer-Encoding")),
    }
}

/// Whether a request names one host at most.
///
/// # Errors
/// It names several.
pub(crate) fn one_host(headers: &HeaderMap) -> Result<(), Unclear> {
    match headers.get_all(header::HOST).iter().nth(1) {
        None => Ok(()),
        Some(_) => Err(bad("Several Host headers")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(version: Version, lines: &[(&'static str, &'static str)]) -> Result<Framing, u16> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        framing(version, &headers).map_err(|Unclear(status, _)| status.as_u16())
    }

    #[test]
    fn messages_whose_end_is_unclear_are_refused() {
        let of_11 = |lines: &[_]| of(Version::HTTP_11, lines);
        let (length, coding) = ("content-length", "transfer-encoding");
        assert_eq!(of_11(&[]), Ok(Framing::Unsaid));
        assert_eq!(of_11(&[(length, "7")]), Ok(Framing::Length(7)));
        assert_eq!(of_11(&[(length, "7"), (length, "07")]), Ok(Framing::Length(7)));
        assert_eq!(of_11(&[(coding, "Chunked")]), Ok(Framing::Chunked));
        assert_eq!(of_11(&[(length, "7"), (coding, "chunked")]), Err(400));
        assert_eq!(of_11(&[(length, "7"), (length, "8")]), Err(400));
        for unreadable in ["", "+7", "-1", "7 7", "7,7", "0x7", "18446744073709551616"] {
            assert_eq!(of_11(&[(length, unreadable)]), Err(400), "{unreadable}");
        }
        for unknown in ["gzip, chunked", "chunked, chunked", "identity", "xchunked", ""] {
            assert_eq!(of_11(&[(coding, unknown)]), Err(501), "{unknown}");
        }
        assert_eq!(of_11(&[(coding, "chunked"), (coding, "chunked")]), Err(501));
        assert_eq!(of(Version::HTTP_10, &[(coding, "chunked")]), Err(400));
    }
}
