//! Starting a process as another user, with or without a controlling terminal.
#![allow(unsafe_code)]

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::unix::AsyncFd;
use tokio::process::{Child, Command};

use crate::login::Login;

/// What to start.
pub(crate) struct Launch<'a> {
    /// Path of the program.
    pub(crate) program: PathBuf,
    /// `argv[0]`, when it differs from the program.
    pub(crate) arg0: Option<OsString>,
    /// Arguments after `argv[0]`.
    pub(crate) args: Vec<OsString>,
    /// The whole environment.
    pub(crate) env: Vec<(String, String)>,
    /// Directories to try, in this order; `/` when none can be entered.
    pub(crate) directories: Vec<PathBuf>,
    /// The user that it runs as.
    pub(crate) login: &'a Login,
    /// Standard streams: this terminal, or pipes when `None`.
    pub(crate) terminal: Option<&'a OwnedFd>,
}

/// Starts the process as the leader of a new session (and so of a process group of its own).
pub(crate) fn spawn(launch: Launch<'_>) -> io::Result<Child> {
    let mut command = Command::new(&launch.program);
    if let Some(arg0) = &launch.arg0 {
        command.arg0(arg0);
    }
    command.args(&launch.args).env_clear().envs(launch.env);
    match launch.terminal {
        Some(terminal) => {
            let stream = || Ok::<_, io::Error>(Stdio::from(terminal.as_fd().try_clone_to_owned()?));
            command.stdin(stream()?).stdout(stream()?).stderr(stream()?);
        }
        None => {
            command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
        }
    }
    let setup = ChildSetup::new(launch.login, &launch.directories, launch.terminal.is_some())?;
    // SAFETY: the closure runs in the forked child before exec. It only makes async-signal-safe system calls on values
    // prepared before the fork, and allocates nothing.
    unsafe {
        command.pre_exec(move || setup.apply());
    }
    command.spawn()
}

/// What the child does between fork and exec; everything it needs is allocated beforehand.
struct ChildSetup {
    switch: Option<(libc::uid_t, libc::gid_t, Vec<libc::gid_t>)>,
    directories: Vec<CString>,
    terminal: bool,
}

impl ChildSetup {
    fn new(login: &Login, directories: &[PathBuf], terminal: bool) -> io::Result<Self> {
        let directories = directories.iter().map(PathBuf::as_path).chain([Path::new("/")]);
        let directories = directories.map(|path| CString::new(path.as_os_str().as_bytes()));
        Ok(Self {
            switch: login.switch.then(|| (login.uid, login.gid, login.groups.clone())),
            directories: directories.collect::<Result<_, _>>()?,
            terminal,
        })
    }

    fn apply(&self) -> io::Result<()> {
        // SAFETY: plain system calls; pointers come from live `CString`s and `Vec`s of this struct.
        unsafe {
            check(libc::setsid())?;
            if self.terminal {
                check(libc::ioctl(0, libc::TIOCSCTTY, 0))?;
            }
            if let Some((uid, gid, groups)) = &self.switch {
                check(libc::setgroups(groups.len(), groups.as_ptr()))?;
                check(libc::setgid(*gid))?;
                check(libc::setuid(*uid))?;
            }
            libc::umask(0o022);
            // As the user: the home may be on a file system that refuses root.
            for directory in &self.directories {
                if libc::chdir(directory.as_ptr()) == 0 {
                    break;
                }
            }
        }
        Ok(())
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Runs `work` on a thread of its own whose file accesses are made with the rights of `login`.
///
/// For the few file operations the server makes on behalf of a user (sockets, `authorized_keys`): the kernel checks
/// them as if the user had made them. Blocks until `work` is done.
pub(crate) fn with_file_rights<T: Send>(
    login: &Login,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    if !login.switch {
        return work();
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            take_file_rights(login)?;
            work()
        });
        thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("internal error: a file operation panicked")))
    })
}

/// Changes the calling thread's (not the process's) file system identity, for good.
fn take_file_rights(login: &Login) -> io::Result<()> {
    // SAFETY: raw system calls, which change the calling thread only, where the C library's `setgroups` would change
    // all threads. The pointer and length describe one live slice.
    unsafe {
        let groups = &login.groups;
        if libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) == -1 {
            return Err(io::Error::last_os_error());
        }
        // These two return the previous id and never fail visibly: ask again to know.
        libc::syscall(libc::SYS_setfsgid, login.gid);
        libc::syscall(libc::SYS_setfsuid, login.uid);
        let gid = libc::syscall(libc::SYS_setfsgid, login.gid);
        let uid = libc::syscall(libc::SYS_setfsuid, login.uid);
        if uid != libc::c_long::from(login.uid) || gid != libc::c_long::from(login.gid) {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
    }
    Ok(())
}

/// Has the runtime watch a descriptor for readiness.
pub(crate) fn watch(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` stays open and the same until it is dropped, and it is moved into the `AsyncFd`.
    Ok(unsafe { AsyncFd::register(descriptor) }?)
}
