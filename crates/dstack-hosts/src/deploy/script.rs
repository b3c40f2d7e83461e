//! Scripts for the POSIX shells of hosts, and what they say.
//!
//! A script is text on the shell's standard input: nothing of it is on a command line, where other users could read it, and the
//! login shell, whatever it is, sees plain words only. All of it is one function that is called on the last line: a script that
//! arrives only in part does nothing. What is inserted is assigned to variables, quoted. Results are lines with a mark, so that
//! banners and warnings of others do no harm.

use dstack_ssh::{ExitStatus, Output};
use dstack_units::quoting::shell_word;

/// Begins each line of a result.
const MARK: &str = "dstack:";
/// As much of what a failed script wrote is shown.
const SHOWN: usize = 600;

/// Functions of all scripts. `said` is given text of any length and kind. Where less than 16 KiB are free, a disk counts as full.
const PRELUDE: &str = r#"
set -u
umask 022
LC_ALL=C
PATH="$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
export LC_ALL PATH
say() { printf 'dstack:%s=%s\n' "$1" "$(printf '%s' "$2" | tr '\n' ' ')"; }
said() { printf '%s\n' "$2" | sed "s/^/dstack:$1=/"; }
fail() { said error "$1"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
limited() { if have timeout; then timeout 10 "$@"; else "$@"; fi; }
# A file that could not be written, and what was said of that: shells do not always tell why.
unwritten() {
  free=$(df -Pk "${1%/*}" 2>/dev/null | tail -n 1 | tr -s ' ' | cut -d ' ' -f 4)
  [ "${free:-64}" -ge 16 ] || fail "$1 cannot be written, as no space is left on its disk: make room"
  fail "$1 cannot be written${2:+: $2}"
}
hash_of() { sha256sum "$1" 2>/dev/null | cut -d ' ' -f 1; }
# Where SELinux is on, a service needs to be of a kind that systemd may start. No harm where it is off.
label() { if have chcon; then chcon "system_u:object_r:$1:s0" "$2" 2>/dev/null || :; fi; }
"#;

/// The text for `sh -s`.
pub(super) fn script(variables: &[(&str, &str)], body: &str) -> String {
    let mut text = String::new();
    for (name, value) in variables {
        text.push_str(&format!("{name}={}\n", shell_word(value)));
    }
    format!("main() {{\n{text}{PRELUDE}\nsay began yes\n{body}\n}}\nmain </dev/null\n")
}

/// What a script said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Said {
    pairs: Vec<(String, String)>,
    /// How the shell ended.
    pub(super) status: ExitStatus,
    /// The end of all that has no mark, for people.
    pub(super) rest: String,
}

impl Said {
    pub(super) fn of(output: &Output) -> Self {
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        let mut pairs = Vec::new();
        let mut rest = Vec::new();
        for line in stdout.lines().chain(stderr.lines()) {
            let pair = line.strip_prefix(MARK).and_then(|pair| pair.split_once('='));
            match pair {
                Some((key, value)) => pairs.push((key.to_owned(), value.trim().to_owned())),
                None => rest.push(line.trim()),
            }
        }
        rest.retain(|line| !line.is_empty());
        Self {
            pairs,
            status: output.status.clone(),
            rest: end_of(&rest.join("; ")),
        }
    }

    /// The last value of a key; empty when there is none.
    pub(super) fn get(&self, key: &str) -> &str {
        let found = self.pairs.iter().rev().find(|(name, _)| name == key);
        found.map_or("", |(_, value)| value)
    }

    /// Whether the value is `yes`.
    pub(super) fn is(&self, key: &str) -> bool {
        self.get(key) == "yes"
    }

    /// All values of a key, a line each.
    pub(super) fn all(&self, key: &str) -> String {
        let found = self.pairs.iter().filter(|(name, _)| name == key);
        found
            .map(|(_, value)| value.as_str())
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// The end of a text, where programs say why they fail.
pub(super) fn end_of(text: &str) -> String {
    let from = text.len().saturating_sub(SHOWN);
    let from = (from..=text.len()).find(|at| text.is_char_boundary(*at));
    from.and_then(|from| text.get(from..))
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;

    fn run(shell: &[&str], text: &str) -> Output {
        let mut child = Command::new(shell[0])
            .args(&shell[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let done = child.wait_with_output().unwrap();
        Output {
            status: ExitStatus::Code(done.status.code().unwrap().cast_unsigned()),
            stdout: done.stdout,
            stderr: done.stderr,
        }
    }

    #[test]
    fn what_is_inserted_stays_text() {
        let nasty = "it's \"$(touch /tmp/x)\" `id` \\ $HOME\n# line two *";
        let text = script(
            &[("value", nasty)],
            r#"printf '%s' "$value"; said value "$value"; exit 3"#,
        );
        for shell in [&["sh", "-s"][..], &["bash", "-s"], &["dash", "-s"]] {
            if Command::new(shell[0]).arg("-c").arg(":").status().is_err() {
                continue;
            }
            let output = run(shell, &text);
            let out = String::from_utf8(output.stdout.clone()).unwrap();
            assert!(out.starts_with(&format!("dstack:began=yes\n{nasty}")), "{out}");
            let said = Said::of(&output);
            assert_eq!(said.status, ExitStatus::Code(3));
            assert!(
                said.is("began") && said.all("value").ends_with("# line two *"),
                "{said:?}"
            );
        }
    }

    #[test]
    fn a_script_that_arrives_in_part_does_nothing() {
        let text = script(&[], "say done yes");
        for end in 0..text.len() - "main </dev/null\n".len() {
            let Some(part) = text.get(..end) else { continue };
            if end % 40 == 0 {
                assert_eq!(run(&["sh", "-s"], part).stdout, b"", "{part}");
            }
        }
        assert!(Said::of(&run(&["sh", "-s"], &text)).is("done"));
    }

    #[test]
    fn banners_and_warnings_are_passed_over() {
        let output = Output {
            status: ExitStatus::Code(0),
            stdout: b"Welcome!\ndstack:a=1\nx=2\ndstack:log=one\ndstack:log=two\ndstack:a=3\n".to_vec(),
            stderr: b"sudo: unable to resolve host h\n".to_vec(),
        };
        let said = Said::of(&output);
        assert_eq!((said.get("a"), said.get("x")), ("3", ""));
        assert_eq!(said.all("log"), "one\ntwo");
        assert_eq!(said.rest, "Welcome!; x=2; sudo: unable to resolve host h");
        assert!(end_of(&"ä".repeat(1000)).len() <= SHOWN);
    }

    #[test]
    fn values_are_whole_and_what_is_shown_is_cut() {
        let long = "x".repeat(10_000);
        let output = Output {
            status: ExitStatus::Code(0),
            stdout: format!("dstack:info={long}\n").into_bytes(),
            stderr: Vec::new(),
        };
        assert_eq!(Said::of(&output).all("info"), long);
        assert!(end_of(&long).len() <= SHOWN + 10);
    }
}
