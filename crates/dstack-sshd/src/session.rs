//! One session channel: a shell, a command, or SFTP, with or without a terminal.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use bytes::BytesMut;
use dstack_ssh::inbox::InboxReader;
use dstack_system::task;
use russh::server::Handle;
use russh::{ChannelId, Sig};
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::termios::Winsize;
use tokio::io::AsyncReadExt;
use tokio::process::Child;
use tokio::sync::{Notify, watch};

use crate::environment::{Sources, environment};
use crate::login::Login;
use crate::options::{SessionDefaults, SshOptions};
use crate::process::{Launch, spawn};
use crate::pump::{Sending, send, to_channel, to_stream};
use crate::terminal::{Terminal, TerminalRequest};

/// How long output of a finished session's terminal may stay away before the session is over, although a background
/// process still holds the terminal.
const DRAIN: Duration = Duration::from_millis(50);

/// What a session runs.
#[derive(Debug, Clone)]
pub(crate) enum Program {
    /// The login shell.
    Shell,
    /// A command line for the user's shell.
    Command(Vec<u8>),
    /// The SFTP helper.
    Sftp,
}

/// A session channel before and after its program was started.
pub(crate) struct Session {
    sending: Option<Sending>,
    incoming: Option<InboxReader>,
    /// Variables the client asked for.
    pub(crate) env: Vec<(String, String)>,
    /// Terminal the client asked for.
    pub(crate) terminal: Option<TerminalRequest>,
    /// Socket of the forwarded agent.
    pub(crate) agent: Option<PathBuf>,
    running: Option<Running>,
}

/// A started program, as the connection sees it.
struct Running {
    group: Pid,
    terminal: Option<Terminal>,
    // Turns true when the program has ended.
    ended: watch::Receiver<bool>,
    // Dropping it tells the session's task that the client has gone.
    _client: watch::Sender<()>,
}

/// Facts of the connection that a session needs.
pub(crate) struct Surroundings<'a> {
    pub(crate) options: &'a SshOptions,
    pub(crate) login: &'a Login,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) handle: Handle,
}

impl Session {
    pub(crate) fn new(sending: Sending, incoming: InboxReader) -> Self {
        Self {
            sending: Some(sending),
            incoming: Some(incoming),
            env: Vec::new(),
            terminal: None,
            agent: None,
            running: None,
        }
    }

    /// Starts the program and a task that serves it. An error leaves the session as it was.
    pub(crate) fn start(&mut self, program: &Program, around: &Surroundings<'_>) -> io::Result<()> {
        let opened = match (&self.terminal, program) {
            (Some(request), Program::Shell | Program::Command(_)) => {
                Some(Terminal::open(request, around.login)?)
            }
            _ => None,
        };
        let term = self.terminal.as_ref().map(|request| request.term.as_str());
        let defaults = around.options.session.borrow().clone();
        let machine = fs_err::read_to_string("/etc/environment").unwrap_or_default();
        let env = environment(&Sources {
            machine: &machine,
            defaults: &defaults.env,
            client: &self.env,
            login: around.login,
            peer: around.peer,
            local: around.local,
            terminal: opened
                .as_ref()
                .and_then(|(_, _, path)| Some((term?, path.as_path()))),
            agent: self.agent.as_deref(),
        });
        let launch = launch(
            program,
            around,
            &defaults,
            env,
            opened.as_ref().map(|(_, slave, _)| slave),
        )?;
        let (Some(sending), Some(incoming)) = (self.sending.take(), self.incoming.take()) else {
            return Err(io::Error::other("the session has a program already"));
        };
        let child = match spawn(launch) {
            Ok(child) => child,
            Err(error) => {
                (self.sending, self.incoming) = (Some(sending), Some(incoming));
                return Err(error);
            }
        };
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let group = group.ok_or_else(|| io::Error::other("the program has no process id"))?;
        let terminal = opened.map(|(terminal, _, _)| terminal);
        let (client, client_gone) = watch::channel(());
        let (ended_sent, ended) = watch::channel(false);
        self.running = Some(Running {
            group,
            terminal: terminal.clone(),
            ended,
            _client: client,
        });
        let serving = Serving {
            id: sending.id(),
            sending,
            incoming,
            handle: around.handle.clone(),
            ended: ended_sent,
        };
        task::spawn("ssh-session", serving.run(child, terminal, client_gone));
        Ok(())
    }

