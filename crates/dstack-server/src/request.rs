//! Reading requests: bodies, queries, uploads.

use axum::body::{Body, to_bytes};
use axum::extract::{DefaultBodyLimit, FromRequest, Multipart};
use axum::http::{HeaderMap, Request, header};
use dstack_model::decode::problem::{missing_body, validation_body};
use dstack_model::decode::{Decode, Loc, Problem, decode_lenient, decode_strict};
use futures_util::StreamExt;
use http_body_util::LengthLimitError;
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};

use crate::error::{ApiError, Result};

/// Bodies beyond this are not read: no request of the API is nearly as large.
const MAX_BODY: u64 = 64 * 1024 * 1024;

/// So much of a refused upload is read all the same.
const DRAINED: u64 = 64 * 1024 * 1024;

/// Decodes a JSON body; `optional` ones may be missing.
pub(crate) async fn json_body<T: Decode>(headers: &HeaderMap, body: Body, optional: bool) -> Result<T> {
    if declared_length(headers).is_some_and(|length| length > MAX_BODY) {
        drain(body).await;
        return Err(ApiError::TooLarge);
    }
    let bytes = to_bytes(body, usize::try_from(MAX_BODY).unwrap_or(usize::MAX))
        .await
        .map_err(|error| match is_limit(&error) {
            true => ApiError::TooLarge,
            false => ApiError::Plain("There was an error parsing the body"),
        })?;
    let value = match bytes.is_empty() {
        true => Value::Null,
        false if !is_json(headers) => Value::String(String::from_utf8_lossy(&bytes).into_owned()),
        false => parse(&bytes)?,
    };
    let value = match (value, optional) {
        (Value::Null, true) => Value::Object(Map::new()),
        (Value::Null, false) => return Err(ApiError::Validation(missing_body())),
        (value, _) => value,
    };
    decode_strict(&value).map_err(|problems| ApiError::Validation(validation_body("body", &problems)))
}

fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Whether more was sent than is read.
fn is_limit(error: &axum::Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if error.is::<LengthLimitError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(kind) = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
    else {
        return false;
    };
    let kind = kind.split(';').next().unwrap_or(kind).trim().to_ascii_lowercase();
    kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
}

fn parse(bytes: &[u8]) -> Result<Value> {
    let unreadable = ApiError::Plain("There was an error parsing the body");
    let Ok(text) = std::str::from_utf8(bytes) else {
        return Err(unreadable);
    };
    serde_json::from_str(text).map_err(|error| {
        if error.to_string().starts_with("recursion limit") {
            return unreadable;
        }
        ApiError::Validation(json!({"detail": [{
            "type": "json_invalid",
            "loc": ["body", offset(text, &error)],
            "msg": "JSON decode error",
            "input": {},
            "ctx": {"error": reason(&error)},
        }]}))
    })
}

/// Where the text stops being JSON, in characters.
fn offset(text: &str, error: &serde_json::Error) -> usize {
    if error.is_eof() {
        return text.chars().count();
    }
    let before: usize = text
        .split('\n')
        .take(error.line().saturating_sub(1))
        .map(|line| line.chars().count() + 1)
        .sum();
    let line = text
        .split('\n')
        .nth(error.line().saturating_sub(1))
        .unwrap_or_default();
    let column = error.column().saturating_sub(1).min(line.len());
    before + line.get(..column).map_or(column, |part| part.chars().count())
}

fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    if error.is_eof() || text.starts_with("expected value") {
        return "Expecting value".to_owned();
    }
    text.split(" at line").next().unwrap_or(&text).to_owned()
}

/// Decodes a query string; unknown parameters are ignored, the last of several counts.
pub(crate) fn query<T: Decode>(query: Option<&str>) -> Result<T> {
    let mut map = Map::new();
    for pair in query
        .unwrap_or_default()
        .split('&')
        .filter(|pair| !pair.is_empty())
    {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        map.insert(unescape(key), Value::String(unescape(value)));
    }
    decode_lenient(&Value::Object(map))
        .map_err(|problems| ApiError::Validation(validation_body("query", &problems)))
}

fn unescape(text: &str) -> String {
    percent_decode_str(&text.replace('+', " "))
        .decode_utf8_lossy()
        .into_owned()
}

/// An uploaded file.
#[derive(Debug, Clone, Default)]
pub(crate) struct Upload {
    /// The hash that the client gave it.
    pub(crate) name: String,
    /// Its bytes.
    pub(crate) content: Vec<u8>,
    /// Bytes of the whole request.
    pub(crate) request_size: u64,
}

/// Reads the part `file` of a multipart body. Of one beyond `limit` bytes the content is not kept.
pub(crate) async fn upload(headers: &HeaderMap, body: Body, limit: u64) -> Result<Upload> {
    let declared = declared_length(headers);
    if let Some(size) = declared
        && limit > 0
        && size > limit
    {
        drain(body).await;
        return Ok(Upload {
            request_size: size,
            ..Upload::default()
        });
    }
    let mut request = Request::new(body);
    *request.headers_mut() = headers.clone();
    // Otherwise there is one more limit, of 2 MiB, whatever the administrator has set.
    DefaultBodyLimit::disable().apply(&mut request);
    let missing = || ApiError::Validation(validation_body("body", &[missing_file()]));
    let mut multipart = Multipart::from_request(request, &())
        .await
        .map_err(|_| missing())?;
    let broken = |_| ApiError::Plain("There was an error parsing the body");
    while let Some(mut part) = multipart.next_field().await.map_err(broken)? {
        if part.name() != Some("file") || part.file_name().is_none() {
            continue;
        }
        let mut upload = Upload {
            name: part.file_name().unwrap_or_default().to_owned(),
            ..Upload::default()
        };
        while let Some(chunk) = part.chunk().await.map_err(broken)? {
            let more = u64::try_from(chunk.len()).unwrap_or(u64::MAX);
            upload.request_size = declared.unwrap_or(upload.request_size.saturating_add(more));
            if limit == 0 || upload.request_size <= limit {
                upload.content.extend_from_slice(&chunk);
            } else if upload.request_size > DRAINED {
                break;
            }
        }
        return Ok(upload);
    }
    Err(missing())
}

/// Reads on without keeping anything: a client that still sends when the connection closes does not see the answer.
async fn drain(body: Body) {
    let mut chunks = body.into_data_stream();
    let mut size = 0;
    while let Some(Ok(chunk)) = chunks.next().await {
        size += u64::try_from(chunk.len()).unwrap_or(u64::MAX);
        if size > DRAINED {
            return;
        }
    }
}

fn missing_file() -> Problem {
    let mut problem = Problem::new("missing", "Field required", &Value::Null);
    problem.loc.push(Loc::Key("file".into()));
    problem
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_syntax_error_is_counted_in_characters() {
        let at = |text: &str| {
            let ApiError::Validation(body) = parse(text.as_bytes()).unwrap_err() else {
                panic!("{text}")
            };
            body["detail"][0]["loc"][1].as_u64().unwrap()
        };
        assert_eq!(at("{\"run_name\": "), 13);
        assert_eq!(at("nope"), 1);
        assert_eq!(at("{\n \"é\": x}"), 8);
    }

    #[test]
    fn deep_nesting_and_other_encodings_are_unreadable() {
        for bytes in ["[".repeat(100_000).as_bytes(), b"\xff\xfe"] {
            assert!(matches!(parse(bytes), Err(ApiError::Plain(_))));
        }
    }
}
