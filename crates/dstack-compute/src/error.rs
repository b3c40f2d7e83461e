use std::time::Duration;

/// Why a cloud did not do what it was asked for. The texts are shown to users.
///
/// All but [`ComputeError::Unclear`] and [`ComputeError::NotWritten`] are definite: the call that they answer has made nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ComputeError {
    /// Nothing of this kind is free now; another offer may be.
    #[error("no capacity: {0}")]
    NoCapacity(String),
    /// The account may not have (more of) it; another offer may be within its limits.
    #[error("over the quota: {0}")]
    NoQuota(String),
    /// It was not tried, as it has just failed elsewhere: it does not count as an attempt.
    #[error("{0}")]
    Skipped(String),
    /// The cloud refuses the credentials.
    #[error("the cloud refuses the credentials: {0}")]
    Credentials(String),
    /// Credentials cannot be had now, or have just run out: the cloud was not asked.
    #[error("there are no credentials now: {0}")]
    NoKeysNow(String),
    /// The configuration is wrong; the text names the field.
    #[error("{0}")]
    Configuration(String),
    /// The cloud refuses what it is asked for, and would again.
    #[error("{0}")]
    Refused(String),
    /// What was begun has come to nothing, and is to be removed.
    #[error("{0}")]
    Broken(String),
    /// It cannot be removed now, as something else uses it.
    #[error("still in use: {0}")]
    InUse(String),
    /// The cloud wants fewer calls: the next one after this pause.
    #[error("the cloud wants fewer calls: {details}")]
    Throttled {
        /// Pause before the next call.
        after: Duration,
        /// What the cloud said.
        details: String,
    },
    /// What it needs was made just now, and is not known everywhere yet.
    #[error("not ready yet: {0}")]
    NotReady(String),
    /// The cloud cannot be reached: it was not asked.
    #[error("the cloud cannot be reached: {0}")]
    Unreachable(String),
    /// The cloud does not answer, or not sensibly: nobody knows whether it has done what it was asked for.
    #[error("the cloud does not answer as it should: {0}")]
    Unclear(String),
    /// What was to be written down before a call could not be: the cloud was not asked.
    #[error("not written down: {0}")]
    NotWritten(String),
    /// The backend cannot do this at all.
    #[error("{0} is not supported by this backend")]
    Unsupported(&'static str),
}

impl ComputeError {
    /// What the cloud said, without what we make of it.
    pub fn details(&self) -> String {
        match self {
            Self::NoCapacity(text)
            | Self::NoQuota(text)
            | Self::Skipped(text)
            | Self::Credentials(text)
            | Self::NoKeysNow(text)
            | Self::Configuration(text)
            | Self::Refused(text)
            | Self::Broken(text)
            | Self::InUse(text)
            | Self::Throttled { details: text, .. }
            | Self::NotReady(text)
            | Self::Unreachable(text)
            | Self::Unclear(text)
            | Self::NotWritten(text) => text.clone(),
            Self::Unsupported(_) => self.to_string(),
        }
    }

    /// Whether the call that it answers has certainly made nothing.
    pub const fn is_definite(&self) -> bool {
        !matches!(self, Self::Unclear(_) | Self::NotWritten(_))
    }

    /// Whether the same call may work soon, without anybody's doing.
    pub const fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::NoKeysNow(_)
                | Self::NotReady(_)
                | Self::Unreachable(_)
                | Self::Unclear(_)
                | Self::NotWritten(_)
                | Self::Throttled { .. }
        )
    }
}
