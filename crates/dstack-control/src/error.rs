//! What a verb refuses.

use dstack_model::ErrorCode;
use dstack_plan::PlanError;
use dstack_store::StoreError;
use dstack_store::rows::TransitionError;

/// Why nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// What was asked for cannot be: the text is shown to users as it is.
    #[error("{message}")]
    Refused {
        /// The code that programs act upon.
        code: ErrorCode,
        /// The text that users are shown, with what to do about it.
        message: String,
        /// Paths of the fields to blame.
        fields: Vec<Vec<String>>,
    },
    /// The actor must not do this.
    #[error("{0}")]
    Forbidden(String),
    /// The store refused, or cannot be reached.
    #[error("the store refused")]
    Store(#[from] StoreError),
    /// Anything else; not shown to users.
    #[error("internal error")]
    Internal(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Result of a verb.
pub type Result<T, E = ControlError> = std::result::Result<T, E>;

impl ControlError {
    /// Refuses with a text of its own.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::with_code(ErrorCode::Error, message)
    }

    /// Refuses with a code and a text.
    pub fn with_code(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::Refused {
            code,
            message: message.into(),
            fields: Vec::new(),
        }
    }

    /// There is no such thing.
    pub fn not_found() -> Self {
        let code = ErrorCode::ResourceNotExists;
        Self::with_code(code, code.default_message())
    }

    /// The name is taken.
    pub fn exists() -> Self {
        let code = ErrorCode::ResourceExists;
        Self::with_code(code, code.default_message())
    }

    /// What is to be changed is not what the client has seen.
    pub fn stale() -> Self {
        Self::refused("Failed to apply plan. Resource has been changed. Try again or use force apply.")
    }

    /// The actor must not do this, and is not told why.
    pub fn denied() -> Self {
        Self::Forbidden("Access denied".to_owned())
    }

    /// Something that is not shown to users.
    pub fn internal(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Internal(error.into())
    }

    /// Whether a name is somebody else's meanwhile.
    pub(crate) fn is_taken(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_unique_violation())
    }

    /// Whether someone else was faster: look again and decide again.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_conflict() || error.is_unique_violation())
    }
}

impl From<PlanError> for ControlError {
    fn from(error: PlanError) -> Self {
        Self::refused(error.0)
    }
}

impl From<TransitionError> for ControlError {
    fn from(error: TransitionError) -> Self {
        Self::Store(error.into())
    }
}
