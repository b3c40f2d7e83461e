//! How libgit2 reaches remotes: our own transports for http, https and ssh, so that neither OpenSSL nor libssh2 is
//! linked and no program of the image is needed.
//!
//! libgit2 knows transports by scheme for the whole process; what belongs to one clone (credentials, the wish to stop)
//! is found through a variable of the thread that clones, which libgit2 never leaves.

mod http;
mod known_hosts;
mod register;
mod ssh;

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use dstack_ssh::keys::{KeyError, parse_private};
use dstack_system::Secret;
use russh::keys::PrivateKey;

use crate::clone::CloneRequest;
use crate::remote::Remote;

/// Why a remote could not be reached or refused us.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The address of the remote, or of a submodule, cannot be used.
    #[error(transparent)]
    Address(#[from] crate::remote::RemoteError),
    /// The host cannot be reached, or the connection broke.
    #[error("cannot reach {host}")]
    Network {
        /// Name or IP address of the host.
        host: String,
        /// What went wrong.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The host did not accept the credentials, or wants some.
    #[error(
        "{host} refused access (HTTP {status}): check that the repo exists and that the token may read it"
    )]
    HttpDenied {
        /// Name or IP address of the host.
        host: String,
        /// HTTP status of the answer.
        status: u16,
    },
    /// The host answered something else than a git server would.
    #[error("{host} answered HTTP {status}")]
    HttpStatus {
        /// Name or IP address of the host.
        host: String,
        /// HTTP status of the answer.
        status: u16,
    },
    /// An ssh remote needs a key, and there is none.
    #[error("{host} is reached over ssh, but the repo has no private key")]
    NoKey {
        /// Name or IP address of the host.
        host: String,
    },
    /// A submodule lies on another host than the repo.
    #[error(
        "{host} is reached over ssh, and the private key is for the repo on {own} only: give the submodule an https address, or \
         one on {own}"
    )]
    OtherHost {
        /// Host name of the submodule.
        host: String,
        /// Host name of the repo.
        own: String,
    },
    /// The keys of a known host cannot be read.
    #[error("the host key of {host} in {file} cannot be read")]
    KnownHosts {
        /// Path of the file.
        file: String,
        /// Name or IP address of the host.
        host: String,
        /// What is wrong with it.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The remote side ended before it had answered.
    #[error("{host} refused: {message}")]
    SshRefused {
        /// Name or IP address of the host.
        host: String,
        /// What it wrote to its error output.
        message: String,
    },
    /// It was cancelled.
    #[error("stopped")]
    Stopped,
}

/// What one clone may use.
#[derive(Debug)]
pub(super) struct Access {
    remote: Remote,
    token: Option<Secret>,
    key: Option<Arc<PrivateKey>>,
    /// Files with host keys that must be the right ones.
    known_hosts: Vec<PathBuf>,
    /// Fingerprints of the keys that hosts showed at the first connection of this clone: they must not change.
    seen_keys: Mutex<HashMap<(String, u16), String>>,
    stop: Arc<AtomicBool>,
    /// The reason behind libgit2's error, which is only a text.
    failure: Mutex<Option<TransportError>>,
}

impl Access {
    /// Access to `remote` and to submodules at the same place.
    pub(super) fn new(remote: Remote, request: &CloneRequest) -> Result<Self, KeyError> {
        let given =
            |secret: &Option<Secret>| secret.clone().filter(|secret| !secret.expose().trim().is_empty());
        let key = given(&request.private_key)
            .map(|key| parse_private(key.expose()))
            .transpose()?;
        Ok(Self {
            remote,
            token: given(&request.token),
            key: key.map(Arc::new),
            known_hosts: request.known_hosts.clone(),
            seen_keys: Mutex::default(),
            stop: Arc::clone(&request.cancelled),
            failure: Mutex::new(None),
        })
    }

    /// Whether the clone was cancelled meanwhile.
    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The reason of the last failure.
    pub(super) fn take_failure(&self) -> Option<TransportError> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Keeps the reason and makes the text of it that libgit2 passes on.
    fn fail(&self, error: TransportError) -> String {
        let text = error.to_string();
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        text
    }

    /// The private key for an ssh remote: it is only shown to the host that it was given for.
    fn key_for(&self, remote: &Remote) -> Result<Arc<PrivateKey>, TransportError> {
        let host = remote.host().to_owned();
        match &self.key {
            None => Err(TransportError::NoKey { host }),
            Some(_) if !self.remote.same_place(remote) => Err(TransportError::OtherHost {
                host,
                own: self.remote.host().to_owned(),
            }),
            Some(key) => Ok(Arc::clone(key)),
        }
    }

    /// The host key that a host has shown to this clone.
    fn seen_key(&self, host: &str, port: u16) -> Option<String> {
        let seen = self.seen_keys.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(&(host.to_owned(), port)).cloned()
    }

    fn saw_key(&self, host: &str, port: u16, fingerprint: &str) {
        let mut seen = self.seen_keys.lock().unwrap_or_else(PoisonError::into_inner);
        seen.insert((host.to_owned(), port), fingerprint.to_owned());
    }

    /// User and password for `remote`: the token only goes to the place it was given for.
    fn login(&self, remote: &Remote) -> Option<(String, Secret)> {
        if let Remote::Http {
            login: Some(login), ..
        } = remote
        {
            return Some(login.clone());
        }
        if !self.remote.same_place(remote) {
            return None;
        }
        match (&self.token, &self.remote) {
            // dstack 0.22.5: any user name does when the password is a token.
            (Some(token), _) => Some(("anything".to_owned(), token.clone())),
            (None, Remote::Http { login, .. }) => login.clone(),
            (None, Remote::Ssh { .. }) => None,
        }
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<Access>>> = const { RefCell::new(None) };
}

/// Runs `work` with this access for everything it fetches on this thread.
pub(super) fn with_access<T>(access: &Arc<Access>, work: impl FnOnce() -> T) -> Result<T, git2::Error> {
    static REGISTERED: OnceLock<Result<(), String>> = OnceLock::new();
    let registered =
        REGISTERED.get_or_init(|| register::register().map_err(|error| error.message().to_owned()));
    registered
        .as_ref()
        .map_err(|message| git2::Error::from_str(message))?;
    struct Restore(Option<Arc<Access>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.set(self.0.take());
        }
    }
    let _restore = Restore(CURRENT.replace(Some(Arc::clone(access))));
    Ok(work())
}

fn current() -> Result<Arc<Access>, git2::Error> {
    CURRENT
        .with_borrow(Clone::clone)
        .ok_or_else(|| git2::Error::from_str("no repo is being cloned on this thread"))
}