    /// The client's window has another size.
    pub(crate) fn resize(&mut self, size: Winsize) {
        if let Some(request) = &mut self.terminal {
            request.size = size;
        }
        if let Some(terminal) = self
            .running
            .as_ref()
            .and_then(|running| running.terminal.as_ref())
        {
            // Fails only when the terminal has just gone.
            let _ = terminal.resize(size);
        }
    }

    /// Sends a signal to the program's process group.
    pub(crate) fn signal(&self, signal: &Sig) {
        let signal = match signal {
            Sig::ABRT => Signal::ABORT,
            Sig::ALRM => Signal::ALARM,
            Sig::FPE => Signal::FPE,
            Sig::HUP => Signal::HUP,
            Sig::ILL => Signal::ILL,
            Sig::INT => Signal::INT,
            Sig::KILL => Signal::KILL,
            Sig::PIPE => Signal::PIPE,
            Sig::QUIT => Signal::QUIT,
            Sig::SEGV => Signal::SEGV,
            Sig::TERM => Signal::TERM,
            Sig::USR1 => Signal::USR1,
            Sig::Custom(name) if name == "USR2" => Signal::USR2,
            Sig::Custom(_) => return,
        };
        self.kill(signal);
    }

    fn kill(&self, signal: Signal) {
        if let Some(running) = &self.running
            && !*running.ended.borrow()
        {
            // Fails when the group has just ended.
            let _ = kill_process_group(running.group, signal);
        }
    }
}

impl Drop for Session {
    /// The channel or the whole connection is gone: a program that still runs is told so.
    fn drop(&mut self) {
        self.kill(Signal::HUP);
    }
}

fn launch<'a>(
    program: &Program,
    around: &Surroundings<'a>,
    defaults: &SessionDefaults,
    env: Vec<(String, String)>,
    terminal: Option<&'a std::os::fd::OwnedFd>,
) -> io::Result<Launch<'a>> {
    let login = around.login;
    let mut launch = Launch {
        program: login.shell.clone(),
        arg0: None,
        args: Vec::new(),
        env,
        directories: vec![login.home.clone()],
        login,
        terminal,
    };
    let shell_name = login.shell.file_name().unwrap_or(login.shell.as_os_str());
    match program {
        Program::Shell => {
            // A dash before the name makes any shell a login shell, `-l` would not.
            let mut name = OsString::from("-");
            name.push(shell_name);
            launch.arg0 = Some(name);
            launch.directories.splice(0..0, defaults.working_dir.clone());
        }
        Program::Command(command) => {
            launch.arg0 = Some(shell_name.to_owned());
            launch.args = vec!["-c".into(), OsString::from_vec(command.clone())];
        }
        Program::Sftp => {
            let (program, args) = around
                .options
                .sftp_server
                .split_first()
                .ok_or_else(|| io::Error::other("no SFTP helper is configured"))?;
            launch.program = program.into();
            launch.args = args.to_vec();
        }
    }
    Ok(launch)
}

/// The task's side of a running session.
struct Serving {
    id: ChannelId,
    sending: Sending,
    incoming: InboxReader,
    handle: Handle,
    ended: watch::Sender<bool>,
}

impl Serving {
    async fn run(mut self, child: Child, terminal: Option<Terminal>, mut client_gone: watch::Receiver<()>) {
        let serve = async {
            match terminal {
                Some(terminal) => self.with_terminal(child, terminal).await,
                None => self.with_pipes(child).await,
            }
        };
        tokio::select! {
            () = serve => {}
            // Errors when the connection's side is dropped, which is the event.
            _ = client_gone.changed() => {}
        }
    }

    async fn with_pipes(&mut self, mut child: Child) {
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (sending, id, handle, ended) = (&self.sending, self.id, &self.handle, &self.ended);
        let incoming = &mut self.incoming;
        let input = async {
            if let Some(mut stdin) = stdin {
                to_pipe(incoming, &mut stdin).await;
            }
            // What is still sent has no reader; the channel stays open for the output.
            while incoming.next().await.is_some() {}
        };
        let output = async {
            if let Some(mut stdout) = stdout {
                let _ = to_channel(&mut stdout, sending, None).await;
            }
        };
        let errors = async {
            if let Some(mut stderr) = stderr {
                let _ = to_channel(&mut stderr, sending, Some(1)).await;
            }
        };
        let exit = async {
            let status = child.wait().await;
            ended.send_replace(true);
            report(handle, id, status).await;
        };
        tokio::select! {
            // As sshd: over when the program has ended and nobody holds its output any more.
            _ = async { tokio::join!(output, errors, exit) } => {}
            // The client has closed the channel.
            () = input => {}
        }
        let _ = sending.eof().await;
        let _ = sending.close().await;
    }

