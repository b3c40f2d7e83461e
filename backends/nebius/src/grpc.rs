//! Calls of gRPC over HTTP ("gRPC over HTTP2", grpc/grpc): a message behind five bytes each way, and a status after it or in its place.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::{BufMut as _, Bytes, BytesMut};
use dstack_backend::one_line;
use dstack_http::{ApiError, ApiRequest, Trailers};
use http::header::TE;
use http::{HeaderMap, HeaderValue, Response};
use percent_encoding::percent_decode_str;
use prost::Message;

use crate::messages::{ServiceError, Status};

/// In binary headers, the padding may be left out.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// How often a call is made that the API cannot carry out now, and the pause before it is made again, which doubles.
const ATTEMPTS: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// What a status means ("Status codes and their use in gRPC").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    InvalidArgument,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Unavailable,
    Unauthenticated,
    /// Of which nobody knows whether the call was carried out: CANCELLED, UNKNOWN, DEADLINE_EXCEEDED, INTERNAL, DATA_LOSS, new ones.
    Other(i32),
}

impl Code {
    pub(crate) const fn of(number: i32) -> Self {
        match number {
            3 => Self::InvalidArgument,
            5 => Self::NotFound,
            6 => Self::AlreadyExists,
            7 => Self::PermissionDenied,
            8 => Self::ResourceExhausted,
            9 => Self::FailedPrecondition,
            10 => Self::Aborted,
            11 => Self::OutOfRange,
            12 => Self::Unimplemented,
            14 => Self::Unavailable,
            16 => Self::Unauthenticated,
            other => Self::Other(other),
        }
    }
}

/// Why a call has no answer that can be used.
#[derive(Debug, Clone)]
pub(crate) enum Error {
    /// Below gRPC.
    Http(ApiError),
    /// The API says so.
    Status(Refusal),
}

/// What the API says that went wrong.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    pub(crate) message: String,
    pub(crate) service: ServiceError,
}

impl Refusal {
    pub(crate) fn of(status: &Status) -> Self {
        let errors = status
            .details
            .iter()
            .filter(|detail| detail.type_url.ends_with("/nebius.common.v1.ServiceError"))
            .filter_map(|detail| ServiceError::decode(detail.value.as_slice()).ok());
        // Each speaks of another thing; the first with something of use is taken.
        let has_details = |error: &ServiceError| {
            error.quota_failure.is_some()
                || error.not_enough_resources.is_some()
                || error.too_many_requests.is_some()
        };
        let errors: Vec<ServiceError> = errors.collect();
        let told = errors.iter().find(|error| has_details(error)).or(errors.first());
        Self {
            code: Code::of(status.code),
            message: status.message.clone(),
            service: told.cloned().unwrap_or_default(),
        }
    }
}

impl fmt::Display for Refusal {
    /// In one line of bounded length.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lacking = [&self.service.quota_failure, &self.service.not_enough_resources];
        let lacking = lacking.into_iter().flatten().flat_map(|all| &all.violations);
        let mut text = match self.message.is_empty() {
            true => format!("{:?}", self.code),
            false => self.message.clone(),
        };
        for one in lacking {
            text = format!("{text}; {}: {}", one.what, one.message);
        }
        f.write_str(&one_line(&text))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(error) => error.fmt(f),
            Self::Status(refusal) => write!(f, "Nebius says: {refusal}"),
        }
    }
}

impl Error {
    /// Whether the API itself says that something is not there. What a proxy says is no status of gRPC.
    pub(crate) const fn is_missing(&self) -> bool {
        matches!(
            self,
            Self::Status(Refusal {
                code: Code::NotFound,
                ..
            })
        )
    }

    /// Whether the call was certainly not carried out.
    fn is_definite(&self) -> bool {
        match self {
            Self::Http(error) => error.is_definite(),
            Self::Status(refusal) => !matches!(refusal.code, Code::Unavailable | Code::Other(_)),
        }
    }
}

/// Makes a call of which it does not matter how often it is carried out: a reading, a removal, or one with a key of idempotency.
///
/// # Errors
/// The last one; but once nobody knows whether it was carried out, what says so of an earlier attempt: a refusal speaks of its own only.
pub(crate) async fn call<'a, A: Message + Default>(
    api: &str,
    begin: impl Fn() -> ApiRequest<'a> + Send + Sync,
    ask: &impl Message,
) -> Result<A, Error> {
    let body = framed(ask);
    let mut pause = FIRST_PAUSE;
    let mut unclear = None;
    for attempt in 1.. {
        let request = begin()
            .bytes(HeaderValue::from_static("application/grpc"), body.clone())
            .header(TE, "trailers")
            .repeatable();
        let answer = request.send_raw().await.map_err(Error::Http);
        match answer.and_then(|answer| answered(api, &answer)) {
            Err(Error::Status(refusal)) if refusal.code == Code::Unavailable && attempt < ATTEMPTS => {
                tracing::debug!(api, attempt, %refusal, "a call is repeated");
                tokio::time::sleep(pause).await;
                pause *= 2;
                unclear = Some(Error::Status(refusal));
            }
            Err(error) if error.is_definite() => return Err(unclear.unwrap_or(error)),
            told => return told,
        }
    }
    Err(malformed(api, "it was not asked"))
}

