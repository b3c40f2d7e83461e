//! The end of the output of a job that is being stopped.
//!
//! Commands run in interactive shells. Some of them (dash, ash), once interrupted, show a prompt and wait for more input until
//! they are hung up: that prompt is nothing the job has said.

use std::borrow::Cow;

/// A longer line is no prompt.
const LONGEST_PROMPT: usize = 200;

/// Holds the line back that may turn out to be a prompt, and the empty lines before it.
#[derive(Debug, Default)]
pub(super) struct LastLine {
    held: Vec<u8>,
}

impl LastLine {
    /// What of the output may be passed on now. All of it while the job is not being stopped.
    pub(super) fn pass<'a>(&mut self, bytes: &'a [u8], stopping: bool) -> Cow<'a, [u8]> {
        if !stopping && self.held.is_empty() {
            return Cow::Borrowed(bytes);
        }
        let mut output = std::mem::take(&mut self.held);
        output.extend_from_slice(bytes);
        let keep = if stopping { certain(&output) } else { output.len() };
        self.held = output.split_off(keep);
        Cow::Owned(output)
    }

    /// What is left at the end; nothing if it is a prompt.
    pub(super) fn finish(self) -> Vec<u8> {
        if is_prompt(&self.held) {
            Vec::new()
        } else {
            self.held
        }
    }
}

/// How much of the output is no part of a prompt: up to the end of the last line that says something.
fn certain(output: &[u8]) -> usize {
    let lines = output.split_inclusive(|byte| *byte == b'\n');
    let (mut certain, mut end) = (0, 0);
    for line in lines {
        end += line.len();
        let says_something = line.iter().any(|byte| !matches!(byte, b'\r' | b'\n'));
        if line.ends_with(b"\n") && says_something {
            certain = end;
        }
    }
    if output.len() - certain > LONGEST_PROMPT {
        output.len()
    } else {
        certain
    }
}

/// Whether this is what an interactive shell shows to ask for a command.
fn is_prompt(line: &[u8]) -> bool {
    let text = without_escapes(line);
    let text = text.trim_start_matches(['\r', '\n']);
    !text.contains('\n') && (text.ends_with("# ") || text.ends_with("$ "))
}

/// Without colours and modes of the terminal.
fn without_escapes(line: &[u8]) -> String {
    let mut text = String::new();
    let line = String::from_utf8_lossy(line);
    let mut rest = line.chars();
    while let Some(next) = rest.next() {
        if next == '\u{1b}' {
            // CSI: ends with the first letter.
            rest.by_ref().find(char::is_ascii_alphabetic);
        } else {
            text.push(next);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of pieces that come after the job was told to stop.
    fn stopped(pieces: &[&str]) -> String {
        let mut last = LastLine::default();
        let mut passed = Vec::new();
        for piece in pieces {
            passed.extend_from_slice(&last.pass(piece.as_bytes(), true));
        }
        passed.extend(last.finish());
        String::from_utf8(passed).unwrap()
    }

    #[test]
    fn prompts_at_the_end_are_left_out() {
        assert_eq!(stopped(&["\r\n# "]), "");
        assert_eq!(stopped(&["saved\r\n", "\r", "\n", "#", " "]), "saved\r\n");
        assert_eq!(stopped(&["saved\r\n/work $ "]), "saved\r\n");
        assert_eq!(stopped(&["\u{1b}[?2004hroot@host:/# "]), "");
    }

    #[test]
    fn everything_else_is_kept() {
        for said in [
            "",
            "\r\n",
            "bye",
            "bye\r\n\r\n",
            "step 1 # 2",
            "# heading\r\n",
            "# \r\nmore",
        ] {
            assert_eq!(stopped(&[said]), said);
            let bytes: Vec<String> = said.chars().map(String::from).collect();
            let bytes: Vec<&str> = bytes.iter().map(String::as_str).collect();
            assert_eq!(stopped(&bytes), said, "one by one");
        }
        let long = format!("{}# ", "x".repeat(300));
        assert_eq!(stopped(&[&long]), long);
    }

    #[test]
    fn a_job_that_goes_on_may_say_what_it_likes_at_once() {
        let mut last = LastLine::default();
        assert_eq!(&*last.pass(b"a\r\n# ", false), b"a\r\n# ");
        assert_eq!(last.finish(), b"");
    }
}
