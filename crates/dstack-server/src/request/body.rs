//! Reading bodies: no more bytes than a route takes, and not from clients that have stopped sending.

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderMap, header};
use futures_util::stream;
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout};

use crate::error::{ApiError, Result};
use crate::overload::memory::{BodyMemory, Reserved};

/// How long a client may take for the next bytes of a body.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a client may take for a whole JSON body.
const BODY_TIMEOUT: Duration = Duration::from_secs(120);

/// How long a client may send an upload as slowly as it likes.
const SLOW_START: Duration = Duration::from_secs(60);

/// Bytes in a second that a client has to send of an upload after that: its memory is not kept for whoever sends less.
const SLOWEST_UPLOAD: u64 = 4 * 1024;

/// Bytes that are read and thrown away of a body that is refused, at most.
const MAX_DRAINED: u64 = 64 * 1024 * 1024;

/// The same for a route that takes `max_body` bytes: little where anyone may call.
fn drain_limit(max_body: usize) -> u64 {
    u64::try_from(max_body).map_or(MAX_DRAINED, |bytes| bytes.saturating_mul(64).min(MAX_DRAINED))
}

/// Bytes that are read and thrown away of a body that nobody wants.
pub(super) const MAX_DISCARDED: u64 = 64 * 1024;

/// A JSON body.
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// All of it.
    pub(crate) bytes: Bytes,
    /// To be kept as long as what was made from the body is.
    pub(crate) reserved: Option<Reserved>,
}

/// Reads a body of at most `max_bytes` bytes.
///
/// # Errors
/// 413 when there are more, 408 when they come too slowly, 429 when there is no memory for them.
pub(crate) async fn read(
    headers: &HeaderMap,
    body: Body,
    max_bytes: usize,
    memory: &BodyMemory,
) -> Result<Received> {
    if body.is_end_stream() {
        return Ok(Received::default());
    }
    let declared = declared_length(headers).or(body.size_hint().exact());
    let expected = declared.map(|length| usize::try_from(length).unwrap_or(usize::MAX));
    if expected.is_some_and(|length| length > max_bytes) {
        drain(body, drain_limit(max_bytes)).await;
        return Err(too_large(max_bytes));
    }
    let mut reserved = match memory.reserve(expected.unwrap_or(max_bytes)).await {
        Ok(reserved) => reserved,
        Err(full) => {
            drain(body, drain_limit(max_bytes)).await;
            return Err(full);
        }
    };
    let bytes = timeout(BODY_TIMEOUT, collect(body, expected.unwrap_or(0), max_bytes));
    let bytes = bytes.await.unwrap_or(Err(ApiError::Slow))?;
    if let Some(reserved) = &mut reserved {
        reserved.shrink(bytes.len());
    }
    Ok(Received { bytes, reserved })
}

async fn collect(mut body: Body, expected: usize, max_bytes: usize) -> Result<Bytes> {
    let mut first = Bytes::new();
    let mut rest = Vec::new();
    while let Some(data) = next(&mut body).await? {
        // Most bodies come in one piece, which need not be copied.
        if first.is_empty() && rest.is_empty() {
            first = data;
        } else {
            if rest.is_empty() {
                rest.reserve_exact(expected.max(first.len()));
                rest.extend_from_slice(&std::mem::take(&mut first));
            }
            rest.extend_from_slice(&data);
        }
        if first.len().max(rest.len()) > max_bytes {
            drain(body, drain_limit(max_bytes)).await;
            return Err(too_large(max_bytes));
        }
    }
    Ok(if rest.is_empty() { first } else { rest.into() })
}

