//! The SSH server against the real OpenSSH client. Skipped where it is not installed.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dstack_sshd::SessionDefaults;
use support::{Done, Host, free_port, have, run};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

macro_rules! host_or_skip {
    () => {{
        if !have("ssh") {
            return;
        }
        Host::start().await
    }};
}

/// Sends `text` and no more, and reads the whole answer.
async fn exchange(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), text: &[u8]) -> String {
    stream.write_all(text).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[track_caller]
fn ok(done: &Done, out: &str) {
    assert_eq!((done.code, done.out.as_str()), (Some(0), out), "{done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_run_and_report_status_output_and_signals() {
    let host = host_or_skip!();
    ok(&host.ssh(&["host", "echo out; echo err >&2"]).await, "out\n");
    assert_eq!(host.ssh(&["host", "echo err >&2; exit 7"]).await.err, "err\n");
    assert_eq!(host.ssh(&["host", "exit 7"]).await.code, Some(7));
    // OpenSSH reports a remote death by signal as 255.
    assert_eq!(host.ssh(&["host", "kill -TERM $$"]).await.code, Some(255));
    let facts = host
        .ssh(&["host", "echo $USER $0; pwd; echo $SSH_CONNECTION | wc -w; umask"])
        .await;
    assert_eq!(facts.code, Some(0));
    assert!(facts.out.starts_with(&host.user()), "{facts:?}");
    assert!(facts.out.ends_with("4\n0022\n"), "{facts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_on_standard_input_runs_as_vs_code_does_it() {
    let host = host_or_skip!();
    let script = b"echo one\nread -r line <<< 'two'; echo $line\nexit 3\n";
    let done = run(host.openssh("ssh").args(["host", "bash", "-s"]), script).await;
    assert_eq!(
        (done.code, done.out.as_str()),
        (Some(3), "one\ntwo\n"),
        "{done:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn large_input_is_echoed_without_loss_or_deadlock() {
    let host = host_or_skip!();
    let size: usize = 48 << 20;
    let data: Vec<u8> = (0..size).map(|n| u8::try_from(n % 251).unwrap()).collect();
    let path = host.path("data");
    fs_err::write(&path, &data).unwrap();
    let mut command = host.openssh("ssh");
    command
        .args(["host", "cat"])
        .stdin(fs_err::File::open(&path).unwrap().into_parts().0)
        .stdout(Stdio::piped());
    let output = command.spawn().unwrap().wait_with_output().await.unwrap();
    assert!(output.status.success());
    assert!(
        output.stdout == data,
        "{} of {size} bytes came back",
        output.stdout.len()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn input_nobody_reads_is_held_back_and_other_channels_go_on() {
    const SIZE: usize = 40 << 20;
    let host = host_or_skip!();
    let control = host.path("c");
    let control = control.to_str().unwrap();
    let fifo = host.path("fifo");
    let script = format!("mkfifo {0}; echo ready; read -r go < {0}; wc -c", fifo.display());
    let mut master = host.openssh("ssh");
    master.args(["-M", "-S", control, "host", &script]);
    let mut master = master
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(master.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "ready");
    let mut stdin = master.stdin.take().unwrap();
    let fed = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&fed);
    let feeding = tokio::spawn(async move {
        let piece = vec![b'x'; 1 << 16];
        for _ in 0..SIZE / piece.len() {
            stdin.write_all(&piece).await.unwrap();
            counting.fetch_add(piece.len(), Ordering::SeqCst);
        }
    });
    // What is held: the high water of 16 MiB, a window, and the client's own buffers.
    until("the input is held back", || fed.load(Ordering::SeqCst) > 16 << 20).await;
    for _ in 0..3 {
        ok(&host.ssh(&["-S", control, "host", "echo alive"]).await, "alive\n");
    }
    assert!(fed.load(Ordering::SeqCst) < 28 << 20, "{fed:?}");
    // The program reads at last: the rest flows, and nothing is lost.
    fs_err::write(&fifo, "go\n").unwrap();
    feeding.await.unwrap();
    assert_eq!(lines.next_line().await.unwrap().unwrap().trim(), SIZE.to_string());
    assert!(master.wait().await.unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_exchanged_anew_in_the_middle_of_transfers() {
    let host = host_or_skip!();
    let data: Vec<u8> = (0..8_000_000_u32)
        .map(|n| n.to_le_bytes()[usize::from(n.is_multiple_of(3))])
        .collect();
    let path = host.path("data");
    fs_err::write(&path, &data).unwrap();
    let mut command = host.openssh("ssh");
    command.args(["-o", "RekeyLimit=1M", "host", "cat"]);
    command
        .stdin(fs_err::File::open(&path).unwrap().into_parts().0)
        .stdout(Stdio::piped());
    let output = command.spawn().unwrap().wait_with_output().await.unwrap();
    assert!(
        output.status.success() && output.stdout == data,
        "{} bytes came back",
        output.stdout.len()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn terminals_have_size_modes_and_signals() {
    let host = host_or_skip!();
    let done = run(
        host.openssh("ssh")
            .args(["-tt", "host", "tty >/dev/null && stty -a | head -1; echo $TERM"])
            .env("TERM", "vt220"),
        b"",
    )
    .await;
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(
        done.out.contains("rows") && done.out.contains("vt220\r\n"),
        "{done:?}"
    );
    // Ctrl-C through the terminal interrupts the foreground program, and the shell goes on.
    let mut shell = host.openssh("ssh");
    shell.args([
        "-tt",
        "host",
        "trap 'echo caught' INT; sh -c 'echo go; exec sleep 600'; echo after; exit 5",
    ]);
    let mut shell = shell
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().unwrap().trim(), "go");
    shell.stdin.as_mut().unwrap().write_all(b"\x03").await.unwrap();
    let mut rest = Vec::new();
    while let Some(line) = lines.next_line().await.unwrap() {
        rest.push(line.trim().to_owned());
    }
    assert_eq!(rest, ["^Ccaught", "after"]);
    assert_eq!(shell.wait().await.unwrap().code(), Some(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_session_ends_although_a_background_process_holds_it() {
    let host = host_or_skip!();
    let done = run(
        host.openssh("ssh")
            .args(["-tt", "host", "trap '' HUP; sleep 600 & echo $!"]),
        b"",
    )
    .await;
    assert_eq!(done.code, Some(0), "{done:?}");
    let pid: i32 = done.out.trim().parse().unwrap();
    kill(pid);
}

#[tokio::test(flavor = "multi_thread")]
async fn shells_are_login_shells_with_the_jobs_environment() {
    let host = host_or_skip!();
    let work = host.path("work");
    fs_err::create_dir(&work).unwrap();
    let env = vec![("JOB_VARIABLE".to_owned(), "it's here".to_owned())];
    host.defaults.send_replace(SessionDefaults {
        env,
        working_dir: Some(work.clone()),
    });
    let done = run(
        host.openssh("ssh").args(["-T", "host"]),
        b"echo \"$JOB_VARIABLE\"; pwd; echo $0\n",
    )
    .await;
    let expected = format!("it's here\n{}\n-", work.display());
    assert!(done.out.contains(&expected), "{done:?}");
    ok(&host.ssh(&["host", "echo $JOB_VARIABLE"]).await, "it's here\n");
    let mut sending = host.openssh("ssh");
    sending.args([
        "-o",
        "SendEnv=LC_*",
        "-o",
        "SendEnv=LD_PRELOAD",
        "host",
        "echo $LC_TEST-$LD_LIBRARY",
    ]);
    ok(
        &run(sending.env("LC_TEST", "x").env("LD_LIBRARY", "y"), b"").await,
        "x-\n",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn other_keys_and_other_users_are_refused() {
    let host = host_or_skip!();
    assert_eq!(
        host.ssh(&["-l", "no-such-user", "host", "true"]).await.code,
        Some(if host.switch { 255 } else { 0 })
    );
    let other = host.path("other");
    let mut keygen = tokio::process::Command::new("ssh-keygen");
    assert_eq!(
        run(
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&other),
            b""
        )
        .await
        .code,
        Some(0)
    );
    let identity = format!("IdentityFile={}", other.display());
    let refused = host
        .ssh(&[
            "-o",
            &identity,
            "-o",
            "IdentityAgent=none",
            "-F",
            "none",
            "-p",
            &host.handle.port().to_string(),
            "-o",
            "BatchMode=yes",
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            "UserKnownHostsFile=/dev/null",
            "127.0.0.1",
            "true",
        ])
        .await;
    assert_eq!(refused.code, Some(255));
    assert!(
        refused.err.contains("Permission denied (publickey)"),
        "{refused:?}"
    );
    host.handle
        .add_key(&fs_err::read_to_string(host.path("other.pub")).unwrap())
        .unwrap();
    let port = host.handle.port().to_string();
    let admitted = [
        "-F",
        "none",
        "-i",
        other.to_str().unwrap(),
        "-p",
        &port,
        "-o",
        "BatchMode=yes",
        "-o",
        "StrictHostKeyChecking=no",
        "-o",
        "UserKnownHostsFile=/dev/null",
        "127.0.0.1",
        "true",
    ];
    let done = run(tokio::process::Command::new("ssh").args(admitted), b"").await;
    assert_eq!(done.code, Some(0), "{done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_run_as_the_user_of_the_login() {
    let host = host_or_skip!();
    if !host.switch {
        eprintln!("skipped: only root can switch users");
        return;
    }
    ok(
        &host
            .ssh(&["-l", "nobody", "host", "id -un; id -u"])
            .await
            .with_shell(),
        "",
    );
    ok(
        &host.ssh(&["-l", "12345", "host", "id -u; id -g; pwd"]).await,
        "12345\n0\n/\n",
    );
    // Files and sockets are made as that user.
    let batch = "put key copied\nls -n copied\n";
    fs_err::create_dir(host.path("drop")).unwrap();
    chmod(&host.path("drop"), 0o777);
    chmod(&host.path("key"), 0o644);
    let target = format!("12345@host:{}", host.path("drop").display());
    let mut sftp = host.openssh("sftp");
    chmod(&host.path("key"), 0o600);
    let done = run(
        sftp.args(["-b", "-", &target]).current_dir(host.dir.path()),
        batch.as_bytes(),
    )
    .await;
    assert!(done.code == Some(0) && done.out.contains("12345"), "{done:?}");
    let socket = host.path("forbidden.sock");
    let forward = format!("{}:127.0.0.1:1", socket.display());
    let done = host.ssh(&["-l", "12345", "-R", &forward, "host", "true"]).await;
    assert_eq!(done.code, Some(255), "{done:?}");
    assert!(!socket.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn local_forwards_reach_ports_sockets_and_services_of_the_process() {
    let host = host_or_skip!();
    let echo = echo_server().await;
    let (tcp, service, dynamic) = (free_port(), free_port(), free_port());
    let socket = host.path("listen.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(echo_stream(stream));
        }
    });
    let near = host.path("near.sock");
    let mut tunnel = host.openssh("ssh");
    tunnel.args([
        "-N",
        "-L",
        &format!("{tcp}:localhost:{echo}"),
        "-L",
        &format!("{service}:localhost:10999"),
    ]);
    tunnel.args([
        "-L",
        &format!("{}:{}", near.display(), socket.display()),
        "-D",
        &dynamic.to_string(),
        "host",
    ]);
    let mut tunnel = tunnel.spawn().unwrap();
    let mut stream = dial(tcp).await;
    assert_eq!(exchange(&mut stream, b"hello").await, "hello");
    let mut stream = dial(service).await;
    stream.write_all(b"ping").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "service says ping");
    let mut stream = UnixStream::connect(&near).await.unwrap();
    assert_eq!(exchange(&mut stream, b"by socket").await, "by socket");
    // SOCKS5 without authentication, to 127.0.0.1:echo.
    let mut stream = dial(dynamic).await;
    let mut hello = vec![5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1];
    hello.extend_from_slice(&echo.to_be_bytes());
    stream.write_all(&hello).await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer[..4], [5, 0, 5, 0]);
    stream.write_all(b"socks").await.unwrap();
    let mut text = [0; 5];
    stream.read_exact(&mut text).await.unwrap();
    assert_eq!(&text, b"socks");
    // A port nobody listens on refuses the channel and leaves the connection alone.
    tunnel.kill().await.unwrap();
    let refused = host
        .ssh(&["-W", &format!("127.0.0.1:{}", free_port()), "host"])
        .await;
    assert_eq!(refused.code, Some(255), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn remote_forwards_bring_ports_and_sockets_back() {
    let host = host_or_skip!();
    let echo = echo_server().await;
    let socket = host.path("back.sock");
    let fixed = free_port();
    let mut tunnel = host.openssh("ssh");
    tunnel.args([
        "-o",
        "LogLevel=INFO",
        "-R",
        &format!("0:localhost:{echo}"),
        "-R",
        &format!("{fixed}:localhost:{echo}"),
    ]);
    tunnel.args([
        "-R",
        &format!("{}:localhost:{echo}", socket.display()),
        "host",
        "echo up; cat",
    ]);
    let mut tunnel = tunnel
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(tunnel.stdout.take().unwrap()).lines();
    assert_eq!(out.next_line().await.unwrap().unwrap(), "up");
    let mut errors = BufReader::new(tunnel.stderr.take().unwrap()).lines();
    let allocated = loop {
        let line = errors.next_line().await.unwrap().unwrap();
        if let Some(rest) = line.strip_prefix("Allocated port ") {
            break rest.split(' ').next().unwrap().parse::<u16>().unwrap();
        }
    };
    for port in [allocated, fixed] {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        assert_eq!(exchange(&mut stream, b"back").await, "back");
    }
    let mut stream = UnixStream::connect(&socket).await.unwrap();
    assert_eq!(exchange(&mut stream, b"socket").await, "socket");
    // The port is taken: the next one is refused, as is the socket.
    let taken = host
        .ssh(&["-R", &format!("{fixed}:localhost:1"), "host", "true"])
        .await;
    assert_eq!(taken.code, Some(255), "{taken:?}");
    drop(tunnel.stdin.take());
    assert!(tunnel.wait().await.unwrap().success());
    until("the socket is removed", || !socket.exists()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_background_master_serves_further_commands_and_exits() {
    let host = host_or_skip!();
    let control = host.path("m");
    let control = control.to_str().unwrap();
    let (first, second) = (free_port(), free_port());
    let echo = echo_server().await;
    let forward = |port: u16| format!("{port}:localhost:{echo}");
    // The way the reference's tunnels are opened: standard streams closed, `-f` returns once forwards stand.
    let mut open = host.openssh("ssh");
    open.args([
        "-N",
        "-f",
        "-o",
        "ControlMaster=auto",
        "-S",
        control,
        "-L",
        &forward(first),
        "host",
    ]);
    let opened = open
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .await
        .unwrap();
    assert!(opened.success());
    ok(
        &host.ssh(&["-S", control, "host", "echo through"]).await,
        "through\n",
    );
    let more = host
        .ssh(&["-S", control, "-O", "forward", "-L", &forward(second), "host"])
        .await;
    assert_eq!(more.code, Some(0), "{more:?}");
    for port in [first, second] {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        stream.write_all(b"!").await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'!');
    }
    let open = host.handle.connections();
    assert_eq!(open.len(), 1);
    assert!(open[0].client.starts_with("SSH-2.0-OpenSSH"), "{open:?}");
    assert_eq!(
        host.ssh(&["-S", control, "-O", "check", "host"]).await.code,
        Some(0)
    );
    assert_eq!(
        host.ssh(&["-S", control, "-O", "exit", "host"]).await.code,
        Some(0)
    );
    until("the connection is gone", || host.handle.connections().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_serves_as_a_jump_host_also_to_itself() {
    let host = host_or_skip!();
    ok(&host.ssh(&["behind", "echo inner"]).await, "inner\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vanished_client_hangs_up_its_program() {
    let host = host_or_skip!();
    for terminal in ["-T", "-tt"] {
        let mut client = host.openssh("ssh");
        client
            .args([terminal, "host", "echo $$; exec sleep 600"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut client = client.spawn().unwrap();
        let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
        let pid: i32 = lines.next_line().await.unwrap().unwrap().trim().parse().unwrap();
        assert!(alive(pid));
        client.kill().await.unwrap();
        until("the program has ended", || !alive(pid)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_copied_both_ways() {
    let host = host_or_skip!();
    if !have("sftp") || !have("scp") {
        return;
    }
    let tree = host.path("tree");
    fs_err::create_dir_all(tree.join("sub")).unwrap();
    let big: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    fs_err::write(tree.join("big"), &big).unwrap();
    fs_err::write(tree.join("sub/ünïcode name"), "text").unwrap();
    chmod(&tree.join("sub/ünïcode name"), 0o751);
    let there = format!("host:{}", host.path("there").display());
    let copied = run(
        host.openssh("scp").args(["-rpq", tree.to_str().unwrap(), &there]),
        b"",
    )
    .await;
    assert_eq!(copied.code, Some(0), "{copied:?}");
    assert!(fs_err::read(host.path("there/big")).unwrap() == big);
    let back = run(
        host.openssh("scp")
            .args(["-rpq", &there, host.path("again").to_str().unwrap()]),
        b"",
    )
    .await;
    assert_eq!(back.code, Some(0), "{back:?}");
    assert_eq!(
        fs_err::read_to_string(host.path("again/sub/ünïcode name")).unwrap(),
        "text"
    );
    assert_eq!(mode(&host.path("again/sub/ünïcode name")), 0o751);
    let batch = format!(
        "cd {0}/there\npwd\nmkdir made\nput {0}/tree/big made/one\nrename made/one made/two\nln -s two made/link\n\
         ln made/two made/hard\nchmod 600 made/two\nls -la made\ndf\nget made/two {0}/fetched\nrm made/hard\nrm made/link\n\
         -rename made/missing x\nrm made/two\nrmdir made\nls nothing-here\n",
        host.dir.path().display()
    );
    let done = run(host.openssh("sftp").args(["-b", "-", "host"]), batch.as_bytes()).await;
    // The last command fails: a batch stops there with status 1.
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(
        done.err.contains("nothing-here") && done.err.contains("not found"),
        "{done:?}"
    );
    assert!(
        done.out.contains("lrwxrwxrwx") && done.out.contains("-rw-------"),
        "{done:?}"
    );
    assert!(fs_err::read(host.path("fetched")).unwrap() == big);
    assert!(!host.path("there/made").exists());
    // scp's old protocol runs the remote scp in a shell.
    let old = run(
        host.openssh("scp")
            .args(["-Oq", &format!("{there}/big"), host.path("old").to_str().unwrap()]),
        b"",
    )
    .await;
    assert_eq!(old.code, Some(0), "{old:?}");
    assert!(fs_err::read(host.path("old")).unwrap() == big);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clients_key_agent_is_forwarded() {
    let host = host_or_skip!();
    if !have("ssh-agent") {
        return;
    }
    let script = format!(
        "eval $(ssh-agent -s) >/dev/null; ssh-add -q {}; ssh -F {} -A host 'ssh-add -L; ls $SSH_AUTH_SOCK'; status=$?; ssh-agent -k >/dev/null; exit $status",
        host.path("key").display(),
        host.path("config").display()
    );
    drop(host.openssh("ssh"));
    let done = run(tokio::process::Command::new("sh").arg("-c").arg(script), b"").await;
    assert_eq!(done.code, Some(0), "{done:?}");
    let mut lines = done.out.lines();
    assert_eq!(lines.next(), Some(host.key.public.trim()));
    let socket = lines.next().unwrap().to_owned();
    until("the agent's socket is removed", || !Path::new(&socket).exists()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_ends_connections_and_the_listener() {
    let host = host_or_skip!();
    let mut client = host.openssh("ssh");
    client
        .args(["host", "echo $$; exec sleep 600"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut client = client.spawn().unwrap();
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    let pid: i32 = lines.next_line().await.unwrap().unwrap().parse().unwrap();
    host.handle.stop();
    assert_eq!(client.wait().await.unwrap().code(), Some(255));
    until("the program has ended", || !alive(pid)).await;
}

impl Done {
    /// Accounts without a usable shell cannot run anything: only that they got in matters here.
    fn with_shell(mut self) -> Self {
        if self.code != Some(255) {
            self.code = Some(0);
            self.out.clear();
        }
        self
    }
}

fn chmod(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs_err::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    fs_err::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Alive and not a zombie.
fn alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with('Z'))
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// Waits for something outside this process, of which no event tells.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never happened: {what}");
}

async fn dial(port: u16) -> TcpStream {
    for _ in 0..1000 {
        if let Ok(stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
            return stream;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the tunnel never came up");
}

async fn echo_server() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(echo_stream(stream));
        }
    });
    port
}

async fn echo_stream(stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let _ = tokio::io::copy(&mut reader, &mut writer).await;
    let _ = writer.shutdown().await;
}
