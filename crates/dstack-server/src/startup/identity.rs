//! Who this server is among those that share its database.
//!
//! A directory belongs to one process at a time: a lock file makes sure of it on this machine, and on others where the file
//! system locks across machines. Where it does not, or where the directory was copied, the lease in the database does: see
//! `docs/adr/009-servers-that-share-a-database.md`.

use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use dstack_engine::Identity;
use dstack_system::Random;
use fs_err::{File, OpenOptions};
use uuid::Uuid;

use super::ServerError;

/// Characters of the random part of a name: it only tells servers apart whose machine and directory are called the same.
const RANDOM_PART: usize = 8;

/// The lock on a server's directory, as long as it lives.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    path: PathBuf,
    file: File,
    name: String,
}

impl DirectoryLock {
    /// For an SQLite database: it has one server.
    ///
    /// # Errors
    /// [`ServerError::InUse`]: another process has the lock.
    pub(crate) fn of_sqlite(database: &Path) -> Result<Self, ServerError> {
        let mut path = database.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        Ok(Self {
            file: lock(&path)?,
            path,
            name: "sqlite".to_owned(),
        })
    }

    /// For one of several servers. Its name has a random part that is made with the directory and kept in it.
    ///
    /// # Errors
    /// [`ServerError::InUse`]: another process has the lock.
    pub(crate) fn of_directory(dir: &Path, random: &Random) -> Result<Self, ServerError> {
        Self::of_machine(dir, &machine_name(), random)
    }

    fn of_machine(dir: &Path, machine: &str, random: &Random) -> Result<Self, ServerError> {
        // Directories may be shared between machines.
        let path = dir.join(format!("data/{machine}.lock"));
        let file = lock(&path)?;
        let id = random_part(&dir.join(format!("data/{machine}.id")), random)?;
        Ok(Self {
            path,
            file,
            name: format!("{machine}:{}#{id}", dir.display()),
        })
    }

    /// The identity of this process, which is a new one. It is written down for the next process of the directory: that one
    /// knows by the lock that this one is dead, and need not wait for its lease to run out.
    pub(crate) fn identity(&mut self, random: &Random) -> Result<Identity, ServerError> {
        let process = random.uuid();
        let predecessor = self.replace_process(process).map_err(|source| ServerError::Dir {
            path: self.path.clone(),
            source,
        })?;
        Ok(Identity {
            name: self.name.clone(),
            process,
            predecessor,
        })
    }

    /// The process that the file tells of, if it held this very lock: a copy of the file, or the file as another machine sees
    /// it, may tell of one that lives.
    fn replace_process(&mut self, process: Uuid) -> std::io::Result<Option<Uuid>> {
        let place = place_of(&self.file)?;
        let mut text = String::new();
        self.file.rewind()?;
        self.file.read_to_string(&mut text)?;
        self.file.rewind()?;
        self.file.set_len(0)?;
        self.file.write_all(format!("{process} {place}").as_bytes())?;
        let (before, at) = text.split_once(' ').unwrap_or_default();
        Ok(before.parse().ok().filter(|_| at == place))
    }
}

/// Which file it is, on which machine since its last start.
fn place_of(file: &File) -> std::io::Result<String> {
    let metadata = file.metadata()?;
    let boot = fs_err::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    Ok(format!("{}:{} {}", metadata.dev(), metadata.ino(), boot.trim()))
}

fn lock(path: &Path) -> Result<File, ServerError> {
    let failed = |source| ServerError::Dir {
        path: path.to_owned(),
        source,
    };
    if let Some(parent) = path.parent() {
        fs_err::create_dir_all(parent).map_err(failed)?;
    }
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path)
        .map_err(failed)?;
    match file.file().try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(ServerError::InUse {
            path: path.to_owned(),
        }),
        Err(std::fs::TryLockError::Error(source)) => Err(failed(source)),
    }
}

/// What the file says; a new one is made with the first start in the directory. The lock is held.
fn random_part(path: &Path, random: &Random) -> Result<String, ServerError> {
    let failed = |source| ServerError::Dir {
        path: path.to_owned(),
        source,
    };
    match fs_err::read_to_string(path) {
        Ok(id) => return Ok(id.trim().to_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let mut id = random.uuid().simple().to_string();
    id.truncate(RANDOM_PART);
    // Whole or not at all: half of it would be another name.
    let new = path.with_extension("id.new");
    fs_err::write(&new, &id).map_err(failed)?;
    File::open(&new)
        .and_then(|file| file.sync_all())
        .map_err(failed)?;
    fs_err::rename(&new, path).map_err(failed)?;
    Ok(id)
}

fn machine_name() -> String {
    let name = fs_err::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name
        .trim()
        .replace(|c: char| !c.is_ascii_alphanumeric() && c != '-', "-");
    if name.is_empty() {
        "machine".to_owned()
    } else {
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_starts_again_in_its_directory_is_the_same_and_knows_its_predecessor() {
        let (dir, random) = (tempfile::tempdir().unwrap(), Random::seeded(1));
        let start = || DirectoryLock::of_machine(dir.path(), "web-1", &random).unwrap();
        let first = start().identity(&random).unwrap();
        assert_eq!(first.predecessor, None);
        let second = start().identity(&random).unwrap();
        assert_eq!(
            (&second.name, second.predecessor),
            (&first.name, Some(first.process))
        );
        assert_ne!(second.process, first.process);
    }

    /// Also of one that was made while the server ran.
    #[test]
    fn a_copy_of_a_directory_knows_no_predecessor() {
        let (dir, random) = (tempfile::tempdir().unwrap(), Random::seeded(1));
        let mut original = DirectoryLock::of_machine(dir.path(), "web-1", &random).unwrap();
        let running = original.identity(&random).unwrap();
        let copy = tempfile::tempdir().unwrap();
        fs_err::create_dir(copy.path().join("data")).unwrap();
        for file in ["data/web-1.lock", "data/web-1.id"] {
            fs_err::copy(dir.path().join(file), copy.path().join(file)).unwrap();
        }
        let mut second = DirectoryLock::of_machine(copy.path(), "web-1", &random).unwrap();
        let second = second.identity(&random).unwrap();
        assert_eq!(second.predecessor, None, "{:?} lives", running.process);
    }

    #[test]
    fn containers_that_are_called_the_same_are_not_the_same_server() {
        let random = Random::seeded(1);
        let name = || {
            let dir = tempfile::tempdir().unwrap();
            let lock = DirectoryLock::of_machine(dir.path(), "web-1", &random).unwrap();
            lock.name
                .replace(&dir.path().display().to_string(), "the same directory")
        };
        assert_ne!(name(), name());
    }

    #[test]
    fn a_directory_has_one_process_at_a_time() {
        let (dir, random) = (tempfile::tempdir().unwrap(), Random::seeded(1));
        let _first = DirectoryLock::of_machine(dir.path(), "web-1", &random).unwrap();
        let second = DirectoryLock::of_machine(dir.path(), "web-1", &random);
        assert!(matches!(second, Err(ServerError::InUse { .. })), "{second:?}");
        let elsewhere = DirectoryLock::of_machine(dir.path(), "web-2", &random);
        assert!(elsewhere.is_ok(), "the directory is shared between machines");
    }
}
