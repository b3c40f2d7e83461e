//! Numbers and texts as the published files write them (Python's `int`, `float`, `repr`, `str`).
//!
//! The reading rules of the format are those of Python's parsers, and the messages of a refused filter are compared
//! by clients, so both are kept here word for word.

use std::borrow::Cow;

/// Drops `_` between digits, as Python's number grammar allows; `None` when one stands elsewhere.
fn without_separators(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('_') {
        return Some(Cow::Borrowed(text));
    }
    let bytes = text.as_bytes();
    let is_digit = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_digit);
    let well_placed = bytes
        .iter()
        .enumerate()
        .all(|(at, byte)| *byte != b'_' || (is_digit(at.checked_sub(1)) && is_digit(at.checked_add(1))));
    well_placed.then(|| Cow::Owned(text.replace('_', "")))
}

/// An integer in Python's grammar: blanks around, a sign, `_` between digits.
pub(crate) fn parse_int(text: &str) -> Result<i64, String> {
    let invalid = || format!("invalid literal for int() with base 10: {}", repr(text));
    let digits = without_separators(text.trim()).ok_or_else(invalid)?;
    digits.parse().map_err(|_| invalid())
}

/// A float in Python's grammar: blanks around, `_` between digits, exponents, `nan`, `inf`.
pub(crate) fn parse_float(text: &str) -> Result<f64, String> {
    let invalid = || format!("could not convert string to float: {}", repr(text));
    let digits = without_separators(text.trim()).ok_or_else(invalid)?;
    digits.parse().map_err(|_| invalid())
}

/// `true` or `false` in any case.
pub(crate) fn parse_bool(text: &str) -> Result<bool, String> {
    if text.eq_ignore_ascii_case("true") {
        Ok(true)
    } else if text.eq_ignore_ascii_case("false") {
        Ok(false)
    } else {
        Err(format!("Not a boolean: {}", repr(text)))
    }
}

/// A text in quotes, as Python's `repr` shows it.
pub(crate) fn repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut shown = String::with_capacity(text.len() + 2);
    shown.push(quote);
    for c in text.chars().take(200) {
        match c {
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            '\\' => shown.push_str("\\\\"),
            c if c == quote => {
                shown.push('\\');
                shown.push(c);
            }
            c if c.is_ascii_control() => shown.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => shown.push(c),
        }
    }
    shown.push(quote);
    shown
}

/// A float as Python's `str` writes it: shortest digits, always a point or an exponent.
pub(crate) fn float_text(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let exponent = scientific
        .split_once('e')
        .and_then(|(_, exponent)| exponent.parse::<i32>().ok())
        .unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let mantissa = scientific.split('e').next().unwrap_or_default();
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs());
    }
    let plain = value.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_the_grammar_of_the_files() {
        assert_eq!(parse_int(" 1_000 "), Ok(1000));
        assert_eq!(parse_int("+4"), Ok(4));
        assert_eq!(
            parse_int("4.0"),
            Err("invalid literal for int() with base 10: '4.0'".to_owned())
        );
        assert!(parse_int("_4").is_err() && parse_int("4_").is_err() && parse_int("4__0").is_err());
        assert_eq!(parse_float(" 1_0.5e1 "), Ok(105.0));
        assert!(parse_float("nan").unwrap().is_nan());
        assert_eq!(
            parse_float("it's"),
            Err("could not convert string to float: \"it's\"".to_owned())
        );
        assert_eq!(parse_bool("TRUE"), Ok(true));
        assert!(parse_bool("1").is_err());
    }

    #[test]
    fn floats_are_written_as_the_files_have_them() {
        for (value, text) in [
            (0.526, "0.526"),
            (31.2, "31.2"),
            (16.0, "16.0"),
            (0.0, "0.0"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (-2.5, "-2.5"),
        ] {
            assert_eq!(float_text(value), text);
        }
    }
}
