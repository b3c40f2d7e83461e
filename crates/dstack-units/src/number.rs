//! Numbers written as the configuration language writes them: Python's rules for text to number and back.

use crate::error::ParseError;

/// Text to integer: blanks around, a sign, digits with single underscores between them. With a fraction only
/// if `fraction` is set, and then only of zeros (`5.0`).
pub fn parse_int(text: &str, fraction: bool) -> Option<i64> {
    let trimmed = text.trim();
    let whole = match trimmed.split_once('.') {
        Some((whole, zeros)) if fraction && !zeros.is_empty() && zeros.bytes().all(|b| b == b'0') => whole,
        Some(_) => return None,
        None => trimmed,
    };
    let (negative, digits) = match whole.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, whole.strip_prefix('+').unwrap_or(whole)),
    };
    let plain = without_underscores(digits)?;
    if plain.is_empty() || !plain.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let value: i128 = plain.parse().ok()?;
    i64::try_from(if negative { -value } else { value }).ok()
}

/// Text to float as Python's `float()`: blanks around, `inf`, `nan`, exponents, single underscores between digits.
pub fn parse_float(text: &str) -> Option<f64> {
    let trimmed = text.trim();
    let plain = without_underscores(trimmed)?;
    let unsigned = plain.trim_start_matches(['+', '-']);
    let starts_well = unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let word = ["inf", "infinity", "nan"].contains(&unsigned.to_ascii_lowercase().as_str());
    (starts_well || word).then(|| plain.parse().ok())?
}

/// Text to float, with the error of Python's `float()`.
pub fn float_or_error(text: &str) -> Result<f64, ParseError> {
    parse_float(text)
        .ok_or_else(|| ParseError::new(format!("could not convert string to float: {}", quote(text))))
}

/// Drops underscores that stand between two digits; `None` when one stands elsewhere.
fn without_underscores(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let digit = |at: Option<usize>| at.and_then(|i| bytes.get(i)).is_some_and(u8::is_ascii_digit);
    for (at, byte) in bytes.iter().enumerate() {
        if *byte == b'_' && !(digit(at.checked_sub(1)) && digit(at.checked_add(1))) {
            return None;
        }
    }
    Some(text.replace('_', ""))
}

/// A float as Python prints it: shortest text that reads back, `1e+16` from 16 digits on, `1e-05` below 0.0001.
pub fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let magnitude = value.abs();
    if value != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let scientific = format!("{value:e}");
        let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        let (sign, digits) = match exponent.strip_prefix('-') {
            Some(digits) => ('-', digits),
            None => ('+', exponent),
        };
        return format!("{mantissa}e{sign}{digits:0>2}");
    }
    let plain = format!("{value}");
    if plain.contains('.') {
        plain
    } else {
        format!("{plain}.0")
    }
}

/// A text in quotes as Python's `repr` writes it.
pub fn quote(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut quoted = String::with_capacity(text.len().saturating_add(2));
    quoted.push(quote);
    for c in text.chars() {
        match c {
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            c if c == quote => {
                quoted.push('\\');
                quoted.push(c);
            }
            c => quoted.push(c),
        }
    }
    quoted.push(quote);
    quoted
}

/// A list of texts as Python's `repr` writes it: `['a', 'b']`.
pub fn quote_list<T: AsRef<str>>(texts: &[T]) -> String {
    let quoted: Vec<String> = texts.iter().map(|text| quote(text.as_ref())).collect();
    format!("[{}]", quoted.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_as_python_reads_them() {
        for (text, value) in [
            ("5", 5),
            (" 5 ", 5),
            ("1_000", 1000),
            ("+5", 5),
            ("-5", -5),
            ("05", 5),
            ("5.0", 5),
        ] {
            assert_eq!(parse_int(text, true), Some(value), "{text}");
        }
        for text in [
            "",
            "5.5",
            "abc",
            "0x10",
            "1e3",
            "5.",
            "_5",
            "1__0",
            "-",
            "99999999999999999999",
        ] {
            assert_eq!(parse_int(text, true), None, "{text}");
        }
        assert_eq!(parse_int("5.0", false), None);
    }

    #[test]
    fn floats_as_python_reads_and_prints_them() {
        for (value, text) in [
            (2.5, "2.5"),
            (3.0, "3.0"),
            (1e20, "1e+20"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (123_456_789_012_345_680.0, "1.2345678901234568e+17"),
            (0.0, "0.0"),
        ] {
            assert_eq!(float_repr(value), text);
            assert_eq!(parse_float(text), Some(value));
        }
        assert_eq!(parse_float("1_0"), Some(10.0));
        for text in ["", "abc", "1__0", "e5", "0x1"] {
            assert_eq!(parse_float(text), None, "{text}");
        }
    }

    #[test]
    fn quotes_as_python_does() {
        assert_eq!(quote("huge"), "'huge'");
        assert_eq!(quote("it's"), "\"it's\"");
        assert_eq!(quote_list(&["a", "b"]), "['a', 'b']");
    }
}
