//! Errors as users see them: the cause, then what to do about it.

mod plain;

use std::process::ExitCode;

use dstack_api::client::ClientError;

use crate::ui::{Role, Style, Text, Ui};

pub(crate) use plain::{of_io, plain_words, without_number};

/// Why a command failed. Printed once, by [`crate::main`].
#[derive(Debug)]
pub struct CliError {
    message: Option<String>,
    hints: Vec<String>,
    code: u8,
}

impl CliError {
    /// A failure with exit code 1.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: Some(message.into()),
            hints: Vec::new(),
            code: 1,
        }
    }

    /// Ends the process with this code; everything was said already.
    pub const fn silent(code: u8) -> Self {
        Self {
            message: None,
            hints: Vec::new(),
            code,
        }
    }

    /// An error and its causes, in one sentence.
    pub fn from_chain(error: &(dyn std::error::Error + 'static)) -> Self {
        Self::new(dstack_system::chain(error).to_string())
    }

    /// What to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// The cause.
    pub fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    /// The first remedy.
    pub fn hint_text(&self) -> Option<&str> {
        self.hints.first().map(String::as_str)
    }

    /// The exit code.
    pub const fn code(&self) -> u8 {
        self.code
    }

    /// Prints cause and remedies to standard error.
    pub fn report(&self, ui: &Ui) -> ExitCode {
        if let Some(message) = &self.message {
            ui.complain(Text::new().role(Role::Error, without_number(message)));
        }
        for hint in &self.hints {
            ui.complain(Text::styled("hint:", Style::bold(Role::Moving)).push(format!(" {hint}")));
        }
        ExitCode::from(self.code)
    }
}

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> Self {
        let hint = match &error {
            ClientError::Connect { .. } => Some("check that the server runs (`dstack server`) and that its URL is right (`dstack project list`)".to_owned()),
            ClientError::Denied { reason, .. } => Some(denied(reason.as_deref())),
            ClientError::NotFound { .. } => Some("check the project's name and the server's URL (`dstack project list`)".to_owned()),
            error if error.to_string().contains("does not support exports") => {
                Some("a server of this version does with DSTACK_SERVER_EXPORTS_ENABLED=1 in its environment".to_owned())
            }
            ClientError::Busy { .. } => Some("try again in a minute".to_owned()),
            ClientError::MethodNotAllowed { .. } => Some("the server may be older than this command line".to_owned()),
            _ => None,
        };
        let converted = match &error {
            // What the system said; the layers between say nothing more.
            ClientError::Connect { source, .. } => {
                Self::new(format!("{error}: {}", dstack_system::root_cause(source)))
            }
            _ => Self::new(plain_words(&dstack_system::chain(&error).to_string())),
        };
        match hint {
            Some(hint) => converted.hint(hint),
            None => converted,
        }
    }
}

/// Whom to ask: a user is no member of the project, or their role is not enough.
fn denied(reason: Option<&str>) -> String {
    let ask = "your user may not be a member of the project, or its role not be enough: ask an admin of the project";
    match reason.filter(|reason| *reason != "Access denied") {
        Some(reason) => format!("the server says: {reason}; {ask}"),
        None => ask.to_owned(),
    }
}

impl From<std::io::Error> for CliError {
    fn from(error: std::io::Error) -> Self {
        Self::from_chain(&error)
    }
}
