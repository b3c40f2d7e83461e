//! What goes wrong at a registry, and what helps.

use crate::ImageError;
use std::time::Duration;

use dstack_http::{OutboundError, Refused, SetupError};
use dstack_system::root_cause;
use reqwest::StatusCode;

/// Why a lookup failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum LookupError {
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error("it may not be contacted")]
    Refused(#[source] Refused),
    #[error("its service for tokens may not be contacted")]
    RefusedRealm(#[source] Refused),
    #[error("a redirect is not followed: {0}")]
    Redirect(&'static str),
    #[error("no answer")]
    Unreachable(#[source] reqwest::Error),
    #[error("no answer within {0:?}")]
    Slow(Duration),
    #[error("the answer is {status}")]
    Status {
        status: StatusCode,
        /// The answer is one that only registries give.
        of_registry: bool,
    },
    #[error("the answer is longer than {0} bytes")]
    TooLarge(usize),
    #[error("the answer is not {what}, but {kind}")]
    NotRegistry { what: &'static str, kind: String },
    #[error("the content does not have the digest {0}")]
    Digest(String),
    #[error("the token would be sent unencrypted")]
    PlainRealm,
    #[error("no image for Linux on amd64 or arm64")]
    NoPlatform,
    #[error("an index of indexes")]
    NestedIndex,
    #[error("manifest schema 1")]
    Obsolete,
}

impl From<OutboundError> for LookupError {
    fn from(error: OutboundError) -> Self {
        match error {
            OutboundError::Setup(error) => Self::Setup(error),
            OutboundError::Refused(refused) => Self::Refused(refused),
            OutboundError::Redirect(why) => Self::Redirect(why),
            OutboundError::NotHttp => Self::Redirect("its address is not one of HTTP"),
            OutboundError::Failed { source, .. } => Self::Unreachable(source),
        }
    }
}

/// What users are told of a registry inside that is of no use. Always the same: they may name any host and port, and must not
/// learn which of them answer.
pub(super) fn explain_inside(registry: &str) -> String {
    format!(
        "{registry} is not on a public network, and cannot be used as a container registry. Check its name; the cause is in the \
         server's log, which an administrator can read"
    )
}

impl LookupError {
    /// Whether the error would tell what is at an address of the user's choice.
    pub(super) fn may_probe(&self) -> bool {
        match self {
            Self::Unreachable(_)
            | Self::Slow(_)
            | Self::TooLarge(_)
            | Self::NotRegistry { .. }
            | Self::Redirect(_)
            | Self::Digest(_) => true,
            Self::Status { of_registry, .. } => !of_registry,
            Self::Setup(_)
            | Self::Refused(_)
            | Self::RefusedRealm(_)
            | Self::PlainRealm
            | Self::NoPlatform
            | Self::NestedIndex
            | Self::Obsolete => false,
        }
    }

    /// Whether the same question may be answered later.
    fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Slow(_) | Self::Digest(_) => true,
            Self::Status { status, .. } => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            _ => false,
        }
    }

    /// What the caller is told, with what to do about it.
    pub(super) fn with_text(&self, text: String) -> ImageError {
        match self.is_transient() {
            true => ImageError::Transient(text),
            false => ImageError::Refused(text),
        }
    }

    /// Cause and remedy, for users. Statuses read as dstack 0.22.5 shows them: `401 Client Error: Unauthorized`.
    pub(super) fn explain(&self, registry: &str, with_credentials: bool) -> String {
        match self {
            Self::Setup(cause) => format!(
                "no HTTPS client can be set up: {}. Are certificates installed on the server (`ca-certificates`)?",
                root_cause(cause)
            ),
            Self::Unreachable(cause) => format!(
                "{registry} cannot be reached: {}. Check the registry's name and the server's network",
                root_cause(cause)
            ),
            Self::Slow(limit) => format!(
                "{registry} did not answer within {} s. Try again, or check the server's network",
                limit.as_secs_f32()
            ),
            Self::Status { status, .. } => {
                let remedy = remedy(*status, with_credentials);
                let class = if status.is_server_error() { "Server" } else { "Client" };
                let reason = status.canonical_reason().unwrap_or("Unknown");
                format!("{} {class} Error: {reason}. {remedy}", status.as_u16())
            }
            Self::TooLarge(limit) => format!("{registry} answered with more than {limit} bytes"),
            Self::NotRegistry { what, kind } => {
                format!("{registry} did not answer with {what}, but with {kind}. Is it a container registry?")
            }
            Self::Digest(digest) => {
                format!("{registry} sent something else than what has the digest {digest}. Try again")
            }
            Self::Refused(refused) => refused.to_string(),
            Self::RefusedRealm(refused) => {
                format!("{registry} has its tokens given out by another service, which is refused: {refused}")
            }
            Self::Redirect(why) => format!("{registry} answers with a redirect that is not followed: {why}"),
            Self::PlainRealm => {
                format!("{registry} has its tokens given out unencrypted (http), which is refused")
            }
            Self::NoPlatform => {
                "No supported OS/architectures found: the image must be for Linux on amd64 or arm64".to_owned()
            }
            Self::NestedIndex => {
                "the image is an index of indexes, which is not supported. Name one of its images by digest".to_owned()
            }
            Self::Obsolete => {
                "the image has a manifest of the obsolete schema 1. Pull and push it again with a current tool".to_owned()
            }
        }
    }
}

fn remedy(status: StatusCode, with_credentials: bool) -> &'static str {
    match (status.as_u16(), with_credentials) {
        (401 | 403, false) => {
            "There is no such image, or it is private: check the name, or set `registry_auth` to a user with access"
        }
        (401 | 403, true) => {
            "There is no such image, or the user of `registry_auth` has no access to it: check both"
        }
        (404, _) => "The registry has no image of this name and tag",
        (429, _) => "Too many requests: set `registry_auth`, or try again later",
        (500.., _) => "The registry has a problem: try again later",
        _ => "The registry refuses the request",
    }
}
