//! The installed binaries of shim and runner, and replacing them.

mod download;

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dstack_agent_api::shim::{Component, ComponentInstall, ComponentStatus, Components as Listed};
use dstack_system::task;
use tokio::sync::Notify;

pub use download::InstallError;

/// The runner's name.
pub const RUNNER: &str = "dstack-runner";
/// This agent's name.
pub const SHIM: &str = "dstack-shim";
const VERSION_LIMIT: Duration = Duration::from_secs(10);

/// A refused installation: text and whether it is a conflict (409) or a bad request (400).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RefusedInstall {
    /// No name is given (400).
    #[error("empty name")]
    EmptyName,
    /// There is no component of that name (400).
    #[error("unknown component")]
    Unknown,
    /// No address to download from is given (400).
    #[error("empty url")]
    EmptyUrl,
    /// The component is being installed (409).
    #[error("already installing")]
    Busy,
}

/// The binaries of shim and runner, and their installation.
#[derive(Clone)]
pub struct Components {
    slots: Arc<[Slot; 2]>,
    cancelled: Arc<AtomicBool>,
    done: Arc<Notify>,
}

struct Slot {
    name: &'static str,
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    installing: bool,
    // What `--version` said of the file with this stamp.
    known: Option<(Stamp, Component)>,
    // ETags by URL, each good only for the file it brought.
    etags: HashMap<String, (Stamp, String)>,
}

/// Tells one content of a path from another.
type Stamp = (u64, i64, i64, u64);

fn stamp(path: &Path) -> Option<Stamp> {
    let meta = fs_err::metadata(path).ok()?;
    Some((meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.size()))
}

impl Components {
    /// Where the binaries are.
    pub fn new(runner: PathBuf, shim: PathBuf) -> Self {
        let slot = |name, path| Slot {
            name,
            path,
            state: Mutex::default(),
        };
        Self {
            slots: Arc::new([slot(RUNNER, runner), slot(SHIM, shim)]),
            cancelled: Arc::default(),
            done: Arc::default(),
        }
    }

    /// The runner, then the shim.
    pub async fn list(&self) -> Listed {
        let mut components = Vec::new();
        for slot in self.slots.iter() {
            components.push(slot.component().await);
        }
        Listed { components }
    }

    /// Starts an installation in the background.
    pub fn install(&self, request: &ComponentInstall) -> Result<(), RefusedInstall> {
        if request.name.is_empty() {
            return Err(RefusedInstall::EmptyName);
        }
        let index = self
            .slots
            .iter()
            .position(|slot| slot.name == request.name)
            .ok_or(RefusedInstall::Unknown)?;
        let slot = self.slots.get(index).ok_or(RefusedInstall::Unknown)?;
        if request.url.is_empty() {
            return Err(RefusedInstall::EmptyUrl);
        }
        if std::mem::replace(&mut slot.lock().installing, true) {
            return Err(RefusedInstall::Busy);
        }
        let (this, url) = (self.clone(), request.url.clone());
        task::spawn(
            "component install",
            async move { this.install_now(index, url).await },
        );
        Ok(())
    }

    async fn install_now(&self, index: usize, url: String) {
        let Some(slot) = self.slots.get(index) else { return };
        let etag = slot.etag(&url);
        let (path, cancelled, from) = (slot.path.clone(), self.cancelled.clone(), url.clone());
        let work = move || download::install(&from, &path, etag.as_deref(), &cancelled);
        match task::blocking("component download", work).await {
            Ok(Ok(download::Installed { etag })) => {
                tracing::info!(component = slot.name, url, "component installed");
                slot.remember(url, etag);
            }
            Ok(Err(InstallError::Unchanged)) => {
                tracing::info!(component = slot.name, url, "component is unchanged");
            }
            Ok(Err(error)) => {
                tracing::error!(component = slot.name, url, error = %crate::error::chain(&error), "component not installed");
            }
            Err(error) => tracing::error!(component = slot.name, %error, "component not installed"),
        }
        slot.lock().installing = false;
        self.done.notify_waiters();
    }

    /// Gives up running installations.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Until no installation runs.
    pub async fn idle(&self) {
        loop {
            let done = self.done.notified();
            tokio::pin!(done);
            done.as_mut().enable();
            if self.slots.iter().all(|slot| !slot.lock().installing) {
                return;
            }
            done.await;
        }
    }
}

/// Downloads a missing runner at start.
pub async fn download_missing(url: &str, path: &Path) -> Result<(), InstallError> {
    let (url, path) = (url.to_owned(), path.to_owned());
    let never = AtomicBool::new(false);
    task::blocking("runner download", move || {
        download::install(&url, &path, None, &never)
    })
    .await
    .map_err(|error| InstallError::Io(std::io::Error::other(error)))?
    .map(drop)
}

impl Slot {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn etag(&self, url: &str) -> Option<String> {
        let now = stamp(&self.path)?;
        self.lock()
            .etags
            .get(url)
            .filter(|(known, _)| *known == now)
            .map(|(_, etag)| etag.clone())
    }

    fn remember(&self, url: String, etag: Option<String>) {
        if let (Some(now), Some(etag)) = (stamp(&self.path), etag) {
            self.lock().etags.insert(url, (now, etag));
        }
    }

    async fn component(&self) -> Component {
        let of = |status, version: &str| Component {
            name: self.name.to_owned(),
            version: version.to_owned(),
            status,
        };
        if self.lock().installing {
            return of(ComponentStatus::Installing, "");
        }
        let Some(now) = stamp(&self.path) else {
            return of(ComponentStatus::NotInstalled, "");
        };
        if let Some((known, component)) = &self.lock().known
            && *known == now
        {
            return component.clone();
        }
        let component = match version(self.name, &self.path).await {
            Some(version) => of(ComponentStatus::Installed, &version),
            None => of(ComponentStatus::Error, ""),
        };
        self.lock().known = Some((now, component.clone()));
        component
    }
}

/// Runs `<path> --version`, which must say `<name> version <v>`. Our one binary goes by the name it is called with.
async fn version(name: &str, path: &Path) -> Option<String> {
    let asked = tokio::process::Command::new(path)
        .arg0(name)
        .arg("--version")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(VERSION_LIMIT, asked).await.ok()?.ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    match text.split_whitespace().collect::<Vec<_>>().as_slice() {
        [first, "version", version] if output.status.success() && *first == name => {
            Some((*version).to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
