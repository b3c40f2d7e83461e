//! `cargo xtask demo`: from source to a finished run in one command.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::build::{self, Profile};
use crate::exec::{self, step};
use crate::{interrupt, layout, net, ui};

/// The run the example's configuration names.
const RUN: &str = "penguins";

/// What the server logs while the run goes on; shown only when it does not start.
const SERVER_LOG: &str = "server.log";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Keep the server running afterwards, until Ctrl-C
    #[arg(long)]
    keep: bool,
}

/// Runs the demo; the exit code is the job's.
pub(crate) fn run(args: &Args) -> Result<i32> {
    check_python()?;
    ui::build_if_possible()?;
    step("building (the first time takes some minutes)");
    let build::Both { dstack, agent } = build::both(Profile::DEMO)?;
    interrupt::catch()?;

    let demo = Demo::start(dstack, &agent)?;
    let code = demo.apply()?;
    if args.keep && !interrupt::happened() {
        demo.wait_for_interrupt();
    }
    Ok(code)
}

/// The example needs a Python, as it runs right on this machine.
fn check_python() -> Result<()> {
    if exec::succeeds(Command::new("python3").arg("--version")) {
        return Ok(());
    }
    bail!("the example needs python3, which is not on this machine; install it with: apt-get install python3")
}

/// A server with everything it keeps in a folder of its own; dropping it ends and removes all of it.
struct Demo {
    dstack: PathBuf,
    home: TempDir,
    server: Child,
    url: String,
}

impl Demo {
    fn start(dstack: PathBuf, agent: &Path) -> Result<Demo> {
        let home = TempDir::with_prefix("dstack-demo-")?;
        let port = net::free_port()?;
        let url = format!("http://127.0.0.1:{port}");
        step(&format!(
            "starting a server on {url}, its state in {}",
            home.path().display()
        ));
        let mut server = Command::new(&dstack)
            .args(["server", "-y", "--port", &port.to_string()])
            .env("HOME", home.path())
            .env("DSTACK_AGENT_PATH", agent)
            // The example needs no image: nothing to pull, and it works where no container engine is.
            .env("DSTACK_LOCAL_RUNTIME", "process")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs_err::File::create(home.path().join(SERVER_LOG))?.into_parts().0)
            // Ctrl-C is for the run first; the server ends when we say so.
            .process_group(0)
            .spawn()
            .context("cannot start the server")?;
        let ready = wait_until_ready(&mut server);
        if ready.is_err() {
            print!(
                "{}",
                fs_err::read_to_string(home.path().join(SERVER_LOG)).unwrap_or_default()
            );
        }
        let demo = Demo {
            dstack,
            home,
            server,
            url,
        };
        ready?;
        Ok(demo)
    }

    /// Applies the example and follows it to its end.
    fn apply(&self) -> Result<i32> {
        step(&format!("dstack apply -y   (in examples/{RUN})"));
        let status = exec::status(&mut self.cli(&["apply", "-y"]))?;
        if interrupt::happened() {
            step("interrupted: stopping the run");
            exec::succeeds(&mut self.cli(&["stop", RUN, "-x", "-y"]));
            return Ok(130);
        }
        let code = if status.success() {
            0
        } else {
            self.job_exit_code().unwrap_or(1)
        };
        step(&format!("the run ended with exit code {code}"));
        Ok(code)
    }

    /// The exit code of the job itself; `dstack apply` only tells success from failure.
    fn job_exit_code(&self) -> Option<i32> {
        let run = exec::run_quietly(&mut self.cli(&["run", "get", RUN, "--json"])).ok()?;
        let value = run.split("\"exit_status\":").skip(1).find_map(|rest| {
            let number = rest.trim_start();
            let end = number.find(|c: char| !c.is_ascii_digit() && c != '-')?;
            number.get(..end)?.parse::<i32>().ok()
        });
        value.filter(|code| *code != 0)
    }

    fn wait_for_interrupt(&self) {
        println!();
        println!(
            "The server keeps running. Its page, with the token above: {}",
            self.url
        );
        println!("In another terminal:");
        println!("  export HOME={}", self.home.path().display());
        println!("  {} ps -a", self.dstack.display());
        println!("Its log: {}", self.home.path().join(SERVER_LOG).display());
        println!("Ctrl-C ends it and removes its folder.");
        while !interrupt::happened() {
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn cli(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.dstack);
        command.args(args).env("HOME", self.home.path());
        command.current_dir(layout::root().join("examples").join(RUN));
        command
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        step("cleaning up");
        terminate(&mut self.server);
        end_leftovers(self.home.path());
    }
}

/// Shows the server's first lines; from the one that names its address on they are dropped.
fn wait_until_ready(server: &mut Child) -> Result<()> {
    let stdout = server.stdout.take().context("the server has no stdout")?;
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // Nobody listens any more once the server is ready; reading on keeps its pipe from filling up.
            sender.send(line).ok();
        }
    });
    loop {
        match lines.recv_timeout(Duration::from_secs(60)) {
            Ok(line) => {
                println!("    {line}");
                if line.contains(" is running at") {
                    return Ok(());
                }
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => bail!("the server ended before it was ready"),
            Err(mpsc::RecvTimeoutError::Timeout) => bail!("the server is not ready after 60 s"),
        }
    }
}

/// SIGTERM, and SIGKILL if that is not enough.
fn terminate(child: &mut Child) {
    exec::succeeds(Command::new("kill").arg(child.id().to_string()));
    for _ in 0..100 {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        thread::sleep(Duration::from_millis(50));
    }
    child.kill().ok();
    child.wait().ok();
}

/// Runs and their agents outlive a server by design. Here nobody will come back for them: whatever still
/// names the demo's folder in its command line or environment is ended.
fn end_leftovers(home: &Path) {
    let Ok(processes) = fs_err::read_dir("/proc") else {
        return;
    };
    let name = home.as_os_str().as_encoded_bytes();
    let own = std::process::id().to_string();
    for process in processes.filter_map(Result::ok) {
        let pid = process.file_name().to_string_lossy().into_owned();
        if pid == own || !pid.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let names_home = |file: &str| {
            fs_err::read(process.path().join(file))
                .is_ok_and(|bytes| bytes.windows(name.len()).any(|part| part == name))
        };
        if names_home("cmdline") || names_home("environ") {
            exec::succeeds(Command::new("kill").args(["-KILL", &pid]));
        }
    }
}
