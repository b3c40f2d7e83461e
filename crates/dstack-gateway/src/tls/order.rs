//! One order of a certificate authority (RFC 8555): it asks the gateway at the host name, and signs then.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use dstack_system::{Secret, task};
use instant_acme::{
    Account, AuthorizationStatus, ChallengeType, Identifier, NewOrder, Order, OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use tokio::time::timeout;

use super::account::{CALL_LIMIT, in_time};
use super::challenges::{Challenges, Offered};
use super::files::UnusableError;

/// How often the authority is asked how far it is, and until when.
const POLLING: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(250))
    .backoff(1.5)
    .timeout(POLLING_LIMIT);
const POLLING_LIMIT: Duration = Duration::from_secs(90);

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OrderError {
    #[error("the certificate authority has given none")]
    Authority(#[from] instant_acme::Error),
    #[error("the certificate authority has not answered within {} s", .0.as_secs())]
    Silent(Duration),
    #[error("{0}")]
    JustFailed(String),
    #[error("{0}")]
    Settings(String),
    #[error("the certificate authority offers no way by HTTP (http-01)")]
    NoChallenge,
    #[error("the certificate authority has found that {0} does not lead to this gateway")]
    Invalid(String),
    #[error("no key was made")]
    Key(#[from] rcgen::Error),
    #[error(transparent)]
    Panicked(#[from] task::Panicked),
    #[error("the certificate cannot be used")]
    Unusable(#[source] UnusableError),
    #[error("the certificate cannot be kept")]
    Disk(#[from] io::Error),
}

impl OrderError {
    /// The authority knows the account no more.
    pub(super) fn is_about_account(&self) -> bool {
        let Self::Authority(instant_acme::Error::Api(problem)) = self else {
            return false;
        };
        let kind = problem.r#type.as_deref().unwrap_or_default();
        kind.ends_with(":accountDoesNotExist")
    }
}

/// Orders a certificate. Returns its chain and key.
pub(super) async fn order(
    account: &Account,
    domain: &str,
    challenges: &Arc<Challenges>,
) -> Result<Secret, OrderError> {
    let identifiers = [Identifier::Dns(domain.to_owned())];
    let mut order = in_time(account.new_order(&NewOrder::new(&identifiers))).await?;
    let offered = authorize(&mut order, challenges).await?;
    if polled(order.poll_ready(&POLLING)).await? != OrderStatus::Ready {
        return Err(invalid(&mut order, domain).await);
    }
    drop(offered);
    let (request, key) = signing_request(domain).await?;
    in_time(order.finalize_csr(&request)).await?;
    let chain = polled(order.poll_certificate(&POLLING)).await?;
    Ok(Secret::new(format!("{chain}\n{}", key.expose())))
}

/// Answers what the authority asks, and tells it so. The answers are given until what is returned is dropped.
async fn authorize(order: &mut Order, challenges: &Arc<Challenges>) -> Result<Vec<Offered>, OrderError> {
    let mut offered = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(mut authorization) = in_time(next(authorizations.next())).await? {
        if authorization.status == AuthorizationStatus::Valid {
            continue;
        }
        let challenge = authorization.challenge(ChallengeType::Http01);
        let mut challenge = challenge.ok_or(OrderError::NoChallenge)?;
        let answer = challenge.key_authorization();
        offered.push(challenges.offer(&challenge.token, answer.as_str()));
        in_time(challenge.set_ready()).await?;
    }
    Ok(offered)
}

/// One of several, or none any more, or why it is not known.
async fn next<T, E>(next: impl Future<Output = Option<Result<T, E>>>) -> Result<Option<T>, E> {
    next.await.transpose()
}

/// What is asked for again and again, of which the last time may be a call that is not answered.
async fn polled<T>(calls: impl Future<Output = Result<T, instant_acme::Error>>) -> Result<T, OrderError> {
    match timeout(POLLING_LIMIT + CALL_LIMIT, calls).await {
        Ok(answered) => Ok(answered?),
        Err(_) => Err(OrderError::Silent(POLLING_LIMIT + CALL_LIMIT)),
    }
}

/// What the authority has found.
async fn invalid(order: &mut Order, domain: &str) -> OrderError {
    let mut authorizations = order.authorizations();
    while let Ok(Some(authorization)) = in_time(next(authorizations.next())).await {
        for challenge in &authorization.challenges {
            if let Some(problem) = &challenge.error {
                return OrderError::Authority(instant_acme::Error::Api(problem.clone()));
            }
        }
    }
    OrderError::Invalid(domain.to_owned())
}

/// What the authority signs, and the key of that in PEM.
async fn signing_request(domain: &str) -> Result<(Vec<u8>, Secret), OrderError> {
    let domain = domain.to_owned();
    let made = task::blocking("key of a certificate", move || {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec![domain])?;
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&key)?;
        Ok::<_, rcgen::Error>((request.der().to_vec(), Secret::new(key.serialize_pem())))
    });
    Ok(made.await??)
}
