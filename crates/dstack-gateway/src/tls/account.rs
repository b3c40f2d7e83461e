//! Who orders certificates: one account for each authority, kept on the disk.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD};
use dstack_system::{Locked, file, task};
use instant_acme::{Account, AccountBuilder, AccountCredentials, ExternalAccountKey, NewAccount};
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use super::order::OrderError;
use crate::registry::turns::Turns;
use crate::state::AcmeSettings;

/// It holds a key.
const MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o700;
/// Time for the authority to answer one call. Those who wait for a certificate are told before that it takes too long.
pub(super) const CALL_LIMIT: Duration = Duration::from_secs(60);

/// Accounts at certificate authorities.
#[derive(Debug)]
pub(super) struct Authority {
    accounts: PathBuf,
    default: String,
    root: Option<PathBuf>,
    /// The account that was used last, with what it belongs to.
    last: Locked<Option<Kept>>,
    /// Of those who need the same account, one asks for it.
    turns: Turns,
}

struct Kept {
    name: String,
    account: Account,
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

/// The key by which the authority knows its user.
pub(super) fn external(acme: &AcmeSettings) -> Result<Option<ExternalAccountKey>, String> {
    let (Some(kid), Some(key)) = (&acme.eab_kid, &acme.eab_hmac_key) else {
        return Ok(None);
    };
    let text = key.expose().trim();
    let decoded = URL_SAFE_NO_PAD.decode(text).or_else(|_| URL_SAFE.decode(text));
    let key = decoded.map_err(|_| "acme_eab_hmac_key is not in URL-safe Base64".to_owned())?;
    Ok(Some(ExternalAccountKey::new(kid.clone(), &key)))
}

impl Authority {
    pub(super) fn new(accounts: PathBuf, default: String, root: Option<PathBuf>) -> Self {
        Self {
            accounts,
            default,
            root,
            last: Locked::default(),
            turns: Turns::default(),
        }
    }

    /// The account at the authority that these settings name, made if there is none.
    pub(super) async fn account(&self, acme: &AcmeSettings) -> Result<Account, OrderError> {
        let url = self.url(acme);
        let name = name(url, acme.eab_kid.as_deref());
        let _turn = self.turns.take(&name).await;
        if let Some(account) = self.last(&name) {
            return Ok(account);
        }
        let path = self.path(&name);
        let account = match fs_err::read(&path).ok().map(|text| serde_json::from_slice(&text)) {
            Some(Ok(credentials)) => in_time(self.builder()?.from_credentials(credentials)).await?,
            _ => self.create(url, acme, &path).await?,
        };
        *self.last.lock() = Some(Kept {
            name,
            account: account.clone(),
        });
        Ok(account)
    }

    fn last(&self, name: &str) -> Option<Account> {
        let last = self.last.lock();
        let kept = last.as_ref().filter(|kept| kept.name == name);
        kept.map(|kept| kept.account.clone())
    }

    /// Its directory is read anew at the next order.
    pub(super) fn forget(&self) {
        *self.last.lock() = None;
    }

    /// The authority knows the account of these settings no more: another one is made at the next order.
    pub(super) fn discard(&self, acme: &AcmeSettings) {
        let path = self.path(&name(self.url(acme), acme.eab_kid.as_deref()));
        if let Err(error) = fs_err::remove_file(path) {
            tracing::warn!(%error, "an account that the authority does not know stays");
        }
        self.forget();
    }

    fn url<'a>(&'a self, acme: &'a AcmeSettings) -> &'a str {
        acme.server.as_ref().unwrap_or(&self.default)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.accounts.join(format!("{name}.json"))
    }

    async fn create(&self, url: &str, acme: &AcmeSettings, path: &Path) -> Result<Account, OrderError> {
        let external = external(acme).map_err(OrderError::Settings)?;
        let new = NewAccount {
            contact: &[],
            terms_of_service_agreed: true,
            only_return_existing: false,
        };
        let created = self.builder()?.create(&new, url.to_owned(), external.as_ref());
        let (account, credentials) = in_time(created).await?;
        self.save(path, credentials).await?;
        Ok(account)
    }

    async fn save(&self, path: &Path, credentials: AccountCredentials) -> Result<(), OrderError> {
        let text = serde_json::to_vec(&credentials).map_err(std::io::Error::from)?;
        let (dir, path) = (self.accounts.clone(), path.to_owned());
        let saved = task::blocking("account of an authority", move || {
            file::create_dir(&dir, DIR_MODE)?;
            file::write_atomically(&path, &text, MODE)
        });
        Ok(saved.await.map_err(std::io::Error::other)??)
    }

    fn builder(&self) -> Result<AccountBuilder, OrderError> {
        Ok(match &self.root {
            Some(root) => Account::builder_with_root(root)?,
            None => Account::builder()?,
        })
    }
}

/// The answer of an authority to one call.
///
/// # Errors
/// It refuses, or does not answer within [`CALL_LIMIT`].
pub(super) async fn in_time<T>(
    call: impl Future<Output = Result<T, instant_acme::Error>>,
) -> Result<T, OrderError> {
    match timeout(CALL_LIMIT, call).await {
        Ok(answered) => Ok(answered?),
        Err(_) => Err(OrderError::Silent(CALL_LIMIT)),
    }
}

/// Of the file of an account.
fn name(url: &str, kid: Option<&str>) -> String {
    let digest = Sha256::digest(format!("{url} {}", kid.unwrap_or_default()));
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
