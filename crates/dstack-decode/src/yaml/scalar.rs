//! What a plain scalar means: the rules of YAML 1.1 as PyYAML applies them.
//!
//! They differ from YAML 1.2: `yes`, `on` and their like are booleans, `010` is 8, `1:30` is 90, `1e3` is a text.

/// The meaning of a plain scalar.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Scalar {
    /// `~`, `null`, nothing.
    Null,
    /// `yes`, `off`, `true`.
    Bool(bool),
    /// `12`, `0x1f`, `1:30`.
    Int(i128),
    /// `2.5`, `1.0e+3`.
    Float(f64),
    /// `2026-01-31`, with or without a time.
    Timestamp,
    /// `<<`.
    Merge,
    /// Anything else.
    Text,
}

/// Tells what a plain scalar means.
pub(super) fn resolve(text: &str) -> Scalar {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Scalar::Null,
        "<<" => return Scalar::Merge,
        "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => return Scalar::Bool(true),
        "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Scalar::Bool(false);
        }
        _ => {}
    }
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.')) {
        return Scalar::Text;
    }
    float(text)
        .map(Scalar::Float)
        .or_else(|| int(text).map(Scalar::Int))
        .or_else(|| is_timestamp(text).then_some(Scalar::Timestamp))
        .unwrap_or(Scalar::Text)
}

fn split_sign(text: &str) -> (i8, &str) {
    match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    }
}

fn all(text: &str, allowed: impl Fn(u8) -> bool) -> bool {
    text.bytes().all(allowed)
}

fn digit_or_underscore(byte: u8) -> bool {
    byte.is_ascii_digit() || byte == b'_'
}

/// Digits of base 60 after the first: `[0-5]?[0-9]`.
fn is_sexagesimal(part: &str) -> bool {
    match part.as_bytes() {
        [low] => low.is_ascii_digit(),
        [high, low] => (b'0'..=b'5').contains(high) && low.is_ascii_digit(),
        _ => false,
    }
}

fn int(text: &str) -> Option<i128> {
    let (sign, unsigned) = split_sign(text);
    let sign = i128::from(sign);
    let plain = unsigned.replace('_', "");
    let radix = |digits: &str, radix: u32| {
        i128::from_str_radix(digits, radix)
            .ok()
            .and_then(|n| n.checked_mul(sign))
    };
    if let Some(digits) = unsigned.strip_prefix("0b") {
        return (!digits.is_empty() && all(digits, |b| matches!(b, b'0' | b'1' | b'_')))
            .then(|| radix(plain.get(2..)?, 2))?;
    }
    if let Some(digits) = unsigned.strip_prefix("0x") {
        return (!digits.is_empty() && all(digits, |b| b.is_ascii_hexdigit() || b == b'_'))
            .then(|| radix(plain.get(2..)?, 16))?;
    }
    if unsigned == "0" {
        return Some(0);
    }
    if let Some(digits) = unsigned.strip_prefix('0') {
        let octal = all(digits, |b| (b'0'..=b'7').contains(&b) || b == b'_');
        return octal.then(|| radix(&plain, 8))?;
    }
    let mut parts = unsigned.split(':');
    let first = parts.next()?;
    if !first.starts_with(|c: char| c.is_ascii_digit()) || !all(first, digit_or_underscore) {
        return None;
    }
    let mut value: i128 = first.replace('_', "").parse().ok()?;
    for part in parts {
        if !is_sexagesimal(part) {
            return None;
        }
        value = value.checked_mul(60)?.checked_add(part.parse().ok()?)?;
    }
    value.checked_mul(sign)
}

fn float(text: &str) -> Option<f64> {
    let (sign, unsigned) = split_sign(text);
    let sign = f64::from(sign);
    match unsigned {
        ".inf" | ".Inf" | ".INF" => return Some(sign * f64::INFINITY),
        ".nan" | ".NaN" | ".NAN" if unsigned.len() == text.len() => return Some(f64::NAN),
        _ => {}
    }
    let (whole, fraction) = unsigned.split_once('.')?;
    if let Some((first, rest)) = whole.split_once(':') {
        return sexagesimal_float(first, rest, fraction).map(|value| value * sign);
    }
    let (fraction, exponent) = match fraction.find(['e', 'E']) {
        Some(at) => (fraction.get(..at)?, fraction.get(at..)?),
        None => (fraction, ""),
    };
    let signless_fraction_only = whole.is_empty() && unsigned.len() != text.len();
    let starts_with_digit = |part: &str| part.starts_with(|c: char| c.is_ascii_digit());
    let digits_fit = if whole.is_empty() {
        starts_with_digit(fraction)
    } else {
        starts_with_digit(whole)
    };
    if signless_fraction_only
        || !digits_fit
        || !all(whole, digit_or_underscore)
        || !all(fraction, digit_or_underscore)
    {
        return None;
    }
    if !exponent.is_empty() {
        // YAML 1.1 wants the exponent's sign: `1.0e3` is a text.
        let digits = exponent.get(1..)?.strip_prefix(['+', '-'])?;
        if digits.is_empty() || !all(digits, |b| b.is_ascii_digit()) {
            return None;
        }
    }
    let plain = format!("{whole}.{fraction}{exponent}").replace('_', "");
    plain.parse::<f64>().ok().map(|value| value * sign)
}

