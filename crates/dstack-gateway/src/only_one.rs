//! Of two gateways with one directory one runs, or the second takes over from the first.

use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::Path;
use std::time::Duration;

use dstack_system::file;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use crate::gateway::StartError;

/// Keys are below.
const DIR_MODE: u32 = 0o700;
/// One that is told to end lets go of the directory at once; only what it is about to write comes before.
const PATIENCE: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(10);

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
        let mut file = open(dir)?;
        match is_locked(&file).map_err(|source| unusable(dir, source))? {
            true => {
                write_pid(&mut file).map_err(|source| unusable(dir, source))?;
                Ok(Self { _file: file })
            }
            false => Err(StartError::Taken(dir.to_owned())),
        }
    }

    /// Tells whoever holds a directory to end, and holds it then.
    ///
    /// # Errors
    /// It does not let go, or cannot be told, or the directory cannot be used.
    pub(crate) async fn take_over(dir: &Path) -> Result<Self, StartError> {
        let mut file = open(dir)?;
        if !is_locked(&file).map_err(|source| unusable(dir, source))? {
            end_holder(&mut file).map_err(|source| unusable(dir, source))?;
        }
        let deadline = Instant::now() + PATIENCE;
        drop(file);
        loop {
            match Self::new(dir) {
                Err(StartError::Taken(_)) if Instant::now() < deadline => sleep(AGAIN).await,
                held => return held,
            }
        }
    }
}

fn unusable(dir: &Path, source: io::Error) -> StartError {
    StartError::Dir {
        dir: dir.to_owned(),
        source,
    }
}

fn open(dir: &Path) -> Result<fs_err::File, StartError> {
    let opened = file::create_dir(dir, DIR_MODE).and_then(|()| {
        let mut options = fs_err::OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true);
        options.open(dir.join("lock"))
    });
    opened.map_err(|source| unusable(dir, source))
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