    async fn with_terminal(&mut self, mut child: Child, terminal: Terminal) {
        let (sending, id, handle, ended) = (&self.sending, self.id, &self.handle, &self.ended);
        let incoming = &mut self.incoming;
        let mut writer = terminal.clone();
        // End-of-file from the client means nothing to a terminal.
        let unused = Notify::new();
        let input = to_stream(incoming, &mut writer, &unused);
        let (exited_sent, exited) = watch::channel(None);
        let exit = async {
            let status = child.wait().await;
            ended.send_replace(true);
            exited_sent.send_replace(Some(()));
            status
        };
        let work = async {
            let (status, ()) = tokio::join!(exit, terminal_output(terminal, sending, exited));
            report(handle, id, status).await;
        };
        tokio::select! {
            () = work => {}
            () = input => {}
        }
        let _ = sending.eof().await;
        let _ = sending.close().await;
    }
}

/// Writes what arrives until the client's end-of-file or the program's disinterest, then closes the pipe.
async fn to_pipe(incoming: &mut InboxReader, stdin: &mut tokio::process::ChildStdin) {
    use dstack_ssh::inbox::Event;
    use tokio::io::AsyncWriteExt;
    while let Some(event) = incoming.next().await {
        match event {
            // A program that takes no more input has closed its end.
            Event::Data(data) if stdin.write_all(&data).await.is_ok() => {}
            Event::Data(_) | Event::Eof => return,
            _ => {}
        }
    }
}

/// Sends the terminal's output until its end; once the program has exited, only what is there already.
async fn terminal_output(mut terminal: Terminal, sending: &Sending, mut exited: watch::Receiver<Option<()>>) {
    let mut buffer = BytesMut::with_capacity(32 * 1024);
    loop {
        buffer.reserve(32 * 1024);
        let read = if exited.borrow().is_some() {
            match tokio::time::timeout(DRAIN, terminal.read_buf(&mut buffer)).await {
                Ok(read) => read,
                Err(_) => return,
            }
        } else {
            tokio::select! {
                read = terminal.read_buf(&mut buffer) => read,
                _ = exited.changed() => continue,
            }
        };
        if !matches!(read, Ok(len) if len > 0) || send(sending, None, &mut buffer).await.is_err() {
            return;
        }
    }
}

async fn report(handle: &Handle, id: ChannelId, status: io::Result<ExitStatus>) {
    // Fails when the connection has gone: nobody is left to tell.
    let _ = match status.as_ref().map(|status| (status.code(), status.signal())) {
        Ok((Some(code), _)) => {
            handle
                .exit_status_request(id, u32::try_from(code).unwrap_or(255))
                .await
        }
        Ok((None, Some(signal))) => {
            let core = status.is_ok_and(|status| status.core_dumped());
            handle
                .exit_signal_request(id, signal_name(signal), core, String::new(), "en".to_owned())
                .await
        }
        Ok((None, None)) | Err(_) => handle.exit_status_request(id, 255).await,
    };
}

fn signal_name(number: i32) -> Sig {
    let name = match number {
        libc::SIGABRT => "ABRT",
        libc::SIGALRM => "ALRM",
        libc::SIGFPE => "FPE",
        libc::SIGHUP => "HUP",
        libc::SIGILL => "ILL",
        libc::SIGINT => "INT",
        libc::SIGKILL => "KILL",
        libc::SIGPIPE => "PIPE",
        libc::SIGQUIT => "QUIT",
        libc::SIGSEGV => "SEGV",
        libc::SIGTERM => "TERM",
        libc::SIGUSR1 => "USR1",
        libc::SIGUSR2 => "USR2",
        other => return Sig::Custom(format!("{other}@dstack.ai")),
    };
    Sig::Custom(name.to_owned())
}

/// Everything the sessions of one connection need to be found again.
pub(crate) type Sessions = std::collections::HashMap<ChannelId, Session>;
