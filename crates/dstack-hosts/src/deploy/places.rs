//! Where the agent's things can be on a host: on many, the usual folders lie on file systems that are read-only, or on which nothing
//! is executed.

use super::HostPaths;
use super::script::Said;

/// Says which of the folders in `programs` and `homes`, a line each, can be used; nothing of those of which none can. Whoever is logged
/// in sees the file systems that root sees.
pub(super) const PLACES: &str = r#"
newline='
'
# Points and options of file systems; those that hide others come later.
mounted=$(cut -d ' ' -f 2,4 /proc/mounts 2>/dev/null)
# Options of the file system that a folder is on, or will be on.
options_of() {
  at=$1
  while [ -n "$at" ] && [ ! -d "$at" ]; do at=${at%/*}; done
  at=$(readlink -f "${at:-/}")
  longest=
  options=
  for line in $mounted; do
    point=${line% *}
    above=${point%/}
    case ${at%/}/ in "$above"/*) ;; *) continue ;; esac
    [ "${#point}" -ge "${#longest}" ] || continue
    longest=$point
    options=${line##* }
  done
}
is_usable() { # folder option
  options_of "$1"
  case ,$options, in *,ro,* | *,"$2",*) return 1 ;; esac
}
# Whoever was there before stays there, whatever can be used meanwhile.
has_agent() { # folder
  [ -e "$1/shim.token" ] || ls "$1" 2>/dev/null | grep -q '^dstack-agent-'
}
first_usable() { # key folders option
  for folder in $2; do
    if has_agent "$folder" && is_usable "$folder" "$3"; then say "$1" "$folder"; return 0; fi
  done
  for folder in $2; do
    if is_usable "$folder" "$3"; then say "$1" "$folder"; return 0; fi
  done
}
set -f
old=$IFS
IFS=$newline
first_usable programs "$programs" noexec
first_usable home "$homes" ro
IFS=$old
set +f
"#;

/// What the script is given.
pub(super) fn variables(paths: &HostPaths) -> [(&'static str, String); 2] {
    let lines = |usual: &str, others: &[String]| {
        let others = others.iter().map(String::as_str);
        std::iter::once(usual)
            .chain(others)
            .collect::<Vec<_>>()
            .join("\n")
    };
    [
        ("programs", lines(&paths.programs, &paths.other_programs)),
        ("homes", lines(&paths.home, &paths.other_homes)),
    ]
}

/// Paths on the host that has said this. Where no folder can be used, the usual one is tried, and what fails is told.
pub(super) fn of_host(paths: &HostPaths, said: &Said) -> HostPaths {
    let or_usual = |key: &str, usual: &str| match said.get(key) {
        "" => usual.to_owned(),
        found => found.to_owned(),
    };
    HostPaths {
        programs: or_usual("programs", &paths.programs),
        home: or_usual("home", &paths.home),
        ..paths.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::{Command, Stdio};

    use dstack_ssh::{ExitStatus, Output};

    use super::super::script::script;
    use super::*;

    /// What is found on a host with these file systems: a line each, of their points and options.
    fn found(shell: &str, mounted: &str) -> (String, String) {
        let dir = tempfile::tempdir().unwrap();
        let cut = dir.path().join("cut");
        fs_err::write(dir.path().join("mounted"), mounted).unwrap();
        fs_err::write(&cut, format!("#!/bin/sh\ncat {}/mounted\n", dir.path().display())).unwrap();
        fs_err::set_permissions(&cut, std::fs::Permissions::from_mode(0o755)).unwrap();
        let paths = HostPaths::default();
        let variables = variables(&paths);
        let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
        let mut child = Command::new(shell)
            .arg("-s")
            .env("PATH", format!("{}:/usr/bin:/bin", dir.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let text = script(&variables, PLACES);
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let done = child.wait_with_output().unwrap();
        assert!(done.status.success());
        said(&paths, done.stdout)
    }

    fn said(paths: &HostPaths, stdout: Vec<u8>) -> (String, String) {
        let said = Said::of(&Output {
            status: ExitStatus::Code(0),
            stdout,
            stderr: Vec::new(),
        });
        let paths = of_host(paths, &said);
        (paths.programs, paths.home)
    }

    /// What a script finds on this machine in these folders.
    fn found_in(programs: &[&std::path::Path], homes: &[&std::path::Path]) -> (String, String) {
        let text_of = |path: &&std::path::Path| path.display().to_string();
        let paths = HostPaths {
            programs: text_of(&programs[0]),
            other_programs: programs[1..].iter().map(text_of).collect(),
            home: text_of(&homes[0]),
            other_homes: homes[1..].iter().map(text_of).collect(),
            ..HostPaths::default()
        };
        let variables = variables(&paths);
        let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
        let text = script(&variables, PLACES);
        let done = Command::new("sh").args(["-c", &text]).output().unwrap();
        said(&paths, done.stdout)
    }

    /// Its former folders could be used when it was set up, and now the usual ones can be as well.
    #[test]
    fn an_agent_stays_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let folders = ["usual", "opt", "root", "var"].map(|name| dir.path().join(name));
        folders
            .iter()
            .for_each(|folder| fs_err::create_dir(folder).unwrap());
        let [usual, opt, root, var] = folders.each_ref().map(std::path::PathBuf::as_path);
        let of = |programs: &std::path::Path, home: &std::path::Path| {
            (programs.display().to_string(), home.display().to_string())
        };
        assert_eq!(found_in(&[usual, opt], &[root, var]), of(usual, root));
        fs_err::write(opt.join("dstack-agent-1.2-abc"), "").unwrap();
        fs_err::write(var.join("shim.token"), "").unwrap();
        assert_eq!(found_in(&[usual, opt], &[root, var]), of(opt, var));
    }

    #[test]
    fn folders_are_where_they_can_be() {
        for shell in ["sh", "bash", "dash"] {
            if Command::new(shell).arg("-c").arg(":").status().is_err() {
                continue;
            }
            for (mounted, programs, home) in [
                ("", "/usr/local/lib/dstack", "/root/.dstack"),
                (
                    "/ rw,relatime\n/var rw,noexec\n",
                    "/usr/local/lib/dstack",
                    "/root/.dstack",
                ),
                // Container-Optimized OS.
                (
                    "/ ro,relatime\n/etc rw,relatime\n/var rw,nosuid,nodev,noexec,relatime\n/var/lib/docker rw\n",
                    "/etc/dstack",
                    "/var/lib/dstack",
                ),
                // Flatcar.
                (
                    "/ rw,relatime\n/usr ro,relatime\n",
                    "/opt/dstack",
                    "/root/.dstack",
                ),
                // What is mounted later hides what was there, and what is below is apart.
                (
                    "/ rw\n/usr ro\n/usr rw\n/opt ro",
                    "/usr/local/lib/dstack",
                    "/root/.dstack",
                ),
                (
                    "/ rw\n/usr ro\n/usr/local rw\n",
                    "/usr/local/lib/dstack",
                    "/root/.dstack",
                ),
                (
                    "/ rw\n/usr/local/l ro\n/roo ro\n",
                    "/usr/local/lib/dstack",
                    "/root/.dstack",
                ),
                // Where nothing can be written, what fails is told of the usual ones.
                ("/ ro\n/* rw\n", "/usr/local/lib/dstack", "/root/.dstack"),
            ] {
                assert_eq!(
                    found(shell, mounted),
                    (programs.to_owned(), home.to_owned()),
                    "{shell}: {mounted}"
                );
            }
        }
    }
}
