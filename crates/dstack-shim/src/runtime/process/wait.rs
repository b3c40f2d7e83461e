//! Waiting for processes and files without polling: pidfds and inotify.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::unix::AsyncFd;

use super::files::Identity;
use super::procfs;
use crate::runtime::pollable;

/// A process that cannot be mistaken for another one.
pub(super) struct ProcessHandle {
    fd: AsyncFd<OwnedFd>,
}

impl ProcessHandle {
    /// `None` when it has ended.
    pub(super) fn open(identity: &Identity) -> Option<Self> {
        let fd = pidfd_open(Pid::from_raw(identity.pid)?, PidfdFlags::NONBLOCK).ok()?;
        // Looked at after opening: from here on the descriptor holds on to whoever this is.
        if !procfs::is_alive(identity) {
            return None;
        }
        Some(Self {
            fd: pollable::readable(fd).ok()?,
        })
    }

    /// Until it has ended.
    pub(super) async fn exited(&self) {
        // Readable for ever from then on; an error means the same.
        let _ = self.fd.readable().await;
    }

    /// Sends a signal.
    pub(super) fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(self.fd.get_ref(), signal);
    }
}

/// Until `read` gives something, looked at whenever the file may have appeared.
pub(super) async fn for_file<T>(path: &Path, read: impl Fn() -> Option<T>) -> io::Result<T> {
    use inotify::{CreateFlags, WatchFlags};
    let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    let dir = path.parent().unwrap_or(Path::new("/"));
    inotify::add_watch(
        &fd,
        dir,
        WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO | WatchFlags::CREATE,
    )?;
    let fd = pollable::readable(fd)?;
    loop {
        if let Some(value) = read() {
            return Ok(value);
        }
        let mut ready = fd.readable().await?;
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(fd.get_ref(), &mut buffer);
        while events.next().is_ok() {}
        ready.clear_ready();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_that_appears() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let waiting = for_file(&path, || {
            fs_err::read_to_string(&path).ok().filter(|text| text == "done")
        });
        let writing = async {
            fs_err::write(&path, "half").unwrap();
            tokio::task::yield_now().await;
            fs_err::write(dir.path().join("y"), "done").unwrap();
            fs_err::rename(dir.path().join("y"), &path).unwrap();
        };
        let (found, ()) = tokio::join!(waiting, writing);
        assert_eq!(found.unwrap(), "done");
    }

    #[tokio::test]
    async fn a_process_that_ends() {
        let mut child = tokio::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(child.id().unwrap()).unwrap();
        let mut identity = procfs::own_identity();
        let stat = fs_err::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        identity.pid = pid;
        identity.start_time = stat[stat.rfind(')').unwrap() + 2..]
            .split(' ')
            .nth(19)
            .unwrap()
            .parse()
            .unwrap();
        let handle = ProcessHandle::open(&identity).unwrap();
        handle.signal(Signal::KILL);
        handle.exited().await;
        child.wait().await.unwrap();
        assert!(ProcessHandle::open(&identity).is_none());
    }
}
