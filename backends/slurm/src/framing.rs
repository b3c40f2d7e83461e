//! What a script says, apart from banners of shells and profiles, and only if it was said to the end.

use crate::login::Output;

/// What a script said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Exit status of the script.
    pub(crate) status: u32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The text for a shell's standard input. It is one function that is called on the last line: a script that arrives only in part
/// does nothing. `mark` is a word that occurs nowhere else.
pub(crate) fn wrap(mark: &str, script: &str) -> String {
    format!(
        "main() {{\nprintf '%s\\n' '{mark}'\nprintf '%s\\n' '{mark}' >&2\n(\n{script}\n)\nprintf '\\n%s %s\\n' '{mark}' \"$?\"\n}}\n\
         main </dev/null\n"
    )
}

/// What the script said between its marks; `None`: it did not begin, or what it said is cut off.
pub(crate) fn read(mark: &str, output: &Output) -> Option<Answer> {
    let begun = after(&output.stdout, mark)?;
    let (stdout, status) = begun.rsplit_once(&format!("\n{mark} "))?;
    Some(Answer {
        status: status.strip_suffix('\n')?.parse().ok()?,
        stdout: stdout.to_owned(),
        stderr: after(&output.stderr, mark).unwrap_or(&output.stderr).to_owned(),
    })
}

/// What follows the line that ends with the mark.
fn after<'a>(text: &'a str, mark: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(mark)?;
    rest.strip_prefix('\n')
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;

    /// A real shell with this input, after a profile that prints.
    fn shell(input: &str) -> Output {
        let mut child = Command::new("sh")
            .args(["-c", "echo Welcome; printf 'no newline' >&2; exec sh"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        Output {
            status: output.status.code().map(|code| u32::try_from(code).unwrap()),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    #[test]
    fn a_script_is_read_between_its_marks() {
        let output = shell(&wrap("mark-1", "echo out\necho err >&2\nexit 3"));
        let answer = read("mark-1", &output).unwrap();
        let expected = Answer {
            status: 3,
            stdout: "out\n".to_owned(),
            stderr: "err\n".to_owned(),
        };
        assert_eq!(answer, expected);
    }

    #[test]
    fn half_a_script_does_nothing_and_half_an_answer_is_none() {
        let script = wrap("mark-1", "cat <<'EOF'\n12345\nEOF\n");
        for cut in 0..script.len() - 1 {
            let output = shell(&script[..cut]);
            // Of the call of the function, its name is enough.
            if script[..cut].contains("\n}\nmain") {
                continue;
            }
            assert!(!output.stdout.contains("123"), "cut at {cut}: {output:?}");
        }
        let whole = shell(&script);
        for cut in 0..whole.stdout.len() {
            let stdout = whole.stdout[..cut].to_owned();
            let output = Output {
                stdout,
                ..whole.clone()
            };
            assert_eq!(read("mark-1", &output), None, "cut at {cut}");
        }
    }
}
