//! Names that the server makes up: `<adjective>-<animal>-<n>`.

use dstack_system::Random;

const ADJECTIVES: [&str; 48] = [
    "amber", "ancient", "bold", "brave", "bright", "brisk", "calm", "clever", "cosmic", "crisp", "daring",
    "eager", "early", "fancy", "fast", "fierce", "fresh", "gentle", "golden", "grand", "happy", "hidden",
    "honest", "humble", "jolly", "keen", "kind", "light", "lively", "lucky", "mellow", "mighty", "modest",
    "nimble", "noble", "plain", "proud", "quick", "quiet", "rapid", "shy", "silent", "smart", "steady",
    "swift", "warm", "wild", "wise",
];
const ANIMALS: [&str; 48] = [
    "badger", "beaver", "bison", "bobcat", "cat", "cheetah", "crane", "deer", "dingo", "dolphin", "eagle",
    "falcon", "ferret", "finch", "fox", "gecko", "goose", "hare", "hawk", "heron", "ibex", "jackal",
    "jaguar", "koala", "lemur", "lion", "lynx", "marten", "mole", "moose", "newt", "orca", "otter", "owl",
    "panda", "panther", "puffin", "quail", "rabbit", "raven", "seal", "shrew", "stoat", "swan", "tiger",
    "turtle", "vole", "wolf",
];

/// A name without its number.
pub fn stem(random: &Random) -> String {
    let pick = |words: &[&'static str; 48]| {
        let index = usize::try_from(random.below(48)).unwrap_or(0);
        words.get(index).copied().unwrap_or("plain")
    };
    format!("{}-{}", pick(&ADJECTIVES), pick(&ANIMALS))
}

/// The first name `<stem>-<n>`, from 1, that is not taken.
pub fn numbered(stem: &str, taken: impl Fn(&str) -> bool) -> String {
    let mut number = 1_u64;
    loop {
        let name = format!("{stem}-{number}");
        if !taken(&name) {
            return name;
        }
        number += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_free_number_is_taken() {
        assert_eq!(numbered("brave-fox", |name| name == "brave-fox-1"), "brave-fox-2");
        let stem = stem(&Random::seeded(3));
        assert!(stem.chars().all(|c| c.is_ascii_lowercase() || c == '-') && stem.len() <= 17);
    }
}
