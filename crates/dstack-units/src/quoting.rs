//! Text that reaches other programs: words of shells, values of OpenSSH's configuration, words of systemd's units.
//!
//! Each function returns text that its reader takes for exactly the given value, or refuses what cannot be written so.

mod ssh_config;
mod systemd;

use std::borrow::Cow;

pub use ssh_config::{ssh_config_alias, ssh_config_host, ssh_config_path, ssh_config_user};
pub use systemd::systemd_word;

/// A value that a file format cannot hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{value:?} cannot be written to {format}")]
pub struct Unquotable {
    value: String,
    format: &'static str,
}

/// Returns a word for POSIX shells: as it is where it is plain, in quotes otherwise.
pub fn shell_word(text: &str) -> Cow<'_, str> {
    shell_words::quote(text)
}

/// Returns words for POSIX shells, separated by spaces.
pub fn shell_line<S: AsRef<str>>(words: impl IntoIterator<Item = S>) -> String {
    shell_words::join(words)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn shells_read_the_words_that_were_written(words in proptest::collection::vec("[^\0]{0,12}", 0..4)) {
            prop_assert_eq!(shell_words::split(&shell_line(&words)).unwrap(), words);
        }
    }
}
