//! Which of some words was meant.

/// The nearest of the candidates, if it is near enough: at most a third of its letters differ.
pub(super) fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
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
    fn distances() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "abc"), 0);
        assert_eq!(distance("ab", "ba"), 1);
    }
}