/// The next bytes; `None` at the end.
async fn next(body: &mut Body) -> Result<Option<Bytes>> {
    loop {
        let Ok(frame) = timeout(READ_TIMEOUT, body.frame()).await else {
            return Err(ApiError::Slow);
        };
        match frame {
            None => return Ok(None),
            Some(Err(_)) => return Err(ApiError::Plain("There was an error parsing the body")),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// The body of an upload, which breaks off with [`ApiError::Slow`] when the client stops sending or sends too slowly.
pub(super) fn paced(body: Body) -> Body {
    let begun = Instant::now();
    Body::from_stream(stream::try_unfold(
        (body, 0),
        move |(mut body, read)| async move {
            let Some(data) = next(&mut body).await? else {
                return Ok::<_, ApiError>(None);
            };
            let read = u64::try_from(data.len()).map_or(u64::MAX, |more| more.saturating_add(read));
            if begun.elapsed() > SLOW_START + Duration::from_secs(read / SLOWEST_UPLOAD) {
                return Err(ApiError::Slow);
            }
            Ok(Some((data, (body, read))))
        },
    ))
}

/// Reads a small body that nobody wants: a connection whose body is left unread cannot be used again.
pub(crate) async fn discard(headers: &HeaderMap, body: Body) {
    if !body.is_end_stream() && declared_length(headers).is_none_or(|length| length <= MAX_DISCARDED) {
        timeout(READ_TIMEOUT, read_on(body, MAX_DISCARDED)).await.ok(); // then it is not used again
    }
}

/// Reads on a body that is too large: a client that still sends when the connection closes does not see the answer.
async fn drain(body: Body, max_bytes: u64) {
    timeout(BODY_TIMEOUT, read_on(body, max_bytes)).await.ok(); // then it does not see it
}

/// Reads on without keeping anything, up to `max_bytes` bytes.
async fn read_on(mut body: Body, max_bytes: u64) {
    let mut size = 0;
    while let Some(Ok(frame)) = body.frame().await {
        let more = frame.data_ref().map_or(0, Bytes::len);
        size += u64::try_from(more).unwrap_or(u64::MAX);
        if size > max_bytes {
            return;
        }
    }
}

/// Reads on without keeping anything of an upload that is refused: its client sees why.
pub(crate) async fn drain_upload(body: Body) {
    drain(body, MAX_DRAINED).await;
}

pub(super) fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

pub(super) fn too_large(max_bytes: usize) -> ApiError {
    ApiError::TooLarge {
        limit: with_unit(max_bytes),
    }
}

pub(super) fn with_unit(bytes: usize) -> String {
    const KIB: usize = 1024;
    match bytes {
        bytes if bytes % (KIB * KIB) == 0 => format!("{} MiB", bytes / KIB / KIB),
        bytes if bytes % KIB == 0 => format!("{} KiB", bytes / KIB),
        bytes => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::{StreamExt, stream};

    use super::*;

    const KIB: usize = 1024;

    fn memory() -> BodyMemory {
        BodyMemory::new(1024 * KIB)
    }

    fn length(bytes: usize) -> HeaderMap {
        HeaderMap::from_iter([(header::CONTENT_LENGTH, bytes.into())])
    }

    /// Chunks of a KiB, and how many of them were taken.
    fn chunks(number: usize) -> (Body, Arc<AtomicUsize>) {
        let taken = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&taken);
        let chunks = stream::iter(0..number).map(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Infallible>(vec![b' '; KIB])
        });
        (Body::from_stream(chunks), taken)
    }

    #[tokio::test]
    async fn bodies_are_read_up_to_the_limit() {
        for headers in [length(16 * KIB), HeaderMap::new()] {
            let (body, _) = chunks(16);
            let read = read(&headers, body, 16 * KIB, &memory()).await.unwrap();
            assert_eq!(read.bytes.len(), 16 * KIB);
        }
        for headers in [length(17 * KIB), HeaderMap::new()] {
            let (body, taken) = chunks(10_000);
            let refused = read(&headers, body, 16 * KIB, &memory()).await.unwrap_err();
            assert!(
                matches!(&refused, ApiError::TooLarge { limit } if limit == "16 KiB"),
                "{refused}"
            );
            let taken = taken.load(Ordering::Relaxed);
            assert!(
                taken < 1100,
                "{taken} KiB were read of a body that anyone may send"
            );
        }
    }

    #[tokio::test]
    async fn bodies_in_one_piece_are_not_copied() {
        let bytes = Bytes::from(vec![b'x'; 100]);
        let read = read(&HeaderMap::new(), bytes.clone().into(), KIB, &memory())
            .await
            .unwrap();
        assert_eq!(read.bytes.as_ptr(), bytes.as_ptr());
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_stop_sending_are_not_waited_for() {
        let begun = tokio::time::Instant::now();
        let (some, _) = chunks(1);
        let body = Body::from_stream(some.into_data_stream().chain(stream::pending()));
        let memory = memory();
        let refused = read(&length(16 * KIB), body, 16 * KIB, &memory)
            .await
            .unwrap_err();
        assert!(matches!(refused, ApiError::Slow), "{refused}");
        assert_eq!(begun.elapsed().as_secs(), READ_TIMEOUT.as_secs());
        assert!(
            memory.reserve(1024 * KIB).await.is_ok(),
            "its memory is free again"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_send_a_little_now_and_then_come_to_an_end() {
        let trickle = stream::unfold((), |()| async {
            tokio::time::sleep(READ_TIMEOUT / 2).await;
            Some((Ok::<_, Infallible>(vec![b' ']), ()))
        });
        let begun = tokio::time::Instant::now();
        let refused = read(&length(KIB), Body::from_stream(trickle), KIB, &memory()).await;
        assert!(matches!(refused, Err(ApiError::Slow)));
        assert_eq!(begun.elapsed(), BODY_TIMEOUT);
    }

    #[tokio::test]
    async fn only_small_bodies_that_nobody_wants_are_read() {
        for (headers, size, least, most) in [
            (length(10 * KIB), 10, 10, 10),
            (length(10_000 * KIB), 10_000, 0, 0),
            (HeaderMap::new(), 10_000, 64, 66),
        ] {
            let (body, taken) = chunks(size);
            discard(&headers, body).await;
            let taken = taken.load(Ordering::Relaxed);
            assert!((least..=most).contains(&taken), "{taken} KiB were read");
        }
    }
}
