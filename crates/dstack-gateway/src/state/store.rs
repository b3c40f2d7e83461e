//! The file that holds the state. It is whole at any time: a write that is interrupted leaves the old one.

use std::io;
use std::path::{Path, PathBuf};

use dstack_system::{file, task};
use serde::{Deserialize, Serialize};

use super::State;

/// Of the form in which this build writes.
const VERSION: u32 = 1;
/// It holds private keys.
const MODE: u32 = 0o600;

/// Why the state is not read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be read.
    #[error("cannot read the state of the gateway")]
    Read(#[source] io::Error),
    /// It is not what this program writes.
    #[error(
        "{} is damaged. Put back a copy of it, or move it away: the gateway then starts without services, and the server registers \
         those that run within a minute", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// A later build has written it.
    #[error(
        "{} has the version {version}, of which this build knows nothing. Start the build of dstack-agent that has written it, or \
         move the file away: the gateway then starts without services, and the server registers those that run within a minute",
        path.display()
    )]
    Later {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The file cannot be written.
    #[error("cannot write the state of the gateway")]
    Write(#[source] io::Error),
}

/// The file.
#[derive(Debug, Clone)]
pub struct Store {
    path: PathBuf,
}

#[derive(Serialize)]
struct Written<'s> {
    version: u32,
    #[serde(flatten)]
    state: &'s State,
}

#[derive(Deserialize)]
struct Head {
    version: u32,
}

impl Store {
    /// In this directory.
    pub fn new(dir: &Path) -> Self {
        Self {
            path: dir.join("state.json"),
        }
    }

    /// What was written; `None`: nothing yet.
    ///
    /// # Errors
    /// It cannot be read, or is not understood.
    pub fn load(&self) -> Result<Option<State>, StoreError> {
        let text = match fs_err::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StoreError::Read(error)),
        };
        let damaged = |source| StoreError::Damaged {
            path: self.path.clone(),
            source,
        };
        let Head { version } = serde_json::from_slice(&text).map_err(damaged)?;
        if version > VERSION {
            return Err(StoreError::Later {
                path: self.path.clone(),
                version,
            });
        }
        serde_json::from_slice(&text).map(Some).map_err(damaged)
    }

    /// Replaces what was written. Blocks until it is on the disk.
    ///
    /// # Errors
    /// It cannot be written; what was written before is still there.
    pub fn save(&self, state: &State) -> Result<(), StoreError> {
        let written = Written {
            version: VERSION,
            state,
        };
        let text = serde_json::to_vec_pretty(&written).map_err(|error| StoreError::Write(error.into()))?;
        file::write_atomically(&self.path, &text, MODE).map_err(StoreError::Write)
    }

    /// As [`Self::save`], off the threads that serve.
    ///
    /// # Errors
    /// As there.
    pub async fn save_later(&self, state: State) -> Result<(), StoreError> {
        let store = self.clone();
        let saved = task::blocking("state of the gateway", move || store.save(&state)).await;
        saved.map_err(|panicked| StoreError::Write(io::Error::other(panicked)))?
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::Arc;

    use super::super::{Project, ServiceRecord};
    use super::*;

    fn state(run: &str) -> State {
        let service = ServiceRecord {
            key: uuid::Uuid::from_u128(7),
            id: None,
            created: 1,
            domain: "web.example.com".to_owned(),
            https: true,
            auth: true,
            client_max_body_size: 0,
            strip_prefix: true,
            read_timeout: 300,
            rate_limits: Vec::new(),
            has_router_replica: false,
            split: None,
            balancing: super::super::BalancingRecord::default(),
            model: None,
            replicas: Vec::new(),
        };
        let mut project = Project::default();
        project.services.insert(run.to_owned(), Arc::new(service));
        let mut state = State::default();
        state.projects.insert("main".to_owned(), project);
        state
    }

    #[test]
    fn what_was_written_is_read_and_nobody_else_may_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        assert_eq!(store.load().unwrap(), None);
        store.save(&state("a")).unwrap();
        store.save(&state("b")).unwrap();
        assert_eq!(store.load().unwrap(), Some(state("b")));
        let mode = fs_err::metadata(&store.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_write_that_is_interrupted_leaves_the_old_state() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        store.save(&state("a")).unwrap();
        let away = dir.path().with_extension("away");
        fs_err::rename(dir.path(), &away).unwrap();
        assert!(matches!(store.save(&state("b")), Err(StoreError::Write(_))));
        fs_err::rename(&away, dir.path()).unwrap();
        // As a kill in the middle of a write leaves it.
        fs_err::write(dir.path().join("state.json.1-0.tmp"), r#"{"version": 1, "proj"#).unwrap();
        assert_eq!(store.load().unwrap(), Some(state("a")));
        store.save(&state("b")).unwrap();
        assert_eq!(store.load().unwrap(), Some(state("b")));
    }

    #[test]
    fn files_that_are_not_understood_are_told_with_the_remedy_and_stay() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        for (text, expected) in [
            (r#"{"version": 2, "services": 1}"#, "has the version 2"),
            (r#"{"version": 1, "projects": []"#, "is damaged"),
            ("", "is damaged"),
        ] {
            fs_err::write(&store.path, text).unwrap();
            let error = store.load().unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("move"), "{error}");
            assert_eq!(fs_err::read_to_string(&store.path).unwrap(), text);
        }
    }
}
