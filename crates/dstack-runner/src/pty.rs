//! Starting a command on a terminal of its own, as another user.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::process::Stdio;

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex};

/// Who runs a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Id of the user.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Ids of the supplementary groups.
    pub groups: Vec<u32>,
}

/// What to start.
#[derive(Debug, Clone)]
pub struct PtyCommand {
    /// The argument vector; the program is looked up in the command's own `PATH`.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: BTreeMap<String, String>,
    /// Absolute working directory.
    pub dir: PathBuf,
    /// `None`: the runner's own user.
    pub credentials: Option<Credentials>,
    /// Lift the limit on locked memory (needs `CAP_SYS_RESOURCE`).
    pub unlimited_memlock: bool,
}

/// A started command and the other end of its terminal.
#[derive(Debug)]
pub struct PtyProcess {
    /// The leader of the session; dropping it does not kill it.
    pub child: tokio::process::Child,
    /// Process id, which is the session's id too.
    pub session: u32,
    /// What the command writes is read here, what is written here it reads.
    pub master: OwnedFd,
}

/// Starts a command as the leader of a new session whose controlling terminal is a new pseudo-terminal, on standard
/// input, output and error. No window size is set and the line discipline is the default (echo, CRLF), as in dstack 0.22.5.
pub fn spawn(command: &PtyCommand) -> io::Result<PtyProcess> {
    let (program, arguments) = command
        .argv
        .split_first()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no command"))?;
    let (master, slave) = open()?;
    if let Some(credentials) = &command.credentials {
        rustix::fs::fchown(&slave, Some(rustix::fs::Uid::from_raw(credentials.uid)), None)?;
    }
    let mut child = std::process::Command::new(program);
    child
        .args(arguments)
        .env_clear()
        .envs(&command.env)
        .current_dir(&command.dir);
    child
        .stdin(Stdio::from(slave.try_clone()?))
        .stdout(Stdio::from(slave.try_clone()?))
        .stderr(Stdio::from(slave));
    let (credentials, memlock) = (command.credentials.clone(), command.unlimited_memlock);
    // SAFETY: the closure runs in the forked child before exec. It makes only system calls, through functions that
    // neither allocate nor lock: everything it reads was allocated before the fork.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(&mut child, move || {
            become_job(credentials.as_ref(), memlock)
        });
    }
    let mut child = tokio::process::Command::from(child);
    child.kill_on_drop(false);
    let child = child.spawn()?;
    let session = child
        .id()
        .ok_or_else(|| io::Error::other("the command has no process id"))?;
    Ok(PtyProcess {
        child,
        session,
        master,
    })
}

fn open() -> io::Result<(OwnedFd, OwnedFd)> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let name = ptsname(&master, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let slave = rustix::fs::open(name.as_c_str(), flags, Mode::empty())?;
    Ok((master, slave))
}

/// In the child: new session, controlling terminal, limits, then the user, which must come last.
fn become_job(credentials: Option<&Credentials>, memlock: bool) -> io::Result<()> {
    rustix::process::setsid()?;
    // SAFETY: descriptor 0 is the slave, a terminal that is no session's; the argument is an integer.
    check(unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) })?;
    if memlock {
        let limit = libc::rlimit {
            rlim_cur: libc::RLIM_INFINITY,
            rlim_max: libc::RLIM_INFINITY,
        };
        // A failure leaves the limit as it is, which most jobs do not notice.
        // SAFETY: a valid pointer to a value on the stack.
        unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) };
    }
    if let Some(credentials) = credentials {
        // SAFETY: pointer and length of a live slice; the others take integers. The child has one thread.
        unsafe {
            check(libc::setgroups(
                credentials.groups.len(),
                credentials.groups.as_ptr(),
            ))?;
            check(libc::setgid(credentials.gid))?;
            check(libc::setuid(credentials.uid))?;
        }
    }
    Ok(())
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Writes the terminal's interrupt character, so that the line discipline signals the foreground process group: this
/// reaches the right processes also under an interactive shell with job control. The terminal does not show it as `^C`: nobody
/// has typed it. Blocking, a second at most.
pub fn interrupt(master: impl AsFd) -> io::Result<()> {
    const CTRL_C: u8 = 3;
    let master = master.as_fd();
    let mut interrupt = CTRL_C;
    if let Ok(mut termios) = rustix::termios::tcgetattr(master) {
        match termios.special_codes[SpecialCodeIndex::VINTR] {
            0 => {} // disabled
            code => interrupt = code,
        }
        termios.local_modes.remove(LocalModes::ECHO);
        // Otherwise it is shown: no reason not to stop.
        let _ = rustix::termios::tcsetattr(master, OptionalActions::Now, &termios);
    }
    if wait_ready(&[(master.as_raw_fd(), libc::POLLOUT)], 1000)?.first() != Some(&true) {
        return Err(io::ErrorKind::TimedOut.into());
    }
    rustix::io::write(master, &[interrupt])?;
    Ok(())
}

/// Waits until one of the descriptors is ready, hung up or broken; which ones are. Negative timeout: for ever.
pub fn wait_ready(wanted: &[(RawFd, libc::c_short)], timeout_ms: i32) -> io::Result<Vec<bool>> {
    let mut fds: Vec<libc::pollfd> = wanted
        .iter()
        .map(|&(fd, events)| libc::pollfd {
            fd,
            events,
            revents: 0,
        })
        .collect();
    // SAFETY: pointer and length of a live vector.
    let result = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) };
    if result < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(fds.iter().map(|fd| fd.revents != 0).collect())
}
