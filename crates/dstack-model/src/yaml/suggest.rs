//! Which of some words was meant.

use crate::decode::{Loc, Problem};

impl Problem {
    /// Returns what may have been meant instead of an unknown key, tag or value.
    pub fn suggestion(&self) -> Option<&str> {
        let found = match self.kind.as_ref() {
            "extra_forbidden" => match self.loc.last() {
                Some(Loc::Key(key)) => Some(key.as_ref()),
                _ => None,
            },
            "union_tag_invalid" => self.ctx.as_ref()?.get("tag")?.as_str(),
            "enum" | "literal_error" => self.input.as_str(),
            _ => None,
        };
        nearest(found?, self.expected.iter().map(String::as_str))
    }
}

/// The nearest of the candidates, if it is near enough: at most a third of its letters differ.
fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    candidates
        .map(|candidate| (distance(&word, &candidate.to_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= candidate.chars().count().div_ceil(3).min(3))
        .min_by_key(|(distance, candidate)| (*distance, candidate.len()))
        .map(|(_, candidate)| candidate)
}

/// Letters to add, drop, replace, or swap with their neighbour, to get from one word to the other.
fn distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.iter().enumerate() {
        let mut next = vec![i.saturating_add(1)];
        for (j, b) in to.iter().enumerate() {
            let at = |row: &[usize], j: usize| row.get(j).copied().unwrap_or(usize::MAX);
            let mut best = at(&row, j).saturating_add(usize::from(a != b));
            best = best.min(at(&row, j.saturating_add(1)).saturating_add(1));
            best = best.min(at(&next, j).saturating_add(1));
            let swapped = i > 0
                && j > 0
                && from.get(i.wrapping_sub(1)) == Some(b)
                && to.get(j.wrapping_sub(1)) == Some(a);
            if swapped {
                best = best.min(at(&before, j.wrapping_sub(1)).saturating_add(1));
            }
            next.push(best);
        }
        before = std::mem::replace(&mut row, next);
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_meant() {
        let keys = ["commands", "resources", "gpu", "env", "image"];
        let nearest = |word| nearest(word, keys.iter().copied());
        assert_eq!(nearest("comands"), Some("commands"));
        assert_eq!(nearest("gpus"), Some("gpu"));
        assert_eq!(nearest("Resource"), Some("resources"));
        assert_eq!(nearest("iamge"), Some("image"));
        assert_eq!(nearest("schedule"), None);
    }

    #[test]
    fn a_tag_of_a_union_gets_a_suggestion() {
        let value = serde_json::json!({"type": "lambdaa"});
        let mut problem = Problem::new("union_tag_invalid", "Input tag 'lambdaa' found", &value);
        problem.ctx = Some(serde_json::json!({"tag": "lambdaa"}));
        problem.expected = vec!["aws".to_owned(), "lambda".to_owned()];
        assert_eq!(problem.suggestion(), Some("lambda"));
        problem.kind = "missing".into();
        assert_eq!(problem.suggestion(), None);
    }

    #[test]
    fn distances() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "abc"), 0);
        assert_eq!(distance("ab", "ba"), 1);
    }
}
