//! Names of types that this build does not have. They are kept for as long as the process runs, so that a type is a word that is copied.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// Most names that may be registered, and most others that are kept.
pub const MAX_NAMES: usize = 500;

/// Longest name, in characters.
const MAX_LENGTH: usize = 40;

/// Why a name cannot be that of a type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It has another form.
    #[error(
        "`{0}` is no name of a type: lower-case letters, digits and `-`, {MAX_LENGTH} at most, a letter first and no `-` last"
    )]
    Malformed(String),
    /// A type of this build has it.
    #[error("`{0}` is a type that this version has by itself: choose another name")]
    BuiltIn(String),
    /// No more are taken.
    #[error("there are {MAX_NAMES} types already: `{0}` is one too many")]
    TooMany(String),
}

/// What is kept.
struct Names {
    registered: Vec<&'static str>,
    /// Of rows and peers.
    others: Vec<&'static str>,
}

static NAMES: RwLock<Names> = RwLock::new(Names {
    registered: Vec::new(),
    others: Vec::new(),
});

fn read() -> RwLockReadGuard<'static, Names> {
    NAMES.read().unwrap_or_else(PoisonError::into_inner)
}

fn of(names: &[&'static str], name: &str) -> Option<&'static str> {
    names.iter().find(|known| **known == name).copied()
}

/// A name that was registered.
pub(super) fn find(name: &str) -> Option<&'static str> {
    of(&read().registered, name)
}

/// All that were registered, in that order.
pub(super) fn registered() -> Vec<&'static str> {
    read().registered.clone()
}

/// All names that are kept.
pub(super) fn all() -> Vec<&'static str> {
    let names = read();
    [names.registered.as_slice(), names.others.as_slice()].concat()
}

/// Whether it has the form of a name.
pub(super) fn check(name: &str) -> Result<(), NameError> {
    match is_well_formed(name) {
        true => Ok(()),
        false => Err(NameError::Malformed(name.to_owned())),
    }
}

/// Registers a name, once.
pub(super) fn register(name: &str) -> Result<&'static str, NameError> {
    check(name)?;
    let mut names = NAMES.write().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = of(&names.registered, name) {
        return Ok(known);
    }
    if names.registered.len() >= MAX_NAMES {
        return Err(NameError::TooMany(name.to_owned()));
    }
    let kept = of(&names.others, name).unwrap_or_else(|| keep(name));
    names.registered.push(kept);
    Ok(kept)
}

/// Any name that one could have; `None`: it is none, or too many are kept.
pub(super) fn any(name: &str) -> Option<&'static str> {
    let names = read();
    let known = of(&names.registered, name).or_else(|| of(&names.others, name));
    drop(names);
    if known.is_some() || !is_well_formed(name) {
        return known;
    }
    let mut names = NAMES.write().unwrap_or_else(PoisonError::into_inner);
    let known = of(&names.registered, name).or_else(|| of(&names.others, name));
    if known.is_some() || names.others.len() >= MAX_NAMES {
        return known;
    }
    let kept = keep(name);
    names.others.push(kept);
    Some(kept)
}

fn keep(name: &str) -> &'static str {
    Box::leak(name.to_owned().into_boxed_str())
}

fn is_well_formed(name: &str) -> bool {
    let is_right = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let begins_well = name.starts_with(|first: char| first.is_ascii_lowercase());
    begins_well && !name.ends_with('-') && name.len() <= MAX_LENGTH && name.bytes().all(is_right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kept_once_and_not_for_ever_more() {
        assert_eq!(register("a-1").unwrap().as_ptr(), any("a-1").unwrap().as_ptr());
        assert!(matches!(register("A"), Err(NameError::Malformed(_))));
        let seen = any("seen").unwrap();
        assert_eq!(register("seen").unwrap().as_ptr(), seen.as_ptr());
        for number in 0..2 * MAX_NAMES {
            any(&format!("other-{number}"));
            register(&format!("own-{number}")).ok();
        }
        assert_eq!(any("one-more"), None);
        assert!(matches!(register("one-more"), Err(NameError::TooMany(_))));
        assert_eq!(find("own-1"), Some("own-1"));
    }
}