fn sexagesimal_float(first: &str, rest: &str, fraction: &str) -> Option<f64> {
    if !first.starts_with(|c: char| c.is_ascii_digit()) || !all(first, digit_or_underscore) {
        return None;
    }
    let parts: Vec<&str> = rest.split(':').collect();
    if !parts.iter().all(|part| is_sexagesimal(part)) || !all(fraction, digit_or_underscore) {
        return None;
    }
    let mut value: f64 = first.replace('_', "").parse().ok()?;
    for part in parts {
        value = value * 60.0 + part.parse::<f64>().ok()?;
    }
    let fraction: f64 = format!("0.{}0", fraction.replace('_', "")).parse().ok()?;
    Some(value + fraction)
}

/// `2026-01-31`, or with one or two digits and a time: `2026-1-3 4:05:06.7 +01:00`.
fn is_timestamp(text: &str) -> bool {
    let (date, time) = match text.find(['T', 't', ' ', '\t']) {
        Some(at) => (text.get(..at).unwrap_or(""), text.get(at..)),
        None => (text, None),
    };
    let lengths: Vec<usize> = date.split('-').map(str::len).collect();
    let digits = date.split('-').all(|part| all(part, |b| b.is_ascii_digit()));
    match (lengths.as_slice(), time) {
        (&[4, 2, 2], None) => digits,
        (&[4, 1 | 2, 1 | 2], Some(time)) => {
            let clock = time.trim_start_matches(['T', 't', ' ', '\t']);
            let mut parts = clock.split(':');
            let two = |part: Option<&str>| {
                part.is_some_and(|part| (1..=2).contains(&part.len()) && all(part, |b| b.is_ascii_digit()))
            };
            digits && two(parts.next()) && two(parts.next()) && parts.next().is_some()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn as_pyyaml_does() {
        for (text, meaning) in [
            ("yes", Scalar::Bool(true)),
            ("Off", Scalar::Bool(false)),
            ("y", Scalar::Text),
            ("tRue", Scalar::Text),
            ("~", Scalar::Null),
            ("", Scalar::Null),
            ("12", Scalar::Int(12)),
            ("-12", Scalar::Int(-12)),
            ("+1_000", Scalar::Int(1000)),
            ("010", Scalar::Int(8)),
            ("08", Scalar::Text),
            ("0o17", Scalar::Text),
            ("0x1F", Scalar::Int(31)),
            ("0b101", Scalar::Int(5)),
            ("1:30", Scalar::Int(90)),
            ("8080:22", Scalar::Int(484_822)),
            ("80:8080", Scalar::Text),
            ("2.5", Scalar::Float(2.5)),
            ("3.10", Scalar::Float(3.1)),
            ("1.", Scalar::Float(1.0)),
            (".5", Scalar::Float(0.5)),
            ("1e3", Scalar::Text),
            ("1.0e3", Scalar::Text),
            ("1.0e+3", Scalar::Float(1000.0)),
            ("1:30.5", Scalar::Float(90.5)),
            ("-.inf", Scalar::Float(f64::NEG_INFINITY)),
            ("2026-01-31", Scalar::Timestamp),
            ("2026-1-31", Scalar::Text),
            ("2026-1-31 10:00:00", Scalar::Timestamp),
            ("24GB..", Scalar::Text),
            ("1..8", Scalar::Text),
            ("-", Scalar::Text),
            ("1.2.3", Scalar::Text),
            ("<<", Scalar::Merge),
        ] {
            assert_eq!(resolve(text), meaning, "{text}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "[-+0-9._:eExbTZ ]{0,12}") {
            let _ = resolve(&text);
        }
    }
}
