//! Of two gateways with one directory one runs, or the second takes over from the first.

use std::fs::Permissions;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use dstack_system::{file, task};
use fs_err::os::unix::fs::OpenOptionsExt as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::timeout;

use crate::gateway::StartError;

/// Keys are below.
const DIR_MODE: u32 = 0o700;
const MODE: u32 = 0o600;
/// One that is told to end lets go of the directory at once; only what it is about to write comes before.
const PATIENCE: Duration = Duration::from_secs(10);

/// The directory, as long as it is held.
#[derive(Debug)]
pub(crate) struct OnlyOne {
    // Its lock is the directory's.
    _file: fs_err::File,
}

impl OnlyOne {
    /// Holds a directory.
    ///
    /// # Errors
    /// Another one does, or it cannot be used.
    pub(crate) fn new(dir: &Path) -> Result<Self, StartError> {
        let file = open(dir)?;
        match is_locked(&file).map_err(|source| unusable(dir, source))? {
            true => Self::holding(file, dir),
            false => Err(StartError::Taken(dir.to_owned())),
        }
    }

    /// Tells whoever holds a directory to end, and holds it then.
    ///
    /// # Errors
    /// It does not let go, or cannot be told, or the directory cannot be used.
    pub(crate) async fn take_over(dir: &Path) -> Result<Self, StartError> {
        let mut file = open(dir)?;
        if is_locked(&file).map_err(|source| unusable(dir, source))? {
            return Self::holding(file, dir);
        }
        end_holder(&mut file).map_err(|source| unusable(dir, source))?;
        let locked = task::blocking("lock of the directory", move || file.file().lock().map(|()| file));
        // A lock that comes later goes with its file.
        let Ok(locked) = timeout(PATIENCE, locked).await else {
            return Err(StartError::Taken(dir.to_owned()));
        };
        let locked = locked.map_err(io::Error::other).flatten();
        Self::holding(locked.map_err(|source| unusable(dir, source))?, dir)
    }

    /// Whoever is to take over finds this process.
    fn holding(mut file: fs_err::File, dir: &Path) -> Result<Self, StartError> {
        write_pid(&mut file).map_err(|source| unusable(dir, source))?;
        Ok(Self { _file: file })
    }
}

fn unusable(dir: &Path, source: io::Error) -> StartError {
    StartError::Dir {
        dir: dir.to_owned(),
        source,
    }
}

fn open(dir: &Path) -> Result<fs_err::File, StartError> {
    private_dir(dir)
        .and_then(|()| lock_file(&dir.join("lock")))
        .map_err(|source| unusable(dir, source))
}

/// Also one that is there already.
fn private_dir(dir: &Path) -> io::Result<()> {
    file::create_dir(dir, DIR_MODE)?;
    fs_err::set_permissions(dir, Permissions::from_mode(DIR_MODE))
}

fn lock_file(path: &Path) -> io::Result<fs_err::File> {
    let mut options = fs_err::OpenOptions::new();
    options.create(true).truncate(false).read(true).write(true);
    let file = options.mode(MODE).open(path)?;
    file.set_permissions(Permissions::from_mode(MODE))?;
    Ok(file)
}

/// Locks it unless somebody else has.
fn is_locked(file: &fs_err::File) -> io::Result<bool> {
    match file.file().try_lock() {
        Ok(()) => Ok(true),
        Err(std::fs::TryLockError::WouldBlock) => Ok(false),
        Err(std::fs::TryLockError::Error(error)) => Err(error),
    }
}

fn write_pid(file: &mut fs_err::File) -> io::Result<()> {
    file.file().set_len(0)?;
    file.rewind()?;
    file.write_all(std::process::id().to_string().as_bytes())
}

/// Tells the process that has the lock to end.
fn end_holder(file: &mut fs_err::File) -> io::Result<()> {
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    let pid = text.trim().parse().ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("it is not known which process has the lock"))?;
    tracing::info!(
        pid = pid.as_raw_nonzero().get(),
        "the gateway before is told to end"
    );
    Ok(kill_process(pid, Signal::TERM)?)
}
