/// Longest text of an API that is shown, in characters.
const LONGEST: usize = 600;

/// What an API says, in one line of bounded length.
pub fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_one_line_that_is_not_too_long() {
        assert_eq!(one_line(" no\n  room "), "no room");
        assert_eq!(one_line(&"é".repeat(9_000)).chars().count(), LONGEST);
    }
}
