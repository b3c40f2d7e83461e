//! Reading requests: bodies, queries, uploads.

pub(crate) mod body;
mod json;

use axum::body::Body;
use axum::extract::multipart::MultipartError;
use axum::extract::{DefaultBodyLimit, FromRequest, Multipart};
use axum::http::{HeaderMap, Request, header};
use dstack_model::decode::problem::{missing_body, validation_body};
use dstack_model::decode::{Decode, Loc, Problem, decode_lenient, decode_strict};
use http_body_util::{LengthLimitError, Limited};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

use self::body::{MAX_DISCARDED, declared_length, drain_upload, paced, with_unit};
use crate::error::{ApiError, Result};
use crate::overload::memory::{BodyMemory, Reserved};

/// Decodes a JSON body of a route that takes `max_body` bytes; `optional` ones may be missing.
pub(crate) fn json_body<T: Decode>(
    headers: &HeaderMap,
    bytes: &[u8],
    max_body: usize,
    optional: bool,
) -> Result<T> {
    let value = match bytes.is_empty() {
        true => Value::Null,
        false if !is_json(headers) => Value::String(String::from_utf8_lossy(bytes).into_owned()),
        false => json::parse(bytes, max_body)?,
    };
    let value = match (value, optional) {
        (Value::Null, true) => Value::Object(Map::new()),
        (Value::Null, false) => return Err(ApiError::Validation(missing_body())),
        (value, _) => value,
    };
    decode_strict(&value).map_err(|problems| ApiError::Validation(validation_body("body", &problems)))
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
#[derive(Debug, Default)]
pub(crate) struct Upload {
    /// The hash that the client gave it.
    pub(crate) name: String,
    pub(crate) content: Vec<u8>,
    /// Bytes of the whole request.
    pub(crate) request_size: u64,
    /// Given back when the content is stored.
    reserved: Option<Reserved>,
}

/// An upload begins when there is memory for this much of it.
const FIRST_PART: usize = 64 * 1024;

/// Reads the part `file` of a multipart body. Of one beyond `limit` bytes (0: there is no limit) the content is not kept.
///
/// # Errors
/// 408 when the client stops sending or is too slow, 413 when it sends much more without having said so, 429 when there is
/// no memory for it.
pub(crate) async fn upload(
    headers: &HeaderMap,
    body: Body,
    limit: u64,
    memory: &BodyMemory,
) -> Result<Upload> {
    let declared = declared_length(headers);
    if let Some(size) = declared
        && limit > 0
        && size > limit
    {
        drain_upload(body).await;
        return Ok(Upload {
            request_size: size,
            ..Upload::default()
        });
    }
    let largest = memory.largest_upload();
    let most = u64::try_from(largest).unwrap_or(u64::MAX);
    let too_large = || ApiError::TooLargeUpload {
        limit: with_unit(largest),
    };
    if declared.is_some_and(|size| size > most.saturating_add(MAX_DISCARDED)) {
        drain_upload(body).await;
        return Err(too_large());
    }
    let effective = if limit > 0 { limit.min(most) } else { most };
    let expected = usize::try_from(declared.unwrap_or(effective)).unwrap_or(usize::MAX);
    let mut reserved = None;
    if let Err(full) = memory.grow(&mut reserved, expected.min(FIRST_PART)).await {
        drain_upload(body).await;
        return Err(full);
    }
    // The length that was declared holds by itself. What stands around the file is not part of its limit.
    let max_bytes = match declared {
        None => effective.saturating_add(MAX_DISCARDED),
        Some(_) => u64::MAX,
    };
    let limited = Limited::new(paced(body), usize::try_from(max_bytes).unwrap_or(usize::MAX));
    let mut request = Request::new(Body::new(limited));
    *request.headers_mut() = headers.clone();
    // Otherwise there is one more limit, of 2 MiB, whatever the administrator has set.
    DefaultBodyLimit::disable().apply(&mut request);
    let missing = || ApiError::Validation(validation_body("body", &[missing_file()]));
    let mut multipart = Multipart::from_request(request, &())
        .await
        .map_err(|_| missing())?;
    let beyond_length = || match limit > 0 && limit <= most {
        true => body::too_large(usize::try_from(limit).unwrap_or(usize::MAX)),
        false => too_large(),
    };
    let broken = |error| broken(&error, &beyond_length);
    while let Some(mut part) = multipart.next_field().await.map_err(broken)? {
        if part.name() != Some("file") || part.file_name().is_none() {
            continue;
        }
        let mut upload = Upload {
            name: part.file_name().unwrap_or_default().to_owned(),
            reserved,
            ..Upload::default()
        };
        while let Some(chunk) = part.chunk().await.map_err(broken)? {
            let more = u64::try_from(chunk.len()).unwrap_or(u64::MAX);
            upload.request_size = declared.unwrap_or(upload.request_size.saturating_add(more));
            if upload.content.len() + chunk.len() > largest {
                return Err(too_large());
            }
            if limit == 0 || upload.request_size <= limit {
                let size = upload.content.len() + chunk.len();
                memory.grow(&mut upload.reserved, size).await?;
                upload.content.extend_from_slice(&chunk);
            }
        }
        if let Some(reserved) = &mut upload.reserved {
            reserved.shrink(upload.content.len());
        }
        return Ok(upload);
    }
    Err(missing())
}

/// Why a multipart body cannot be read on.
fn broken(error: &MultipartError, beyond_length: &dyn Fn() -> ApiError) -> ApiError {
    let known = dstack_system::causes(error).find_map(|cause| match cause.downcast_ref() {
        Some(ApiError::Slow) => Some(ApiError::Slow),
        _ if cause.is::<LengthLimitError>() => Some(beyond_length()),
        _ => None,
    });
    known.unwrap_or(ApiError::Plain("There was an error parsing the body"))
}

fn missing_file() -> Problem {
    let mut problem = Problem::new("missing", "Field required", &Value::Null);
    problem.loc.push(Loc::Key("file".into()));
    problem
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::{Stream, StreamExt, stream};

    use super::*;

    const KIB: usize = 1024;

    /// Headers of an upload of so many bytes.
    fn headers(declared: Option<usize>) -> HeaderMap {
        let kind = (
            header::CONTENT_TYPE,
            "multipart/form-data; boundary=X".parse().unwrap(),
        );
        let length = declared.map(|length| (header::CONTENT_LENGTH, length.into()));
        std::iter::once(kind).chain(length).collect()
    }

    /// A file, before its content.
    const BEGINNING: &str = "--X\r\nContent-Disposition: form-data; name=\"file\"; filename=\"h\"\r\n\r\n";

    /// One that begins so, and goes on with these chunks.
    fn upload_of(beginning: &str, rest: impl Stream<Item = Vec<u8>> + Send + 'static) -> Body {
        let beginning = beginning.as_bytes().to_vec();
        let chunks = stream::iter([beginning]).chain(rest);
        Body::from_stream(chunks.map(Ok::<_, std::convert::Infallible>))
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_that_stops_is_not_waited_for() {
        let body = upload_of(BEGINNING, stream::pending());
        let memory = BodyMemory::new(8 * KIB);
        let begun = tokio::time::Instant::now();
        let refused = upload(&headers(Some(8000)), body, 8000, &memory)
            .await
            .unwrap_err();
        assert!(matches!(refused, ApiError::Slow), "{refused}");
        assert_eq!(begun.elapsed(), body::READ_TIMEOUT);
        assert!(memory.reserve(8 * KIB).await.is_ok(), "its memory is free again");
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_takes_as_long_as_bytes_come_but_not_with_a_few_now_and_then() {
        let every = |seconds: u64, bytes: usize| {
            stream::unfold((), move |()| async move {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                Some((vec![b'x'; bytes], ()))
            })
        };
        let memory = BodyMemory::new(64 * 1024 * KIB);
        let begun = tokio::time::Instant::now();
        let slow = every(1, 5 * KIB)
            .take(1000)
            .chain(stream::iter([b"\r\n--X--\r\n".to_vec()]));
        let read = upload(&headers(None), upload_of(BEGINNING, slow), 0, &memory)
            .await
            .unwrap();
        assert_eq!(read.content.len(), 5000 * KIB);
        assert!(begun.elapsed().as_secs() >= 1000);

        let begun = tokio::time::Instant::now();
        let trickle = upload_of(BEGINNING, every(20, 1));
        let refused = upload(&headers(Some(8000)), trickle, 8000, &memory)
            .await
            .unwrap_err();
        assert!(matches!(refused, ApiError::Slow), "{refused}");
        assert!(begun.elapsed().as_secs() <= 80, "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn an_upload_has_its_memory_until_it_is_stored() {
        let memory = BodyMemory::new(64 * KIB);
        let rest = [vec![b'x'; 10 * KIB], b"\r\n--X--\r\n".to_vec()];
        let body = upload_of(BEGINNING, stream::iter(rest));
        let read = upload(&headers(None), body, 60 * 1024, &memory).await.unwrap();
        assert_eq!((read.name.as_str(), read.content.len()), ("h", 10 * KIB));
        assert_eq!(
            memory.free_kib(),
            54,
            "what it could have had beyond that is free"
        );
        drop(read);
        assert_eq!(memory.free_kib(), 64);
    }

    #[tokio::test]
    async fn one_upload_never_has_more_than_a_quarter_of_the_memory() {
        let memory = BodyMemory::new(64 * KIB);
        let endless = upload_of(BEGINNING, stream::repeat_with(|| vec![b'x'; KIB]));
        let refused = upload(&headers(None), endless, 0, &memory).await.unwrap_err();
        let is_quarter = |limit: &str| limit == "16 KiB";
        assert!(
            matches!(&refused, ApiError::TooLargeUpload { limit } if is_quarter(limit)),
            "{refused}"
        );
        let large = upload_of(BEGINNING, stream::iter([vec![b'x'; KIB]]));
        let refused = upload(&headers(Some(100 * KIB)), large, 0, &memory)
            .await
            .unwrap_err();
        assert!(
            matches!(&refused, ApiError::TooLargeUpload { limit } if is_quarter(limit)),
            "{refused}"
        );
        assert_eq!(memory.free_kib(), 64);
    }

    #[tokio::test]
    async fn an_upload_without_length_or_end_is_not_read_for_ever() {
        let memory = BodyMemory::new(1024 * 1024);
        // A part that is never called `file`, the head of a part that never ends, and a file that never ends.
        for beginning in [
            "--X\r\nContent-Disposition: form-data; name=\"other\"\r\n\r\n",
            "--X\r\nContent-Disposition: form-data; name=\"file\"; filename=\"",
            BEGINNING,
        ] {
            let endless = upload_of(beginning, stream::repeat_with(|| vec![b'x'; KIB]));
            let refused = upload(&headers(None), endless, 10 * 1024, &memory)
                .await
                .unwrap_err();
            assert!(
                matches!(&refused, ApiError::TooLarge { limit } if limit == "10 KiB"),
                "{refused}"
            );
        }
    }
}
