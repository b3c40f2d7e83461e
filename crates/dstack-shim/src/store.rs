//! Task directories: `<home>/runners/<container name>/task.json` (dstack 0.22.5's format, read and written by both).

use std::io;
use std::path::{Path, PathBuf};

use dstack_agent_api::shim::TaskConfig;
use dstack_system::Secret;
use serde::{Deserialize, Serialize};

use crate::runtime::process::{LAUNCH_FILE, PROCESS};
use crate::task::Task;
use dstack_system::file;

const VERSION: u32 = 1;
const FILE: &str = "task.json";

/// What is kept of a task over a restart of the agent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Format; others than 1 are left alone.
    pub version: u32,
    /// The job's id.
    pub id: String,
    /// Without registry credentials.
    pub config: TaskConfig,
    /// Empty while the task is alive.
    #[serde(default)]
    pub termination_reason: String,
    /// Why the task ended, for people.
    #[serde(default)]
    pub termination_message: String,
    /// Resources were given back.
    #[serde(default)]
    pub cleaned_up: bool,
    /// Only what is on disk and in the container engine is left of it. (Not in dstack 0.22.5, which ignores it and has the
    /// task removed once more.)
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
    /// The image needs credentials that are not kept. (Not in dstack 0.22.5, which ignores it.)
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub registry_auth: bool,
    /// What runs the task: the name of a [`crate::runtime::Runtime`]. Nothing else may run it. Empty: written by dstack 0.22.5
    /// or by an agent before there was the field. (Not in dstack 0.22.5, which ignores it.)
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub runtime: String,
}

impl Record {
    /// What there is to keep of a task that this runtime runs.
    pub fn of(task: &Task, runtime: &str) -> Self {
        let mut config = task.config.clone();
        let registry_auth =
            !config.registry_username.is_empty() || !config.registry_password.expose().is_empty();
        config.registry_username = String::new();
        config.registry_password = Secret::default();
        Self {
            version: VERSION,
            id: config.id.clone(),
            config,
            termination_reason: task.reason.clone(),
            termination_message: task.message.clone(),
            cleaned_up: task.cleaned_up,
            removed: task.removed.is_some(),
            registry_auth,
            runtime: runtime.to_owned(),
        }
    }

    /// Whether something of it may still run.
    pub fn is_alive(&self) -> bool {
        !self.cleaned_up
    }

    /// Whether the task was over. A task ended without a reason (an order with empty fields) is over once cleaned up.
    pub fn is_terminated(&self) -> bool {
        !self.termination_reason.is_empty() || self.cleaned_up
    }
}

/// The task directories.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
}

impl Store {
    /// Under the agent's home.
    pub fn new(home: &Path) -> Self {
        Self {
            root: home.join("runners"),
        }
    }

    /// Where the directories are.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The directory of a container, whether it exists or not.
    pub fn dir(&self, container_name: &str) -> PathBuf {
        self.root.join(container_name)
    }

    /// Creates a task's private directory with its record, and `runner/`, which containers see as `/tmp/runner`.
    pub fn create(&self, dir: &Path, record: &Record) -> io::Result<()> {
        file::create_dir(dir, 0o700)?;
        file::create_dir(&dir.join("runner"), 0o755)?;
        self.save(dir, record)
    }

    /// Replaces the record.
    pub fn save(&self, dir: &Path, record: &Record) -> io::Result<()> {
        let text = serde_json::to_vec(record).map_err(io::Error::other)?;
        file::write_atomically(&dir.join(FILE), &text, 0o600)
    }

    /// All readable records. Directories without one are skipped, unreadable ones are logged and left alone; of two
    /// with one id the first wins.
    pub fn scan(&self) -> Vec<(PathBuf, Record)> {
        let mut names: Vec<PathBuf> = match fs_err::read_dir(&self.root) {
            Ok(entries) => entries.filter_map(|entry| Some(entry.ok()?.path())).collect(),
            Err(_) => return Vec::new(),
        };
        names.sort();
        let mut found: Vec<(PathBuf, Record)> = Vec::new();
        for dir in names {
            if hidden(&dir) || !dir.join(FILE).is_file() {
                continue;
            }
            match read(&dir.join(FILE)) {
                Ok(record) if found.iter().any(|(_, known)| known.id == record.id) => {
                    tracing::error!(task.id = record.id, dir = %dir.display(), "two directories for one task: ignored");
                }
                Ok(record) => found.push((dir, record)),
                Err(error) => {
                    tracing::error!(dir = %dir.display(), %error, "cannot read task.json: left alone");
                }
            }
        }
        found
    }

