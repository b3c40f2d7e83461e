//! Whether a repo of templates can be read: asked over HTTP as git asks it, of addresses that users may name.

use std::time::Duration;

use axum::http::{HeaderValue, header};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dstack_http::{ClientOptions, GuardedClient, GuardedRedirects, OutboundError, OutboundPolicy, redacted};
use dstack_system::chain;
use url::Url;

use crate::error::{ApiError, Result};

/// Longest time for the whole answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The first branch and what the server is able to do are told long before.
const LONGEST_HEAD: usize = 64 * 1024;
/// The type that tells a git server from any other.
const ADVERTISEMENT: &str = "application/x-git-upload-pack-advertisement";

/// Refuses a repo that cannot be reached, or that is empty.
pub(crate) async fn check_access(repo: &str, policy: OutboundPolicy) -> Result<()> {
    let why = match ask(repo, policy).await {
        Ok(true) => return Ok(()),
        Ok(false) => None,
        // The only reasons that say what to do about them; others would tell of services inside.
        Err(OutboundError::Refused(refused)) => Some(refused.to_string()),
        Err(OutboundError::NotHttp) => {
            Some("only repos that are reached over HTTPS or HTTP are supported".to_owned())
        }
        Err(error) => {
            tracing::info!(error = %chain(&error), "a templates repo cannot be reached");
            None
        }
    };
    let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
    Err(ApiError::client(format!(
        "Cannot access templates repo: {}{why}",
        without_credentials(repo)
    )))
}

/// Whether there is a git repo with something in it.
async fn ask(repo: &str, policy: OutboundPolicy) -> std::result::Result<bool, OutboundError> {
    let url = Url::parse(&format!(
        "{}/info/refs?service=git-upload-pack",
        repo.trim_end_matches('/')
    ));
    let url = url.map_err(|_| OutboundError::NotHttp)?;
    let options = ClientOptions {
        connect_timeout: Some(TIMEOUT),
        total_timeout: Some(TIMEOUT),
        ..ClientOptions::default()
    };
    let client = GuardedClient::new(policy, options);
    let authorization = credentials(&url);
    let mut request = client.get(url).redirects(GuardedRedirects::AnyHost);
    if let Some(value) = authorization {
        request = request.header(header::AUTHORIZATION, value);
    }
    let mut answer = request.send().await?;
    let kind = answer.response.headers().get(header::CONTENT_TYPE);
    if !answer.response.status().is_success() || kind.is_none_or(|kind| kind != ADVERTISEMENT) {
        return Ok(false);
    }
    let mut head = Vec::new();
    while let Ok(Some(chunk)) = answer.response.chunk().await {
        head.extend_from_slice(&chunk);
        if head.windows(6).any(|part| part == b" HEAD\0") {
            return Ok(true);
        }
        if head.len() > LONGEST_HEAD {
            break;
        }
    }
    Ok(false)
}

fn without_credentials(repo: &str) -> String {
    match Url::parse(repo) {
        Ok(url) if has_credentials(&url) => redacted(&url),
        _ => repo.to_owned(),
    }
}

fn has_credentials(url: &Url) -> bool {
    !url.username().is_empty() || url.password().is_some()
}

/// User and password of a URL, as HTTP carries them.
fn credentials(url: &Url) -> Option<HeaderValue> {
    if !has_credentials(url) {
        return None;
    }
    let decoded = |part: &str| {
        percent_encoding::percent_decode_str(part)
            .decode_utf8_lossy()
            .into_owned()
    };
    let both = format!(
        "{}:{}",
        decoded(url.username()),
        decoded(url.password().unwrap_or_default())
    );
    let mut value = HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(both))).ok()?;
    value.set_sensitive(true);
    Some(value)
}
