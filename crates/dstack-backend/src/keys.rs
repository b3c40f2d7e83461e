/// Type and key of a line of `authorized_keys`, without its comment: the same key in whatever way it is written.
pub fn bare_key(line: &str) -> String {
    let parts: Vec<&str> = line.split_whitespace().take(2).collect();
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_is_not_part_of_a_key() {
        assert_eq!(bare_key("ssh-ed25519  AAAA somebody else\n"), "ssh-ed25519 AAAA");
        assert_eq!(bare_key(""), "");
    }
}
