//! Whether a repo of templates can be read: asked over HTTP as git asks it, of addresses that users may name.

use std::time::Duration;

use axum::http::header;
use dstack_http::{ClientOptions, GuardedClient, GuardedRedirects, OutboundError, OutboundPolicy};
use dstack_system::chain;
use url::Url;

use crate::error::{ApiError, Result};

/// Longest time for the whole answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The first branch and what the server is able to do are told long before.
const LONGEST_HEAD: usize = 64 * 1024;
/// Stands before what the server is able to do, if the repo has a branch.
const MARK: &[u8] = b" HEAD\0";
/// The type that tells a git server from any other.
const ADVERTISEMENT: &str = "application/x-git-upload-pack-advertisement";

/// Asks for repos of templates, over connections that are kept.
#[derive(Debug)]
pub struct TemplatesRepos {
    client: GuardedClient,
}

impl TemplatesRepos {
    /// Asks what `policy` lets users name; nothing is connected yet.
    pub fn new(policy: OutboundPolicy) -> Self {
        let options = ClientOptions {
            connect_timeout: Some(TIMEOUT),
            total_timeout: Some(TIMEOUT),
            ..ClientOptions::default()
        };
        Self {
            client: GuardedClient::new(policy, options),
        }
    }

    /// Refuses a repo that cannot be reached, or that is empty.
    pub(crate) async fn check_access(&self, repo: &str) -> Result<()> {
        check_access(repo, &self.client).await
    }
}

async fn check_access(repo: &str, client: &GuardedClient) -> Result<()> {
    if Url::parse(repo).is_ok_and(|url| has_credentials(&url)) {
        return Err(ApiError::client(
            "The address of a templates repo has a user or password in it, which all members of the project would see. Give \
             one without"
                .to_owned(),
        ));
    }
    let asked = tokio::time::timeout(TIMEOUT, ask(repo, client)).await;
    let why = match asked.unwrap_or(Ok(false)) {
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
        repo
    )))
}

/// Whether there is a git repo with something in it.
async fn ask(repo: &str, client: &GuardedClient) -> std::result::Result<bool, OutboundError> {
    let url = Url::parse(&format!(
        "{}/info/refs?service=git-upload-pack",
        repo.trim_end_matches('/')
    ));
    let url = url.map_err(|_| OutboundError::NotHttp)?;
    let request = client.get(url).redirects(GuardedRedirects::AnyHost);
    let mut answer = request.send().await?;
    let kind = answer.response.headers().get(header::CONTENT_TYPE);
    if !answer.response.status().is_success() || kind.is_none_or(|kind| kind != ADVERTISEMENT) {
        return Ok(false);
    }
    let mut head = Vec::new();
    while let Ok(Some(chunk)) = answer.response.chunk().await {
        // The mark may lie across two chunks.
        let seen = head.len().saturating_sub(MARK.len() - 1);
        head.extend_from_slice(&chunk);
        let mut unseen = head.get(seen..).unwrap_or_default().windows(MARK.len());
        if unseen.any(|part| part == MARK) {
            return Ok(true);
        }
        if head.len() > LONGEST_HEAD {
            break;
        }
    }
    Ok(false)
}

fn has_credentials(url: &Url) -> bool {
    !url.username().is_empty() || url.password().is_some()
}
