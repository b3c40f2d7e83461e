//! Values that differ from run to run, remembered in pairs: what was recorded, and what is now.

use std::collections::HashMap;
use std::sync::LazyLock;

use regex::{Captures, Regex};
use serde_json::Value;

/// UUIDs and times, also inside longer texts.
#[allow(clippy::expect_used)] // a constant
static TOKEN: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(concat!(
        r"(?P<uuid>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})",
        r"|(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?)",
        r"|(?P<key>-----BEGIN [A-Z ]+-----[\s\S]*?-----END [A-Z ]+-----|ssh-(?:rsa|ed25519) [A-Za-z0-9+/=]+)",
    ))
    .expect("valid")
});

/// The pairs of one suite so far.
#[derive(Debug, Clone, Default)]
pub struct Pairs {
    actual_of: HashMap<String, String>,
    recorded_of: HashMap<String, String>,
}

impl Pairs {
    /// Whether two texts are equal but for their UUIDs, times and keys, and these agree with what was paired
    /// before. New pairs are remembered.
    pub fn equal(&mut self, recorded: &str, actual: &str) -> bool {
        let (ours, theirs) = (tokens(recorded), tokens(actual));
        if ours.rest != theirs.rest || ours.tokens.len() != theirs.tokens.len() {
            return false;
        }
        let pairs = ours.tokens.iter().zip(&theirs.tokens);
        pairs.fold(true, |equal, (a, b)| equal & self.pair(a, b))
    }

    /// Remembers a pair whatever its kind: for values that are free (generated names).
    pub fn remember(&mut self, recorded: &str, actual: &str) {
        self.actual_of.insert(recorded.to_owned(), actual.to_owned());
    }

    /// Whether a recorded text was remembered to be this one now.
    pub fn stands_for(&self, recorded: &str, actual: &str) -> bool {
        self.actual_of.get(recorded).is_some_and(|known| known == actual)
    }

    /// A recorded text with everything remembered replaced by what it is now.
    pub fn translate(&self, recorded: &str) -> String {
        if let Some(actual) = self.actual_of.get(recorded) {
            return actual.clone();
        }
        let replace = |found: &Captures<'_>| {
            let token = &found[0];
            self.actual_of
                .get(token)
                .map_or_else(|| token.to_owned(), Clone::clone)
        };
        TOKEN.replace_all(recorded, replace).into_owned()
    }

    /// [`Pairs::translate`] for every text in a value.
    pub fn translate_value(&self, recorded: &Value) -> Value {
        match recorded {
            Value::String(text) => Value::String(self.translate(text)),
            Value::Array(items) => items.iter().map(|item| self.translate_value(item)).collect(),
            Value::Object(fields) => fields
                .iter()
                .map(|(key, value)| (self.translate(key), self.translate_value(value)))
                .collect(),
            other => other.clone(),
        }
    }

    fn pair(&mut self, recorded: &Token, actual: &Token) -> bool {
        if recorded.kind != actual.kind {
            return false;
        }
        // Two moments may fall together in one run and not in the other; two things never share a UUID.
        if recorded.kind == Kind::Uuid {
            let known = self
                .recorded_of
                .entry(actual.text.clone())
                .or_insert_with(|| recorded.text.clone());
            if *known != recorded.text {
                return false;
            }
        }
        let known = self
            .actual_of
            .entry(recorded.text.clone())
            .or_insert_with(|| actual.text.clone());
        *known == actual.text
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Uuid,
    Time,
    Key,
}

struct Token {
    kind: Kind,
    text: String,
}

/// A text taken apart: its tokens, and what remains without them.
struct Taken {
    tokens: Vec<Token>,
    rest: String,
}

fn tokens(text: &str) -> Taken {
    let kind = |found: &Captures<'_>| match (found.name("uuid"), found.name("time")) {
        (Some(_), _) => Kind::Uuid,
        (_, Some(_)) => Kind::Time,
        _ => Kind::Key,
    };
    let found = TOKEN.captures_iter(text).map(|found| Token {
        kind: kind(&found),
        text: found[0].to_owned(),
    });
    Taken {
        tokens: found.collect(),
        rest: TOKEN.replace_all(text, "\u{0}").into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "11111111-1111-4111-8111-111111111111";
    const B: &str = "22222222-2222-4222-8222-222222222222";
    const C: &str = "33333333-3333-4333-8333-333333333333";

    #[test]
    fn a_pair_once_made_is_required() {
        let mut pairs = Pairs::default();
        assert!(pairs.equal(A, B));
        assert!(pairs.equal(A, B));
        assert!(!pairs.equal(A, C), "the recorded one was paired with another");
        assert!(
            !pairs.equal(C, B),
            "one of now cannot stand for two recorded ones"
        );
    }

    #[test]
    fn moments_may_fall_together() {
        let mut pairs = Pairs::default();
        assert!(pairs.equal("2026-11-21T08:14:48.429928Z", "2026-11-22T00:00:00Z"));
        assert!(pairs.equal("2026-11-21T08:14:48.429929Z", "2026-11-22T00:00:00Z"));
        assert!(!pairs.equal("2026-11-21T08:14:48.429929Z", "2026-11-22T00:00:01Z"));
    }

    #[test]
    fn kinds_and_the_text_around_must_agree() {
        let mut pairs = Pairs::default();
        assert!(!pairs.equal(A, "2026-11-22T00:00:00Z"));
        assert!(!pairs.equal(A, "x"));
        assert!(pairs.equal(&format!("run {A} gone"), &format!("run {B} gone")));
        assert!(!pairs.equal(&format!("run {A} gone"), &format!("job {B} gone")));
    }

    #[test]
    fn recorded_values_in_requests_become_those_of_now() {
        let mut pairs = Pairs::default();
        assert!(pairs.equal(A, B));
        assert_eq!(pairs.translate(&format!("Bearer {A}")), format!("Bearer {B}"));
        assert_eq!(pairs.translate(C), C);
    }
}
