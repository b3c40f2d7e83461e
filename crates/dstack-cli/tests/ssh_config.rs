//! Entries of `~/.dstack/ssh/config`, as OpenSSH itself reads them.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use dstack_cli::ssh::config;
use dstack_cli::ssh::hosts::{Hop, Route};
use proptest::prelude::*;

/// What OpenSSH would do for this alias; the last of several values of an option.
fn read_by_ssh(file: &Path, alias: &str) -> BTreeMap<String, String> {
    let output = Command::new("ssh")
        .args(["-G", "-F"])
        .arg(file)
        .arg(alias)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{errors}\n{}",
        fs_err::read_to_string(file).unwrap()
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn has_ssh() -> bool {
    Command::new("ssh").arg("-V").output().is_ok()
}

/// A hop with these names, if they can be names.
fn hop(alias: &str, host: &str, user: &str, identity: &str, port: u16) -> Option<Hop> {
    let user: dstack_units::LoginName = user.parse().ok()?;
    Some(Hop {
        alias: alias.to_owned(),
        host: host.parse().ok()?,
        port,
        shown_user: user.clone(),
        user,
        identity: Some(PathBuf::from(identity)),
        known: false,
    })
}

/// Writes the entries of a route beside another one, and compares what OpenSSH reads with what was meant.
fn check(hops: &[Hop]) -> Result<(), TestCaseError> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config");
    let bystander = hop("bystander", "elsewhere", "somebody", "/id", 4).unwrap();
    let route = |hops: Vec<Hop>| Route { hops };
    config::add(&file, &route(vec![bystander]).entries(None).unwrap()).unwrap();
    let Ok(entries) = route(hops.to_vec()).entries(None) else {
        return Ok(()); // refused
    };
    config::add(&file, &entries).unwrap();
    let plain = read_by_ssh(&file, "another-host");
    prop_assert_eq!(&plain["hostname"], "another-host");
    for unset in ["proxycommand", "proxyjump", "localcommand", "remotecommand"] {
        prop_assert!(!plain.contains_key(unset), "{:?}", plain);
    }
    let bystander = read_by_ssh(&file, "bystander");
    prop_assert_eq!(
        (&*bystander["hostname"], &*bystander["user"]),
        ("elsewhere", "somebody")
    );
    let mut via: Option<&Hop> = None;
    for hop in hops {
        let mut read = read_by_ssh(&file, &hop.alias);
        // OpenSSH knows host names in small letters only, and addresses in their normal form (`0` is `0.0.0.0`).
        let meant = hop.host.as_str().to_lowercase();
        let is_number = meant.starts_with(|c: char| c.is_ascii_digit());
        if !(is_number && read["hostname"].parse::<std::net::IpAddr>().is_ok()) {
            prop_assert_eq!(read["hostname"].to_lowercase(), meant);
        }
        prop_assert_eq!(&read["user"], hop.user.as_str());
        prop_assert_eq!(&read["port"], &hop.port.to_string());
        let path = hop.identity.as_ref().unwrap().display().to_string();
        prop_assert_eq!(read["identityfile"].replace("%%", "%"), path);
        prop_assert_eq!(
            read.get("proxyjump").map(String::as_str),
            via.map(|via| via.alias.as_str())
        );
        // Nothing else differs from a host without an entry.
        let ours = [
            "host",
            "hostname",
            "user",
            "port",
            "identityfile",
            "identitiesonly",
            "proxyjump",
            "stricthostkeychecking",
            "userknownhostsfile",
            // Follows from the known hosts.
            "updatehostkeys",
        ];
        let mut others = plain.clone();
        for name in ours {
            read.remove(name);
            others.remove(name);
        }
        prop_assert_eq!(read, others);
        via = Some(hop);
    }
    Ok(())
}

/// Any text, with much of what has a meaning somewhere.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z0-9.@:_/-]{1,12}",
        "[a-z\\\\%$#=,~'\" \t\r\n*?!{}]{1,12}",
        "[^\0]{1,8}",
        Just("x\n  ProxyCommand touch /tmp/owned".to_owned()),
        Just("x\nHost *\n  User you".to_owned()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever a server, a cloud or a container says: an entry is refused, or OpenSSH reads exactly that.
    #[test]
    fn openssh_reads_what_was_meant(
        alias in prop_oneof![4 => "[a-z][a-z0-9-]{0,8}", 1 => text()],
        host in text(),
        user in text(),
        path in text(),
        port in 1..=u16::MAX,
    ) {
        if !has_ssh() {
            eprintln!("skipped: there is no ssh");
            return Ok(());
        }
        // An alias of ours is no other one's name.
        prop_assume!(!["bystander", "another-host"].contains(&alias.as_str()));
        let path = format!("/{path}");
        // One odd name at a time is seen beside good ones, and all together.
        let hops = [
            hop(&alias, &host, "root", "/id", port),
            hop(&alias, "10.0.0.1", &user, "/id", port),
            hop(&alias, "10.0.0.1", "root", &path, port),
            hop(&alias, &host, &user, &path, port),
        ];
        for hop in hops.into_iter().flatten() {
            check(&[hop])?;
        }
    }
}

#[test]
fn a_job_behind_two_hosts() {
    if !has_ssh() {
        eprintln!("skipped: there is no ssh");
        return;
    }
    let hops = [
        hop("run-jump-host", "head.corp", "CORP\\me", "/home/a b/id", 2222),
        hop("run-host", "fe80::1%eth0", "me@corp", "/home/100%/o'neil", 22),
        hop("run", "localhost", "svc$", "/home/me/id", 32000),
    ];
    let hops: Vec<Hop> = hops.into_iter().map(Option::unwrap).collect();
    assert!(Route { hops: hops.clone() }.entries(None).is_ok());
    check(&hops).unwrap();
}