    /// Deletes a task's directory; what cannot be deleted is moved aside and forgotten.
    pub fn delete(&self, dir: &Path) {
        let Err(error) = fs_err::remove_dir_all(dir) else {
            return;
        };
        if error.kind() == io::ErrorKind::NotFound {
            return;
        }
        tracing::warn!(dir = %dir.display(), %error, "cannot delete a task directory: moved aside");
        if let Err(error) = self.set_aside(dir) {
            tracing::error!(dir = %dir.display(), %error, "cannot move a task directory aside");
        }
    }

    /// Renames a directory to a name that is ignored; returns it.
    pub fn set_aside(&self, dir: &Path) -> io::Result<PathBuf> {
        let name = dir
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let micros = clock_micros();
        let target = self.root.join(format!(".trash-{name}-{micros}"));
        fs_err::rename(dir, &target)?;
        Ok(target)
    }
}

fn clock_micros() -> i64 {
    dstack_system::Clock::now(&dstack_system::SystemClock)
        .to_jiff()
        .as_microsecond()
}

fn hidden(dir: &Path) -> bool {
    dir.file_name()
        .is_none_or(|name| name.as_encoded_bytes().starts_with(b"."))
}

fn read(path: &Path) -> io::Result<Record> {
    let mut record: Record = serde_json::from_slice(&fs_err::read(path)?).map_err(io::Error::other)?;
    if record.runtime.is_empty() && path.with_file_name(LAUNCH_FILE).is_file() {
        PROCESS.clone_into(&mut record.runtime);
    }
    if record.version != VERSION {
        return Err(io::Error::other(format!(
            "version {} is not known",
            record.version
        )));
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(id: &str) -> Task {
        Task::new(TaskConfig {
            id: id.into(),
            name: "run-0-0".into(),
            registry_username: "me".into(),
            registry_password: "hunter2".into(),
            ..TaskConfig::default()
        })
    }

    #[test]
    fn records_come_back_without_credentials() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::new(home.path());
        let task = task("1");
        let dir = store.dir(&task.container_name);
        store.create(&dir, &Record::of(&task, "docker")).unwrap();
        let text = fs_err::read_to_string(dir.join(FILE)).unwrap();
        assert!(
            text.starts_with(r#"{"version":1,"id":"1","config":{"id":"1","#),
            "{text}"
        );
        assert!(!text.contains("hunter2"));
        let found = store.scan();
        assert_eq!(found.len(), 1);
        assert!(found[0].1.registry_auth);
        assert!(!found[0].1.is_terminated());
        assert_eq!(found[0].1.runtime, "docker");
        store.delete(&dir);
        store.delete(&dir);
        assert!(store.scan().is_empty());
    }

    #[test]
    fn records_of_before_tell_their_runtime_where_it_can_be_known() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::new(home.path());
        for (name, launch) in [("a", true), ("b", false)] {
            let dir = store.dir(name);
            fs_err::create_dir_all(&dir).unwrap();
            let text = format!(r#"{{"version":1,"id":"{name}","config":{{}}}}"#);
            fs_err::write(dir.join(FILE), text).unwrap();
            if launch {
                fs_err::write(dir.join(LAUNCH_FILE), "{}").unwrap();
            }
        }
        let runtimes: Vec<String> = store
            .scan()
            .into_iter()
            .map(|(_, record)| record.runtime)
            .collect();
        assert_eq!(runtimes, ["process", ""]);
    }

    #[test]
    fn odd_directories_are_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::new(home.path());
        assert!(store.scan().is_empty());
        for (name, text) in [
            ("empty", None),
            (".trash-x", Some(r#"{"version":1,"id":"t","config":{}}"#)),
            ("newer", Some(r#"{"version":2,"id":"n","config":{}}"#)),
            ("torn", Some(r#"{"version":1,"id""#)),
            (
                "a",
                Some(
                    r#"{"version":1,"id":"a","config":{"volumes":null},"termination_reason":"x","unknown":1}"#,
                ),
            ),
            ("b", Some(r#"{"version":1,"id":"a","config":{}}"#)),
        ] {
            let dir = store.dir(name);
            fs_err::create_dir_all(&dir).unwrap();
            if let Some(text) = text {
                fs_err::write(dir.join(FILE), text).unwrap();
            }
        }
        let found = store.scan();
        assert_eq!(found.len(), 1);
        assert!(found[0].0.ends_with("a") && found[0].1.is_terminated());
        let aside = store.set_aside(&store.dir("a")).unwrap();
        assert!(aside.exists() && store.scan().iter().all(|(dir, _)| dir.ends_with("b")));
    }
}
