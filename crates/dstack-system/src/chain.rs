//! Errors together with their causes. Every error type prints itself only; the causes are in `source()`.

use std::error::Error;
use std::fmt;

/// Prints an error and its causes in one line: `cannot read the log: permission denied`.
///
/// For fields of log lines (`error = %chain(&error)`) and for messages that have one line only. A cause that the text
/// contains already is left out: some libraries repeat their cause in their own text.
pub fn chain<'a>(error: &'a (dyn Error + 'static)) -> Chain<'a> {
    Chain {
        causes: causes(error),
    }
}

/// Prints the causes of an error in one line, without the error itself. Empty when it has none.
///
/// For log lines whose field `error` holds the error itself.
pub fn causes_of<'a>(error: &'a (dyn Error + 'static)) -> Chain<'a> {
    let mut causes = causes(error);
    causes.next();
    Chain { causes }
}

/// Iterates over an error, its cause, the cause of that, and so on.
pub fn causes<'a>(error: &'a (dyn Error + 'static)) -> Causes<'a> {
    Causes(Some(error))
}

/// Returns the innermost cause: mostly what the operating system said.
pub fn root_cause<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    causes(error).last().unwrap_or(error)
}

/// Returns the first error of type `E` among an error and its causes.
pub fn find_cause<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

/// See [`causes`].
#[derive(Debug, Clone)]
pub struct Causes<'a>(Option<&'a (dyn Error + 'static)>);

impl<'a> Iterator for Causes<'a> {
    type Item = &'a (dyn Error + 'static);

    fn next(&mut self) -> Option<Self::Item> {
        let error = self.0?;
        self.0 = error.source();
        Some(error)
    }
}

/// See [`chain`].
#[derive(Debug, Clone)]
pub struct Chain<'a> {
    causes: Causes<'a>,
}

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut printed = String::new();
        for cause in self.causes.clone() {
            let text = cause.to_string();
            if printed.contains(&text) {
                continue;
            }
            if !printed.is_empty() {
                printed.push_str(": ");
            }
            printed.push_str(&text);
        }
        f.write_str(&printed)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read the log")]
    struct Read(#[source] Open);

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open /log: {0}")]
    struct Open(#[source] io::Error);

    fn error() -> Read {
        Read(Open(io::Error::other("the disk is gone")))
    }

    #[test]
    fn causes_follow_the_error_and_are_said_once() {
        assert_eq!(
            chain(&error()).to_string(),
            "cannot read the log: cannot open /log: the disk is gone"
        );
        assert_eq!(
            causes_of(&error()).to_string(),
            "cannot open /log: the disk is gone"
        );
        assert_eq!(causes_of(&io::Error::other("alone")).to_string(), "");
    }

    #[test]
    fn the_innermost_cause_and_causes_of_a_type_are_found() {
        let error = error();
        assert_eq!(root_cause(&error).to_string(), "the disk is gone");
        assert!(find_cause::<Open>(&error).is_some());
        assert!(find_cause::<fmt::Error>(&error).is_none());
    }
}
