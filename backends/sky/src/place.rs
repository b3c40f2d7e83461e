//! Where something is at the other server: backend and region, in one text.

use std::fmt;

/// A region of a backend of the other server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) backend: String,
    pub(crate) region: String,
}

/// `aws/us-east-1`: two backends may have regions of one name.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.backend, self.region)
    }
}

impl Place {
    /// `None`: it is not of this form.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (backend, region) = text.split_once('/')?;
        (!backend.is_empty()).then(|| Self {
            backend: backend.to_owned(),
            region: region.to_owned(),
        })
    }
}
