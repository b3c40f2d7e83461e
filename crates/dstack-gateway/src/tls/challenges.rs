//! What certificate authorities ask this gateway, to find out that a host name leads here.

use std::collections::HashMap;
use std::sync::Arc;

use dstack_system::Locked;

/// Answers by the tokens that they belong to.
#[derive(Debug, Default)]
pub struct Challenges(Locked<HashMap<String, String>>);

/// An answer that is given until this is dropped.
#[derive(Debug)]
pub(super) struct Offered {
    challenges: Arc<Challenges>,
    token: String,
}

impl Challenges {
    /// The answer to a token.
    pub fn answer(&self, token: &str) -> Option<String> {
        self.0.lock().get(token).cloned()
    }

    /// Gives this answer from now on.
    pub(super) fn offer(self: &Arc<Self>, token: &str, answer: &str) -> Offered {
        self.0.lock().insert(token.to_owned(), answer.to_owned());
        Offered {
            challenges: Arc::clone(self),
            token: token.to_owned(),
        }
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        self.challenges.0.lock().remove(&self.token);
    }
}
