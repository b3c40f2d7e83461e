//! Why nothing was changed.

/// Why nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct Refusal {
    /// For people, and in part for servers.
    pub detail: String,
    /// The gateway itself is in trouble: the same call may work later.
    pub internal: bool,
}

impl Refusal {
    /// What was asked for cannot be done.
    pub fn bad(detail: impl Into<String>) -> Self {
        Self {
            detail: detail.into(),
            internal: false,
        }
    }

    /// The gateway cannot do it now.
    pub fn internal(detail: impl Into<String>) -> Self {
        Self {
            detail: detail.into(),
            internal: true,
        }
    }
}
