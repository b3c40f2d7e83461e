//! Bodies that are JSON, or should be.

use std::io;

use bytes::BytesMut;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use http_body_util::BodyExt;
use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use crate::body::{ProxyBody, full};

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
        if let Some(data) = frame.data_ref() {
            text.extend_from_slice(data);
        }
    }
    text.truncate(MAX_ERROR_BYTES);
    String::from_utf8_lossy(&text).into_owned()
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
