//! Errors as users see them: what happened, the causes, then what to do about it.

mod kind;
mod plain;
mod server;

use std::error::Error;
use std::process::ExitCode;

use dstack_api::client::ClientError;
use dstack_system::{chain, root_cause};

use crate::ui::{Role, Style, Text, Ui};

pub use kind::ErrorKind;
pub(crate) use plain::{of_io, plain_usage, plain_words, without_number};

type Source = Box<dyn Error + Send + Sync>;

/// Why a command failed. Printed once, by [`crate::main`].
#[derive(Debug)]
pub struct CliError {
    kind: ErrorKind,
    /// `None` where everything was printed already.
    source: Option<Source>,
    hints: Vec<String>,
}

/// What a command was about when something else failed.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct During {
    message: String,
    source: Source,
}

impl CliError {
    /// Returns an error without a further cause.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::from_error(kind, message.into())
    }

    /// Returns an error that is printed as another error and its causes.
    pub fn from_error(kind: ErrorKind, source: impl Into<Source>) -> Self {
        Self {
            kind,
            source: Some(source.into()),
            hints: Vec::new(),
        }
    }

    /// Returns an error with its cause: printed as `message: cause: cause of the cause`.
    pub fn caused_by(kind: ErrorKind, message: impl Into<String>, source: impl Into<Source>) -> Self {
        let (message, source) = (message.into(), source.into());
        Self::from_error(kind, During { message, source })
    }

    /// Returns an error about which everything was printed already.
    pub const fn printed(kind: ErrorKind) -> Self {
        Self {
            kind,
            source: None,
            hints: Vec::new(),
        }
    }

    /// Adds a line that says what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Returns what happened.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the error and its causes in one line, as they are printed; `None` where everything was printed already.
    pub fn message(&self) -> Option<String> {
        let source: &(dyn Error + 'static) = self.source.as_deref()?;
        let text = match source.downcast_ref() {
            // The layers between say nothing that the operating system does not.
            Some(error @ ClientError::Connect { source, .. }) => format!("{error}: {}", root_cause(source)),
            _ => chain(source).to_string(),
        };
        Some(plain_words(&without_number(&text)))
    }

    /// Returns the first hint.
    pub fn hint_text(&self) -> Option<&str> {
        self.hints.first().map(String::as_str)
    }

    /// Prints error and hints to standard error. Returns the exit code.
    pub fn report(&self, ui: &Ui) -> ExitCode {
        if let Some(message) = self.message() {
            let message = Text::new().role(Role::Error, message);
            ui.complain(match self.kind.code() {
                Some(code) => message.secondary(format!(" [{code}]")),
                None => message,
            });
        }
        for hint in &self.hints {
            ui.complain(Text::styled("hint:", Style::bold(Role::Moving)).push(format!(" {hint}")));
        }
        self.kind.exit_code()
    }
}

impl From<std::io::Error> for CliError {
    fn from(error: std::io::Error) -> Self {
        Self::from_error(ErrorKind::File, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_kept_and_printed_once() {
        let io = std::io::Error::from_raw_os_error(13);
        let error = CliError::caused_by(ErrorKind::File, "cannot write x", io).hint("see y");
        assert_eq!(error.message().unwrap(), "cannot write x: Permission denied");
        assert_eq!(
            (error.kind(), error.hint_text()),
            (ErrorKind::File, Some("see y"))
        );
        let source = error.source.as_deref().unwrap().source().unwrap();
        assert!(source.downcast_ref::<std::io::Error>().is_some());
    }

    #[test]
    fn an_error_ends_with_its_code() {
        let (ui, captured) = Ui::captured(80, "");
        CliError::new(ErrorKind::NotFound, "Run x not found")
            .hint("see y")
            .report(&ui);
        assert_eq!(captured.err(), "Run x not found [D0401]\nhint: see y\n");
    }

    #[test]
    fn what_was_printed_is_not_printed_again() {
        let (ui, captured) = Ui::captured(80, "");
        let code = CliError::printed(ErrorKind::Interrupted).report(&ui);
        assert_eq!((code, captured.err()), (ExitCode::FAILURE, String::new()));
    }
}
