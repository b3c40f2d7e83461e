//! A task's files, beside its `task.json`.

use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use dstack_system::file::{create_atomically, write_atomically};

/// What the supervisor starts, and the mark of a task that is a process: it is written before anything is started.
pub(crate) const LAUNCH_FILE: &str = "launch.json";

/// Content of [`LAUNCH_FILE`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Launch {
    /// The job's id.
    pub(crate) task_id: String,
    /// Program and arguments.
    pub(crate) argv: Vec<String>,
    /// The whole environment.
    pub(crate) env: Vec<(String, String)>,
    /// Ids of the GPUs that are locked for the task.
    pub(crate) gpus: Vec<String>,
}

/// `process.json`: who the supervisor is. A process id alone may belong to somebody else by now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// Id of the supervisor's process.
    pub(crate) pid: i32,
    /// Field 22 of /proc/<pid>/stat: clock ticks after boot.
    pub(crate) start_time: u64,
    /// Of this boot.
    pub(crate) boot_id: String,
}

/// `exit.json`, written last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Exit {
    code: i64,
}

/// `ports.json`, written by the runner once it listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct Ports {
    /// Of its API.
    #[serde(alias = "http_port")]
    pub(crate) http: u16,
    /// Of its SSH server.
    #[serde(alias = "ssh_port")]
    pub(crate) ssh: u16,
}

/// One task's directory.
#[derive(Debug, Clone)]
pub(crate) struct TaskFiles {
    dir: PathBuf,
}

impl TaskFiles {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn name(&self) -> String {
        self.dir
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default()
    }

    pub(crate) fn launch(&self) -> Option<Launch> {
        read(&self.dir.join(LAUNCH_FILE))
    }

    pub(crate) fn save_launch(&self, launch: &Launch) -> io::Result<()> {
        write_atomically(&self.dir.join(LAUNCH_FILE), &json(launch)?, 0o600)
    }

    pub(crate) fn identity(&self) -> Option<Identity> {
        read(&self.dir.join("process.json"))
    }

    /// Of two supervisors for one task, one succeeds.
    pub(crate) fn claim(&self, identity: &Identity) -> io::Result<()> {
        create_atomically(&self.dir.join("process.json"), &json(identity)?, 0o600)
    }

    pub(crate) fn exit_code(&self) -> Option<i64> {
        read::<Exit>(&self.dir.join("exit.json")).map(|exit| exit.code)
    }

    pub(crate) fn save_exit_code(&self, code: i64) -> io::Result<()> {
        write_atomically(&self.dir.join("exit.json"), &json(&Exit { code })?, 0o600)
    }

    pub(crate) fn ports_path(&self) -> PathBuf {
        self.dir.join("ports.json")
    }

    pub(crate) fn ports(&self) -> Option<Ports> {
        read(&self.ports_path())
    }

    /// Where the job is at its start: a folder of its own, in which no file of the agents lies.
    pub(crate) fn work_dir(&self) -> PathBuf {
        self.dir.join("work")
    }

    pub(crate) fn output_path(&self) -> PathBuf {
        self.dir.join("output.log")
    }

    /// The end of the runner's own output.
    pub(crate) fn output_end(&self) -> String {
        const SHOWN: u64 = 8192;
        let read = || -> io::Result<String> {
            let mut file = fs_err::File::open(self.output_path())?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(SHOWN)))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        read().unwrap_or_default()
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs_err::read(path).ok()?).ok()
}

fn json<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(io::Error::other)
}
