//! The process in a container's place: starts a program, collects every descendant, forwards signals, and ends with
//! the program. Also what `dstack-runner` does as process 1 of a container.

mod child;

use std::io::{self, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use rustix::process::{Signal, WaitOptions};
use tokio::signal::unix::{Signal as Incoming, SignalKind, signal};

use super::files::{Launch, TaskFiles};
use super::procfs;

/// Exit code when the program cannot be started, as shells have it.
const NOT_STARTED: i64 = 127;

/// Runs the task whose files are in `dir`; returns this process's exit code. Tells the parent by one line on standard
/// output: `ready`, `taken` (another supervisor has it), or what went wrong.
pub fn supervise(dir: &Path) -> i32 {
    let files = TaskFiles::new(dir.to_owned());
    match start(&files) {
        Ok(code) => i32::try_from(code).unwrap_or(1),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => say("taken", 0),
        Err(error) => say(&format!("error: {error}"), 1),
    }
}

// The parent may be gone: then nobody needs to know.
fn say(line: &str, code: i32) -> i32 {
    let _ = writeln!(io::stdout(), "{line}");
    code
}

fn start(files: &TaskFiles) -> io::Result<i64> {
    let launch = files
        .launch()
        .ok_or_else(|| io::Error::other("launch.json cannot be read"))?;
    // A session of its own: no terminal's signals, and it outlives the host agent.
    let _ = rustix::process::setsid();
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    runtime()?.block_on(async {
        // Before anybody can know of this process: their signals would kill it.
        let mut signals = Signals::new()?;
        files.claim(&procfs::own_identity())?;
        say("ready", 0);
        let code = match spawn(&launch, files) {
            Ok(main) => {
                let code = signals.until_exit(main).await;
                signals.kill_rest().await;
                code
            }
            Err(error) => {
                let _ = fs_err::write(
                    files.output_path(),
                    format!("cannot start {:?}: {error}\n", launch.argv.first()),
                );
                NOT_STARTED
            }
        };
        files.save_exit_code(code)?;
        Ok(code)
    })
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

fn spawn(launch: &Launch, files: &TaskFiles) -> io::Result<i32> {
    let (program, arguments) = launch
        .argv
        .split_first()
        .ok_or_else(|| io::Error::other("launch.json names no program"))?;
    let output = fs_err::OpenOptions::new()
        .create(true)
        .append(true)
        .open(files.output_path())?
        .into_file();
    let work_dir = files.work_dir();
    fs_err::create_dir_all(&work_dir)?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(launch.env.iter().map(|(key, value)| (key, value)))
        .current_dir(work_dir)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output);
    child::die_with_parent(&mut command);
    main_process(&mut command)
}

// Collected by `Signals`, which takes every child of this process.
fn main_process(command: &mut Command) -> io::Result<i32> {
    let child = command.spawn()?;
    i32::try_from(child.id()).map_err(io::Error::other)
}

/// As process 1 of a container: starts this very program again with the same arguments, and stays to collect orphans.
/// Returns its exit code; the kernel ends all others with this process.
pub fn init(program_name: &str, arguments: &[std::ffi::OsString]) -> io::Result<i32> {
    runtime()?.block_on(async {
        let mut signals = Signals::new()?;
        let main = main_process(Command::new("/proc/self/exe").arg0(program_name).args(arguments))?;
        let code = signals.until_exit(main).await;
        Ok(i32::try_from(code).unwrap_or(1))
    })
}

struct Signals {
    child: Incoming,
    kill: Incoming,
    terminate: Incoming,
    interrupt: Incoming,
    hangup: Incoming,
    quit: Incoming,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            child: signal(SignalKind::child())?,
            kill: signal(SignalKind::user_defined1())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            quit: signal(SignalKind::quit())?,
        })
    }

    /// Forwards signals to the main process until it ends; collects all others that end meanwhile.
    async fn until_exit(&mut self, main: i32) -> i64 {
        loop {
            while let Some((pid, status)) = collect() {
                if pid == main {
                    return exit_code(status);
                }
            }
            let forward = tokio::select! {
                _ = self.child.recv() => continue,
                _ = self.kill.recv() => Signal::KILL,
                _ = self.terminate.recv() => Signal::TERM,
                _ = self.interrupt.recv() => Signal::INT,
                _ = self.hangup.recv() => Signal::HUP,
                _ = self.quit.recv() => Signal::QUIT,
            };
            procfs::signal(main, forward);
        }
    }

    /// Kills every process left; as they end, their children become ours.
    async fn kill_rest(&mut self) {
        let me = rustix::process::getpid().as_raw_nonzero().get();
        loop {
            while collect().is_some() {}
            let left = procfs::children(me);
            if left.is_empty() {
                return;
            }
            for pid in left {
                procfs::signal(pid, Signal::KILL);
            }
            let _ = self.child.recv().await;
        }
    }
}

/// A child that has ended; `None` when there is none now.
fn collect() -> Option<(i32, ExitStatus)> {
    let (pid, status) = rustix::process::wait(WaitOptions::NOHANG).ok()??;
    Some((pid.as_raw_nonzero().get(), ExitStatus::from_raw(status.as_raw())))
}

fn exit_code(status: ExitStatus) -> i64 {
    let signalled = || 128 + status.signal().unwrap_or(0);
    i64::from(status.code().unwrap_or_else(signalled))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_as_shells_have_them() {
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_code(ExitStatus::from_raw(9)), 137);
    }
}
