//! Variables in texts: `${{ namespace.name }}`.
//!
//! `$$` is a `$`, so `$${{ x }}` stays as `${{ x }}`. Namespaces can be skipped: their references stay for whoever
//! knows their values later.

mod groups;

use std::collections::HashMap;

use dstack_units::number::quote_list;

pub use groups::{
    GroupMember, GroupReference, check_group_bounds, check_group_references, contains_group_reference,
    find_group_references, interpolate_groups,
};

/// Why a text cannot be filled in. Never contains values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InterpolateError {
    /// `${{` without `}}`; from there on.
    #[error("No pattern closing: {0}")]
    NotClosed(String),
    /// A reference that is not of the form `namespace.name`.
    #[error("Illegal reference name: {0}")]
    IllegalName(String),
    /// Names that nobody knows, in the order of the text.
    #[error("Failed to interpolate due to missing vars: {}", quote_list(.0))]
    Missing(Vec<String>),
    /// A node or replica that does not exist.
    #[error("Invalid reference {reference}: {reason}")]
    OutOfRange {
        /// The reference as it is written.
        reference: String,
        /// What is wrong with it, for people.
        reason: &'static str,
    },
    /// A node or replica whose address is not known yet.
    #[error("IP not available for {0}")]
    NoAddress(String),
}

/// Decides whether a name of a skipped namespace is one.
type NameCheck = fn(&str) -> bool;

/// What variables are known.
#[derive(Debug, Clone, Default)]
pub struct Interpolator {
    variables: HashMap<String, String>,
    skipped: Vec<(String, NameCheck)>,
}

impl Interpolator {
    /// Makes one that knows no variables.
    pub fn new() -> Self {
        Self::default()
    }

    /// Knows the variables of a namespace.
    #[must_use]
    pub fn namespace<K: AsRef<str>, V: Into<String>>(
        mut self,
        namespace: &str,
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        for (name, value) in variables {
            self.variables
                .insert(format!("{namespace}.{}", name.as_ref()), value.into());
        }
        self
    }

    /// Leaves references to a namespace as they are.
    #[must_use]
    pub fn skip(mut self, namespace: &str) -> Self {
        self.skipped.push((namespace.to_owned(), is_name));
        self
    }

    /// Leaves references to nodes and replicas of groups as they are.
    #[must_use]
    pub fn skip_groups(mut self) -> Self {
        self.skipped
            .push(("groups".to_owned(), groups::is_group_reference));
        self
    }

    /// Fills in a text.
    ///
    /// # Errors
    /// Broken references, and names that are not known.
    pub fn interpolate(&self, text: &str) -> Result<String, InterpolateError> {
        let (filled, missing) = self.interpolate_known(text)?;
        if missing.is_empty() {
            Ok(filled)
        } else {
            Err(InterpolateError::Missing(missing))
        }
    }

    /// Fills in a text; names that are not known become nothing and are answered.
    ///
    /// # Errors
    /// Broken references.
    pub fn interpolate_known(&self, text: &str) -> Result<(String, Vec<String>), InterpolateError> {
        let mut filled = String::with_capacity(text.len());
        let mut missing = Vec::new();
        let mut rest = text;
        while let Some(dollar) = rest.find('$') {
            let (before, from_dollar) = rest.split_at(dollar);
            if let Some(after) = from_dollar.strip_prefix("$$") {
                filled.push_str(before);
                filled.push('$');
                rest = after;
                continue;
            }
            let Some(opening) = rest.find("${{") else {
                break;
            };
            let (before, reference) = rest.split_at(opening);
            filled.push_str(before);
            let Some(closing) = reference.find("}}") else {
                return Err(InterpolateError::NotClosed(reference.to_owned()));
            };
            let (whole, after) = reference.split_at(closing.saturating_add(2));
            let name = whole
                .strip_prefix("${{")
                .and_then(|name| name.strip_suffix("}}"))
                .unwrap_or("")
                .trim();
            self.reference(name, whole, &mut filled, &mut missing)?;
            rest = after;
        }
        filled.push_str(rest);
        Ok((filled, missing))
    }

    fn reference(
        &self,
        name: &str,
        whole: &str,
        filled: &mut String,
        missing: &mut Vec<String>,
    ) -> Result<(), InterpolateError> {
        let root = namespace_root(name);
        let illegal = || InterpolateError::IllegalName(name.to_owned());
        if let Some((_, check)) = self.skipped.iter().find(|(namespace, _)| namespace == root) {
            if !check(name) {
                return Err(illegal());
            }
            filled.push_str(whole);
            return Ok(());
        }
        if !is_name(name) {
            return Err(illegal());
        }
        match self.variables.get(name) {
            Some(value) => filled.push_str(value),
            None => missing.push(name.to_owned()),
        }
        Ok(())
    }
}

/// `groups` of `groups[0].nodes[0].IP_ADDRESS`.
fn namespace_root(name: &str) -> &str {
    let first = name.split('.').next().unwrap_or("");
    first.split('[').next().unwrap_or("")
}

/// `namespace.name`: letters, digits and underscores, no digit first, exactly one dot.
pub fn is_name(text: &str) -> bool {
    let part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    text.split_once('.')
        .is_some_and(|(namespace, name)| part(namespace) && part(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fill(text: &str) -> Result<String, String> {
        Interpolator::new()
            .namespace("env", [("A", "1"), ("B_2", "two")])
            .skip("secrets")
            .skip_groups()
            .interpolate(text)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn fills_in() {
        // Expected values computed with dstack 0.22.5's interpolator.
        for (text, filled) in [
            ("plain", "plain"),
            ("${{ env.A }}", "1"),
            ("x${{env.A}}y${{  env.B_2  }}z", "x1ytwoz"),
            ("$$ ${{ env.A }}", "$ 1"),
            ("$${{ env.A }}", "${{ env.A }}"),
            ("$ {{ env.A }}", "$ {{ env.A }}"),
            ("a $HOME b", "a $HOME b"),
            ("$HOME ${{ env.A }}", "$HOME 1"),
            ("end$", "end$"),
            ("${{ secrets.T }}", "${{ secrets.T }}"),
            (
                "${{ groups[0].nodes[1].IP_ADDRESS }}",
                "${{ groups[0].nodes[1].IP_ADDRESS }}",
            ),
            ("$$$$", "$$"),
        ] {
            assert_eq!(fill(text).as_deref(), Ok(filled), "{text}");
        }
    }

    #[test]
    fn refuses() {
        for (text, message) in [
            (
                "${{ env.X }} ${{ run.Y }}",
                "Failed to interpolate due to missing vars: ['env.X', 'run.Y']",
            ),
            ("a ${{ env.A", "No pattern closing: ${{ env.A"),
            ("${{ env }}", "Illegal reference name: env"),
            ("${{ env.a.b }}", "Illegal reference name: env.a.b"),
            ("${{ env.1a }}", "Illegal reference name: env.1a"),
            ("${{ secrets.a-b }}", "Illegal reference name: secrets.a-b"),
            ("${{ groups[0].x }}", "Illegal reference name: groups[0].x"),
        ] {
            assert_eq!(fill(text), Err(message.to_owned()), "{text}");
        }
    }

    proptest! {
        #[test]
        fn text_without_dollars_stays(text in "[^$]*") {
            prop_assert_eq!(fill(&text).unwrap(), text);
        }

        #[test]
        fn never_panics(text in "[${} a-c.\\[\\]0]{0,30}") {
            let _ = fill(&text);
        }
    }
}
