//! The one error of the grammars.

/// A text that a grammar refuses. Prints a plain sentence, the same as dstack 0.22.5 gives for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(String);

impl ParseError {
    /// With this message.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    /// The message itself.
    pub fn message(&self) -> &str {
        &self.0
    }

    /// The message, by value.
    pub fn into_message(self) -> String {
        self.0
    }
}
