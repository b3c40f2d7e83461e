//! SSH fleets as users have them: by our command line and the unmodified one of dstack 0.22.5, on hosts with OpenSSH, to whose
//! jobs the command line attaches through the host, and through a jump host.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use dstack_tests::cli::{Background, Cli, Ended};
use dstack_tests::hosts::{Has, Host, IMAGE, Lab, USUAL};
use dstack_tests::http::Client;
use dstack_tests::runs::{SMALL_YAML, TEST_TIMEOUT, attach};
use dstack_tests::server::{Server, Setup, eventually, free_port};
use dstack_tests::{need, parts};

/// Makes a test of each function, once per command line.
macro_rules! with_both {
    ($($name:ident)*) => {
        mod python {
            use dstack_tests::{cli::Cli, need};
            $(#[test] fn $name() { super::$name(&need!(Cli::python())); })*
        }
        mod ours {
            use dstack_tests::{cli::Cli, need};
            $(#[test] fn $name() { super::$name(&need!(Cli::ours())); })*
        }
    };
}

with_both! {
    a_fleet_comes_up_runs_tasks_and_leaves_nothing_behind
    ports_and_ssh_lead_to_a_job_of_a_host
    ports_and_ssh_lead_through_a_jump_host
    a_development_environment_shows_its_url_and_ends_when_nobody_is_there
}

fn start(cli: &Cli) -> Result<(Server, Lab), String> {
    let lab = Lab::new()?;
    // What the image says of itself is asked of this machine's engine, as there is no registry.
    parts::image()?;
    let server = Setup::local()?.start().unwrap();
    let added = cli.add_project(&server).unwrap();
    assert_eq!(added.code, Some(0), "{}", added.text);
    Ok((server, lab))
}

fn apply_fleet(cli: &Cli, server: &Server, lab: &Lab, host: &Host<'_>, more: &str) {
    let key = lab.identity_file();
    let yaml = format!(
        "type: fleet\nname: lab\nssh_config:\n  user: me\n  identity_file: {}\n  hosts: [{}]\n{more}",
        key.display(),
        host.address
    );
    cli.write("fleet.yml", &yaml).unwrap();
    let Ended { code, text } = cli.run(&["apply", "-y", "-f", "fleet.yml"]).unwrap();
    assert_eq!(code, Some(0), "{text}\n{}", server.output());
}

fn task(cli: &Cli, name: &str, commands: &[&str], more: &str) {
    let commands: String = commands
        .iter()
        .map(|command| format!("  - {command}\n"))
        .collect();
    let yaml = format!(
        "type: task\nname: {name}\nimage: {IMAGE}\nuser: root\nfleets: [lab]\ncommands:\n{commands}{more}{SMALL_YAML}"
    );
    cli.write("task.yml", &yaml).unwrap();
}

/// The keys that the host lets in as the fleet's user.
fn keys(host: &Host<'_>) -> Vec<String> {
    let text = host.run("cat /home/me/.ssh/authorized_keys").unwrap();
    text.lines().map(str::to_owned).collect()
}

fn a_fleet_comes_up_runs_tasks_and_leaves_nothing_behind(cli: &Cli) {
    let (server, lab) = need!(start(cli));
    let host = need!(lab.host("one", 2, USUAL));
    let keys_before = keys(&host);
    apply_fleet(cli, &server, &lab, &host, "");
    // The server's own is among them.
    let keys_of_fleet = keys(&host);
    let Ended { code, text } = cli.run(&["fleet"]).unwrap();
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("lab") && text.contains("idle"), "{text}");
    let json = cli.run(&["fleet", "get", "lab", "--json"]).unwrap().text;
    assert!(
        json.contains(&format!("\"hostname\": \"{}\"", host.address)),
        "{json}"
    );

    for (name, last, wanted, shown) in [
        ("good", "echo from $(hostname)", 0, "Exited (0)"),
        ("bad", "exit 7", 1, "7"),
    ] {
        task(cli, name, &["echo hello", last], "");
        let Ended { code, text } = cli.run(&["apply", "-y", "-f", "task.yml"]).unwrap();
        assert_eq!(code, Some(wanted), "{text}\n{}", server.output());
        assert!(text.contains("\nhello") && text.contains(shown), "{text}");
        for wrong in ["Can't connect", "Lost run connection", "Traceback"] {
            assert!(!text.contains(wrong), "{wrong}:\n{text}");
        }
    }
    let bad = attach(&server, "bad").submission().unwrap();
    assert_eq!(bad["exit_status"], 7, "{bad:#}");
    eventually("the keys of the jobs are gone", TEST_TIMEOUT, || {
        Ok((keys(&host) == keys_of_fleet).then_some(()))
    })
    .unwrap();

    let Ended { code, text } = cli.run(&["fleet", "delete", "-y", "lab"]).unwrap();
    assert_eq!(code, Some(0), "{text}");
    let look = "ls -d /usr/local/lib/dstack /etc/systemd/system/dstack-shim.service /root/.dstack 2>/dev/null; \
                pgrep -a dstack-agent; true";
    eventually("nothing of ours is on the host", TEST_TIMEOUT, || {
        Ok((host.run(look)?.is_empty() && keys(&host) == keys_before).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}\n{}\n{:#?}", host.run(look).unwrap(), keys(&host)));
}

/// A job that serves one page on port 8000, attached; the local port.
fn serve(cli: &Cli) -> (Background, u16) {
    let local = free_port().unwrap();
    let page = "mkdir /tmp/www && echo a page of $(hostname) >/tmp/www/index.html";
    task(
        cli,
        "web",
        &[page, "httpd -f -p 8000 -h /tmp/www"],
        &format!("ports: [\"{local}:8000\"]\n"),
    );
    (cli.start(&["apply", "-y", "-f", "task.yml"]).unwrap(), local)
}

fn is_reached(cli: &Cli, server: &Server) {
    let (mut apply, local) = serve(cli);
    let client = Client::default();
    let page = eventually("the forwarded port answers", TEST_TIMEOUT, || {
        apply.still_runs()?;
        let answer = client.send("GET", &format!("http://127.0.0.1:{local}/"), &[], None);
        Ok(answer.ok().filter(|answer| answer.status == 200))
    })
    .unwrap_or_else(|error| panic!("{error}\n{}\n{}", apply.text(), server.output()));
    assert!(page.text().starts_with("a page of "), "{}", page.text());
    let said = cli.ssh("web", "cat /tmp/www/index.html").unwrap();
    assert_eq!(said.as_deref(), Some(page.text().as_str()), "{}", apply.text());
}

fn ports_and_ssh_lead_to_a_job_of_a_host(cli: &Cli) {
    let (server, lab) = need!(start(cli));
    let host = need!(lab.host("one", 2, USUAL));
    apply_fleet(cli, &server, &lab, &host, "");
    is_reached(cli, &server);
}

fn ports_and_ssh_lead_through_a_jump_host(cli: &Cli) {
    let (server, lab) = need!(start(cli));
    let jump = need!(lab.host("jump", 2, &[Has::Systemd]));
    let host = need!(lab.host("inner", 3, USUAL));
    let only = format!(
        "iptables -A INPUT -p tcp --dport 22 ! -s {} -j DROP",
        jump.address
    );
    host.run(&only).unwrap();
    let key = lab.identity_file();
    // Users have the key of a jump host in their own configuration: dstack puts none there.
    let config = format!("Host {}\n  IdentityFile {}\n", jump.address, key.display());
    fs_err::create_dir_all(cli.folder().join(".ssh")).unwrap();
    cli.write(".ssh/config", &config).unwrap();
    let proxy = format!(
        "  proxy_jump:\n    hostname: {}\n    user: me\n    identity_file: {}\n",
        jump.address,
        key.display()
    );
    apply_fleet(cli, &server, &lab, &host, &proxy);
    is_reached(cli, &server);
}

fn a_development_environment_shows_its_url_and_ends_when_nobody_is_there(cli: &Cli) {
    let (server, lab) = need!(start(cli));
    let host = need!(lab.host("one", 2, USUAL));
    apply_fleet(cli, &server, &lab, &host, "");
    let yaml = format!(
        "type: dev-environment\nname: desk\nide: vscode\nimage: {IMAGE}\nuser: root\nfleets: [lab]\ninactivity_duration: 5s\n{SMALL_YAML}"
    );
    cli.write("desk.yml", &yaml).unwrap();
    let mut apply = cli.start(&["apply", "-y", "-f", "desk.yml"]).unwrap();
    eventually("the URL is shown", TEST_TIMEOUT, || {
        apply.still_runs()?;
        let text = apply.text();
        Ok(
            (text.contains("vscode://vscode-remote/ssh-remote+desk/") && text.contains("To exit"))
                .then_some(()),
        )
    })
    .unwrap_or_else(|error| panic!("{error}\n{}\n{}", apply.text(), server.output()));
    assert_eq!(cli.ssh("desk", "echo hi").unwrap().as_deref(), Some("hi\n"));
    let run = attach(&server, "desk");
    assert_eq!(run.status().unwrap(), "running");
    // Nobody is there any more: the command detaches, and the run goes on. It fails, as in dstack 0.22.5.
    drop(apply);
    assert_eq!(run.wait_until_finished().unwrap(), "failed");
    let submission = run.submission().unwrap();
    let reason = &submission["termination_reason"];
    assert_eq!(reason, "inactivity_duration_exceeded", "{submission:#}");
}
