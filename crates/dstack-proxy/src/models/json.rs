//! Bodies that are JSON, or should be.

use std::io;

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Frame;
use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use crate::body::{BoxError, ProxyBody, full};

/// An answer with a JSON body.
pub(super) fn json_response(status: StatusCode, value: &Value) -> Response<ProxyBody> {
    let mut response = Response::new(full(value.to_string()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Of an error that a model tells in words, at most so many bytes.
const MAX_ERROR_BYTES: usize = 64 * 1024;

/// The beginning of the text of an error, as far as it comes.
pub(super) async fn read_text(mut body: ProxyBody) -> String {
    let mut text = BytesMut::new();
    while text.len() < MAX_ERROR_BYTES {
        let Some(Ok(frame)) = body.frame().await else {
            break;
        };
        text.extend_from_slice(data_of(&frame));
    }
    text.truncate(MAX_ERROR_BYTES);
    String::from_utf8_lossy(&text).into_owned()
}

/// A whole body.
///
/// # Errors
/// It breaks off, or is longer than that.
pub(super) async fn read_whole(mut body: ProxyBody, max_bytes: usize) -> Result<BytesMut, BoxError> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame?;
        let data = data_of(&frame);
        if bytes.len() + data.len() > max_bytes {
            return Err(format!("it has more than {max_bytes} bytes").into());
        }
        bytes.extend_from_slice(data);
    }
    Ok(bytes)
}

/// The data of a frame; none of trailers.
pub(super) fn data_of(frame: &Frame<Bytes>) -> &[u8] {
    frame.data_ref().map(Bytes::as_ref).unwrap_or_default()
}

/// A value as Python's `json.dumps` writes it, without escaping anything but what must be; on lines of its own with `indent`.
pub(super) fn python_json<V: Serialize>(value: &V, indent: Option<usize>) -> serde_json::Result<String> {
    let mut bytes = Vec::new();
    match indent {
        Some(width) => {
            let spaces = " ".repeat(width);
            let formatter = PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut bytes, formatter))?;
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut bytes, OneLine))?,
    }
    String::from_utf8(bytes).map_err(serde::ser::Error::custom)
}

/// Spaces after commas and colons.
struct OneLine;

impl OneLine {
    fn separator<W: io::Write + ?Sized>(writer: &mut W, is_first: bool) -> io::Result<()> {
        match is_first {
            true => Ok(()),
            false => writer.write_all(b", "),
        }
    }
}

impl Formatter for OneLine {
    fn begin_array_value<W: io::Write + ?Sized>(&mut self, writer: &mut W, is_first: bool) -> io::Result<()> {
        Self::separator(writer, is_first)
    }

    fn begin_object_key<W: io::Write + ?Sized>(&mut self, writer: &mut W, is_first: bool) -> io::Result<()> {
        Self::separator(writer, is_first)
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}
