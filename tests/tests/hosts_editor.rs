//! What editors do over SSH with a job of a host behind a jump host: one connection for everything, a shell that is given a script,
//! ports in both directions, files.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods
)] // tests

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use dstack_tests::cli::Cli;
use dstack_tests::fleets::{apply, start, task, until_idle};
use dstack_tests::hosts::{Has, USUAL};
use dstack_tests::need;
use dstack_tests::runs::TEST_TIMEOUT;
use dstack_tests::server::{eventually, free_port};
use serde_json::json;

/// The SSH client of a user who has attached to run `desk`: the command line has written how it is reached.
struct Ssh<'a> {
    cli: &'a Cli,
    control: PathBuf,
}

impl Ssh<'_> {
    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .arg("-F")
            .arg(self.cli.folder().join(".dstack/ssh/config"))
            .args(["-o", "BatchMode=yes", "-o"])
            .arg(format!("ControlPath={}", self.control.display()))
            .args(arguments)
            .env("HOME", self.cli.folder())
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command("ssh", arguments).output().unwrap()
    }

    /// What a command prints; it must succeed.
    fn says(&self, arguments: &[&str]) -> String {
        said(&self.run(arguments), arguments)
    }
}

fn said(output: &Output, what: &[&str]) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what:?}: {}: {error}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn page(mut stream: TcpStream) -> std::io::Result<String> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Asks the SOCKS server on a local port for a port of the job's loopback interface.
fn through_socks(port: u16, target: u16) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(&[5, 1, 0])?;
    stream.read_exact(&mut [0; 2])?;
    let [high, low] = target.to_be_bytes();
    stream.write_all(&[5, 1, 0, 1, 127, 0, 0, 1, high, low])?;
    let mut answer = [0; 10];
    stream.read_exact(&mut answer)?;
    match answer[1] {
        0 => Ok(stream),
        code => Err(std::io::Error::other(format!("SOCKS: {code}"))),
    }
}

/// Answers each connection with a page.
fn serve(text: &'static str) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // Whatever is asked for.
            let _ = stream.read(&mut [0; 1024]);
            write!(
                stream,
                "HTTP/1.0 200 OK\r\ncontent-length: {}\r\n\r\n{text}",
                text.len()
            )
            .ok();
        }
    });
    port
}

#[test]
fn an_editor_works_in_a_job_behind_a_jump_host() {
    let cli = need!(Cli::ours());
    let (server, lab) = need!(start());
    let jump = need!(lab.host("jump", 2, &[Has::Systemd]));
    let host = need!(lab.host("inner", 3, USUAL));
    let only = format!(
        "iptables -A INPUT -p tcp --dport 22 ! -s {} -j DROP",
        jump.address
    );
    host.run(&only).unwrap();
    let key = json!({"public": "", "private": lab.private_key().unwrap()});
    let proxy =
        json!({"proxy_jump": {"hostname": jump.address, "user": "me", "identity_file": "x", "ssh_key": key}});
    apply(&server, &lab.fleet("lab", &[host.entry()], &proxy).unwrap());
    until_idle(&server, "lab", 1);

    let added = cli.add_project(&server).unwrap();
    assert_eq!(added.code, Some(0), "{}", added.text);
    // Users have the key of a jump host in their own configuration: dstack puts none there.
    let config = format!(
        "Host {}\n  IdentityFile {}\n",
        jump.address,
        lab.identity_file().display()
    );
    fs_err::create_dir_all(cli.folder().join(".ssh")).unwrap();
    cli.write(".ssh/config", &config).unwrap();
    let run = task(&server, "desk", &["sleep 600"], &json!({}));
    run.wait_for(&["running"]).unwrap();
    let mut attached = cli.start(&["attach", "desk"]).unwrap();
    let ssh = Ssh {
        cli: &cli,
        control: cli.folder().join("control"),
    };
    eventually("ssh leads to the job", TEST_TIMEOUT, || {
        attached.still_runs()?;
        Ok(ssh
            .run(&["-o", "ControlPath=none", "desk", "true"])
            .status
            .success()
            .then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}\n{}\n{}", attached.text(), server.output()));

    // One connection, over which everything goes. Its standard streams are closed: it stays until it is told to end.
    let socks = free_port().unwrap();
    let dynamic = socks.to_string();
    let mut master = ssh.command("ssh", &["-M", "-N", "-f", "-D", &dynamic, "desk"]);
    let opened = master
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(opened.success());
    ssh.says(&["-O", "check", "desk"]);

    // A script on the standard input of a shell starts what the editor talks to, and says where.
    let script = "mkdir -p /tmp/www && echo a page of the job >/tmp/www/index.html\n\
                  httpd -p 127.0.0.1:8123 -h /tmp/www && echo listeningOn==8123==\nsleep 600\n";
    let mut shell = ssh.command("ssh", &["-T", "desk", "sh"]);
    let mut shell = Process(
        shell
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    shell
        .0
        .stdin
        .as_mut()
        .unwrap()
        .write_all(script.as_bytes())
        .unwrap();
    let mut said_so_far = Vec::new();
    let stdout = shell.0.stdout.as_mut().unwrap();
    while !said_so_far.ends_with(b"listeningOn==8123==\n") {
        let mut byte = [0];
        stdout.read_exact(&mut byte).unwrap();
        said_so_far.push(byte[0]);
    }
    assert!(
        page(through_socks(socks, 8123).unwrap())
            .unwrap()
            .contains("a page of the job")
    );

    // Commands beside one another and beside the shell.
    let texts: Vec<String> = thread::scope(|scope| {
        let one = |number: usize| {
            let command = format!("echo {number} of $(cat /tmp/www/index.html)");
            ssh.says(&["desk", &command])
        };
        let all: Vec<_> = (0..8).map(|number| scope.spawn(move || one(number))).collect();
        all.into_iter().map(|text| text.join().unwrap()).collect()
    });
    for (number, text) in texts.iter().enumerate() {
        assert_eq!(text, &format!("{number} of a page of the job\n"));
    }

    // Ports of the job here, and ports of ours there.
    let local = free_port().unwrap();
    ssh.says(&["-O", "forward", "-L", &format!("{local}:localhost:8123"), "desk"]);
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, local)).unwrap();
    assert!(page(stream).unwrap().contains("a page of the job"));
    let ours = serve("a page of ours");
    ssh.says(&["-O", "forward", "-R", &format!("8124:localhost:{ours}"), "desk"]);
    let there = ssh.says(&["desk", "wget -qO- http://127.0.0.1:8124/"]);
    assert_eq!(there, "a page of ours");

    // Files there and back.
    let bytes: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    fs_err::write(cli.folder().join("there"), &bytes).unwrap();
    let batch = format!(
        "put {0}/there /tmp/file\nchmod 600 /tmp/file\nget /tmp/file {0}/back\n",
        cli.folder().display()
    );
    cli.write("batch", &batch).unwrap();
    let batch = cli.folder().join("batch").display().to_string();
    let copied = ssh.command("sftp", &["-b", &batch, "desk"]).output().unwrap();
    said(&copied, &["sftp"]);
    assert!(fs_err::read(cli.folder().join("back")).unwrap() == bytes);
    assert_eq!(
        ssh.says(&["desk", "wc -c </tmp/file"]),
        format!("{}\n", bytes.len())
    );

    ssh.says(&["-O", "exit", "desk"]);
    eventually("the connection is over", TEST_TIMEOUT, || {
        Ok((!ssh.control.exists()).then_some(()))
    })
    .unwrap();
    assert_eq!(run.status().unwrap(), "running");
}