/// Not compressed.
fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(5 + length);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    frame.put_slice(&message.encode_to_vec());
    frame.freeze()
}

fn malformed(api: &str, details: &str) -> Error {
    Error::Http(ApiError::Malformed {
        api: api.to_owned(),
        details: details.to_owned(),
    })
}

fn answered<A: Message + Default>(api: &str, answer: &Response<Bytes>) -> Result<A, Error> {
    let trailers = answer.extensions().get::<Trailers>();
    // An answer without a message has its status in the headers.
    let told = trailers
        .and_then(|Trailers(trailers)| status(trailers))
        .or_else(|| status(answer.headers()));
    let status = told.ok_or_else(|| malformed(api, "it has no status of gRPC"))?;
    if status.code != 0 {
        return Err(Error::Status(Refusal::of(&status)));
    }
    let message = unframed(answer.body()).ok_or_else(|| malformed(api, "it is not one message"))?;
    A::decode(message).map_err(|error| malformed(api, &error.to_string()))
}

fn unframed(body: &Bytes) -> Option<&[u8]> {
    let (&is_compressed, rest) = body.split_first()?;
    let (length, message) = rest.split_first_chunk::<4>()?;
    let is_whole = usize::try_from(u32::from_be_bytes(*length)) == Ok(message.len());
    (is_compressed == 0 && is_whole).then_some(message)
}

/// `None`: there is none.
fn status(headers: &HeaderMap) -> Option<Status> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let code = text("grpc-status")?.parse().ok()?;
    let message = percent_decode_str(text("grpc-message").unwrap_or_default()).decode_utf8_lossy();
    let details = text("grpc-status-details-bin").and_then(|text| BASE64.decode(text).ok());
    let details = details.and_then(|bytes| Status::decode(bytes.as_slice()).ok());
    Some(Status {
        code,
        message: message.into_owned(),
        details: details.unwrap_or_default().details,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{Any, ById, Violation, Violations};

    fn answer(
        body: &[u8],
        headers: &[(&'static str, &str)],
        trailers: &[(&'static str, &str)],
    ) -> Response<Bytes> {
        let map = |pairs: &[(&'static str, &str)]| {
            let of = |(name, value): &(&'static str, &str)| {
                (
                    http::HeaderName::from_static(name),
                    HeaderValue::from_str(value).unwrap(),
                )
            };
            pairs.iter().map(of).collect::<HeaderMap>()
        };
        let mut answer = Response::new(Bytes::copy_from_slice(body));
        *answer.headers_mut() = map(headers);
        if !trailers.is_empty() {
            answer.extensions_mut().insert(Trailers(map(trailers)));
        }
        answer
    }

    fn read(answer: &Response<Bytes>) -> Result<ById, Error> {
        answered("api.example", answer)
    }

    #[test]
    fn a_message_counts_only_with_its_status() {
        let sent = ById { id: "i".to_owned() };
        let body = framed(&sent);
        assert_eq!(&body[..], b"\0\0\0\0\x03\n\x01i");
        assert_eq!(read(&answer(&body, &[], &[("grpc-status", "0")])).unwrap(), sent);
        assert_eq!(read(&answer(&body, &[("grpc-status", "0")], &[])).unwrap(), sent);
        for (body, trailers) in [
            (&body[..], &[][..]),
            (&body[..6], &[("grpc-status", "0")]),
            (&b""[..], &[("grpc-status", "0")]),
            (&b"\x01\0\0\0\x03\n\x01i"[..], &[("grpc-status", "0")]),
            (&b"\0\0\0\0\x03\n\x07i"[..], &[("grpc-status", "0")]),
        ] {
            let error = read(&answer(body, &[], trailers)).unwrap_err();
            assert!(
                matches!(error, Error::Http(ApiError::Malformed { .. })),
                "{error}"
            );
        }
    }

    #[test]
    fn a_status_is_read_from_headers_and_trailers_with_its_details() {
        let service = ServiceError {
            quota_failure: Some(Violations {
                violations: vec![Violation {
                    what: "compute.instance.gpu.h100".to_owned(),
                    message: "8 of 8".to_owned(),
                }],
            }),
            ..ServiceError::default()
        };
        let details = Status {
            details: vec![Any {
                type_url: "type.googleapis.com/nebius.common.v1.ServiceError".to_owned(),
                value: service.encode_to_vec(),
            }],
            ..Status::default()
        };
        let details = BASE64.encode(details.encode_to_vec());
        for details in [details.as_str(), details.trim_end_matches('=')] {
            let told = [
                ("grpc-status", "8"),
                ("grpc-message", "too%20much%0A"),
                ("grpc-status-details-bin", details),
            ];
            for answer in [answer(b"", &told, &[]), answer(b"", &[], &told)] {
                let Error::Status(refusal) = read(&answer).unwrap_err() else {
                    panic!("it has a status");
                };
                assert_eq!(refusal.code, Code::ResourceExhausted);
                let text = refusal.to_string();
                assert_eq!(text, "too much ; compute.instance.gpu.h100: 8 of 8");
            }
        }
    }
}
