//! Driving a program on a terminal of its own.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};

/// A program running on a pseudo-terminal of 120 columns and 40 rows.
pub struct Terminal {
    child: Box<dyn Child + Send + Sync>,
    // Dropping it hangs the terminal up.
    _master: Box<dyn MasterPty + Send>,
    keyboard: Box<dyn Write + Send>,
    screen: Arc<Screen>,
}

#[derive(Default)]
struct Screen {
    // What came so far, and whether more may come.
    text: Mutex<(String, bool)>,
    more: Condvar,
}

impl Terminal {
    /// Starts a program with its arguments in a folder, with additional variables.
    pub fn start(
        program: &Path,
        args: &[&str],
        folder: &Path,
        variables: &[(&str, String)],
    ) -> Result<Terminal> {
        let size = PtySize {
            rows: 40,
            cols: 120,
            pixel_width: 0,
            pixel_height: 0,
        };
        let pty = native_pty_system().openpty(size)?;
        let mut command = CommandBuilder::new(program);
        command.args(args);
        command.cwd(folder);
        command.env("TERM", "xterm-256color");
        for (name, value) in variables {
            command.env(name, value);
        }
        let child = pty.slave.spawn_command(command)?;
        drop(pty.slave);
        let screen = Arc::new(Screen::default());
        let reader = pty.master.try_clone_reader()?;
        let writer = Arc::clone(&screen);
        thread::spawn(move || writer.fill(reader));
        Ok(Terminal {
            child,
            keyboard: pty.master.take_writer()?,
            _master: pty.master,
            screen,
        })
    }

    /// Types text; Ctrl-C is `\x03`, Enter is `\r`.
    pub fn type_text(&mut self, text: &str) -> Result<()> {
        self.keyboard.write_all(text.as_bytes())?;
        Ok(self.keyboard.flush()?)
    }

    /// Waits until the program has shown a text.
    ///
    /// # Errors
    /// When it ended or the timeout passed without; the error shows what was there.
    pub fn wait_for(&self, text: &str, timeout: Duration) -> Result<()> {
        let state = self.screen.text.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .screen
            .more
            .wait_timeout_while(state, timeout, |(shown, ended)| !shown.contains(text) && !*ended);
        if waited.is_ok_and(|(state, _)| state.0.contains(text)) {
            return Ok(());
        }
        bail!("{text:?} did not appear; the terminal shows:\n{}", self.text())
    }

    /// Everything shown so far, escape sequences included.
    pub fn text(&self) -> String {
        self.screen
            .text
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .0
            .clone()
    }

    /// Waits for the end of the program and gives its exit code.
    pub fn wait(&mut self) -> Result<u32> {
        Ok(self.child.wait()?.exit_code())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.child.kill().ok();
    }
}

impl Screen {
    fn fill(&self, mut reader: Box<dyn Read + Send>) {
        let mut buffer = [0; 8192];
        // On Linux reading fails once the last program on the terminal has ended.
        while let Ok(length @ 1..) = reader.read(&mut buffer) {
            let bytes = buffer.get(..length).unwrap_or_default();
            self.update(|(text, _)| text.push_str(&String::from_utf8_lossy(bytes)));
        }
        self.update(|(_, ended)| *ended = true);
    }

    fn update(&self, change: impl FnOnce(&mut (String, bool))) {
        change(&mut self.text.lock().unwrap_or_else(PoisonError::into_inner));
        self.more.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_reads() -> Result<()> {
        let script = "printf 'name? '; read -r name; echo hello $name; exit 7";
        let mut terminal = Terminal::start(Path::new("/bin/sh"), &["-c", script], Path::new("/"), &[])?;
        terminal.wait_for("name? ", Duration::from_secs(10))?;
        terminal.type_text("you\r")?;
        terminal.wait_for("hello you", Duration::from_secs(10))?;
        assert_eq!(terminal.wait()?, 7);
        Ok(())
    }

    #[test]
    fn tells_what_was_shown_when_the_text_never_comes() -> Result<()> {
        let terminal = Terminal::start(Path::new("/bin/echo"), &["something else"], Path::new("/"), &[])?;
        let error = terminal.wait_for("hello", Duration::from_secs(10)).unwrap_err();
        assert!(error.to_string().contains("something else"), "{error}");
        Ok(())
    }
}
