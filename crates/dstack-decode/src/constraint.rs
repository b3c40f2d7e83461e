//! Bounds, lengths and patterns. Each check answers `None` after reporting a problem; absent values pass.

use std::sync::OnceLock;

use regex::Regex;
use serde_json::{Value, json};

use crate::Cx;

/// A number, or none.
pub trait Number {
    /// Its value; `None` when there is none to check.
    fn number(&self) -> Option<f64>;
}

macro_rules! numbers {
    ($($ty:ty),*) => {
        $(impl Number for $ty {
            #[allow(clippy::cast_precision_loss, clippy::cast_lossless)]
            fn number(&self) -> Option<f64> {
                Some(*self as f64)
            }
        })*
    };
}
numbers!(i64, u16, u32, u64, f64, i32, usize);

impl<T: Number> Number for Option<T> {
    fn number(&self) -> Option<f64> {
        self.as_ref().and_then(Number::number)
    }
}

/// Something with a length, or none.
pub trait Length {
    /// Its length; `None` when there is none to check.
    fn length(&self) -> Option<usize>;
    /// Whether it is a text (else a list).
    const TEXT: bool;
    /// Its text, if it is one.
    fn text(&self) -> Option<&str> {
        None
    }
}

impl Length for String {
    fn length(&self) -> Option<usize> {
        Some(self.chars().count())
    }
    const TEXT: bool = true;
    fn text(&self) -> Option<&str> {
        Some(self)
    }
}

impl<T> Length for Vec<T> {
    fn length(&self) -> Option<usize> {
        Some(self.len())
    }
    const TEXT: bool = false;
}

impl<T: Length> Length for Option<T> {
    fn length(&self) -> Option<usize> {
        self.as_ref().and_then(Length::length)
    }
    const TEXT: bool = T::TEXT;
    fn text(&self) -> Option<&str> {
        self.as_ref().and_then(Length::text)
    }
}

/// A bound as the reference prints it.
pub trait Bound: Copy {
    /// Returns the bound as it is compared.
    fn value(self) -> f64;
    /// Returns the bound as it is printed in messages and schemas.
    fn json(self) -> Value;
}

impl Bound for i64 {
    #[allow(clippy::cast_precision_loss)]
    fn value(self) -> f64 {
        self as f64
    }
    fn json(self) -> Value {
        json!(self)
    }
}

impl Bound for i32 {
    fn value(self) -> f64 {
        f64::from(self)
    }
    fn json(self) -> Value {
        json!(self)
    }
}

impl Bound for f64 {
    fn value(self) -> f64 {
        self
    }
    fn json(self) -> Value {
        json!(self)
    }
}

/// At least `bound`.
pub fn ge(number: &impl Number, bound: impl Bound, input: &Value, cx: &mut Cx) -> Option<()> {
    let fits = number.number().is_none_or(|number| number >= bound.value());
    check(
        fits,
        "greater_than_equal",
        "greater than or equal to",
        "ge",
        bound,
        input,
        cx,
    )
}

/// More than `bound`.
pub fn gt(number: &impl Number, bound: impl Bound, input: &Value, cx: &mut Cx) -> Option<()> {
    let fits = number.number().is_none_or(|number| number > bound.value());
    check(fits, "greater_than", "greater than", "gt", bound, input, cx)
}

/// At most `bound`.
pub fn le(number: &impl Number, bound: impl Bound, input: &Value, cx: &mut Cx) -> Option<()> {
    let fits = number.number().is_none_or(|number| number <= bound.value());
    check(
        fits,
        "less_than_equal",
        "less than or equal to",
        "le",
        bound,
        input,
        cx,
    )
}

fn check(
    fits: bool,
    kind: &'static str,
    words: &str,
    key: &str,
    bound: impl Bound,
    input: &Value,
    cx: &mut Cx,
) -> Option<()> {
    if fits {
        return Some(());
    }
    let bound = bound.json();
    cx.problem_with(
        kind,
        format!("Input should be {words} {bound}"),
        input,
        json!({ key: bound }),
    )
}

/// At least `least` characters or items.
pub fn min_len<T: Length>(value: &T, least: usize, input: &Value, cx: &mut Cx) -> Option<()> {
    let Some(actual) = value.length().filter(|length| *length < least) else {
        return Some(());
    };
    if T::TEXT {
        let msg = format!("String should have at least {least} character{}", plural(least));
        return cx.problem_with("string_too_short", msg, input, json!({"min_length": least}));
    }
    let msg = format!(
        "List should have at least {least} item{} after validation, not {actual}",
        plural(least)
    );
    let ctx = json!({"field_type": "List", "min_length": least, "actual_length": actual});
    cx.problem_with("too_short", msg, input, ctx)
}

/// At most `most` characters or items.
pub fn max_len<T: Length>(value: &T, most: usize, input: &Value, cx: &mut Cx) -> Option<()> {
    let Some(actual) = value.length().filter(|length| *length > most) else {
        return Some(());
    };
    if T::TEXT {
        let msg = format!("String should have at most {most} character{}", plural(most));
        return cx.problem_with("string_too_long", msg, input, json!({"max_length": most}));
    }
    let msg = format!(
        "List should have at most {most} item{} after validation, not {actual}",
        plural(most)
    );
    let ctx = json!({"field_type": "List", "max_length": most, "actual_length": actual});
    cx.problem_with("too_long", msg, input, ctx)
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Matches a regular expression.
pub fn pattern<T: Length>(
    value: &T,
    compiled: &OnceLock<Option<Regex>>,
    pattern: &str,
    input: &Value,
    cx: &mut Cx,
) -> Option<()> {
    let regex = compiled.get_or_init(|| Regex::new(pattern).ok());
    let fits = match (value.text(), regex) {
        (Some(text), Some(regex)) => regex.is_match(text),
        _ => true,
    };
    if fits {
        return Some(());
    }
    let msg = format!("String should match pattern '{pattern}'");
    cx.problem_with("string_pattern_mismatch", msg, input, json!({"pattern": pattern}))
}
