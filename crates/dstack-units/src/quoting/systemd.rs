//! Words of command lines and environments in systemd's units (systemd.service(5)).

use super::Unquotable;

/// Returns a word of `ExecStart=` or `Environment=`.
///
/// # Errors
/// It has a NUL, which no argument can have.
pub fn systemd_word(text: &str) -> Result<String, Unquotable> {
    if text.contains('\0') {
        return Err(Unquotable {
            value: text.to_owned(),
            format: "a unit of systemd",
        });
    }
    let mut word = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => word.push_str("\\\""),
            '\\' => word.push_str("\\\\"),
            // Specifiers and variables.
            '%' => word.push_str("%%"),
            '$' => word.push_str("$$"),
            '\n' => word.push_str("\\n"),
            '\r' => word.push_str("\\r"),
            c if c.is_ascii_control() => word.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => word.push(c),
        }
    }
    word.push('"');
    Ok(word)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn specifiers_variables_and_lines_mean_nothing() {
        for (text, written) in [
            ("", r#""""#),
            ("plain", r#""plain""#),
            ("a b", r#""a b""#),
            ("100%h $HOME", r#""100%%h $$HOME""#),
            (r#"say "\""#, r#""say \"\\\"""#),
            ("a\nExecStartPost=x", r#""a\nExecStartPost=x""#),
            ("\u{1b}", r#""\x1b""#),
        ] {
            assert_eq!(systemd_word(text).as_deref(), Ok(written), "{text:?}");
        }
        assert!(systemd_word("a\0").is_err());
    }

    proptest! {
        #[test]
        fn a_word_is_one_line_between_two_quotes(text in "[^\0]{0,40}") {
            let word = systemd_word(&text).unwrap();
            prop_assert!(!word.contains(['\n', '\r']));
            let inner = &word[1..word.len() - 1];
            let unescaped = inner.replace("\\\\", "").replace("\\\"", "");
            prop_assert!(!unescaped.contains('"'));
        }
    }
}
