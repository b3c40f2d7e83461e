/// Why a cloud did not do what it was asked for.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ComputeError {
    /// Nothing of this kind is free now; another offer may be.
    #[error("no capacity: {0}")]
    NoCapacity(String),
    /// The cloud refuses the credentials.
    #[error("the cloud refuses the credentials: {0}")]
    Credentials(String),
    /// The configuration is wrong; the text names the field.
    #[error("{0}")]
    Configuration(String),
    /// The cloud does not answer, or not sensibly: worth another attempt.
    #[error("the cloud does not answer as it should: {0}")]
    Unavailable(String),
    /// The backend cannot do this at all.
    #[error("{0} is not supported by this backend")]
    Unsupported(&'static str),
}

impl ComputeError {
    /// What the cloud said, without what we make of it.
    pub fn details(&self) -> String {
        match self {
            Self::NoCapacity(text)
            | Self::Credentials(text)
            | Self::Configuration(text)
            | Self::Unavailable(text) => text.clone(),
            Self::Unsupported(_) => self.to_string(),
        }
    }
}
